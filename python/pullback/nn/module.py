"""Module: a function with Parameters, which are found in its attributes and named by their path."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from reprlib import recursive_repr
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, SupportsIndex, TypeVar
from weakref import WeakMethod

import numpy as np

from ..autodiff.site import warn
from ..errors import DeviceError, DTypeError, PrecisionWarning, PullbackError, ShapeError
from ..interop.gate import explain_arguments
from ..interop.unknown_names import HintingABC, attach_hints
from ..interop.wrong_calls import explain_not_callable, misfit, refused_by
from ..launch import capturing, door
from ..launch.mode import Mode
from ..ops._shapes import flag
from ..printable import printable
from ..tensors import devices, dtypes
from ..tensors.attached import attached
from ..tensors.parameter import Parameter
from ..tensors.precision import made, was_float64_array
from ..tensors.storage import followers_within
from ..tensors.tensor import Tensor, copied
from ..tree import flatten
from ..typing import ArrayLike, DTypeLike, P, R
from . import paths
from .attributes import check_attribute
from .buffer import Buffer
from .lent import check, lent
from .loading import load
from .walk import DEEP, every_path, give_paths, leaf_at, listing, module_of, tensors_in, walk_levels, walk_modules

if TYPE_CHECKING:
    from typing_extensions import Self


R_co = TypeVar("R_co", covariant=True)


class HasForward(Protocol[P, R_co]):
    """A Module as type checkers see it when it is called: the call takes and returns what its `forward` does."""

    @property
    def forward(self) -> Callable[P, R_co]: ...


class _Thread(threading.local):
    inside: bool = False  # True inside a Module that was called with a float64 array, so that inner Modules do not warn again


_thread: Final = _Thread()


class Path(str):
    """A name that a Module gave a Parameter. An enclosing Module may extend a Path, but not a name that the user chose."""

    __slots__ = ()


class _PathAfter(str):
    """The path of a Module, in whose pickle the Modules that are far inside come before all else that it holds."""

    deep: list[Module]

    def __new__(cls, path: str, deep: list[Module]) -> Self:
        made = str.__new__(cls, path)
        made.deep = deep
        return made

    def __reduce__(self) -> Any:
        return _path_after, (self.deep, str(self))


def _path_after(deep: list[Module], path: str) -> str:
    return path


class ModuleClass(HintingABC):
    """Metaclass of Module. The mode of new instances is set in the body of a class."""

    training: bool

    def __setattr__(cls, name: str, value: Any) -> None:
        if name != "training":
            super().__setattr__(name, value)
        elif value is not cls.training:  # a dataclass sets the default once more
            raise PullbackError(f"{cls.__name__}.training of the class is that of new instances. Call net.train() or net.eval().")


@explain_arguments
@attach_hints
class Module(metaclass=ModuleClass):
    """Base class of layers and networks. In `__init__`, set Parameters, Modules, or lists, tuples and dicts of them as attributes
    (there is no base `__init__` to call), and write `forward`. A transform of a layer, such as `pb.checkpoint(layer)`, may stand in
    the place of the layer, and so may a transform of a layer's method. A lambda or a `functools.partial` hides the layer in it.

    A Parameter can be replaced only by another Parameter or by None. Setting an attribute to anything else raises PullbackError at
    once. A list or a dict cannot refuse the value, so there the error comes from `parameters()`, `state_dict()` and everything
    else that collects Parameters.

    Parameters are named by their path, such as `"encoder.layers.0.weight"`. A Parameter without a name gets its path as its name.
    """

    training: bool = Mode(True)  # type: ignore[assignment]
    _path: str = ""  # from the outermost Module, for profiles
    _places: Mapping[str, Mapping[str, int]] = MappingProxyType({})  # serials of Parameters in containers, by attribute and path

    def __new__(cls, *args: Any, **options: Any) -> Self:
        made = object.__new__(cls)
        vars(made)["training"] = cls.training  # from the start, so that a captured function finds each mode in one place
        return capturing.made(made)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if isinstance(default := vars(cls).get("training"), bool):
            type.__setattr__(cls, "training", Mode(default))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Returns what a copy or a pickle is made of, which includes the mode and the settings.

        A pickle calls itself for each level. The Modules that are far inside are therefore written before those around them.
        """
        door.note_mode(self)
        if (recording := capturing.thread.recording) is not None:
            for name in vars(self):
                if name not in ("_path", "_places"):  # for profiles and messages
                    recording.fact(self, name)
        made_of: Any = super().__reduce_ex__(protocol)
        if id(self) in door.state.replaced and isinstance(made_of[2], dict):
            made_of = (*made_of[:2], {**made_of[2], "training": self.training}, *made_of[3:])
        deep = [module for _, module, level in walk_levels(self, "", DEEP) if level == DEEP]
        if not deep or not isinstance(made_of[2], dict):
            return made_of
        state = {"_path": _PathAfter(self._path, deep), **{key: x for key, x in made_of[2].items() if key != "_path"}}
        return (*made_of[:2], state, *made_of[3:])

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        """Returns a copy of the module and of all that it holds. The modules inside come first, so that no nest is too deep."""
        for module in reversed(self.modules()):
            if id(module) in memo:
                continue
            if type(module).__deepcopy__ is Module.__deepcopy__:
                copy._reconstruct(module, memo, *module.__reduce_ex__(4))  # type: ignore[attr-defined]  # what copy.deepcopy does
            else:
                copy.deepcopy(module, memo)
        return memo[id(self)]

    def __setattr__(self, name: str, value: Any) -> None:
        held = vars(self).get(name)
        check_attribute(self, name, held, value)
        if name in self._places or isinstance(value, (list, tuple, dict)):
            self._remember(name, value)
        if self._is_part(value) or isinstance(value, (list, tuple, dict)):
            give_paths(self, name, value)
        if self._is_part(value) or self._is_part(held):
            if value is held:  # For example, net.weight -= g has changed the Parameter in place.
                return
            what, made_now = f"setting {type(self).__name__}.{name}", value if held is None else None
            capturing.tell_change(what, "Use p.assign(value) to change a Parameter's value.", self, made_now)
        object.__setattr__(self, name, value)

    def _is_part(self, value: Any) -> bool:
        module = module_of(value)  # also of a transform
        return isinstance(value, Parameter) or (module is not None and module is not self)

    def _remember(self, name: str, value: Any) -> None:
        """Records where an attribute holds Parameters in lists, tuples and dicts. Raises PullbackError if one was lost there.

        A list cannot refuse an item as `__setattr__` refuses a value. The loss is therefore detected when the Parameters are next
        collected: for an optimizer, a state dictionary or a lookup by name.
        """
        now = {path: p.serial for path, p in tensors_in(value, name)}
        for path, serial in self._places.get(name, {}).items() if name in vars(self) else ():
            if path not in now and serial not in now.values() and (here := leaf_at(value, name, path)) is not None:
                raise PullbackError(
                    f"{type(self).__name__}.{path} held a Parameter, and a {type(here).__name__} in its place would be neither "
                    f"trained nor saved. Use p.assign(value) to change the Parameter's value, put a new pb.Parameter(value) there "
                    f"to replace it, or None to remove it."
                )
        places = {key: kept for key, kept in self._places.items() if key != name}
        if now and not isinstance(value, Parameter):
            places[name] = now
        object.__setattr__(self, "_places", places)

    def forward(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward method; define forward(self, x).")

    def __call__(self: HasForward[P, R], *args: P.args, **options: P.kwargs) -> R:
        module: Any = self
        for x in args:
            if (x.__class__ is np.ndarray or made) and was_float64_array(x) and not _thread.inside:
                return module._called_with_float64(args, options)
        if lent:
            check(module)
        if not door.profiling:
            try:
                return module.forward(*args, **options)
            except (ShapeError, DTypeError, DeviceError, RecursionError) as error:
                paths.say_where(error, module)
                raise
            except TypeError as error:
                if refused_by(error):
                    raise misfit(module.forward, args, options, error) from None
                explain_not_callable(error)
                raise
        door.note_mode(module)
        before = door.scope_now()
        try:
            try:
                door.enter_scope(paths.scope_of(module, before))
                return module.forward(*args, **options)
            except (ShapeError, DTypeError, DeviceError, RecursionError) as error:
                paths.say_where(error, module)
                raise
            except TypeError as error:
                if refused_by(error):
                    raise misfit(module.forward, args, options, error) from None
                explain_not_callable(error)
                raise
            finally:
                door.leave_scope(before)
        finally:  # This repeats the restore, because Ctrl-C may have interrupted the inner finally.
            door.leave_scope(before)

    def _called_with_float64(self, args: Any, options: Any) -> Any:
        """Calls an outermost Module, and warns if a float64 NumPy array made narrower Parameters compute in float64."""
        _thread.inside = True
        try:
            result = self(*args, **options)
        finally:
            _thread.inside = False
        widths = {p.dtype for p in self.parameters() if dtypes.is_float(p.dtype)}
        wide = any([isinstance(y, Tensor) and y.dtype == dtypes.float64 for y in flatten(result)[0]])
        if wide and widths and dtypes.float64 not in widths:
            warn(
                f"{type(self).__name__}: a NumPy array of dtype float64 was given to a network with Parameters of dtype "
                f"{', '.join(sorted(map(str, widths)))}, so that it computed in float64, and its gradients will: twice the memory, "
                f"half the speed. Convert the array with .astype(np.float32), or the network with .to(pb.float64).",
                PrecisionWarning,
            )
        return result

    # ---- contents

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """Yields (path, module) for the module itself, whose path is "", and for all modules inside, each once."""
        return walk_modules(self, "")

    def modules(self) -> list[Module]:
        """Returns the module itself and all modules inside, each once."""
        return [module for _, module in self.named_modules()]

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """Returns (path, Parameter) for each Parameter once, under the first path to it. Includes Parameters that are not
        trainable, but no Buffers.
        """
        return [(path, p) for path, p in self._named_tensors() if not isinstance(p, Buffer)]

    def parameters(self) -> list[Parameter]:
        """Returns all Parameters, each once, including those that are not trainable."""
        return [p for _, p in self.named_parameters()]

    def buffers(self) -> list[Buffer]:
        """Returns all Buffers, each once."""
        return [p for _, p in self._named_tensors() if isinstance(p, Buffer)]

    def _every_path(self) -> list[tuple[str, Parameter]]:
        return list(every_path(self, ""))

    def _named_tensors(self) -> list[tuple[str, Parameter]]:
        found: dict[int, tuple[str, Parameter]] = {}
        paths.give(self)
        for prefix, module in self.named_modules():
            for name, value in list(vars(module).items()):
                if name in module._places or (isinstance(value, (list, tuple, dict)) and name != "_places"):
                    module._remember(name, value)
                for path, p in tensors_in(value, paths.join(prefix, name)):
                    if id(p) not in found:
                        found[id(p)] = (path, p)
                        _give_name(p, path, self)
        return list(found.values())

    @property
    def trainable(self) -> bool:
        """True if all Parameters inside are trainable. Setting it sets `trainable` of each of them: False freezes the module."""
        return all([p.trainable for p in self.parameters()])

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        title = f"setting {type(self).__name__}.trainable"
        trainable = flag(title, "trainable", trainable, "It freezes all Parameters inside or trains them.")
        parameters = self.parameters()
        if not parameters:
            raise PullbackError(f"{title}: there are no Parameters inside, or none yet. Set it on a network that has some.")
        for p in parameters:
            dtypes.check_trainable(p.dtype, trainable)
        for p in parameters:
            p.trainable = trainable

    # ---- saving and loading

    def state_dict(self) -> dict[str, Tensor]:
        """Returns a copy of every Parameter and Buffer, by path. Further training does not change it.

        A tensor that is used in several places comes once, under the first of its paths. PyTorch lists it under each of them, and
        its `load_state_dict` requires them all: add the others to the dict for PyTorch. Ours takes one or all of them.
        """
        return {path: copied(p.array) for path, p in self._named_tensors()}

    def load_state_dict(self, state: Mapping[str, ArrayLike], strict: bool = True) -> tuple[list[str], list[str]]:
        """Assigns weights by path, from tensors or NumPy arrays, converting them to the module's dtypes and devices.

        Args:
            state: weights by dotted name, as `state_dict` returns them. A weight that is used in several places may be given under
                any of its paths or, as PyTorch writes it, under all of them with equal values.
            strict: requires every name of the module and no other.

        Returns: (missing names, unexpected names); both are empty if strict.
        Raises: PullbackError that lists missing and unexpected names, ShapeError. After an error nothing has changed.
        """
        own = dict(self._named_tensors())
        first = {id(p): name for name, p in own.items()}
        names = {path: first[id(p)] for path, p in self._every_path()}
        return load(type(self).__name__, own, names, state, strict)

    # ---- modes and devices

    def train(self, mode: bool = True) -> Self:
        """Sets training mode, in which dropout is active, for this module and all modules inside. Returns the module."""
        modules = self.modules()
        if not all([capturing.makes(module) for module in modules]):
            capturing.refuse("train() or eval()", "Call it outside: each mode is a recording of its own.")
        mode = flag("train", "mode", mode, "It sets the mode of the layers; training itself is a loop around opt.minimize(f).")
        for module in modules:
            door.note_mode(module)
            module.training = mode
        for optimizer in followers_within(self.parameters()):
            (optimizer.train if mode else optimizer.eval)()
        return self

    def eval(self) -> Self:
        """Sets evaluation mode for this module and all modules inside. Returns the module."""
        return self.train(False)

    def to(self, device_or_dtype: DTypeLike) -> Self:
        """Moves all Parameters and Buffers to a device, or converts the floating-point ones to a dtype, in place.

        Returns the module. Create optimizers afterwards: the state of an earlier optimizer stays on the previous device.
        Raises DTypeError for a dtype of integers, DeviceError.
        """
        to_device = isinstance(device_or_dtype, str) and device_or_dtype.partition(":")[0] in ("cpu", "cuda")
        target: Any = devices.check_device(device_or_dtype) if to_device else dtypes.as_dtype(device_or_dtype)
        if not (to_device or dtypes.is_float(target)):
            raise DTypeError(
                f"Module.to: weights of dtype {target} could not be trained. Give a floating-point dtype, or a device."
            )
        capturing.refuse("Module.to()", "Call it outside.")
        for _, p in self._named_tensors():
            if to_device:
                array = devices.move(p.array, target)
            else:
                with devices.working(p.device):
                    array = p.array.astype(target) if dtypes.is_float(p.dtype) and p.dtype != target else p.array
            if array is not p.array:
                capturing.tell_change("Module.to()", "Call it outside.", p)
                p.array, p.storage.placement = array, p.storage.placement + 1
                p.storage.changed()
        return self

    # ---- text

    def extra_repr(self) -> str:
        """Returns the text that repr shows between the parentheses, in addition to the modules inside."""
        return ""

    @recursive_repr()  # a Module inside may hold a transform of a method of this one
    def __repr__(self) -> str:
        return listing(self)

    def __str__(self) -> str:
        return printable(repr(self))


def _give_name(p: Parameter, path: str, module: Any) -> None:
    name = p.storage.name
    if name is None or (isinstance(name, Path) and f".{path}".endswith(f".{name}")):
        p.name = Path(path)
        p.storage.paths = WeakMethod(module._every_path)


attached.Module = Module
