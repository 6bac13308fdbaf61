"""Loader, which yields mini-batches of arrays on a device, and shuffles and gathers them there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Generic, NoReturn, SupportsIndex, TypeVar, overload

from ..errors import PullbackError, ShapeError
from ..interop.unknown_names import attach_hints, unexpected
from ..launch import door
from ..ops._shapes import flag
from ..ops.conversion import copy
from ..ops.movement import stack
from ..ops.random import Generator
from ..tensors.creation import arange, asarray, can_change
from ..tensors.precision import remember, was_float64_array
from ..tensors.tensor import Tensor
from ..typing import ArrayLike

Batch = TypeVar("Batch", covariant=True)


class _Checked:
    """Refuses Loader(x, y, …) before Python compares its arguments with the parameters of `Loader.__init__`."""

    if not TYPE_CHECKING:

        def __new__(cls, *args, **options):
            if len(args) > 1 and hasattr(args[1], "__len__"):
                raise PullbackError("Loader: arrays whose rows belong together come in one tuple: Loader((x, y), batch_size=32).")
            return super().__new__(cls)


@attach_hints
class Loader(_Checked, Generic[Batch]):
    """Iterates over mini-batches; each `for` is one pass (epoch).

    Args:
        arrays: one array, or a list or tuple of arrays with first axes of equal length, whose rows belong together. Datasets and
            iterators that yield single rows are refused.
        batch_size: the number of rows in a batch. The last batch has fewer if the rows do not divide evenly.
        shuffle: draws a new order every epoch: permutation number `epoch` of the Philox stream of `seed`, equal on all devices.
        seed: the seed of the shuffling.
        device: a device to which the arrays are copied once, or None to read them batch by batch where they are. A later write to
            an array that was not copied appears in later batches, never in one that was already yielded.
        drop_last: leaves out a last batch that is not full.

    Yields a tuple of tensors, or a tensor if `arrays` is one array. Every `for` begins a new epoch, even if the previous one was
    left early. `state_dict` between batches and `load_state_dict` resume at that batch. Raises ShapeError, PullbackError.
    """

    @overload
    def __init__(
        self: Loader[tuple[Tensor, Tensor]], arrays: tuple[ArrayLike, ArrayLike], batch_size: SupportsIndex, shuffle: bool = True,
        seed: int = 0, device: str | None = None, drop_last: bool = False,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Loader[tuple[Tensor, ...]], arrays: list[Any] | tuple[Any, ...], batch_size: SupportsIndex, shuffle: bool = True,
        seed: int = 0, device: str | None = None, drop_last: bool = False,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Loader[Tensor], arrays: ArrayLike, batch_size: SupportsIndex, shuffle: bool = True, seed: int = 0,
        device: str | None = None, drop_last: bool = False,
    ) -> None: ...  # fmt: skip

    def __init__(
        self,
        arrays: Any,
        batch_size: SupportsIndex,
        shuffle: bool = True,
        seed: int = 0,
        device: str | None = None,
        drop_last: bool = False,
        **unknown: NoReturn,
    ) -> None:
        if unknown:
            raise unexpected(unknown)
        shuffle, drop_last = flag("Loader", "shuffle", shuffle), flag("Loader", "drop_last", drop_last)
        self._single = not isinstance(arrays, (list, tuple))
        given: Any = [arrays] if self._single else arrays
        for a in given:
            _check_array(a, within=not self._single)
        self._arrays = [asarray(a, device=device) for a in given]
        self._change = [can_change(a, t.array) for a, t in zip(given, self._arrays)]  # unshuffled batches of other arrays are views
        self._wide = [was_float64_array(a) for a in given]
        self.rows = _rows(self._arrays)
        batch_size = _positive(batch_size)
        if drop_last and batch_size > self.rows:
            raise PullbackError(
                f"Loader: batch_size={batch_size} with drop_last=True gives no batch of {self.rows} rows. Make it smaller."
            )
        self.batch_size, self.shuffle, self.seed, self.drop_last = batch_size, shuffle, seed, drop_last
        self._next = (0, 0)  # the epoch that the next `for` begins, and the number of its batches to skip
        self._at = (0, 0)  # the epoch of the iteration that advanced last, and the number of batches it has yielded
        self._kept_order: tuple[tuple[int, int], Tensor] | None = None  # ((epoch, seed), order of the rows), for next_rows
        Generator(seed)  # raises now if the seed is invalid

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        full, rest = divmod(self.rows, self.batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    @property
    def epoch(self) -> int:
        """The number of the pass in progress, counted from 0, or of the next pass if none is in progress."""
        return self._at[0]

    def __iter__(self) -> Iterator[Batch]:
        """Yields the rest of an epoch that `load_state_dict` resumed, otherwise a whole epoch."""
        epoch, start = self._next
        self._next = (epoch + 1, 0)
        order, count = self._order(epoch), len(self)
        for i in range(start, count):
            batch = self._batch(order, i)
            self._at = (epoch, i + 1) if i + 1 < count else (epoch + 1, 0)
            yield batch
        if not count:
            self._at = (epoch + 1, 0)

    def next_rows(self, count: int | None = None) -> Tensor:
        """Advances by `count` batches, across epochs, and returns the indices of their rows: (count, batch_size), or (batch_size,)
        if count is None. `pb.capture` uses the indices to gather the rows inside a captured function.

        Raises PullbackError if the last batch of an epoch is smaller.
        """
        if self.rows % self.batch_size and not self.drop_last:
            raise PullbackError(
                f"Loader: {self.rows} rows do not divide into batches of {self.batch_size}; a captured function needs batches of "
                f"equal size. Pass drop_last=True."
            )
        found = [self._rows_of_next() for _ in range(1 if count is None else count)]
        return found[0] if count is None else stack(found)

    def _rows_of_next(self) -> Tensor:
        epoch, i = self._next
        if self._kept_order is None or self._kept_order[0] != (epoch, self.seed):
            order = self._order(epoch)
            self._kept_order = ((epoch, self.seed), arange(self.rows, device=self._arrays[0].device) if order is None else order)
        rows = self._kept_order[1][i * self.batch_size : (i + 1) * self.batch_size]
        self._next = self._at = (epoch, i + 1) if i + 1 < len(self) else (epoch + 1, 0)
        return rows

    def gather(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Returns these rows of every array."""
        with door.charged_to(door.DATA):
            return tuple([a[rows] for a in self._arrays])

    def _order(self, epoch: int) -> Tensor | None:
        if not self.shuffle:
            return None
        with door.charged_to(door.DATA):
            stream = Generator(self.seed, self._arrays[0].device)
            stream.load_state_dict({"seed": self.seed, "serial": epoch})
            return stream.permutation(self.rows)

    def _batch(self, order: Tensor | None, i: int) -> Any:
        rows = slice(i * self.batch_size, min((i + 1) * self.batch_size, self.rows))
        with door.charged_to(door.DATA):
            if order is not None:
                parts = [a[order[rows]] for a in self._arrays]
            else:
                parts = [copy(a[rows]) if change else a[rows] for a, change in zip(self._arrays, self._change)]
        for part, wide in zip(parts, self._wide):
            if wide:  # so that a network warns if this makes it compute in float64
                remember(part)
        return parts[0] if self._single else tuple(parts)

    def state_dict(self) -> dict[str, int]:
        """Returns the position of the iteration that advanced last: its epoch, the batches it has yielded, and the seed."""
        epoch, done = self._at
        return {"epoch": epoch, "batches": done, "seed": self.seed}

    def load_state_dict(self, state: Any) -> None:
        """Restores a position: the next `for` yields the remaining batches of that epoch. Raises PullbackError."""
        if not isinstance(state, Mapping) or set(state) != {"epoch", "batches", "seed"}:
            what = sorted(map(str, state)) if isinstance(state, Mapping) else f"the type {type(state).__name__}"
            raise PullbackError(f"Loader: the state has {what}; it must be a dict of batches, epoch and seed.")
        epoch, done = int(state["epoch"]), int(state["batches"])
        if epoch < 0 or not 0 <= done < max(1, len(self)):
            raise PullbackError(
                f"Loader: the state is at batch {done} of epoch {epoch}, but an epoch has {len(self)} batches here."
            )
        Generator(int(state["seed"]))  # raises now if the seed is invalid
        self._next = self._at = (epoch, done)
        self.seed = int(state["seed"])

    def __repr__(self) -> str:
        order = f"shuffled by seed {self.seed}" if self.shuffle else "in order"
        return f"Loader({self.rows} rows, {len(self)} batches of {self.batch_size}, {order})"


def _check_array(x: Any, within: bool) -> None:
    """Raises PullbackError for what yields rows one by one: a dataset, an iterator, a dict, or a tuple in the list of arrays.

    NumPy would stack the fields of such rows, or read a dataset without end, because few datasets raise IndexError.
    """
    if any([hasattr(x, name) for name in ("__array__", "__dlpack__", "__array_interface__", "__cuda_array_interface__")]):
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


def _positive(batch_size: Any) -> int:
    try:
        value = 0 if isinstance(batch_size, bool) else index(batch_size)
    except TypeError:
        value = 0
    if value < 1:
        raise PullbackError(f"Loader: batch_size={batch_size!r} must be an integer of 1 or more.")
    return value


def _rows(arrays: Sequence[Tensor]) -> int:
    if not arrays:
        raise PullbackError("Loader: no arrays were given.")
    if any([not a.ndim for a in arrays]):
        raise ShapeError(f"Loader: the arrays have shapes {[a.shape for a in arrays]}; a 0-d array has no rows.")
    lengths = {len(a) for a in arrays}
    if len(lengths) > 1:
        raise ShapeError(
            f"Loader: the first axes have lengths {[len(a) for a in arrays]}; rows that belong together must be equal in number."
        )
    return lengths.pop()
