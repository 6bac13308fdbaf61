"""Nested lists, tuples, dicts and dataclasses as flat lists of leaves: by optree, behind a shortcut for lists of tensors."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from .errors import ShapeError
from .tensor import Parameter, Tensor

LEAVES: Final[set[type]] = {Tensor, Parameter}  # classes that are known to be leaves
_NAMESPACE: Final = "pullback"  # optree's, for the dataclasses that we have met


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves, and what `unflatten` needs to put them back. None is a leaf."""
    kind = tree.__class__
    if kind in LEAVES:
        return [tree], None
    if (kind is list or kind is tuple) and all([x.__class__ in LEAVES for x in tree]):
        return list(tree), kind
    return _by_optree(tree)


def _by_optree(tree: Any) -> tuple[list[Any], Any]:
    import optree

    leaves, spec = optree.tree_flatten(tree, none_is_leaf=True, namespace=_NAMESPACE)
    return _by_optree(tree) if _met_dataclasses(leaves) else (leaves, spec)


def _met_dataclasses(leaves: list[Any]) -> bool:
    """Registers the classes of those that are among the leaves. Their fields are nodes, but names and functions are structure."""
    kinds = {type(x) for x in leaves if dataclasses.is_dataclass(x) and not isinstance(x, type)}
    for kind in kinds:
        _register(kind)
    return bool(kinds)


def _register(kind: Any) -> None:
    import optree

    names = [field.name for field in dataclasses.fields(kind)]

    def taken_apart(x: Any) -> tuple[list[Any], Any]:
        fixed = {name: getattr(x, name) for name in names if isinstance(getattr(x, name), str) or callable(getattr(x, name))}
        free = tuple([name for name in names if name not in fixed])
        return [getattr(x, name) for name in free], (free, tuple(fixed.items()))

    def put_together(facts: Any, children: Any) -> Any:
        free, fixed = facts
        x = object.__new__(kind)
        for name, value in (*fixed, *zip(free, children)):
            object.__setattr__(x, name, value)
        return x

    optree.register_pytree_node(kind, taken_apart, put_together, namespace=_NAMESPACE)


def unflatten(spec: Any, leaves: list[Any]) -> Any:
    """The structure that `flatten` took apart, with these leaves."""
    if spec is None:
        return leaves[0]
    if spec is list:
        return leaves
    if spec is tuple:
        return tuple(leaves)
    import optree

    return optree.tree_unflatten(spec, leaves)


def structure(tree: Any) -> Any:
    """What nested lists, tuples, dicts of one structure have in common, to be compared. None is a leaf."""
    return _by_optree(tree)[1]


def shown(tree: Any) -> str:
    """The structure in words, with * for each leaf."""
    return str(structure(tree)).removeprefix("PyTreeSpec(").partition(", NoneIsLeaf")[0]


def prefix_leaves(prefix: Any, spec: Any, leaves: list[Any], name: str) -> list[Any]:
    """What a structure that may end above the leaves says of each leaf. Raises ShapeError where it does not fit."""
    if prefix is None or isinstance(prefix, int):
        return [prefix] * len(leaves)
    import optree

    try:
        whole = unflatten(spec, leaves)
        return optree.broadcast_prefix(prefix, whole, is_leaf=lambda x: x is None, none_is_leaf=True, namespace=_NAMESPACE)
    except ValueError as error:
        raise ShapeError(f"{name}={prefix!r} does not have the structure of what it is for: {error}") from None
