"""Nested lists, tuples and dicts as flat lists of leaves: optree's, behind a shortcut for a tensor or a list of tensors."""

from __future__ import annotations

from typing import Any

from .errors import ShapeError
from .tensor import Parameter, Tensor

_LEAVES = (Tensor, Parameter)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves, and what `unflatten` needs to put them back. None is a leaf."""
    kind = tree.__class__
    if kind in _LEAVES:
        return [tree], None
    if (kind is list or kind is tuple) and all([x.__class__ in _LEAVES for x in tree]):
        return list(tree), kind
    import optree

    leaves, spec = optree.tree_flatten(tree, none_is_leaf=True)
    return leaves, spec


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
    import optree

    return optree.tree_structure(tree, none_is_leaf=True)


def shown(tree: Any) -> str:
    """The structure in words, with * for each leaf."""
    return str(structure(tree)).removeprefix("PyTreeSpec(").removesuffix(", NoneIsLeaf)")


def prefix_leaves(prefix: Any, spec: Any, leaves: list[Any], name: str) -> list[Any]:
    """What a structure that may end above the leaves says of each leaf. Raises ShapeError where it does not fit."""
    if prefix is None or isinstance(prefix, int):
        return [prefix] * len(leaves)
    import optree

    try:
        return optree.broadcast_prefix(prefix, unflatten(spec, leaves), is_leaf=lambda x: x is None, none_is_leaf=True)
    except ValueError as error:
        raise ShapeError(f"{name}={prefix!r} does not have the structure of what it is for: {error}") from None
