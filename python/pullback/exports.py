"""Sets the names that a public module shows: `__all__`, what `dir()` lists, and the `__module__` of functions and classes."""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any, Final

from .interop.gate import gate_methods, gated
from .interop.unknown_names import answer

_PUBLIC: Final[set[str]] = set()  # the names of the packages that have exported something


def exported(namespace: dict[str, Any], *modules: ModuleType) -> list[str]:
    """Returns `__all__` for a public module with this namespace, whose `dir()` then lists these names and nothing else.

    The names are those in `__all__`, if the module sets it before, because it also defines names for the rest of the package. Of a
    module that only imports, they are all public names that it imported, but of modules only `modules`.

    Sets `__module__` of the functions and classes to the module. Tracebacks, pickles and documents then show the name that users
    import, and a definition can move without changing any of them. A name that the module lacks is answered with a hint, and so is
    a call whose arguments do not fit (see `gate.py`): in the namespace, each function is now behind its gate.
    """
    answer(namespace)
    found = [name for name, x in namespace.items() if name[0] != "_" and x is not exported]
    names = namespace.get("__all__") or [n for n in found if not isinstance(namespace[n], ModuleType) or namespace[n] in modules]
    for name in names:
        namespace[name] = adopt(namespace[name], namespace["__name__"])
    namespace["__dir__"] = lambda: sorted(namespace["__all__"])
    return sorted(names)


def adopt(value: Any, package: str) -> Any:
    """Returns what a package exports for a value: a function behind its gate, anything else itself.

    Sets `__module__` of a function or class of pullback. If several packages export it, the shortest path stays.
    """
    _PUBLIC.add(package)
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__.partition(".")[0] == "pullback":
        gate_methods(kind)
    value = gated(value)
    if isinstance(value, (FunctionType, type)) and value.__module__.startswith("pullback."):
        here = value.__module__
        if here not in _PUBLIC or package.count(".") < here.count("."):
            value.__module__ = package
        if isinstance(value, type):
            _name_forward(value)
    return value


def _name_forward(layer: Any) -> None:
    """Gives a layer its own copy of a `forward` that it inherits: Python's messages name the class that defines a function."""
    forward = getattr(layer, "forward", None)
    if not isinstance(forward, FunctionType) or "forward" in vars(layer):
        return
    own = FunctionType(forward.__code__, forward.__globals__, "forward", forward.__defaults__, forward.__closure__)
    own.__kwdefaults__, own.__doc__ = forward.__kwdefaults__, forward.__doc__
    own.__annotations__, own.__module__ = forward.__annotations__, forward.__module__
    own.__qualname__ = f"{layer.__qualname__}.forward"
    layer.forward = own
