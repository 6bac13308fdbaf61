"""Loader, which yields mini-batches of arrays on a device, and shuffles and gathers them there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any, Generic, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np

from ..duck import has
from ..errors import PullbackError, ShapeError
from ..interop.unknown_names import attach_hints
from ..launch import capturing, door
from ..launch.made import MadeOutside
from ..ops._shapes import flag, positive_integer
from ..ops.conversion import copy
from ..ops.movement import stack
from ..ops.random import Generator
from ..tensors import devices
from ..tensors.creation import asarray, can_change
from ..tensors.precision import remember, was_float64_array
from ..tensors.ranges import arange
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from .position import Place, Position, Steps, after, now, read
from .prefetch import Feed, GpuFeed
from .sources import Source, check_array, is_mapped, mapped

Batch = TypeVar("Batch", covariant=True)
Readable: TypeAlias = "ArrayLike | str | os.PathLike[str]"  # an array, or the path of a .npy file
Order: TypeAlias = "tuple[Tensor | None, Any]"  # the order of an epoch's rows on the device, and as a NumPy array on the host


class _Checked:
    """Refuses Loader(x, y, …) before Python compares its arguments with the parameters of `Loader.__init__`."""

    if not TYPE_CHECKING:

        def __new__(cls, *args, **options):
            if len(args) > 1 and hasattr(args[1], "__len__"):
                raise PullbackError("Loader: arrays whose rows belong together come in one tuple: Loader((x, y), batch_size=32).")
            return super().__new__(cls)


@attach_hints
class Loader(_Checked, MadeOutside, Generic[Batch]):
    """Iterates over mini-batches; each `for` is one pass (epoch).

    Args:
        arrays: one array, or a list or tuple of arrays with first axes of equal length, whose rows belong together. A str or a Path
            names a .npy file, which is mapped into memory. Datasets and iterators that yield single rows are refused.
        batch_size: the number of rows in a batch. The last batch has fewer if the rows do not divide evenly.
        shuffle: draws a new order every epoch: permutation number `epoch` of the Philox stream of `seed`, equal on all devices.
        seed: the seed of the shuffling.
        device: a device to which the arrays are copied once, or None to read them batch by batch where they are. A later write to
            an array that was not copied appears in later batches, never in one that was already yielded.
        drop_last: leaves out a last batch that is not full.
        from_host: True leaves arrays where they are, in host memory or in a file that is mapped into memory. A thread then reads
            two batches ahead, and copies to a GPU run beside its kernels. False copies arrays to the device as a whole. None, the
            default, reads mapped files in this way and copies other arrays. The batches are the same.

    Yields a tuple of tensors, or a tensor if `arrays` is one array. Every `for` begins a new epoch, even if the previous one was
    left early. `state_dict` between batches and `load_state_dict` resume at that batch. Raises ShapeError, PullbackError.
    """

    @overload
    def __init__(
        self: Loader[tuple[Tensor, Tensor]], arrays: tuple[Readable, Readable], batch_size: SupportsIndex, shuffle: bool = True,
        seed: int = 0, device: str | None = None, drop_last: bool = False, *, from_host: bool | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[tuple[Tensor, ...]], arrays: list[Any] | tuple[Any, ...], batch_size: SupportsIndex, shuffle: bool = True,
        seed: int = 0, device: str | None = None, drop_last: bool = False, *, from_host: bool | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[Tensor], arrays: Readable, batch_size: SupportsIndex, shuffle: bool = True,
        seed: int = 0, device: str | None = None, drop_last: bool = False, *, from_host: bool | None = None,
    ) -> None: ...

    def __init__(
        self,
        arrays: Any,
        batch_size: SupportsIndex,
        shuffle: bool = True,
        seed: int = 0,
        device: str | None = None,
        drop_last: bool = False,
        *,
        from_host: bool | None = None,
    ) -> None:
        shuffle, drop_last = flag("Loader", "shuffle", shuffle), flag("Loader", "drop_last", drop_last)
        from_host = from_host if from_host is None else flag("Loader", "from_host", from_host)
        self._single = not isinstance(arrays, (list, tuple))
        given: Any = [mapped(a) if isinstance(a, (str, os.PathLike)) else a for a in ([arrays] if self._single else arrays)]
        for a in given:
            check_array(a, within=not self._single)
        self._arrays = [_placed(a, device, from_host) for a in given]
        self._sources = [a for a in self._arrays if isinstance(a, Source)]
        self._device = _device_of([*given, *self._arrays], device)
        # Unshuffled batches of arrays that cannot change are views.
        self._change = [isinstance(t, Tensor) and can_change(a, t.array) for a, t in zip(given, self._arrays)]
        self._wide = [was_float64_array(np.asarray(a) if isinstance(a, np.memmap) else a) for a in given]
        self.rows = _rows(self._arrays)
        batch_size = positive_integer("Loader", "batch_size", batch_size)
        if drop_last and batch_size > self.rows:
            raise PullbackError(
                f"Loader: batch_size={batch_size} with drop_last=True gives no batch of {self.rows} rows. Make it smaller."
            )
        self.batch_size, self.shuffle, self.seed, self.drop_last = batch_size, shuffle, seed, drop_last
        self._position: Position = ((0, 0), (0, 0), None)
        self._kept_order: tuple[tuple[int, int], Tensor] | None = None  # ((epoch, seed), order of the rows), for next_rows
        self._kept_feed: tuple[tuple[int, int], Order, Feed | None] | None = None  # ((epoch, seed), …), for next_batches
        _check_seed(seed)

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        full, rest = divmod(self.rows, self.batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    @property
    def epoch(self) -> int:
        """The number of the pass in progress, counted from 0, or of the next pass if none is in progress."""
        return now(self._position)[1][0]

    @property
    def next_position(self) -> tuple[int, int]:
        """The epoch that the next `for` begins, and the number of its batches that are left out, because they have been yielded."""
        return now(self._position)[0]

    def __iter__(self) -> Iterator[Batch]:
        """Yields the rest of an epoch that `load_state_dict` resumed, otherwise a whole epoch."""
        _refuse_advance()
        (epoch, start), at = now(self._position)
        self._position = ((epoch + 1, 0), at, None)
        order, count = self._order(epoch), len(self)
        with self._feed(order, start) as feed:
            for i in range(start, count):
                _refuse_advance()
                batch = self._batch(order, i, feed)
                self._position = (self.next_position, after((epoch, i), 1, count), None)
                yield batch
                del batch  # so that its memory is free while the next one is made
        if not count:
            self._position = (self.next_position, (epoch + 1, 0), None)

    @property
    def reads_host(self) -> bool:
        """True if rows of an array are read from host memory or a file, so that a kernel cannot gather them."""
        return bool(self._sources)

    def next_rows(self, count: int | None = None) -> Tensor:
        """Advances by `count` batches, across epochs, and returns the indices of their rows: (count, batch_size), or (batch_size,)
        if count is None.

        Raises PullbackError if the last batch of an epoch is smaller.
        """
        rows = self._coming_rows(self.next_position, count)
        self._advance(count)
        return rows

    def take_for(self, count: int | None) -> tuple[Any, Steps]:
        """Returns what a captured function needs for its next `count` steps, and an object that counts the completed ones.

        That is the batches if `reads_host`, otherwise a tuple of the indices of their rows (see `next_batches` and `next_rows`).
        The Loader itself advances by the number of steps that are counted.
        """
        start, at = now(self._position)
        found = self._coming_batches(start, count) if self._sources else (self._coming_rows(start, count),)
        steps = Steps(start, len(self))
        self._position = (start, at, steps)
        return found, steps

    def _advance(self, count: int | None) -> None:
        place = after(self.next_position, 1 if count is None else count, len(self))
        self._position = (place, place, None)

    def _places(self, start: Place, count: int | None) -> list[Place]:
        """Returns the places of `count` batches, of which the first is at `start`."""
        _refuse_advance()
        if self.rows % self.batch_size and not self.drop_last:
            raise PullbackError(
                f"Loader: {self.rows} rows do not divide into batches of {self.batch_size}; a captured function needs batches of "
                f"equal size. Pass drop_last=True."
            )
        if count is None:
            return [start]
        length = len(self)
        return [after(start, k, length) for k in range(count)]

    def _coming_rows(self, start: Place, count: int | None) -> Tensor:
        found = [self._rows_at(*place) for place in self._places(start, count)]
        return found[0] if count is None else stack(found)

    def _rows_at(self, epoch: int, i: int) -> Tensor:
        if self._kept_order is None or self._kept_order[0] != (epoch, self.seed):
            order = self._shuffled(epoch, self._device)
            self._kept_order = ((epoch, self.seed), arange(self.rows, device=self._device) if order is None else order)
        return self._kept_order[1][i * self.batch_size : (i + 1) * self.batch_size]

    def gather(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Returns these rows of every array.

        Raises CaptureError in a captured function if rows are read from the host for a GPU: give that function the Loader.
        """
        with door.charged_to(door.DATA):
            return tuple([a[rows] if isinstance(a, Tensor) else self._gathered(a, rows) for a in self._arrays])

    def _gathered(self, source: Source, rows: Tensor) -> Tensor:
        held = source.tensor() if self._device == "cpu" else None
        if held is not None:
            return held[rows]
        capturing.refuse("gathering rows that are read from the host", "Call the captured function with the Loader: step(loader).")
        wanted = devices.move(rows.array, "cpu")
        found = source.empty(wanted.size)
        source.read(np.where(wanted < 0, wanted + self.rows, wanted).ravel(), found)
        return asarray(found.reshape(*wanted.shape, *source.shape[1:]), device=self._device)

    def next_batches(self, count: int | None = None) -> tuple[Tensor, ...]:
        """Like `gather(next_rows(count))`, but reads the rows of the next batches ahead, as a `for` does, if they are on the host.

        Raises PullbackError if the last batch of an epoch is smaller.
        """
        batches = self._coming_batches(self.next_position, count)
        self._advance(count)
        return batches

    def _coming_batches(self, start: Place, count: int | None) -> tuple[Tensor, ...]:
        places = self._places(start, count)
        try:
            found = [self._batch_at(*place) for place in places]
        except BaseException:
            self._drop_feed()
            raise
        return found[0] if count is None else tuple([stack(list(column)) for column in zip(*found)])

    def _batch_at(self, epoch: int, i: int) -> tuple[Tensor, ...]:
        kept = self._kept_feed
        if kept is None or kept[0] != (epoch, self.seed) or (kept[2] is not None and kept[2].at != i):
            self._drop_feed()
            order = self._order(epoch)
            kept = self._kept_feed = ((epoch, self.seed), order, self._begun_feed(order, i))
        return tuple(self._parts(kept[1], i, kept[2]))

    def _drop_feed(self) -> None:
        kept, self._kept_feed = self._kept_feed, None
        if kept is not None and kept[2] is not None:
            kept[2].close()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the thread that reads ahead."""
        return {**self.__dict__, "_kept_feed": None, "_position": (*now(self._position), None)}

    # ---- batches

    def _shuffled(self, epoch: int, device: str) -> Tensor | None:
        if not self.shuffle:
            return None
        with door.charged_to(door.DATA):
            stream = Generator(self.seed, device)
            stream.load_state_dict({"seed": self.seed, "serial": epoch})
            return stream.permutation(self.rows)

    def _order(self, epoch: int) -> Order:
        """Returns the order of the rows of an epoch, on the device and on the host, each None if no array needs it."""
        on_device = self._shuffled(epoch, self._device) if len(self._sources) < len(self._arrays) else None
        if not self._sources or not self.shuffle:
            return on_device, None
        on_host = on_device if on_device is not None and self._device == "cpu" else self._shuffled(epoch, "cpu")
        return on_device, None if on_host is None else on_host.array

    def _span(self, i: int) -> slice:
        return slice(i * self.batch_size, min((i + 1) * self.batch_size, self.rows))

    def _begun_feed(self, order: Order, start: int) -> Feed | None:
        if not self._sources:
            return None
        rows = _rows_of(order[1], self.batch_size, self.rows)
        if self._device == "cpu":
            return Feed(self._sources, rows, start, len(self))
        return GpuFeed(self._device, self._sources, rows, start, len(self), min(self.batch_size, self.rows))

    def _feed(self, order: Order, start: int) -> Any:
        feed = self._begun_feed(order, start)
        return nullcontext() if feed is None else closing(feed)

    def _batch(self, order: Order, i: int, feed: Feed | None) -> Any:
        parts = self._parts(order, i, feed)
        for part, wide in zip(parts, self._wide):
            if wide:  # so that a network warns if this makes it compute in float64
                remember(part)
        return parts[0] if self._single else tuple(parts)

    def _parts(self, order: Order, i: int, feed: Feed | None) -> list[Tensor]:
        rows = self._span(i)
        with door.charged_to(door.DATA):
            read = iter(feed.take() if feed is not None else ())
            return [
                Tensor(next(read)) if isinstance(a, Source)
                else a[order[0][rows]] if order[0] is not None
                else copy(a[rows]) if change
                else a[rows]
                for a, change in zip(self._arrays, self._change)
            ]

    def state_dict(self) -> dict[str, int]:
        """Returns the position of the iteration that advanced last: its epoch, the batches it has yielded, and the seed.

        `rows`, `batch_size` and `shuffle` tell which rows these batches had.
        """
        capturing.refuse("state_dict() of a Loader", "Ask for it outside.")
        epoch, done = now(self._position)[1]
        return {"epoch": epoch, "batches": done, "seed": self.seed, **self._split()}

    def _split(self) -> dict[str, int]:
        return {"rows": self.rows, "batch_size": self.batch_size, "shuffle": self.shuffle}

    def load_state_dict(self, state: Any) -> None:
        """Restores a position: the next `for` yields the remaining batches of that epoch. Raises PullbackError.

        In the middle of an epoch its rows, batch_size and shuffle must be those of this Loader. Older states do not have them.
        """
        capturing.refuse("loading a Loader's state", "Load it outside.")
        epoch, done, seed = read(state, self._split())
        if epoch < 0 or not 0 <= done < max(1, len(self)):
            raise PullbackError(
                f"Loader: the state is at batch {done} of epoch {epoch}, but an epoch has {len(self)} batches here."
            )
        _check_seed(seed)
        self._position = ((epoch, done), (epoch, done), None)
        self.seed = seed

    def __repr__(self) -> str:
        order = f"shuffled by seed {self.seed}" if self.shuffle else "in order"
        return f"Loader({self.rows} rows, {len(self)} batches of {self.batch_size}, {order})"


def _placed(a: Any, device: str | None, from_host: bool | None) -> Tensor | Source:
    """Returns a tensor on the device, or a Source if the array stays where it is. Raises PullbackError."""
    if not (is_mapped(a) if from_host is None else from_host):
        return asarray(a, device=device)
    if isinstance(a, Tensor):
        a = asarray(a).array
    if not devices.on_host(a) and (devices.on_device(a) or has(a, "__cuda_array_interface__")):
        raise PullbackError("Loader: from_host=True needs arrays in host memory, and one is on a GPU. Leave from_host out.")
    return Source(a)


def _device_of(arrays: Sequence[Any], device: str | None) -> str:
    """Returns the device of the batches. As everywhere, tensors stay on their device unless another is given."""
    found = [a.device for a in arrays if isinstance(a, Tensor)]
    return devices.check_device(device or (found[0] if found else devices.default_device()))


def _rows_of(order: Any, batch_size: int, total: int) -> Callable[[int], tuple[Any, int]]:
    """Returns a function that maps the number of a batch to its rows and their number. It has no reference to a Loader."""

    def rows(i: int) -> tuple[Any, int]:
        begin, end = i * batch_size, min((i + 1) * batch_size, total)
        return slice(begin, end) if order is None else order[begin:end], end - begin

    return rows


def _refuse_advance() -> None:
    capturing.refuse("taking batches of a Loader", "Loop over the Loader outside, or pass it: step(loader).")


def _check_seed(seed: Any) -> None:
    try:
        Generator(seed)
    except TypeError:
        raise PullbackError(
            f"Loader: seed={seed!r} must be an integer. The order of the rows follows from it; for another order in every run draw "
            f"one: seed=secrets.randbits(64)."
        ) from None


def _rows(arrays: Sequence[Tensor | Source]) -> int:
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
