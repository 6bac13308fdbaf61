"""Flattens nested lists, tuples, dicts and dataclasses to lists of leaves. optree does this, except for plain lists of tensors.

None is an empty node: it has no leaf, and stays in the structure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

from .errors import ArgumentError, PullbackError, ShapeError
from .exports import exported as _exported
from .tensors.parameter import Parameter
from .tensors.tensor import Tensor

__all__ = ["flatten", "leaves", "map", "unflatten"]

LEAVES: Final[set[type]] = {Tensor, Parameter}  # classes that are certain to be leaves
_NAMESPACE: Final = "pullback"  # the optree namespace in which dataclasses are registered when they first occur


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Returns the leaves, and the structure that `unflatten` needs to rebuild the tree."""
    kind = tree.__class__
    if kind in LEAVES:
        return [tree], None
    if (kind is list or kind is tuple) and all([x.__class__ in LEAVES for x in tree]):
        return list(tree), (kind, len(tree))
    return _by_optree(tree)


def _by_optree(tree: Any, none_is_leaf: bool = False) -> tuple[list[Any], Any]:
    import optree

    try:
        leaves, spec = optree.tree_flatten(tree, none_is_leaf=none_is_leaf, namespace=_NAMESPACE)
    except RecursionError:
        raise ArgumentError("lists, tuples or dicts contain themselves, or are nested too deeply to be taken apart.") from None
    except ShapeError:  # optree sorts the keys of a dict, and comparing two tensors may raise this.
        raise PullbackError(
            "a dict has tensors as its keys, which have no order by which it could be taken apart. Use strings or numbers as keys, "
            "or give a list."
        ) from None
    return _by_optree(tree, none_is_leaf) if _met_dataclasses(leaves) else (leaves, spec)


def with_nones(tree: Any) -> list[Any]:
    """Returns the leaves, counting None as a leaf."""
    if tree.__class__ is list and all([x.__class__ in LEAVES for x in tree]):
        return list(tree)
    return _by_optree(tree, none_is_leaf=True)[0]


def in_order(tree: Any) -> list[Any]:
    """Returns the leaves in the order of the tree. A dict counts in insertion order, not sorted by its keys."""
    parts = tree.values() if isinstance(tree, dict) else tree
    return [x for part in parts for x in in_order(part)] if isinstance(tree, (dict, list, tuple)) else flatten(tree)[0]


def leaves(tree: Any) -> list[Any]:
    """Returns the leaves."""
    return flatten(tree)[0]


def map(f: Callable[..., Any], tree: Any, *more: Any) -> Any:
    """Applies f to each leaf and to the corresponding leaves of further trees of the same structure.

    Raises ShapeError if the structures differ.
    """
    found, spec = flatten(tree)
    for other in more:
        if not alike(other, tree, none_is_leaf=False):
            raise ShapeError(f"tree.map: the structures {shown(tree)} and {shown(other)} differ (* is one leaf).")
    return unflatten(spec, [f(*values) for values in zip(found, *[leaves(other) for other in more])])


def beside(tree: Any, given: Any) -> list[Any]:
    """Returns the entry of `given` that corresponds to each leaf of the tree.

    An entry may be None: no tangent, no gradient. It may stand for a part of the tree with any number of leaves, if the structures
    are the same elsewhere. If the number of entries differs, it returns all entries of `given`.
    """
    if given.__class__ in LEAVES or (given.__class__ in (list, tuple) and all([x.__class__ in LEAVES for x in given])):
        return flatten(given)[0]
    own, found = [_by_optree(x, none_is_leaf=True)[0] for x in (tree, given)]
    if any([g is None for g in found]):
        found = _with_every_none(tree, given, found)
    return [g for x, g in zip(own, found) if x is not None] if len(own) == len(found) else found


def _with_every_none(tree: Any, given: Any, found: list[Any]) -> list[Any]:
    """Returns `found`, the entries of `given`, with one None for each leaf of the tree that a None in `given` stands for."""
    try:
        spread = _spread(given, tree)
    except ValueError:  # the structures differ
        return found
    before, after = [[id(g) for g in entries if g is not None] for entries in (found, spread)]
    return list(spread) if before == after else found  # only a None stands for several leaves


def paths(tree: Any) -> list[str]:
    """Returns the path to each leaf as Python code that follows the tree: `["b"][1]`."""
    import optree

    return [accessor.codify("").replace("'", '"') for accessor in optree.treespec_accessors(_by_optree(tree)[1])]


def named_leaves(tree: Any, what: str) -> list[tuple[str, Any]]:
    """Returns each leaf with its path as files name it, with dots between keys and positions: "b.1".

    Raises PullbackError for a key that a file cannot hold, because it is neither a string of valid Unicode nor an integer.
    what: the function that the error names.
    """
    import optree

    leaves, spec = _by_optree(tree)
    paths = [accessor.path for accessor in optree.treespec_accessors(spec)]
    return [(".".join([_name_of(key, what) for key in path]), x) for path, x in zip(paths, leaves)]


def _name_of(key: Any, what: str) -> str:
    if not isinstance(key, (str, int)) or (isinstance(key, str) and not is_unicode(key)):
        raise PullbackError(f"{what}: a key of a dict is {key!r}; keys are strings of valid Unicode or integers.")
    return str(key)


def is_unicode(text: str) -> bool:
    """False for a string with an unpaired surrogate, which has no bytes in UTF-8."""
    return not any(["\ud800" <= letter <= "\udfff" for letter in text])


def _met_dataclasses(leaves: list[Any]) -> bool:
    """Registers the classes of dataclasses among the leaves, and returns True if there are any.

    Their fields become nodes, except strings and functions, which become part of the structure.
    """
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
    )


def unflatten(spec: Any, leaves: Sequence[Any]) -> Any:
    """Rebuilds a tree of the structure that `flatten` returned, with these leaves. Raises ShapeError if their number differs."""
    count = 1 if spec is None else spec[1] if spec.__class__ is tuple else spec.num_leaves
    if len(leaves) != count:
        raise ShapeError(f"tree.unflatten: {len(leaves)} leaves for a structure of {count}. Give as many, in the order of flatten.")
    if spec is None:
        return leaves[0]
    if spec.__class__ is tuple:
        return spec[0](leaves)  # a new list or tuple
    import optree

    return optree.tree_unflatten(spec, leaves)


def structure(tree: Any) -> Any:
    """Returns the structure of a tree, for comparison with that of other trees. None is a leaf, as a tensor is."""
    return _by_optree(tree, none_is_leaf=True)[1]


def alike(a: Any, b: Any, *, none_is_leaf: bool = True) -> bool:
    """True if two trees have the same structure, in which a named tuple, as layers return, counts as a plain one."""
    first, second = [_by_optree(x, none_is_leaf)[1] for x in (a, b)]
    return bool(first == second or _by_optree(_unnamed(a), none_is_leaf)[1] == _by_optree(_unnamed(b), none_is_leaf)[1])


def _unnamed(tree: Any) -> Any:
    """Returns the tree with plain tuples in the place of the named ones."""
    import optree

    def plain(x: Any) -> Any:
        return tuple([_unnamed(y) for y in x]) if optree.is_namedtuple(x) else x

    return optree.tree_map(plain, tree, is_leaf=optree.is_namedtuple, none_is_leaf=True, namespace=_NAMESPACE)


def _spread(prefix: Any, tree: Any) -> Any:
    """Returns the entry of `prefix` for each leaf. Raises ValueError if the structures differ."""
    import optree

    trees = _unnamed(prefix), _unnamed(tree)
    return optree.broadcast_prefix(*trees, is_leaf=lambda x: x is None, none_is_leaf=True, namespace=_NAMESPACE)


def shown(tree: Any) -> str:
    """Returns the structure as text, with * for each leaf."""
    return str(_by_optree(tree)[1]).removeprefix("PyTreeSpec(").removesuffix(")").partition(", namespace=")[0]


def prefix_leaves(prefix: Any, spec: Any, leaves: list[Any], name: str) -> list[Any]:
    """Returns the entry of `prefix` for each leaf. An entry of `prefix` may stand for a whole subtree.

    Raises ShapeError if `prefix` does not match the structure.
    """
    if prefix is None or isinstance(prefix, int):
        return [prefix] * len(leaves)
    whole = unflatten(spec, leaves)
    try:
        found = _spread(prefix, whole)
    except ValueError:
        form = shown(whole)
        raise ShapeError(f"{name}={prefix!r} does not have the structure of what it is for, {form} (* is one leaf).") from None
    return [entry for entry, x in zip(found, _by_optree(whole, none_is_leaf=True)[0]) if x is not None]


_exported(globals())
