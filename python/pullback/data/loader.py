"""Loader: mini-batches of arrays that live on the device; shuffling and gathering happen there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import index
from typing import Any

from ..errors import PullbackError, ShapeError
from ..launch import door
from ..ops.conversion import copy
from ..ops.movement import stack
from ..ops.random import Generator
from ..tensors.creation import arange, asarray, can_change
from ..tensors.tensor import Tensor


class Loader:
    """Iterates over mini-batches, one pass (epoch) for each `for`.

    Args:
        arrays: one array, or a list or tuple of arrays with equal first axes: rows that belong together.
        batch_size: rows of a batch; the last one is smaller where it does not divide, unless drop_last.
        shuffle: a new order every epoch: permutation number `epoch` of the Philox stream of `seed`, on every device the same.
        seed: of the shuffling.
        device: where the arrays are copied once; where they are, if None. There they are read batch by batch: what is written
            to an array later is in the batches that come after, and in none that was given out.
        drop_last: leaves out a last batch that is not full.

    Yields a tuple of tensors, or a tensor where one array was given. Every `for` begins a whole epoch, also after one that was
    left early. `state_dict` between batches and `load_state_dict` resume exactly there. Raises ShapeError, PullbackError.
    """

    def __init__(
        self,
        arrays: Any,
        batch_size: Any,
        shuffle: bool = True,
        seed: int = 0,
        device: str | None = None,
        drop_last: bool = False,
    ) -> None:
        self._single = not isinstance(arrays, (list, tuple))
        given = [arrays] if self._single else arrays
        self._arrays = [asarray(a, device=device) for a in given]
        self._change = [can_change(a, t.array) for a, t in zip(given, self._arrays)]  # batches in order are views of the others
        self.rows = _rows(self._arrays)
        batch_size = _positive(batch_size)
        if drop_last and batch_size > self.rows:
            raise PullbackError(
                f"Loader: batch_size={batch_size} with drop_last=True gives no batch of {self.rows} rows. Make it smaller."
            )
        self.batch_size, self.shuffle, self.seed, self.drop_last = batch_size, shuffle, seed, drop_last
        self._next = (0, 0)  # where the next `for` begins: the epoch, and the batches of it to skip
        self._at = (0, 0)  # where the iteration that advanced last is: its epoch, and the batches given out in it
        self._kept_order: tuple[tuple[int, int], Tensor] | None = None  # of an epoch, for next_rows
        Generator(seed)  # refuses a bad seed now

    def __len__(self) -> int:
        """Batches in an epoch."""
        full, rest = divmod(self.rows, self.batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    @property
    def epoch(self) -> int:
        """Passes begun before the one that is under way, or comes next where none is."""
        return self._at[0]

    def __iter__(self) -> Iterator[Any]:
        """The rest of an epoch that `load_state_dict` resumed, otherwise a whole one."""
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
        """Moves on by so many batches, from one epoch into the next, and returns the numbers of their rows: (count, batch_size), or
        (batch_size,) where no count is given. `pb.capture` asks for them, and gathers inside.

        Raises PullbackError where the last batch of an epoch is smaller.
        """
        if self.rows % self.batch_size and not self.drop_last:
            raise PullbackError(
                f"Loader: {self.rows} rows do not divide into batches of {self.batch_size}; those of a captured function must be "
                f"equal. Say drop_last=True."
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
        """These rows of every array."""
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
        return parts[0] if self._single else tuple(parts)

    def state_dict(self) -> dict[str, int]:
        """Where the iteration that advanced last is: its epoch, the batches given out in it, and the seed."""
        epoch, done = self._at
        return {"epoch": epoch, "batches": done, "seed": self.seed}

    def load_state_dict(self, state: Any) -> None:
        """Goes on exactly there: the next `for` gives the batches that were left. Raises PullbackError."""
        if not isinstance(state, Mapping) or set(state) != {"epoch", "batches", "seed"}:
            what = sorted(map(str, state)) if isinstance(state, Mapping) else f"the type {type(state).__name__}"
            raise PullbackError(f"Loader: the state has {what}; it must be a dict of batches, epoch and seed.")
        epoch, done = int(state["epoch"]), int(state["batches"])
        if epoch < 0 or not 0 <= done < max(1, len(self)):
            raise PullbackError(
                f"Loader: the state is at batch {done} of epoch {epoch}, but an epoch has {len(self)} batches here."
            )
        Generator(int(state["seed"]))  # refuses a bad seed now
        self._next = self._at = (epoch, done)
        self.seed = int(state["seed"])

    def __repr__(self) -> str:
        order = f"shuffled by seed {self.seed}" if self.shuffle else "in order"
        return f"Loader({self.rows} rows, {len(self)} batches of {self.batch_size}, {order})"


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
