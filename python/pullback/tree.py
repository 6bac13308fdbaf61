"""Nested lists, tuples, dicts and dataclasses as flat lists of leaves: by optree, behind a shortcut for lists of tensors.

None is an empty node: it has no leaf, and stays where it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from .errors import PullbackError, ShapeError
from .tensors.parameter import Parameter
from .tensors.tensor import Tensor

LEAVES: Final[set[type]] = {Tensor, Parameter}  # classes that are known to be leaves
_NAMESPACE: Final = "pullback"  # optree's, for the dataclasses that we have met


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves, and what `unflatten` needs to put them back."""
    kind = tree.__class__
    if kind in LEAVES:
        return [tree], None
    if (kind is list or kind is tuple) and all([x.__class__ in LEAVES for x in tree]):
        return list(tree), kind
    return _by_optree(tree)


def _by_optree(tree: Any, none_is_leaf: bool = False) -> tuple[list[Any], Any]:
    import optree

    try:
        leaves, spec = optree.tree_flatten(tree, none_is_leaf=none_is_leaf, namespace=_NAMESPACE)
    except ShapeError:  # from a comparison of two keys
        raise PullbackError(
            "a dict has tensors as its keys, which have no order by which it could be taken apart. Use strings or numbers as keys, "
            "or give a list."
        ) from None
    return _by_optree(tree, none_is_leaf) if _met_dataclasses(leaves) else (leaves, spec)


def with_nones(tree: Any) -> list[Any]:
    """The leaves, where None is one."""
    if tree.__class__ is list and all([x.__class__ in LEAVES for x in tree]):
        return list(tree)
    return _by_optree(tree, none_is_leaf=True)[0]


def in_order(tree: Any) -> list[Any]:
    """The leaves in the order in which the tree holds them: those of a dict as they were put in, and not by their keys."""
    parts = tree.values() if isinstance(tree, dict) else tree
    return [x for part in parts for x in in_order(part)] if isinstance(tree, (dict, list, tuple)) else flatten(tree)[0]


def leaves(tree: Any) -> list[Any]:
    """The leaves alone."""
    return flatten(tree)[0]


def map(f: Callable[..., Any], tree: Any, *more: Any) -> Any:
    """f of each leaf, and of what stands at its place in further trees of the same structure. Raises ShapeError."""
    found, spec = flatten(tree)
    for other in more:
        if _by_optree(other)[1] != _by_optree(tree)[1]:
            raise ShapeError(f"tree.map: the structures {shown(tree)} and {shown(other)} differ (* is one leaf).")
    return unflatten(spec, [f(*values) for values in zip(found, *[leaves(other) for other in more])])


def beside(tree: Any, given: Any) -> list[Any]:
    """What `given` has at the place of each leaf of the tree, where None is something to have: no tangent, no gradient.

    Of another structure it is all that it has.
    """
    if given.__class__ in LEAVES or (given.__class__ in (list, tuple) and all([x.__class__ in LEAVES for x in given])):
        return flatten(given)[0]
    own, found = [_by_optree(x, none_is_leaf=True)[0] for x in (tree, given)]
    return [g for x, g in zip(own, found) if x is not None] if len(own) == len(found) else found


def paths(tree: Any) -> list[str]:
    """The way to each leaf, as one writes it behind the tree: `["b"][1]`."""
    import optree

    return [accessor.codify("").replace("'", '"') for accessor in optree.treespec_accessors(_by_optree(tree)[1])]


def _met_dataclasses(leaves: list[Any]) -> bool:
    """Registers the classes of those that are among the leaves. Their fields are nodes, but names and functions are structure."""
    kinds = {type(x) for x in leaves if dataclasses.is_dataclass(x) and not isinstance(x, type)}
    for kind in kinds:
        _register(kind)
    return bool(kinds)


def _register(kind: Any) -> None:
    import optree

    names = [field.name for field in dataclasses.fields(kind)]

    def taken_apart(x: Any) -> tuple[list[Any], Any, Any]:
        fixed = {name: getattr(x, name) for name in names if isinstance(getattr(x, name), str) or callable(getattr(x, name))}
        free = tuple([name for name in names if name not in fixed])
        return [getattr(x, name) for name in free], (free, tuple(fixed.items())), free

    def put_together(facts: Any, children: Any) -> Any:
        free, fixed = facts
        x = object.__new__(kind)
        for name, value in (*fixed, *zip(free, children)):
            object.__setattr__(x, name, value)
        return x

    optree.register_pytree_node(
        kind, taken_apart, put_together, namespace=_NAMESPACE, path_entry_type=optree.GetAttrEntry
    )  # fmt: skip


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
    """What nested lists, tuples, dicts of one structure have in common, to be compared. None is a leaf, as a tensor is."""
    return _by_optree(tree, none_is_leaf=True)[1]


def shown(tree: Any) -> str:
    """The structure in words, with * for each leaf, and None where it is."""
    return str(_by_optree(tree)[1]).removeprefix("PyTreeSpec(").removesuffix(")").partition(", namespace=")[0]


def prefix_leaves(prefix: Any, spec: Any, leaves: list[Any], name: str) -> list[Any]:
    """What a structure that may end above the leaves says of each leaf. Raises ShapeError where it does not fit."""
    if prefix is None or isinstance(prefix, int):
        return [prefix] * len(leaves)
    import optree

    whole = unflatten(spec, leaves)
    try:
        found = optree.broadcast_prefix(prefix, whole, is_leaf=lambda x: x is None, none_is_leaf=True, namespace=_NAMESPACE)
    except ValueError as error:
        raise ShapeError(f"{name}={prefix!r} does not have the structure of what it is for: {error}") from None
    return [entry for entry, x in zip(found, _by_optree(whole, none_is_leaf=True)[0]) if x is not None]
