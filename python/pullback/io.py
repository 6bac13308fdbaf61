"""save and load: nested tensors as one safetensors file, written whole or not at all. Nothing is ever unpickled."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from . import devices, dtypes
from .creation import asarray
from .errors import DTypeError, FileFormatError, PullbackError
from .tensor import Tensor

METADATA = "__metadata__"  # no tensor may have this name in the file
STRUCTURE = "pullback.structure"  # the key of the file's metadata that holds how tensors nest, as JSON
MOST_HEADER = 100_000_000  # bytes, as the format says
DTYPES = {  # the format's codes
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def save(path: str | os.PathLike[str], tree: Any) -> None:
    """Writes nested dicts, lists and tuples of tensors, arrays, numbers, strings and None to a safetensors file.

    Tensors keep dtype and shape, and their names in the file are their paths ("layers.0.weight"), so that other programs read
    them too. The file appears whole or not at all: it is written beside its place, flushed to the disk, then renamed. Where
    the path is a symbolic link, the file that it leads to is replaced.

    Raises: PullbackError, naming the path of what cannot be saved; OSError from the disk, with the old file untouched.
    """
    tensors: dict[str, Any] = {}
    try:
        structure = json.dumps(_take_apart(tree, "", tensors, ()))
    except RecursionError:
        raise PullbackError("save: dicts, lists and tuples are nested too deeply. Make the structure flatter.") from None
    from safetensors.numpy import save as serialize

    _write_whole(Path(path), serialize(tensors, {STRUCTURE: structure}))


def _take_apart(tree: Any, path: str, tensors: dict[str, Any], around: tuple[int, ...]) -> Any:
    """The structure in JSON's terms; tensors are put into `tensors` and named by their paths.

    {"tensor": name}, {"value": …}, {"list": […]}, {"tuple": […]}, {"dict": [[key, …], …]}. `around`: the ids of the
    containers that this one is in.
    """
    if isinstance(tree, str) or tree is None or type(tree) in (bool, int, float):
        return {"value": tree}
    if isinstance(tree, (Tensor, np.ndarray, np.generic)):
        name = path or "tensor"
        while name in tensors or name == METADATA:  # a key with a dot in it can spell the path of another tensor
            name += "_"
        tensors[name] = _array_of(tree, path)
        return {"tensor": name}
    if id(tree) in around:
        raise PullbackError(f'save: the {type(tree).__name__} at "{path}" contains itself; a file cannot say that.')
    if type(tree) in (list, tuple) or isinstance(tree, dict):
        entries = list(tree.items() if isinstance(tree, dict) else enumerate(tree))
        around = (*around, id(tree))
        items = [(key, _take_apart(x, _join(path, key), tensors, around)) for key, x in entries]
        return {"dict": items} if isinstance(tree, dict) else {type(tree).__name__: [x for _, x in items]}
    raise PullbackError(
        f'save: what is at "{path}" is a {type(tree).__name__}; only tensors, arrays, numbers, strings and None can be saved, in '
        f"dicts, lists and tuples. For a Module, save module.state_dict()."
    )


def _join(path: str, key: Any) -> str:
    """The path of an entry. Raises PullbackError for a key that a file cannot hold."""
    if not isinstance(key, (str, int)):
        raise PullbackError(f'save: a key of the dict at "{path}" is {key!r}; keys are strings or integers.')
    if not isinstance(key, int) and any(["\ud800" <= letter <= "\udfff" for letter in key]):
        raise PullbackError(f'save: a key of the dict at "{path}" is {key!r}, which holds half a character: no text of Unicode.')
    return f"{path}.{key}" if path else str(key)


def _array_of(x: Any, path: str) -> Any:
    array = devices.move(x.array, "cpu") if isinstance(x, Tensor) else np.asarray(x)
    if not dtypes.is_supported(array.dtype):
        raise DTypeError(f'save: the array at "{path}" has dtype {array.dtype}, which no tensor has. Convert it first.')
    return np.array(array, order="C")


def _write_whole(path: Path, data: bytes) -> None:
    place = os.path.realpath(path)
    folder = os.path.dirname(place)
    beside = Path(folder, f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(beside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError) and error.errno:
            raise OSError(error.errno, error.strerror, str(path)) from None  # in the user's words: not the file beside
        raise
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the new name, too, is on the disk
    finally:
        os.close(descriptor)


def load(path: str | os.PathLike[str], *, device: str | None = None) -> Any:
    """Reads what `save` wrote, in the same structure. Another program's safetensors file gives a dict of tensors.

    Raises: FileNotFoundError; FileFormatError naming the file and what is wrong with it; DeviceError.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FileFormatError(f'load: "{path}" cannot be read: {error.strerror or error}.') from error
    tensors, metadata = _parse(path, data)
    placed = {name: asarray(array, device=device) for name, array in tensors.items()}
    if STRUCTURE not in metadata:
        return placed
    try:
        return _put_together(json.loads(metadata[STRUCTURE]), placed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(f'load: "{path}": how its tensors nest is damaged in its metadata ({error!r}).') from error


def _parse(path: Path, data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays by name, and the metadata. The format is checked by the safetensors library; the words are ours."""
    from safetensors import SafetensorError, deserialize

    length = int.from_bytes(data[:8], "little")
    if len(data) < 9 or data[8:9] != b"{" or length > MOST_HEADER:
        what = "is empty" if not data else f"begins with {data[:12]!r}"
        raise FileFormatError(f'load: "{path}" is not a safetensors file: it {what}.')
    if 8 + length > len(data):
        raise FileFormatError(f'load: "{path}" is cut off: its header takes {8 + length} bytes, the file has {len(data)}.')
    try:
        found = deserialize(data)
    except (SafetensorError, ValueError, OverflowError) as error:
        raise FileFormatError(
            f'load: "{path}" ({len(data)} bytes) is not a whole safetensors file: it was cut off or damaged ({error}).'
        ) from error
    arrays: dict[str, Any] = {}
    for name, facts in found:
        if facts["dtype"] not in DTYPES:
            raise FileFormatError(f'load: "{path}": tensor "{name}" has dtype {facts["dtype"]}, which pullback does not have.')
        dtype = dtypes.as_dtype(DTYPES[facts["dtype"]])
        arrays[name] = np.frombuffer(facts["data"], dtype).reshape(facts["shape"]).copy()
    return arrays, json.loads(data[8 : 8 + length]).get("__metadata__") or {}


def _put_together(structure: Any, tensors: dict[str, Tensor]) -> Any:
    ((kind, inside),) = structure.items()
    if kind == "tensor":
        return tensors[inside]
    if kind == "value":
        return inside
    if kind == "list":
        return [_put_together(x, tensors) for x in inside]
    if kind == "tuple":
        return tuple([_put_together(x, tensors) for x in inside])
    if kind == "dict":
        return {key: _put_together(x, tensors) for key, x in inside}
    raise ValueError(f"unknown kind {kind!r}")
