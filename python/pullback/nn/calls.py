"""Calls of a Module with other tensors in place of its Parameters, and the Parameters of several Modules as one stack."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from types import BuiltinFunctionType, FunctionType
from typing import Any

from ..errors import PullbackError, ShapeError, an, shown
from ..launch import capturing
from ..ops.movement import stack as joined
from ..tensors.operand import as_tensor
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from . import paths
from .buffer import Buffer
from .lent import check, claim, release
from .module import Module
from .walk import every_path, walk_modules


def functional_call(module: Module, parameters: Mapping[str, ArrayLike], /, *args: Any, **options: Any) -> Any:
    """Calls module(*args, **options) with other tensors in place of Parameters and Buffers.

    Args:
        parameters: tensors by the paths of `module.named_parameters()` and `module.state_dict()`. A Parameter that is used in
            several places is replaced in all of them, under whichever of its paths it is given. Those that are not given stay.

    The result is a function of the given tensors: `pb.grad`, `pb.vmap` (over the models of `nn.stack`, for example) and
    `pb.capture` see them as arguments. The module has its Parameters again afterwards, also after an error. In training mode the
    running values of a BatchNorm change as in any call; to differentiate by a dict of `state_dict()`, leave its Buffers out, which
    may be integers. While the call runs, no other thread may use the module, and its call is a PullbackError there. Raises
    PullbackError for a path that does not exist, ShapeError.
    """
    check(module)
    with _replaced(module, _by_identity(module, parameters)):
        return module(*args, **options)


def _by_identity(module: Any, parameters: Any) -> dict[int, Tensor]:
    """Returns the given tensors by the ids of the Parameters that they replace."""
    if not isinstance(module, Module) or not isinstance(parameters, Mapping):
        raise PullbackError(
            f"functional_call: got a {type(module).__name__} and a {type(parameters).__name__}; it takes a Module and a dict of "
            f"tensors by path, such as dict(net.named_parameters())."
        )
    held, found, first = dict(every_path(module, "")), dict[int, Tensor](), dict[int, str]()
    unknown = [path for path in parameters if path not in held]
    if unknown:
        raise PullbackError(
            f"functional_call: {type(module).__name__} has no Parameter {', '.join(map(repr, unknown))}. It has {', '.join(held)}."
        )
    for path, given in parameters.items():
        p, value = held[path], as_tensor(given)
        if value.shape != p.shape:
            raise ShapeError(f"functional_call: {path} has shape {p.shape}, and {value.shape} was given.")
        if found.setdefault(id(p), value) is not value and given is not parameters[first[id(p)]]:
            raise PullbackError(
                f"functional_call: {path} is the same Parameter as {first[id(p)]}, but two different tensors were given. Give one, "
                f"under either name."
            )
        first.setdefault(id(p), path)
    return found


@contextmanager
def _replaced(module: Module, values: Mapping[int, Tensor]) -> Generator[None]:
    """Puts tensors in place of Parameters, by their ids, and puts the Parameters back at the end.

    It writes to the Modules' dictionaries, because `__setattr__` refuses tensors there, and takes containers apart without changing
    them. `_places`, by which a Module notices Parameters that got lost in a container, is put aside meanwhile.
    """
    before: list[tuple[dict[str, Any], str, Any]] = []
    mine: list[int] = []
    try:
        for part in module.modules():
            claim(part, mine)
            here = vars(part)
            for name, value in list(here.items()):
                if (new := _with(value, values)) is not value:
                    if capturing.thread.recording is not None:
                        capturing.thread.recording.sets(part, name)
                    before.append((here, name, value))
                    here[name] = new
                    places = here.get("_places", {})
                    if name in places:
                        before.append((here, "_places", places))
                        here["_places"] = {key: kept for key, kept in places.items() if key != name}
        yield
    finally:
        for here, name, value in reversed(before):
            here[name] = value
        release(mine)


def _with(value: Any, values: Mapping[int, Tensor]) -> Any:
    """Returns the tensor that replaces a Parameter, or a copy of a container with Parameters replaced, or the value itself."""
    if isinstance(value, Parameter):
        return values.get(id(value), value)
    if isinstance(value, dict):
        items: Any = {key: _with(x, values) for key, x in value.items()}
        return items if any([items[key] is not x for key, x in value.items()]) else value
    if isinstance(value, (list, tuple)):
        items = [_with(x, values) for x in value]
        if all([a is b for a, b in zip(items, value)]):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def stack(models: Sequence[Module]) -> dict[str, Parameter]:
    """Returns the Parameters and Buffers of Modules of the same structure, by path, stacked along a new first axis.

    The stacks are new Parameters (and Buffers), which an optimizer can train: `pb.vmap(lambda p, x: nn.functional_call(net, p, x),
    in_axes=(0, None))(nn.stack(nets), x)` calls all models at once. They have the constraints and `trainable` of the models'
    Parameters; with one learning rate for each model (`lr=[0.1, 0.1]`) an optimizer applies a constraint to each of them.

    Raises PullbackError for models with other paths, layers, settings or modes, because the call is that of one of them, or with
    Parameters of another dtype, constraint or `trainable`; ShapeError.
    """
    given: list[Any] = [] if isinstance(models, Module) else list(models)
    if not given or not all([isinstance(model, Module) for model in given]):
        raise PullbackError("stack: takes a list of one or more Modules: nn.stack([nn.Linear(2, 3), nn.Linear(2, 3)]).")
    first, *rest = [dict(model._named_tensors()) for model in given]
    for i, other in enumerate(rest, 1):
        if [*other] != [*first]:
            differ = sorted({*first} ^ {*other}) or [*other]
            raise PullbackError(f"stack: model {i} has other Parameters than model 0: {', '.join(differ)}.")
        for path, p in first.items():
            if other[path].shape != p.shape:
                raise ShapeError(f"stack: {path} has shape {p.shape} in model 0, and {other[path].shape} in model {i}.")
            for what in ("dtype", "trainable", "constraint"):
                mine, its = getattr(p, what), getattr(other[path], what)
                if mine != its:
                    raise PullbackError(f"stack: {what} of {path} is {mine} in model 0, and {its} in model {i}. Make them equal.")
        _check_alike(given[0], given[i], i)
    found: dict[str, Parameter] = {}
    for path, p in first.items():
        whole = joined([p, *[other[path] for other in rest]])
        found[path] = Buffer(whole, path) if isinstance(p, Buffer) else Parameter(whole, path, p.trainable, p.constraint)
    return found


def _check_alike(model: Module, other: Module, i: int) -> None:
    """Raises PullbackError if model i computes something else than model 0: by other layers, settings, functions or modes."""
    for (path, mine), (its_path, its) in zip_longest(walk_modules(model, ""), walk_modules(other, ""), fillvalue=("", None)):
        if path != its_path or type(mine) is not type(its):
            kinds = [f"{an(x)} at {p!r}" if x is not None else "nothing" for p, x in ((path, mine), (its_path, its))]
            raise PullbackError(f"stack: model 0 has {kinds[0]}, and model {i} {kinds[1]}. The models must have the same layers.")
        here, there = _settings(mine), _settings(its)
        for name in {**here, **there}:
            if (a := here.get(name)) != (b := there.get(name)) and (a == a or b == b):
                a, b = [shown(getattr(x, name, None)) for x in (mine, its)]
                raise PullbackError(
                    f"stack: {paths.join(path, name)} is {a} in model 0, and {b} in model {i}. All are called as one of them, so "
                    f"it must be the same."
                )


def _settings(module: Any) -> dict[str, Any]:
    """Returns the mode of a Module, and those of its attributes that are numbers, strings, tuples of them, or functions."""
    found = {"training": module.training}
    for name, value in vars(module).items():
        parts = value if isinstance(value, tuple) else (value,)
        if name not in ("training", "_path", "_places") and all([isinstance(x, (str, int, float, type(None))) for x in parts]):
            found[name] = value
        elif isinstance(value, FunctionType):
            found[name] = value.__code__  # of a lambda, which each model makes anew
        elif isinstance(value, (type, BuiltinFunctionType)):
            found[name] = value
    return found
