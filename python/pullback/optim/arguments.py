"""Checks the Parameters and gradients that are passed to an optimizer, and explains what is wrong with others."""

from __future__ import annotations

from collections.abc import Iterator, ValuesView
from numbers import Real
from typing import Any, Final

from ..duck import attribute, has
from ..errors import DeviceError, DTypeError, PullbackError, ShapeError, an
from ..tensors import dtypes
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tree import flatten, in_order, shown, structure, with_nones

_CALLS: Final = {"from_torch": "from_torch(torch_opt, model.parameters())", "Accumulator": "Accumulator(model.parameters())"}


def trainable(name: str, params: Any, group: str = "") -> list[Parameter]:
    """Returns the trainable Parameters in `params`, each once. At least one of them must be trainable, unless this is a group.

    name: that of the caller in error messages. group: the beginning of messages about a group.

    Raises PullbackError, DTypeError, DeviceError.
    """
    call = _CALLS.get(name, f"{name}(model.parameters(), lr=1e-3)")
    name, leaves = group or name, in_order(params)
    for p in leaves:
        if not isinstance(p, Parameter):
            # A Module or its method, a learning rate in the place of the Parameters, or the names of named_parameters()
            others = (
                has(p, "parameters")
                or attribute(p, "__name__", "") == "parameters"
                or isinstance(p, str)
                or (p is params and isinstance(p, Real))
            )
            instead = (
                "Give model.parameters(), which lists those of a Module: "
                + ('{"params": model.parameters()}.' if group else f"optim.{call}.")
                if others
                else "Make it with pb.Parameter(value)."
            )
            if isinstance(p, (set, frozenset)):
                instead = "A set has no order: give a list."
            raise PullbackError(
                f"{name}: a {type(p).__name__} among the parameters; only a pb.Parameter can be updated in place. {instead}"
            )
    unique = list({id(p): p for p in leaves if p.trainable}.values())
    if not unique and not group:
        raise PullbackError(f"{name}: there are no trainable parameters to update.")
    for p in unique:
        if p.device != unique[0].device:
            raise DeviceError(
                f"{name}: {unique[0].label()} is on {unique[0].device}, {p.label()} on {p.device}; the parameters of an optimizer "
                f"must be on one device. Move them with Module.to, or make an optimizer for each device."
            )
        if not dtypes.is_float(p.dtype):
            raise DTypeError(
                f"{name}: {p.label()} has dtype {p.dtype}; only floating-point Parameters can be trained. Make it with "
                f"dtype=pb.float32, or leave it out with trainable=False."
            )
    return unique


def dicts(name: str, params: Any) -> tuple[Any, list[tuple[str, list[int], dict[str, Any]]]]:
    """Returns the Parameters in torch's list of groups, and the groups as (name, indices of parameters, own values).

    A group is a dict with the Parameters under "params". Anything else is returned unchanged, without groups. Raises PullbackError.
    """
    given = params if isinstance(params, (list, tuple)) else [params]
    if not any([isinstance(group, dict) and "params" in group for group in given]):
        return params, []
    flat: list[Parameter] = []
    groups: list[tuple[str, list[int], dict[str, Any]]] = []
    for i, group in enumerate(given):
        if not isinstance(group, dict) or "params" not in group:
            raise PullbackError(f'{name}: item {i} of the list of groups is no dict with an entry "params", as others are.')
        given_here = group["params"]
        listed = list(given_here) if isinstance(given_here, (Iterator, ValuesView)) else given_here
        mine = trainable(name, listed, f"{name}: group {i}")
        for p in mine:
            if any([p is other for other in flat]):
                raise PullbackError(f"{name}: {p.label()} is in two groups of parameters; put it into one.")
        own = {key: value for key, value in group.items() if key not in ("params", "name")}
        groups.append((str(group.get("name", i)), list(range(len(flat), len(flat) + len(mine))), own))
        flat += mine
    if not flat:
        raise PullbackError(f"{name}: there are no trainable parameters to update.")
    return flat, groups


def names(params: list[Parameter]) -> list[str]:
    """Returns the names of the Parameters in a state_dict. All names get a number if two of them are equal."""
    found = [str(p.name or f"parameter{i}") for i, p in enumerate(params)]
    return found if len(set(found)) == len(found) else [f"{i}.{name}" for i, name in enumerate(found)]


MISSING: Final = object()  # what `step` takes for its gradients if it is called without any


def refuse_bare(grads: Any, call: str) -> None:
    """Raises PullbackError for what cannot hold gradients, such as the loss or a function, and for a dict of Parameters.

    call: the method that was called: "opt.step".
    """
    owner, name = call.split(".")
    if grads is MISSING or grads is None:
        raise PullbackError(
            f"{name}: no gradients were given, and Parameters keep none. Write {call}(tape.gradient(loss, {owner}.parameters))"
            + (", or opt.minimize(f) for a function f that computes the loss." if name == "step" else ".")
        )
    if callable(grads):
        raise PullbackError(
            f"{name}: {an(grads)} was given, and not a list of gradients. "
            + (
                "opt.minimize(f) calls a function f that computes the loss, and does a step."
                if name == "step"
                else f"Compute the loss inside `with pb.GradientTape() as tape:`, and give tape.gradient(loss, {owner}.parameters)."
            )
        )
    if has(grads, "gradient"):
        raise PullbackError(
            f"{name}: {an(grads)} was given, and not a list of gradients. Write {call}(tape.gradient(loss, {owner}.parameters))."
        )
    if has(grads, "shape"):
        raise PullbackError(
            f"{name}: a {type(grads).__name__} of shape {tuple(grads.shape)} was given, and not a list of gradients. A loss is "
            f"differentiated first: {call}(tape.gradient(loss, {owner}.parameters)). The gradient of one parameter comes in a "
            f"list: {call}([g])."
        )
    if isinstance(grads, dict) and any([isinstance(key, Parameter) for key in grads]):
        raise PullbackError(
            f"{name}: the gradients came in a dict that has Parameters as its keys. Give them in a list in the order of "
            f"{owner}.parameters, with None for a Parameter without one: {call}([grads.get(p) for p in {owner}.parameters])."
        )


def of_arguments(error: TypeError, args: tuple[Any, ...]) -> TypeError:
    """Returns the error of a function of the loss that does not take the arguments that `minimize` was given for it."""
    if not any([isinstance(x, Parameter) for x in flatten(args)[0]]):
        return error
    return TypeError(
        f"minimize: {error}. What follows the function are its arguments. The Parameters to update are always opt.parameters, so "
        f"write opt.minimize(f)."
    )


_LEAVES: Final = {Tensor, type(None)}
_KINDS: Final = {"opt": "optimizer", "acc": "Accumulator"}


class Form:
    """The structure of an optimizer's `params`, in which gradients may be passed. call: the method that takes them."""

    def __init__(self, params: Any, parameters: list[Parameter], call: str = "opt.step") -> None:
        self._call = call
        self._count = len(parameters)
        self._structure = structure(params)
        self._shown = shown(params)
        places = {id(p): place for place, p in reversed(list(enumerate(with_nones(params))))}
        self._parameters = parameters
        self._places = [places[id(p)] for p in parameters]

    def one_each(self, grads: Any) -> list[Any]:
        """Returns one gradient, or None, for each parameter. Raises ShapeError, PullbackError.

        A dict is matched by its keys. It must therefore have the structure that the optimizer was made with, because a list of
        parameters has no names to match.
        """
        if grads.__class__ is list and len(grads) == self._count and {g.__class__ for g in grads} <= _LEAVES:
            return grads  # This is what a tape returns for opt.parameters: by far the most frequent form. The rest costs 3 µs.
        refuse_bare(grads, self._call)
        if isinstance(grads, (Iterator, ValuesView)):
            grads = list(grads)
        if not _is_list(grads):
            if structure(grads) != self._structure:
                owner, name = self._call.split(".")
                raise ShapeError(
                    f"{name}: the gradients have the structure {shown(grads)}, and this {_KINDS[owner]} was made with "
                    f"{self._shown}. Give them in that structure, or in a list in the order of {owner}.parameters: "
                    f"{self._call}(tape.gradient(loss, {owner}.parameters))."
                )
            found = with_nones(grads)
            return [found[place] for place in self._places]
        found = with_nones(grads)
        if len(found) != self._count:  # A None may also be an empty node of the structure instead of a gradient.
            found = flatten(grads)[0]
        if len(found) != self._count:
            pairs = any([isinstance(g, Parameter) for g in found])
            owner, name = self._call.split(".")
            bare = f", without the Parameters: {self._call}(gradients), and not {self._call}(zip(gradients, parameters))."
            raise ShapeError(
                f"{name}: {len(found)} gradients for {self._count} parameters; give one for each, in the order of "
                f"{owner}.parameters" + (bare if pairs else ".")
            )
        if any([g is p for g, p in zip(found, self._parameters)]):
            owner, name = self._call.split(".")
            raise PullbackError(
                f"{name}: the Parameters themselves were given for their gradients. Write "
                f"{self._call}(tape.gradient(loss, {owner}.parameters))."
            )
        return found


def _is_list(grads: Any) -> bool:
    """True unless `grads` is or contains a dict or a dataclass: lists and tuples, also nested, are matched by their order."""
    return not (isinstance(grads, dict) or has(grads, "__dataclass_fields__")) and (
        not isinstance(grads, (list, tuple)) or all([_is_list(g) for g in grads])
    )
