"""Random numbers: one counter-based stream for all devices, and dropout, which reads it.

A call consumes one serial, whatever its shape; its numbers are a function of (seed, serial, position).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from operator import index
from typing import Any, Final

import numpy as np

from ..autodiff.batching import Batch
from ..autodiff.primitive import apply
from ..errors import DTypeError, PullbackError, ShapeError
from ..launch import capturing
from ..tensors import devices, dtypes
from ..tensors.operand import as_tensor, own
from ..tensors.tensor import Tensor
from ._shapes import Shape, length, real
from .by_name import per_example
from .conversion import settled, to_device
from .draws import (
    draw_bernoulli,
    draw_normal,
    draw_permutation,
    draw_randint,
    draw_truncated,
    draw_uniform,
    drop,
)  # fmt: skip

STATES_AHEAD = 256  # states of a generator that are sent to a GPU at once

# ---- generators


class _Drawn(threading.local):
    """The state that repeats this thread's draws.

    Attributes:
        before: dicts from each generator drawn from to its state before the first time, for who will want to repeat it.
        alike: while draws are repeated, the batches that were not there before: all their examples get the same numbers.
    """

    before: tuple[dict[Generator, dict[str, int]], ...] = ()
    alike: tuple[Batch, ...] = ()


drawn: Final = _Drawn()


class Generator:
    """A stream of random numbers: the same on every device, from `seed` and the number of the call.

    Args:
        seed: an integer from 0 to 2^64 - 1.
        device: where the numbers are made; the default device where None.

    Every method takes a shape and returns a tensor of it; each call consumes one serial, whatever its shape.
    """

    def __init__(self, seed: int = 0, device: str | None = None) -> None:
        capturing.refuse("seeding a generator", "Seed it outside.")
        self.begin_stream(seed, None if device is None else devices.check_device(device))

    def begin_stream(self, seed: int, device: str | None) -> None:
        """As a new generator is. Nothing is refused: the module makes its own when it is imported, wherever that is."""
        seed = index(seed)
        if not 0 <= seed < 2**64:
            raise PullbackError(f"seed {seed} is out of range: use an integer from 0 to 2**64 - 1.")
        self._device, self._seed, self._serial = device, seed, 0
        self._ahead: tuple[Any, Any] = (None, None)

    def seed(self, seed: int) -> None:
        """Starts the stream of another seed, from its beginning. Raises PullbackError outside [0, 2^64)."""
        capturing.refuse("seeding a generator", "Seed it outside.")
        self.begin_stream(seed, self._device)

    def state_dict(self) -> dict[str, int]:
        """Seed and number of calls so far: all that an exact resume needs."""
        return {"seed": self._seed, "serial": self._serial}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on from a state that `state_dict` gave."""
        if state["seed"] != self._seed:
            self.seed(state["seed"])
        self._serial = int(state["serial"])

    def next_state(self, device: str = "cpu") -> Any:
        """[seed, serial] for one call, as uint64 in the device's memory."""
        for states in drawn.before:
            states.setdefault(self, self.state_dict())
        serial = self._serial
        self._serial += 1
        if capturing.thread.recording is not None:
            return capturing.thread.recording.random_state(self, {"seed": self._seed, "serial": serial}, device)
        if device == "cpu":
            return np.array([self._seed, serial], np.uint64)
        block, place = divmod(serial, STATES_AHEAD)
        if self._ahead[0] != (device, self._seed, block):
            states = np.full((STATES_AHEAD, 2), self._seed, np.uint64)
            states[:, 1] = np.arange(STATES_AHEAD) + block * STATES_AHEAD
            self._ahead = ((device, self._seed, block), devices.move(states, device))
        return self._ahead[1][place]

    def _draw(self, op: Any, kind: Sequence[Any], *params: Any, device: str | None = None) -> Tensor:
        """The op's result for (*kind, state, *params)."""
        device = device or self._device or devices.default_device()
        y = apply(op, (per_example(Tensor(self.next_state(device)), drawn.alike),), (*kind, *params))
        return y if y.device == device else to_device(y, device)

    def uniform(self, shape: Any = (), low: float = 0.0, high: float = 1.0, *, dtype: Any = None) -> Tensor:
        """Uniform in [low, high), but for rounding; float32 where no dtype is given."""
        low, high = _number("uniform", "low", low), _number("uniform", "high", high)
        if not low <= high:
            raise PullbackError(f"uniform: low={low} is above high={high}.")
        return self._draw(draw_uniform, (_shape("uniform", shape), _float("uniform", dtype)), low, high)

    def normal(self, shape: Any = (), mean: float = 0.0, std: float = 1.0, *, dtype: Any = None) -> Tensor:
        """Normal with this mean and standard deviation, float32 where no dtype is given."""
        mean, std = _number("normal", "mean", mean), _number("normal", "std", std)
        if std < 0:
            raise PullbackError(f"normal: std={std} is negative.")
        return self._draw(draw_normal, (_shape("normal", shape), _float("normal", dtype)), mean, std)

    def truncated_normal(
        self, shape: Any = (), mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0, *, dtype: Any = None
    ) -> Tensor:
        """Normal, cut off at mean + low * std and mean + high * std (low and high in standard deviations)."""
        names = ("mean", "std", "low", "high")
        params = [_number("truncated_normal", name, value) for name, value in zip(names, (mean, std, low, high))]
        mean, std, low, high = params
        if not low < high:
            raise PullbackError(f"truncated_normal: low={low} must be less than high={high}; both count in standard deviations.")
        return self._draw(draw_truncated, (_shape("truncated_normal", shape), _float("truncated_normal", dtype)), *params)

    def bernoulli(self, shape: Any = (), p: float = 0.5) -> Tensor:
        """True with probability p."""
        p = _number("bernoulli", "p", p)
        if not 0 <= p <= 1:
            raise PullbackError(f"bernoulli: p={p} is not a probability; it must be from 0 to 1.")
        return self._draw(draw_bernoulli, (_shape("bernoulli", shape),), p)

    def randint(self, low: int, high: int | None = None, shape: Any = (), *, dtype: Any = None) -> Tensor:
        """Integers in [low, high), or in [0, low) with one bound; int64 where no dtype is given."""
        try:
            first, last = (0, index(low)) if high is None else (index(low), index(high))
        except TypeError:
            raise DTypeError(f"randint: the bounds {low!r} and {high!r} are not integers; the shape comes after them.") from None
        if not first < last:
            raise PullbackError(f"randint: there is no integer in [{first}, {last}). Give low < high.")
        wanted = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype)
        if wanted.kind not in "iu":
            raise DTypeError(f"randint: dtype {wanted} is not an integer dtype.")
        if not (dtypes.fits(first, wanted) and dtypes.fits(last - 1, wanted)):
            raise dtypes.out_of_range(f"randint: a number in [{first}, {last})", wanted, "Use a wider dtype, or other bounds.")
        return self._draw(draw_randint, (_shape("randint", shape), wanted), first, last)

    def permutation(self, x: Any) -> Tensor:
        """The integers below x in random order, or the rows of a tensor in random order."""
        if isinstance(x, (int, np.integer)):
            return self._draw(draw_permutation, (length("permutation", "x", x),))
        x = as_tensor(x)
        return x[self._draw(draw_permutation, (x.shape[0],), device=x.device)]


def _shape(name: str, shape: Any) -> Shape:
    """Raises ShapeError."""
    try:
        lengths = tuple([index(n) for n in shape]) if isinstance(shape, (tuple, list)) else (index(shape),)
    except TypeError:
        raise ShapeError(f"{name}: shape {shape!r} is not an integer or a sequence of integers.") from None
    if any([n < 0 for n in lengths]):
        raise ShapeError(f"{name}: shape {lengths} has a negative length.")
    return lengths


_PARAMETERS = {"uniform": "low, high", "normal": "mean, std", "truncated_normal": "mean, std, low, high", "bernoulli": "p"}


def _number(name: str, what: str, value: Any) -> float:
    """Returns a parameter of a distribution as a float. Raises DTypeError."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DTypeError(
            f"{name}: {what}={value!r} is not a number. The shape comes first: pb.random.{name}(shape, {_PARAMETERS[name]})."
        ) from None


def _float(name: str, dtype: Any) -> Any:
    wanted = dtypes.DEFAULT if dtype is None else dtypes.as_dtype(dtype)
    if not dtypes.is_float(wanted):
        raise DTypeError(f"{name}: dtype {wanted} is not floating-point.")
    return wanted


default = Generator.__new__(Generator)  # what layers, initialisers and dropout draw from, unless told otherwise
default.begin_stream(0, None)

seed = default.seed
uniform, normal, truncated_normal = default.uniform, default.normal, default.truncated_normal
bernoulli, randint, permutation = default.bernoulli, default.randint, default.permutation


def dropout(x: Any, p: float = 0.5, training: bool = True, *, generator: Generator | None = None) -> Tensor:
    """Each element set to zero with probability p, the others divided by 1 - p; x where not training.

    Args:
        x: float tensor of any shape.
        p: a probability, from 0 to 1.
        generator: draws the mask; `pb.random`'s where None. The backward pass draws the same mask again: nothing is kept.

    Source: Srivastava et al. 2014. Raises PullbackError.
    """
    if not 0 <= real("dropout", "p", p) <= 1:
        raise PullbackError(f"dropout: p={p} is not a probability; it must be from 0 to 1.")
    if not training or p == 0:
        return settled(own(x))
    x = as_tensor(x)
    if p == 1:
        return x * 0.0
    given: Any = generator
    if not isinstance(given, (Generator, type(None))):
        raise PullbackError(f"dropout: generator={generator!r} is not a pb.random.Generator.")
    state = Tensor((generator or default).next_state(x.device))
    return apply(drop, (x, per_example(state, drawn.alike)), (float(p),))

