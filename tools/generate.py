"""Writes the derived files: the work of kernels (ops/_counts.py, optim/_counts.py), the stubs for type checkers, and the table of
ops in docs/reproducibility.md.

Run it after changing a row of csrc/math/*.def, a public name or the declaration of an op: python tools/generate.py [--check]
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pullback.autodiff.primitive import OPS
from pullback.backends import native

PACKAGE = Path(__file__).parent.parent / "python" / "pullback"
REPRODUCIBILITY = PACKAGE.parent.parent / "docs" / "reproducibility.md"
BEGIN, END = "<!-- the table of ops: written by tools/generate.py -->", "<!-- end of the table of ops -->"
# Modules from which users import names that are defined elsewhere. A type checker takes such a name for private unless a stub
# says `import a as a`, and it cannot see names that are imported at their first use.
EXPORTING = ("", "nn", "nn.functional", "optim", "data", "profiling", "linalg", "random", "solve")
TENSOR = "pullback.tensors.tensor"
DECLARING = ("elementwise", "gamma")  # modules of ops whose public functions are the results of declarations


COUNTED = (
    '"""The work of one element in each {kernel}: (additions, multiplications, special ops), measured by running its\n'
    'functor on the counting scalar{more}.\n\nWritten by tools/generate.py; a test compares it with the native module.\n"""\n\n'
    "from typing import Final\n\n"
    "{name}: Final[dict[str, tuple[{kinds}]]] = {{\n{rows}}}\n"
)


def counted(name: str, kernel: str, table: dict[str, tuple[int, ...]], more: str = "") -> str:
    """Returns the text of a module with the work per element of each kernel in a table. more: what further figures are."""
    rows = "".join(f'    "{row}": {figures},\n' for row, figures in sorted(table.items()))
    kinds = ", ".join(["int"] * len(next(iter(table.values()))))
    return COUNTED.format(name=name, kernel=kernel, rows=rows, kinds=kinds, more=more)


ACTIVATIONS = (
    "\n# The activations that `linear` fuses. An activation's number is its position.\nACTIVATIONS: Final = (None, {names})\n"
)


def activations() -> str:
    return ACTIVATIONS.format(names=", ".join(f'"{name}"' for name in native.module.activations[1:]))


# ---- stubs of modules that only import names


def stub(source: Path, module: ModuleType) -> str:
    """Returns the stub of a package that only imports names. The stub imports each name again in the form that makes it public."""
    lines = [line for node in ast.parse(source.read_text()).body for line in exports(node, module)]
    used = [line for name, line in (("numpy", "import numpy"), ("Any", "from typing import Any")) if name in "".join(lines)]
    return page(source.name, [*used, "", *lines])


def page(source: str, lines: list[str]) -> str:
    return "\n".join([f"# Written by tools/generate.py from {source}.", "# ruff: noqa", *lines]) + "\n"


def exports(node: ast.stmt, module: Any) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.level and (node.module or "").rpartition(".")[2] != "exports":
        home = "." * node.level + (node.module or "")
        for name in node.names:
            public = name.asname or name.name
            if public == "*":  # mypy does not read an `__all__` that is computed
                names = importlib.import_module(home, module.__package__).__all__
                yield from [f"from {home} import {each} as {each}" for each in names]
            elif public in module.__all__ and public != name.name:  # `import a as b` would make b private
                yield f"{public}: {kind(getattr(module, public))}"
            elif public in module.__all__:
                yield from imported(home, public, getattr(module, public))
    elif isinstance(node, ast.Assign):
        names = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        if names == ["_LATE"]:
            yield from late(ast.literal_eval(node.value), module)
        elif names != ["__all__"]:
            yield from [f"{name}: {kind(getattr(module, name))}" for name in names if not _private(name)]
    elif isinstance(node, ast.FunctionDef) and not _private(node.name) and node.name != "__getattr__":
        yield f"def {node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns or ast.Name('Any'))}: ...".replace(
            "_Any", "Any"
        )


def imported(home: str, name: str, value: Any) -> list[str]:
    """Returns the stub lines of an imported name. pyright checks assignments to attributes of an object only, not of a module."""
    if isinstance(value, ModuleType) and type(value) is not ModuleType:
        kind = type(value).__name__
        return [f"from {home.rstrip('.')}.{name} import {kind} as _{kind}", f"{name}: _{kind}"]
    return [f"from {home} import {name} as {name}"]


def late(homes: dict[str, tuple[str, ...]], module: Any) -> Iterator[str]:
    """Yields the stub lines of the names that are imported when they are first used. `homes` maps each module to its names."""
    for home, names in homes.items():
        for name in names:
            value = getattr(module, name)
            if isinstance(value, np.dtype):
                yield f"{name}: {kind(value)}"
            elif isinstance(value, ModuleType):
                yield f"from {home[: -len(name)].rstrip('.') or '.'} import {name} as {name}"
            else:
                yield f"from {home} import {name} as {name}"


def kind(value: Any) -> str:
    """Returns the type of a value as an annotation."""
    if isinstance(value, np.dtype):
        return "numpy.dtype[Any]"
    return "None" if value is None else type(value).__name__


def _private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


# ---- stubs of functions that no `def` of their name defines: declared ops, and the methods that are attached to Tensor


def declarations(module: ModuleType) -> str:
    """Returns the stub of a module that declares ops by calls: each function with its signature and its docstring."""
    functions = [getattr(module, name) for name in module.__all__]
    return page(
        f"{module.__name__.rpartition('.')[2]}.py", [*imports(functions), *["\n" + defined(f.__name__, f) for f in functions]]
    )


def methods(kind: type) -> str:
    """Returns the stub of the methods and properties that ops/operators.py and interop/dispatch.py attach to Tensor."""

    def attached(x: Any) -> bool:
        return isinstance(x, type) or (
            inspect.isfunction(x) and inspect.unwrap(x).__code__.co_filename != sys.modules[TENSOR].__file__
        )

    found = {name: x for name, x in vars(kind).items() if attached(behind(x))}
    lines = [line for name, x in found.items() for line in ["", *defined(name, x, method=True).split("\n")]]
    lines = [f"    {line}".rstrip() for line in lines]
    has_hash = "    def __hash__(self) -> int: ...  # otherwise a class with __eq__ has none"
    return page("the class Tensor", [*imports(map(behind, found.values())), "", "class Methods:", has_hash, *lines])


def behind(x: Any) -> Any:
    """Returns the function or class that a property calls, and anything else as it is."""
    return x.fget if isinstance(x, property) else x


def defined(name: str, x: Any, method: bool = False) -> str:
    """Returns the `def` of a function, a method or a property, with its signature and its docstring."""
    f = behind(x)
    if isinstance(x, property):
        return (
            f"@property\ndef {name}(self) -> {f.__name__ if isinstance(f, type) else inspect.signature(f).return_annotation}: ..."
        )
    signature = inspect.signature(f)
    first, *rest = signature.parameters.values()
    if method:
        first = first.replace(name="self", annotation=first.empty)
    text, doc = f"def {name}{parameters([first, *rest])} -> {signature.return_annotation}:", inspect.getdoc(f)
    if name in ("__eq__", "__ne__"):  # those of object return a bool
        return f"{text} ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]"
    if name.startswith("__") or not doc:
        return f"{text} ..."
    return "\n".join([text, *[f"    {line}".rstrip() for line in f'"""{doc}"""'.split("\n")]])


def parameters(found: list[inspect.Parameter]) -> str:
    """Returns the parameters in parentheses. Annotations are strings and keep the words of the source."""
    return str(inspect.Signature([p if p.annotation is p.empty else p.replace(annotation=_Words(p.annotation)) for p in found]))


class _Words(str):
    """An annotation that `inspect` writes without quotes."""

    def __repr__(self) -> str:
        return str(self)


def imports(functions: Iterable[Any]) -> list[str]:
    """Returns the imports of the names in the annotations of these functions, which are the same as in the sources."""
    found: set[str] = set()
    for f in functions:
        source = inspect.unwrap(f)
        if isinstance(f, type):
            found.add(f"from {inspect.getmodule(inspect.unwrap(f.__init__)).__name__} import {f.__name__}")
            continue
        home = source.__globals__["__name__"]
        known = _imported(home)
        for annotation in source.__annotations__.values():
            for node in ast.walk(ast.parse(annotation)):
                if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
                    found.add(known.get(node.id, f"from {home} import {node.id}"))
    return sorted(found)


@cache
def _imported(module: str) -> dict[str, str]:
    """Returns the imports of a module by the name that each makes known."""
    package = module.split(".")
    nodes = [node for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))) if isinstance(node, ast.ImportFrom)]
    found: dict[str, str] = {}
    for node in nodes:
        home = ".".join([*package[: -node.level], *([node.module] if node.module else [])]) if node.level else node.module
        found |= {name.name: f"from {home} import {name.name}" for name in node.names if not name.asname}
    return found


def stubs() -> dict[Path, str]:
    """Returns the expected text of every stub, by path."""
    made: dict[Path, str] = {}
    for name in EXPORTING:
        place = PACKAGE.joinpath(*name.split("."))
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        made[source.with_suffix(".pyi")] = stub(source, importlib.import_module(f"pullback.{name}".rstrip(".")))
    for name in DECLARING:
        made[PACKAGE / "ops" / f"{name}.pyi"] = declarations(importlib.import_module(f"pullback.ops.{name}"))
    made[PACKAGE / "tensors" / "methods.pyi"] = methods(sys.modules[TENSOR].Tensor)
    return made


def with_ops(text: str) -> str:
    """Returns the page with a table between its marks that says, for each op, if it gives the same bits everywhere."""
    importlib.import_module("pullback.nn")  # Importing the modules declares their ops.
    importlib.import_module("pullback.ops.random")
    words = {op.name: "yes" if op.facts.same_bits is True else f"no: {op.facts.same_bits}" for op in OPS.values()}
    rows = "".join([f"| `{name}` | {OPS[name].kind.name} | {words[name]} |\n" for name in sorted(words)])
    found, count = re.subn(
        f"{BEGIN}.*?{END}", f"{BEGIN}\n| op | kind | same bits everywhere |\n|---|---|---|\n{rows}{END}", text, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"{REPRODUCIBILITY} needs one place between {BEGIN} and {END}.")
    return found


def main() -> int:
    files = stubs()
    if native.module is None:
        print(f"generate: without the native module the counts stay as they are ({native.reason})")
    else:
        files[REPRODUCIBILITY] = with_ops(REPRODUCIBILITY.read_text())
        files[PACKAGE / "ops" / "_counts.py"] = counted("COUNTS", "elementwise op", native.module.counts) + activations()
        files[PACKAGE / "optim" / "_counts.py"] = counted(
            "UPDATE_COUNTS",
            "update rule",
            native.module.update_counts,
            ", and the number of settings of a set that a step writes",
        )
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if "--check" not in sys.argv:
            path.write_text(files[path])
        print(f"{'stale' if '--check' in sys.argv else 'written'}: {path.relative_to(PACKAGE.parent.parent)}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
