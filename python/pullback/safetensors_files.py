"""Reads safetensors files, and models that are split into several of them with an index."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

import numpy as np

from .errors import FileFormatError, OutOfMemoryError
from .regular_files import open_regular
from .tensors import dtypes

METADATA: Final = "__metadata__"  # a name that the format reserves, so no tensor in the file may have it
ELSEWHERE = (b"PK\x03\x04", b"\x93NUMPY", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"\x89HDF")  # zip, npy, pickle, HDF5
MOST_HEADER = 100_000_000  # the format's limit in bytes
DTYPES = {  # the format's codes
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}


def read(path: Path) -> bytes:
    """Returns the contents of a file, of which the header is read first, because a file of another format may be of any size.

    Raises FileNotFoundError, FileFormatError, OutOfMemoryError.
    """
    try:
        with open_regular(path) as file:
            size, start = os.fstat(file.fileno()).st_size, file.read(64)
            if not _is_text(start) or size > MOST_HEADER:
                start += file.read(max(0, 8 + _header_length(path, start, size) - len(start)))
                _check_ends(path, start, size)
            try:
                return start + file.read()
            except MemoryError:
                raise OutOfMemoryError(f'load: "{path}" has {size} bytes, which do not fit in memory.') from None
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, "load: there is no such file. Check the path", str(path)) from None
    except IsADirectoryError:
        raise FileFormatError(f'load: "{path}" is a folder. Give the path of a file in it.') from None
    except OSError as error:
        raise FileFormatError(f'load: "{path}" cannot be read: {error.strerror or error}.') from error


def tensors_of(path: Path, data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the arrays of a file, or of all files of an index, by name, and the metadata. Raises FileFormatError."""
    index = _index(path, data)
    return _parse(path, data) if index is None else (_tensors_of_shards(path, index), {})


# ---- one file


def _parse(path: Path, data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the arrays by name, and the metadata. The safetensors library checks the format; the messages are pullback's."""
    from safetensors import SafetensorError, deserialize  # safetensors.numpy does not support bfloat16

    length = _header_length(path, data, len(data))
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
        try:
            array = np.frombuffer(facts["data"], dtype).reshape(facts["shape"])
        except (ValueError, OverflowError) as error:
            raise FileFormatError(f'load: "{path}": tensor "{name}" has shape {facts["shape"]}, which no array has.') from error
        arrays[name] = array.view(np.uint8) != 0 if dtype == dtypes.bool_ else array.copy()
    return arrays, json.loads(data[8 : 8 + length]).get(METADATA) or {}


def _header_length(path: Path, data: bytes, size: int) -> int:
    """Returns the length of the header of a file of this size, of which `data` is the beginning. Raises FileFormatError."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 9 or data[8:9] != b"{" or length > MOST_HEADER:
        what = "is empty" if not data else f"begins with {data[:12]!r}"
        hint = "Give one that pb.save or safetensors wrote."
        if data.startswith(ELSEWHERE):
            hint = (
                "torch.save, np.save, np.savez, pickle and Keras write such files. Read it with the library that wrote it, and "
                "save the arrays: pb.save(path, {name: array, ...})."
            )
        raise FileFormatError(f'load: "{path}" is not a safetensors file: it {what}. {hint}')
    if 8 + length > size:
        raise FileFormatError(f'load: "{path}" is cut off: its header takes {8 + length} bytes, the file has {size}.')
    return length


def _check_ends(path: Path, start: bytes, size: int) -> None:
    """Raises FileFormatError if the tensors that the header describes do not fill the file, or if it names one twice."""
    length = int.from_bytes(start[:8], "little")
    try:
        facts = json.loads(start[8 : 8 + length], object_pairs_hook=_once)
        whole = 8 + length + max([of["data_offsets"][1] for name, of in facts.items() if name != METADATA], default=0)
        wrong = f"its header describes {whole} bytes" if whole != size else ""
    except DuplicateError as error:
        wrong = f"its header has {str(error)!r} twice"
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        wrong = f"its header is damaged: {error!r}"
    if wrong:
        raise FileFormatError(
            f'load: "{path}" ({size} bytes) is not a whole safetensors file: it was cut off or damaged ({wrong}).'
        )


class DuplicateError(Exception):
    """A key of a JSON object that occurs twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the pairs of a JSON object as a dict. Raises DuplicateError."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DuplicateError(key)
        found[key] = value
    return found


# ---- a model in several files


def _is_text(data: bytes) -> bool:
    """True for the beginning of an index, of whose text the first 8 bytes are a larger number than the length of any header."""
    return int.from_bytes(data[:8], "little") > MOST_HEADER and data[:64].lstrip().startswith(b"{")


def _index(path: Path, data: bytes) -> Any:
    """Returns the map of an index, from names of tensors to names of files, or None if the file is no index."""
    if not _is_text(data):
        return None
    try:
        found = json.loads(data, object_pairs_hook=_once)
    except DuplicateError as error:
        raise FileFormatError(f'load: "{path}" has {str(error)!r} twice.') from None
    except (ValueError, RecursionError):
        return None
    return found.get("weight_map") if isinstance(found, Mapping) else None


def _tensors_of_shards(path: Path, index: Any) -> dict[str, Any]:
    """Returns the arrays of all files of an index, in its order. Raises FileNotFoundError, FileFormatError.

    path: of the index. Only regular files in its folder are read, or files to which links in its folder lead, as in the caches of
    downloaded models: whoever wrote the index cannot make links.
    """
    if not isinstance(index, Mapping) or not index:
        raise FileFormatError(f'load: "{path}" has a weight_map that is no dict of names of tensors and files.')
    shards: dict[str, dict[str, Any]] = {}
    for file in dict.fromkeys(_checked(path, name, file) for name, file in index.items()):
        beside = path.parent / file
        if os.path.exists(beside) and not stat.S_ISREG(os.stat(beside).st_mode):
            raise FileFormatError(f'load: "{beside}", which the index "{path}" names, is not a regular file.')
        shards[file], _ = _parse(beside, read(beside))
        missing = [name for name, at in index.items() if at == file and name not in shards[file]]
        unnamed = [name for name in shards[file] if index.get(name) != file]
        if missing or unnamed:
            wrong = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unnamed)}, which the index does not say"
            raise FileFormatError(
                f'load: "{beside}" {wrong}, so it is not the file that the index "{path}" describes. If they do belong together, '
                f"load each file by its own path."
            )
    return {name: shards[file][name] for name, file in index.items()}


def _checked(path: Path, name: str, file: Any) -> str:
    """Returns the name of a file in an index. Raises FileFormatError if it can lead out of the folder of the index."""
    forms = [] if not isinstance(file, str) or "\0" in file else [PurePosixPath(file), PureWindowsPath(file)]
    if not file or not forms or any([form.anchor or ".." in form.parts for form in forms]):
        raise FileFormatError(
            f'load: the index "{path}" says that "{name}" is in {file!r}. Only files in the folder of the index are read: give a '
            f"name without .. and without a root."
        )
    return file
