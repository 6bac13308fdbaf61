"""hash: the SHA-256 of names, shapes, dtypes and values, by which two machines compare what they have computed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from .duck import has
from .errors import DTypeError, PullbackError
from .launch import capturing
from .tensors import devices, dtypes
from .tensors.tensor import Tensor
from .tree import is_unicode, named_leaves

CHUNK: Final = 2**16  # the number of elements that are brought into order and byte order at once


def hash(tree: Any) -> str:
    """Returns the SHA-256, in hexadecimal, of the names, shapes, dtypes and values of all leaves of `tree`.

    Args:
        tree: nested dicts, lists and tuples of tensors on any device, NumPy arrays, numbers and strings. An object
            with a method `state_dict`, such as a Module or an optimizer, counts as what that method returns.

    The name of a leaf is its path, with dots between the keys and positions, as in a file: "layers.0.weight". The path of a single
    tensor is empty. Only leaves count, in the order of their names, so neither the kind of a container nor the order of its
    entries changes the hash, and None is no leaf. A tree that was saved and loaded keeps its hash, and `pullback hash FILE` prints
    it. The hash covers these bytes, leaf after leaf; each length is a little-endian int64:

    1. the length of the name in UTF-8, and the name; leaves are sorted by it;
    2. the length of the dtype's name, and that name, such as "float32", "bfloat16" or "bool";
    3. the number of axes, and the length of each axis;
    4. the elements in C order, little-endian.

    Each NaN counts as the positive quiet one without a payload (0x7fc00000 in float32). 0 and -0 differ. A Python number is an
    int64, a float64 or a bool without axes. A string has the dtype "str" and one axis, that of its bytes in UTF-8.

    Raises: DTypeError, which is a TypeError, naming the path of a leaf of any other kind; PullbackError for two leaves of one
    name, and for a key of a dict that is neither a string nor an integer; CaptureError in a captured function.
    """
    capturing.refuse("pb.hash(), which reads values on the host,", "Return the tensors from the function, and hash them outside.")
    leaves: dict[str, Any] = {}
    for name, leaf in _leaves(tree):
        if name in leaves:
            raise PullbackError(f'hash: two leaves have the name "{name}". Use keys without dots, so that their paths differ.')
        leaves[name] = leaf
    digest = hashlib.sha256()
    for name in sorted(leaves):
        dtype, array = _array_of(leaves[name], name)
        for word in (name, dtype):
            digest.update(_lengths(len(word.encode())) + word.encode())
        digest.update(_lengths(array.ndim, *array.shape))
        for chunk in _chunks(array):
            digest.update(chunk.view(np.uint8))
    return digest.hexdigest()


def _leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yields the leaves with their names, and those of the state_dict of a leaf that has one."""
    for name, leaf in named_leaves(tree.state_dict() if _has_state(tree) else tree, "hash"):
        if _has_state(leaf):
            yield from [(f"{name}.{inner}" if inner else name, x) for inner, x in _leaves(leaf)]
        else:
            yield name, leaf


def _has_state(x: Any) -> bool:
    return has(x, "state_dict") and not isinstance(x, type)


def _array_of(leaf: Any, name: str) -> tuple[str, Any]:
    """Returns the name of a leaf's dtype, and the leaf as an array of the host. Raises DTypeError."""
    if isinstance(leaf, str) and is_unicode(leaf):
        return "str", np.frombuffer(leaf.encode(), np.uint8)
    array: Any = None
    if isinstance(leaf, Tensor):
        array = devices.move(leaf.array, "cpu")
    elif isinstance(leaf, (np.ndarray, np.generic)) and not isinstance(leaf, np.ma.MaskedArray):
        array = np.asarray(leaf)
    elif type(leaf) in (bool, float) or (type(leaf) is int and -(2**63) <= leaf < 2**63):
        array = np.array(leaf, np.int64 if type(leaf) is int else None)
    if array is None or not dtypes.is_supported(array.dtype.newbyteorder("=")):
        kind = "type" if isinstance(leaf, type) else type(leaf).__name__
        what = f"type {kind}" if array is None else f"type {kind} and dtype {array.dtype}"
        what += " with an unpaired surrogate" if isinstance(leaf, str) else ""
        place = f'the leaf "{name}"' if name else "the argument"
        raise DTypeError(
            f"hash: {place} has {what}; only tensors, arrays, strings, and numbers that fit into 64 bits have a hash. "
            f"Convert it, or leave it out."
        )
    return array.dtype.name, array


def _lengths(*lengths: int) -> bytes:
    return np.array(lengths, "<i8").tobytes()


def _chunks(array: Any) -> Iterator[Any]:
    """Yields the elements in C order, little-endian, with one kind of NaN. No more than a chunk is copied at once."""
    little = array.dtype.newbyteorder("<")
    options: Any = {"flags": ["external_loop", "buffered", "zerosize_ok"], "op_flags": [["readonly", "contig"]], "order": "C"}
    chunks: Any = np.nditer(array, op_dtypes=[little], casting="equiv", buffersize=CHUNK, **options)
    for chunk in chunks:
        if little.kind == "b":
            chunk = chunk.view(np.uint8) != 0  # True may be any byte but 0
        with np.errstate(invalid="ignore"):  # bfloat16 reports signalling NaNs
            if dtypes.is_float(little) and (wrong := np.isnan(chunk)).any():
                chunk = np.where(wrong, np.array(np.nan, little), chunk)
        yield chunk
