"""save and load, which store nested tensors in one safetensors file. A file is replaced atomically, and nothing is unpickled."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from .duck import attribute, has
from .errors import FileFormatError, PullbackError
from .safetensors_files import METADATA, read, tensors_of
from .tensors import devices
from .tensors.creation import asarray
from .tensors.tensor import Tensor
from .tree import is_unicode

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

STRUCTURE = "pullback.structure"  # the key of the file's metadata that holds how tensors nest, as JSON


def save(path: str | os.PathLike[str], tree: Any) -> None:
    """Writes nested dicts, lists and tuples of tensors, arrays, numbers, strings and None to a safetensors file.

    Tensors of other libraries, such as PyTorch and JAX, are saved as pullback's: with their values, without gradients.

    Tensors keep dtype and shape, and their names in the file are their paths ("layers.0.weight"), so other programs can read them
    too. The file is replaced atomically: save writes a temporary file in the same folder, flushes it to the disk and renames it.
    The new file keeps the mode, the access lists and, if possible, the owner of the file that it replaces. If the path is a
    symbolic link, its target is replaced. Other hard links to the old file keep the old contents.

    Raises: PullbackError, naming the path of a value that cannot be saved, or the Parameter that another thread changed during
    the save; IsADirectoryError, FileNotFoundError, PermissionError or another OSError. The old file is then untouched.
    """
    first: Any = path
    if isinstance(tree, (str, os.PathLike)) and not isinstance(first, (str, os.PathLike)):
        raise TypeError(f"save: the path comes first, and then what is saved: pb.save({os.fspath(tree)!r}, tree).")
    place = _path("save", path)
    if "\0" in os.fspath(place):
        raise PullbackError(f"save: a path has no null characters, but this one does: {os.fspath(place)!r}.")
    tensors: dict[str, Any] = {}
    versions: list[tuple[Any, int]] = []
    try:
        structure = json.dumps(_take_apart(tree, "", tensors, (), versions))
    except RecursionError:
        raise PullbackError("save: dicts, lists and tuples are nested too deeply. Make the structure flatter.") from None
    from safetensors.numpy import save as serialize

    data = serialize(tensors, {STRUCTURE: structure})
    for x, version in versions:
        if x.storage.version != version:
            raise PullbackError(
                f"save: {x.storage.label()} was changed by another thread while it was saved, so the "
                f"file would hold parts of two values. Save between two steps."
            )
    _write_whole(place, data)


def _take_apart(tree: Any, path: str, tensors: dict[str, Any], around: tuple[int, ...], versions: list[tuple[Any, int]]) -> Any:
    """Returns the structure of `tree` for JSON, adds its arrays to `tensors` by path, and Parameters with versions to `versions`.

    A node of the structure is {"tensor": name}, {"value": …}, {"list": […]}, {"tuple": […]} or {"dict": [[key, …], …]}. `around`
    holds the ids of the enclosing containers, to detect a container that contains itself.
    """
    if isinstance(tree, str) or tree is None or type(tree) in (bool, int, float):
        return {"value": tree}
    if isinstance(tree, (Tensor, np.ndarray, np.generic)) or has(tree, "__dlpack__"):
        name = path or "tensor"
        while name in tensors or name == METADATA:  # A key that contains a dot can equal the path of another tensor.
            name += "_"
        if isinstance(tree, Tensor) and tree.storage is not None:
            versions.append((tree, tree.storage.version))
        tensors[name] = _array_of(tree, path)
        return {"tensor": name}
    if id(tree) in around:
        raise PullbackError(f'save: the {type(tree).__name__} at "{path}" contains itself; a file cannot say that.')
    if type(tree) in (list, tuple) or isinstance(tree, dict):
        entries = list(tree.items() if isinstance(tree, dict) else enumerate(tree))
        around = (*around, id(tree))
        items = [(key, _take_apart(x, _join(path, key), tensors, around, versions)) for key, x in entries]
        return {"dict": items} if isinstance(tree, dict) else {type(tree).__name__: [x for _, x in items]}
    what = f'what is at "{path}"' if path else "what was given"
    if has(tree, "__array__"):  # such as a Series of pandas, whose index a tensor would not keep
        raise PullbackError(f"save: {what} is a {type(tree).__name__}, not an array or tensor. Save its array: np.asarray(x).")
    raise PullbackError(
        f"save: {what} is a {type(tree).__name__}; only tensors, arrays, numbers, strings and None can be saved, in "
        f"dicts, lists and tuples. Of a Module or an optimizer, save x.state_dict()."
    )


def _join(path: str, key: Any) -> str:
    """Returns the path of an entry. Raises PullbackError for a key that a file cannot hold."""
    if not isinstance(key, (str, int)):
        raise PullbackError(f'save: a key of the dict at "{path}" is {key!r}; keys are strings or integers.')
    if not isinstance(key, int) and not is_unicode(key):
        raise PullbackError(
            f'save: a key of the dict at "{path}" is {key!r}, which contains an unpaired surrogate and is not valid Unicode.'
        )
    return f"{path}.{key}" if path else str(key)


def _array_of(x: Any, path: str) -> Any:
    """Returns a tensor or an array of any library as an array of the host in C order. Raises PullbackError."""
    if isinstance(x, Tensor):
        return np.array(devices.move(x.array, "cpu"), order="C")
    try:
        array = asarray(x.detach() if attribute(x, "requires_grad", False) else x, device="cpu").array
    except PullbackError as error:
        what = f'the array at "{path}"' if path else "the array"
        raise type(error)(f"save: {what} cannot be saved: {str(error).removeprefix('save: tree: ')}") from error
    return np.array(array, order="C")


UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.pullback-save")  # the name of a temporary file, in use or left by a killed process


def _write_whole(path: Path, data: bytes) -> None:
    place = os.path.realpath(path)
    folder = os.path.dirname(place)
    beside = None
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(mode := os.stat(place).st_mode) and not stat.S_ISDIR(mode):
                raise PullbackError(f'save: "{path}" is not a regular file, and replacing it would remove a device or a pipe.')
        file, beside = _open_beside(folder, 0o600 if os.path.exists(place) else 0o666)
        with file:
            _like_the_old(file.fileno(), place)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:
                os.replace(beside, place)  # Rename while the file is locked, so that no other save removes it as a leftover.
        if fcntl is None:
            os.replace(beside, place)  # Windows does not rename an open file.
    except BaseException as error:
        if beside is not None:
            with suppress(OSError):
                os.unlink(beside)
        if isinstance(error, OSError) and error.errno:
            raise _in_words(error, path) from None  # The class stays; the message names `path`, not the temporary file.
        raise
    with suppress(OSError):  # Windows opens no folder, and others may be unreadable. The new file is complete in any case.
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # This flushes the new name to the disk, too.
        finally:
            os.close(descriptor)
    _remove_unfinished(folder)


def _in_words(error: OSError, path: Path) -> OSError:
    """Returns the error with a message that explains it. The errno stays, and with it the class of the OSError."""
    folder = os.path.dirname(os.path.realpath(path))
    words = {
        errno.EISDIR: "save: the path is that of a folder, which a file cannot replace. Give the name of a file in it",
        errno.ENOENT: f'save: there is no folder "{folder}". Make it first, with os.makedirs',
        errno.ENOTDIR: f'save: "{folder}" is no folder, so that no file can be in it. Give the path of a file in a folder',
        errno.ENOSPC: f"save: {error.strerror}, and the old file is as it was. Make room, or save elsewhere",
    }
    denied = f'save: no file can be written in the folder "{folder}" ({error.strerror}). Save in another, or change its mode'
    words.update(dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), denied))
    # ENOENT although the folder exists happens in /proc, for example.
    known = denied if error.errno == errno.ENOENT and os.path.isdir(folder) else words.get(error.errno or 0)
    return OSError(error.errno, known or f"save: {error.strerror}", str(path))


def _path(op: str, path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{op}: the path of the file is of type {type(path).__name__}. Give a str or a pathlib.Path.")
    return Path(path)


def _open_beside(folder: str, mode: int) -> tuple[Any, str]:
    """Returns a new file in the folder and its path. The file is locked while it is open."""
    while True:
        beside = os.path.join(folder, f".{secrets.token_hex(8)}.pullback-save")
        file = os.fdopen(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), mode), "wb")
        if fcntl is None:
            return file, beside
        with suppress(OSError):  # The file system may not support locks.
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file, beside
        file.close()  # Another save removed it as a leftover before it was locked.


def _remove_unfinished(folder: str) -> None:
    """Removes the temporary files of killed saves from the folder. No process holds a lock on them."""
    if fcntl is None:
        return
    with suppress(OSError):
        for name in os.listdir(folder):
            if not UNFINISHED.fullmatch(name):
                continue
            with suppress(OSError), open(os.path.join(folder, name), "r+b") as left:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(left.name)


def _like_the_old(descriptor: int, place: str) -> None:
    """Copies mode, owner and access lists of the file at `place`, if there is one, to the open file that will replace it."""
    if fcntl is None or not os.path.exists(place):  # Windows has no owners and access lists of this kind
        return
    old = os.stat(place)
    mode = stat.S_IMODE(old.st_mode) & 0o777
    for owner, group in ((old.st_uid, -1), (-1, old.st_gid)):
        with suppress(OSError):  # Only root may change the owner, and other users may only choose among their own groups.
            os.fchown(descriptor, owner, group)
    if os.fstat(descriptor).st_gid != old.st_gid:  # A different group gets only the rights that all users have.
        mode = mode & 0o707 | (mode & 0o007) << 3 & mode
    for name in getattr(os, "listxattr", lambda _: ())(place):
        with suppress(OSError):
            os.setxattr(descriptor, name, os.getxattr(place, name))
    os.fchmod(descriptor, mode)


def load(path: str | os.PathLike[str], *, device: str | None = None) -> Any:
    """Reads a file that `save` wrote, and returns the same structure. Another program's safetensors file becomes a dict of tensors.

    The path may also be that of the index of a model that is split into several files ("model.safetensors.index.json"). The result
    is then a dict of all its tensors, which are read from the files that the index names, in the folder of the index.

    Raises: FileNotFoundError; FileFormatError naming the file and what is wrong with it; DeviceError.
    """
    path = _path("load", path)
    tensors, metadata = tensors_of(path, read(path))
    placed = {name: asarray(array, device=device) for name, array in tensors.items()}
    if STRUCTURE not in metadata:
        return placed
    try:
        return _put_together(json.loads(metadata[STRUCTURE]), placed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(f'load: "{path}": how its tensors nest is damaged in its metadata ({error!r}).') from error


def _put_together(structure: Any, tensors: dict[str, Tensor]) -> Any:
    ((kind, inside),) = structure.items()
    if kind == "tensor":
        return tensors[inside]
    if kind == "value" and (inside is None or isinstance(inside, (bool, int, float, str))):
        return inside
    if kind == "list":
        return [_put_together(x, tensors) for x in inside]
    if kind == "tuple":
        return tuple([_put_together(x, tensors) for x in inside])
    if kind == "dict" and all([isinstance(key, (str, int)) for key, _ in inside]):
        if len({key for key, _ in inside}) < len(inside):
            raise ValueError("a dict has a key twice")
        return {key: _put_together(x, tensors) for key, x in inside}
    raise ValueError(f"{kind!r} with a {type(inside).__name__}")
