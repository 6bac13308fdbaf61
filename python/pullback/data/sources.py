"""Arrays whose rows a Loader reads batch by batch from host memory, such as memory-mapped files, which may exceed the memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..duck import has
from ..errors import DTypeError, FileFormatError, PullbackError
from ..regular_files import open_regular
from ..tensors.creation import asarray
from ..tensors.tensor import Tensor

LARGE_ROW: Final = 4096  # bytes from which on rows are copied one by one, which spares a second copy of the batch
LANDMARK: Final = 64  # rows and arrays begin at multiples of this many bytes in pinned memory


def mapped(path: str | os.PathLike[str]) -> np.ndarray[Any, Any]:
    """Returns the array in a .npy file without reading it: the file is mapped into memory. Nothing is unpickled.

    Raises FileNotFoundError, OSError, FileFormatError for a file of another format or a truncated one, DTypeError for objects.
    """
    name = os.fspath(path)
    try:
        open_regular(name).close()
        found = np.load(name, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, "Loader: there is no such file. A str or a Path names a .npy file", name) from None
    except IsADirectoryError as error:
        text = "Loader: this is a directory. A str or a Path names one .npy file; give a tuple of several"
        raise IsADirectoryError(error.errno, text, name) from None
    except OSError as error:
        raise OSError(error.errno, f"Loader: {error.strerror}", name) from None
    except ValueError as error:
        if "Python objects" in str(error):
            raise DTypeError(f'Loader: "{name}" holds Python objects, which no tensor has. Save an array of numbers.') from None
        # NumPy takes a file that it does not recognize for a pickle, and advises to load that unsafely.
        why, cause = ("", None) if "pickle" in str(error) else (f" ({error})", error)
        raise FileFormatError(f'Loader: "{name}" is not a whole .npy file{why}. Write it by np.save(path, array).') from cause
    except EOFError as error:
        raise FileFormatError(f'Loader: "{name}" is empty. Write it by np.save(path, array).') from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise FileFormatError(
            f'Loader: "{name}" is an .npz archive, which cannot be mapped into memory. Save each array by np.save, or load the '
            f"archive: data = np.load(path); Loader((data['x'], data['y']), batch_size=32)."
        )
    return found


def check_array(x: Any, within: bool) -> None:
    """Raises PullbackError for what yields rows one by one: a dataset, an iterator, a dict, or a tuple in the list of arrays.

    NumPy would stack the fields of such rows, or read a dataset without end, because few datasets raise IndexError.
    """
    if any([has(x, name) for name in ("__array__", "__dlpack__", "__array_interface__", "__cuda_array_interface__")]):
        return
    what = f"a {type(x).__name__}"
    if isinstance(x, Mapping):
        raise PullbackError(f"Loader: {what} was given. Give its arrays in a tuple: Loader(tuple(data.values()), batch_size=32).")
    if within and isinstance(x, tuple):
        raise PullbackError(
            "Loader: the list holds tuples, which are rows and not arrays. Make an array of each field: "
            "Loader([np.stack(field) for field in zip(*rows)], batch_size=32)."
        )
    if isinstance(x, Iterator) or (hasattr(x, "__getitem__") and not isinstance(x, Sequence)):
        rows = "data" if isinstance(x, Iterator) else "[data[i] for i in range(len(data))]"
        raise PullbackError(
            f"Loader: {what} is not an array. A Loader gathers rows of whole arrays on the device, so make them first: "
            f"arrays = [np.stack(field) for field in zip(*{rows})], then Loader(arrays, batch_size=32)."
        )


def is_mapped(x: Any) -> bool:
    """True if x is a NumPy array whose memory is a file that is mapped into memory, as `np.load(path, mmap_mode="r")` returns."""
    while isinstance(x, np.ndarray):
        x = x.base
    return isinstance(x.obj if isinstance(x, memoryview) else x, mmap.mmap)


class Source:
    """An array that stays in host memory or in a file.

    Attributes:
        shape: the shape of the array.
        dtype: the dtype of the batches, in the byte order of the machine.
    """

    def __init__(self, given: Any) -> None:
        if not isinstance(given, np.ndarray):
            given = asarray(given, device="cpu").array
        self._array = np.asarray(given)  # not a np.memmap, whose slices cost microseconds
        if self._array.dtype.names is not None:
            raise DTypeError(
                f"Loader: an array has the structured dtype {self._array.dtype}. Give its fields as arrays: "
                f"Loader((x[{self._array.dtype.names[0]!r}], ...), batch_size=32)."
            )
        self.shape, self.ndim = self._array.shape, self._array.ndim
        # A conversion of no rows raises what that of the whole array would raise.
        self.dtype: Any = asarray(self._array[:0] if self.ndim else self._array, device="cpu").dtype

    def __len__(self) -> int:
        return len(self._array)

    def tensor(self) -> Tensor | None:
        """Returns a CPU tensor over the memory of the array, or None if that would read the whole array to convert it."""
        if self.dtype.kind == "b" or self._array.dtype != self.dtype or not self._array.flags.aligned:
            return None
        return asarray(self._array, device="cpu")

    def empty(self, rows: int) -> np.ndarray[Any, Any]:
        """Returns memory for this many rows."""
        return np.empty((rows, *self.shape[1:]), self.dtype)

    def read(self, rows: Any, to: np.ndarray[Any, Any]) -> None:
        """Copies rows, given as a slice or as an array of indices, to the contiguous array `to`, in the order given.

        They are read in the order in which they lie in the file.
        """
        if isinstance(rows, slice):
            to[...] = self._array[rows]
        else:
            places = np.argsort(rows, kind="stable")
            rows = rows[places]
            if to.nbytes < LARGE_ROW * len(to):
                to[places] = self._array[rows]
            else:
                for place, row in zip(places.tolist(), rows.tolist()):
                    to[place] = self._array[row]
        if self.dtype.kind == "b":  # kernels add up the bytes, which must be 0 or 1
            held = to.view(np.uint8)
            np.minimum(held, 1, out=held)


def read_batch(sources: list[Source], rows: Any, count: int, slot: list[Any] | None) -> list[np.ndarray[Any, Any]]:
    """Returns `count` rows of every source: in the arrays of `slot`, or in new arrays if it is None."""
    found = [source.empty(count) for source in sources] if slot is None else [held[:count] for held in slot]
    for source, to in zip(sources, found):
        source.read(rows, to)
    return found


def divided(held: np.ndarray[Any, Any], sources: list[Source], rows: int) -> list[np.ndarray[Any, Any]]:
    """Returns arrays for this many rows of every source, in the bytes of `held`."""
    found, begin = [], 0
    for source in sources:
        nbytes = bytes_of(source, rows)
        found.append(held[begin : begin + nbytes].view(source.dtype).reshape(rows, *source.shape[1:]))
        begin += -(-nbytes // LANDMARK) * LANDMARK
    return found


def bytes_of(source: Source, rows: int) -> int:
    """Returns the bytes of this many rows."""
    return rows * int(np.prod(source.shape[1:], dtype=np.int64)) * source.dtype.itemsize


def bytes_of_slot(sources: list[Source], rows: int) -> int:
    """Returns the bytes that `divided` needs."""
    return sum([-(-bytes_of(source, rows) // LANDMARK) * LANDMARK for source in sources])
