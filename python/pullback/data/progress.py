"""progress, which shows how far a loop over batches has come, with losses, samples and FLOPs per second, and never waits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, TextIO, TypeVar

import numpy as np

from ..duck import attribute
from ..errors import PullbackError, ShapeError
from ..launch import capturing, door
from ..ops._shapes import positive_integer
from ..profiling.units import quantity
from ..tensors import devices
from ..tensors.tensor import Tensor
from ..tensors.transfers import Download

Batch = TypeVar("Batch")
SMOOTHING: Final = 0.3  # the weight of the latest interval in the speeds, as in tqdm


def progress(
    batches: Iterable[Batch],
    epochs: int = 1,
    *,
    desc: str = "",
    total: int | None = None,
    mininterval: float = 0.1,
    file: TextIO | None = None,
    disable: bool | None = False,
    leave: bool = True,
    position: int | None = None,
) -> Progress[Batch]:
    """Returns an iterable of the batches of `epochs` passes over `batches` that shows a progress bar of tqdm.

    Args:
        batches: a Loader, or any iterable of batches. If a Loader was resumed, the first pass is the rest of its epoch.
        epochs: how many passes are made.
        total: the number of batches in all passes, if `len(batches)` does not tell it.
        mininterval: the shortest time between two displays, in seconds.
        desc, file, disable, leave, position: as in tqdm. disable=None shows nothing if `file` (stderr by default) is no terminal.

    `update(loss=loss)` shows numbers. The bar also shows samples per second, by the first axis of the batches, and FLOP/s, which it
    counts in some of the steps by the formulas of their launches. It never waits for a GPU: it shows the newest numbers that have
    arrived.

    Raises PullbackError.

    Example:
        >>> bar = pb.data.progress(loader, epochs=3)
        >>> for x, y in bar:
        ...     bar.update(loss=train_step(x, y))
    """
    given: Any = batches
    if not isinstance(given, Iterable):
        raise PullbackError(f"progress: a {type(given).__name__} was given. Give a Loader or another iterable of batches.")
    count = positive_integer("progress", "epochs", epochs)
    if count > 1 and isinstance(batches, Iterator):
        raise PullbackError("progress: an iterator yields its batches once, so that epochs must be 1. Give a Loader or a list.")
    options = {"file": file, "disable": disable, "leave": leave, "position": position}
    return Progress(batches, count, desc, total, mininterval, options)


class Progress(Generic[Batch]):
    """The iterable that `progress` returns. It can be iterated over again, which shows a new bar."""

    def __init__(
        self, batches: Iterable[Batch], epochs: int, desc: str, total: int | None, mininterval: float, options: dict[str, Any]
    ) -> None:
        self._batches, self._epochs, self._desc, self._total = batches, epochs, desc, total
        self._interval, self._options = mininterval, options
        self._bar: Any = None  # tqdm's bar while a loop runs and shows it
        self._numbers = _Numbers()
        self._values: dict[str, Any] = {}  # the newest that `update` has received
        self._names: tuple[str, ...] = ()  # the names of values that were checked

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches. Each counts as done when the next one is requested."""
        from tqdm import tqdm

        self._close()
        self._numbers, self._values = _Numbers(), {}
        first, total = self._extent()
        self._bar = bar = tqdm(total=total, desc=self._title(first, first), unit="batch", dynamic_ncols=True, mininterval=0,
                               miniters=1, **self._options)
        speed, clock, samples_of = _Speed(), time.perf_counter, _samples_of
        due = clock()  # after the first batch, its FLOPs and numbers are shown
        try:
            for epoch in range(first, first + self._epochs):
                bar.set_description_str(self._title(first, epoch), refresh=False)
                for batch in self._batches:
                    if bar.disable:
                        yield batch
                        continue
                    samples = samples_of(batch)
                    if speed.sampling:
                        speed.begin(samples)
                    yield batch
                    del batch  # so that its memory is free while the next one is made
                    if speed.ledger is not None:
                        speed.stop()
                    speed.batches += 1
                    speed.samples += samples
                    now = clock()
                    if now >= due:
                        due = now + self._interval
                        self._show(bar, speed, speed.latest(now))
        finally:
            speed.stop()
            if self._bar is bar:
                self._close(speed)
            bar.close()

    def _extent(self) -> tuple[int, int | None]:
        """Returns the number of the first epoch and the number of all batches."""
        first, skipped = getattr(self._batches, "next_position", (0, 0))
        if self._total is not None:
            return first, self._total
        try:
            return first, len(self._batches) * self._epochs - skipped  # type: ignore[arg-type]
        except TypeError:
            return first, None

    def _title(self, first: int, epoch: int) -> str:
        place = f"epoch {epoch + 1}/{first + self._epochs}" if self._epochs > 1 else ""
        return ", ".join([part for part in (self._desc, place) if part])

    def _show(self, bar: Any, speed: _Speed, rates: list[str]) -> None:
        bar.set_postfix_str(", ".join([*self._numbers.shown(self._values), *rates]), refresh=False)
        bar.update(speed.batches - bar.n)

    def _close(self, speed: _Speed | None = None) -> None:
        bar, self._bar = self._bar, None
        if bar is not None and not bar.disable and speed is not None:
            self._show(bar, speed, speed.mean())
        if bar is not None:
            bar.close()

    def update(self, *wrong: Any, **values: Any) -> None:
        """Shows these numbers, from the next display on. The batches are counted without it.

        values: numbers, or tensors with one number, by their names. A tensor with one axis has the numbers of several steps, as a
        function captured with steps= returns them, and the last one is shown. Text belongs in desc=. Raises PullbackError,
        ShapeError, CaptureError.
        """
        if wrong:
            raise PullbackError("progress: the bar counts batches itself. Name what it shows: bar.update(loss=loss).")
        names = tuple(values)
        if names != self._names:
            capturing.refuse("a progress bar", "Update it after the call.")
            for name, value in values.items():
                _check(name, value)
            self._names = names
        self._values = values


class _Numbers:
    """The numbers of the values that `update` receives, on their way to the display."""

    def __init__(self) -> None:
        self._requested: Any = None  # the last values whose numbers were requested
        self._coming: dict[str, Any] | None = None  # Downloads and numbers that are shown when all have arrived
        self._shown: dict[str, Any] = {}

    def shown(self, values: dict[str, Any]) -> list[str]:
        """Returns the newest numbers that have arrived, and requests those of the newest values."""
        self._arrive()
        if self._coming is None and values is not self._requested:
            self._requested = values
            self._coming = {name: _requested(name, value) for name, value in values.items()}
            self._arrive()
        return [f"{name}={_text(value)}" for name, value in self._shown.items()]

    def _arrive(self) -> None:
        coming = self._coming
        if coming is not None and all([not isinstance(x, Download) or x.done() for x in coming.values()]):
            self._shown = {name: x.value() if isinstance(x, Download) else x for name, x in coming.items()}
            self._coming = None


def _check(name: str, value: Any) -> None:
    """Raises an error for what is not a number, or an array whose last element can be shown."""
    if isinstance(value, (bool, int, float)):
        return
    shape, dtype = attribute(value, "shape", None), attribute(value, "dtype", None)
    if shape is None or isinstance(value, np.character):
        text = " Text belongs in progress(..., desc=text)." if isinstance(value, (str, bytes)) else ""
        raise PullbackError(
            f"progress: {name} is a {type(value).__name__}. Give a number, a tensor with one number, or a tensor with one number "
            f"for each step, of which the last one is shown.{text}"
        )
    if getattr(dtype, "kind", "f") in "SUOMmc" or getattr(dtype, "names", None):
        raise PullbackError(f"progress: {name} has dtype {dtype}, of which no number can be shown. Give real numbers.")
    if np.prod(shape, dtype=np.int64) != 1 and not (len(shape) == 1 and shape[0]):
        raise ShapeError(
            f"progress: {name} has shape {tuple(shape)}. Give one number: bar.update({name}=pb.mean({name})), or one axis with a "
            f"number for each step, of which the last one is shown."
        )


def _requested(name: str, value: Any) -> Any:
    """Returns the number, or a Download for a number on a GPU."""
    _check(name, value)
    array = value.array if isinstance(value, Tensor) else value
    if isinstance(value, Tensor) and not devices.on_host(array):
        return Download(array if array.ndim != 1 else array[-1:])
    return array


def _text(value: Any) -> str:
    if value is None:
        return "?"
    number = np.asarray(value).reshape(-1)[-1]
    return f"{float(number):.4g}" if number.dtype.kind not in "iub" else str(number)


class _Speed:
    """Counts batches, samples and FLOPs of a loop, and their number per second.

    A ledger counts the FLOPs of the first step and of one step after each display. The bar assumes their mean for each sample of
    all steps, because a ledger that counts every launch would slow the loop.
    """

    def __init__(self) -> None:
        self.batches = self.samples = 0  # in the steps that are done
        self.sampling = True  # the FLOPs of the next step are counted
        self.ledger: door.Ledger | None = None
        self._rows = 0  # samples of the step whose FLOPs are counted
        self._seen = (0, 0, 0)  # steps whose FLOPs were counted, their samples and their FLOPs
        self._begin = self._before = time.perf_counter()
        self._counted = (0, 0)  # batches and samples at the time `_before`
        self._rates: tuple[float, float] | None = None

    def begin(self, rows: int) -> None:
        """Counts the FLOPs of the step that begins."""
        self.sampling, self._rows = False, rows
        self.ledger = door.begin("count")

    def stop(self) -> None:
        """Ends the count of FLOPs, if one is under way."""
        ledger, self.ledger = self.ledger, None
        if ledger is not None:
            door.end(ledger)
            flops = sum([sums[2] + sums[3] + 2 * sums[4] for sums in ledger.sums.values()])  # adds, multiplies, multiply-adds
            steps, samples, before = self._seen
            self._seen = (steps + 1, samples + self._rows, before + flops)

    def _flops(self, batches: int, samples: int) -> float:
        """Returns the FLOPs of steps: the mean of a sample that was counted, or of a batch if it is not known how many samples it
        has, times their number.
        """
        steps, rows, flops = self._seen
        return flops * samples / rows if rows else flops * batches / max(1, steps)

    def latest(self, now: float) -> list[str]:
        """Returns the speeds of late, as text, and counts the FLOPs of the next step."""
        seconds, before = max(now - self._before, 1e-9), self._counted
        batches, samples = self.batches - before[0], self.samples - before[1]
        samples, flops = samples / seconds, self._flops(batches, samples) / seconds
        if self._rates is not None:
            old = self._rates
            samples, flops = [SMOOTHING * new + (1 - SMOOTHING) * rate for new, rate in zip((samples, flops), old)]
        self._before, self._counted, self.sampling = now, (self.batches, self.samples), True
        # The first step, which may record a captured function, is not in the later speeds.
        self._rates = (samples, flops) if self.batches > 1 else None
        return _rates(samples, flops)

    def mean(self) -> list[str]:
        """Returns the speeds since the beginning, as text."""
        seconds = max(time.perf_counter() - self._begin, 1e-9)
        return _rates(self.samples / seconds, self._flops(self.batches, self.samples) / seconds)


def _rates(samples: float, flops: float) -> list[str]:
    """Returns the speeds as text. A speed that is not known is left out."""
    return [quantity(float(f"{rate:.3g}"), unit) for rate, unit in ((samples, "samples/s"), (flops, "FLOP/s")) if rate]


def _samples_of(batch: Any) -> int:
    """Returns the length of the first axis of a batch's first tensor, or 0 if there is none."""
    if batch.__class__ is tuple and batch:
        batch = batch[0]
    if batch.__class__ is Tensor:
        shape = batch.array.shape
        return shape[0] if shape else 0
    while True:
        if isinstance(batch, (tuple, list)) and batch:
            batch = batch[0]
        elif isinstance(batch, dict) and batch:
            batch = next(iter(batch.values()))
        else:
            break
    shape = attribute(batch, "shape", ())
    return int(shape[0]) if isinstance(shape, tuple) and shape else 0
