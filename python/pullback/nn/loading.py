"""Assigns the weights of a state dictionary to the tensors of a Module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..duck import has
from ..errors import PullbackError, ShapeError
from ..interop.wrong_calls import flag
from ..launch import capturing
from ..tensors import devices
from ..tensors.creation import asarray
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor


def load(
    title: str, own: Mapping[str, Parameter], paths: Mapping[str, str], state: Any, strict: bool
) -> tuple[list[str], list[str]]:
    """Implements Module.load_state_dict for a Module of the class `title`.

    own: its tensors by name. paths: for each path to a tensor the tensor's name.
    """
    if not isinstance(state, Mapping):
        raise PullbackError(
            f"load_state_dict: the state is a {type(state).__name__}; give a dict of weights by name, as net.state_dict() and "
            f"pb.load(path) return it."
        )
    strict = flag("load_state_dict", "strict", strict)
    given = {path: name for path, name in paths.items() if path in state}
    found = set(given.values())
    missing, unexpected = [n for n in own if n not in found], [str(n) for n in state if n not in paths]
    instead = _renamed(own, paths, state) if missing and unexpected else ""
    if (strict and (missing or unexpected)) or (instead and not found):
        told = [f"{what} {', '.join(names)}" for what, names in (("missing", missing), ("unexpected", unexpected)) if names]
        remedy = "Load it into the same network, or pass strict=False to take what fits."
        raise PullbackError(f"load_state_dict: the names do not match those of {title}: {'; '.join(told)}. {instead or remedy}")
    values: dict[str, Any] = {}
    for path, name in given.items():
        _add_value(values, name, path, _array_of(path, state[path]), own[name].shape)
    for name, value in values.items():
        own[name].assign(Tensor(value))
    return missing, unexpected


def _renamed(own: Mapping[str, Any], paths: Mapping[str, Any], state: Mapping[Any, Any]) -> str:
    """Returns how a state gets names that fit, or "" if there is no simple way.

    Wrappers of networks, such as DataParallel and torch.compile, put a name of theirs before, or into, the names of the weights,
    and a checkpoint holds the state among other things.
    """
    for key, inside in state.items():
        if isinstance(inside, Mapping) and any([name in paths for name in inside]):
            return f"The weights are in the state's entry {key!r}: pass state[{key!r}]."
    names = [name for name in state if isinstance(name, str)]
    if head := _prefix(names, paths):
        return f'The names begin with "{head}". Strip it: {{name.removeprefix("{head}"): x for name, x in state.items()}}.'
    if head := _prefix(list(own), state):
        return f'The names lack "{head}". Put it before them: {{"{head}" + name: x for name, x in state.items()}}.'
    for part in ("_orig_mod.", "module."):
        if any([part in name and name.replace(part, "") in paths for name in names]):
            return f'The names contain "{part}". Remove it: {{name.replace("{part}", ""): x for name, x in state.items()}}.'
    return ""


def _prefix(names: Sequence[str], others: Mapping[Any, Any]) -> str:
    """Returns the words, with their dots, that all these names begin with, and behind which one has another name; "" if none."""
    parts = names[0].split(".") if names else []
    for k in range(1, len(parts)):
        head = ".".join(parts[:k]) + "."
        if all([name.startswith(head) for name in names]) and any([name.removeprefix(head) in others for name in names]):
            return head
    return ""


def _add_value(values: dict[str, Any], name: str, path: str, value: Any, shape: tuple[int, ...]) -> None:
    """Stores in `values`, under the tensor's name, the array that a state has at `path`. Raises ShapeError, PullbackError."""
    if value.shape != shape:
        raise ShapeError(f'load_state_dict: "{path}" has shape {value.shape} in the state, {shape} in the module.')
    first = values.setdefault(name, value)
    if first is value:
        return
    capturing.refuse(f'loading "{path}" and "{name}", which are one tensor,', "Give the state only one of them.")
    if not np.array_equal(devices.move(first, "cpu"), devices.move(value, "cpu"), equal_nan=True):
        raise PullbackError(
            f'load_state_dict: "{path}" is the same tensor as "{name}" in this network, but the state has other values for it.'
        )


def _array_of(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.array
    if isinstance(value, (np.ndarray, np.generic)) or has(value, "__array__") or has(value, "__dlpack__"):
        return asarray(value).array
    raise PullbackError(f'load_state_dict: "{name}" is a {type(value).__name__}; give a tensor or an array.')
