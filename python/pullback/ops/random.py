"""Random numbers: one counter-based stream for all devices, and dropout, which reads it.

A call consumes one serial, whatever its shape; its numbers are a function of (seed, serial, position). The state that ops
take is a uint64 array [seed, serial].
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from operator import index
from typing import Any, Final

import numpy as np

from ..autodiff.batching import Batch, per_example
from ..autodiff.primitive import apply
from ..backends.reference import distinct_bytes, special
from ..errors import DTypeError, PullbackError, ShapeError
from ..launch import capturing
from ..tensors import devices, dtypes
from ..tensors.operand import as_tensor, own
from ..tensors.tensor import Tensor
from . import philox
from ._examples import normal as normal_example
from ._shapes import Shape, length, real
from .batching import drawing, dropping, shuffling
from .kinds import LINEAR, OWN, op
from .shape import settled, to_device

# ---- references


def _key(state: Any) -> tuple[int, int]:
    seed, serial = devices.move(state, "cpu")
    return int(seed), int(serial)


def _unit(count: int, dtype: Any, state: Any) -> Any:
    return philox.uniform(*_key(state), count, double=dtype == dtypes.float64)


def _uniform(xp: Any, state: Any, shape: Shape, dtype: Any, low: float, high: float) -> Any:
    u = _unit(math.prod(shape), dtype, state)
    return xp.asarray((u.dtype.type(low) + u.dtype.type(high - low) * u).astype(dtype).reshape(shape))


def _normal(xp: Any, state: Any, shape: Shape, dtype: Any, mean: float, std: float) -> Any:
    """Box & Muller 1958: a pair of uniform numbers gives a pair of normal ones."""
    count = math.prod(shape)
    u = _unit(count + count % 2, dtype, state).reshape(-1, 2).astype(np.float64)
    radius, angle = np.sqrt(-2 * np.log1p(-u[:, 0])), 2 * np.pi * u[:, 1]
    z = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)[:count]
    return xp.asarray((mean + std * z).astype(dtype).reshape(shape))


def _truncated_normal(xp: Any, state: Any, shape: Shape, dtype: Any, mean: float, std: float, low: float, high: float) -> Any:
    """By the inverse distribution function: no rejection, one number from each."""
    start, end = math.erf(low * math.sqrt(0.5)), math.erf(high * math.sqrt(0.5))
    u = _unit(math.prod(shape), dtype, state).astype(np.float64)
    z = np.clip(math.sqrt(2.0) * special(np, "erfinv")(start + (end - start) * u), low, high)
    return xp.asarray((mean + std * z).astype(dtype).reshape(shape))


def _bernoulli(xp: Any, state: Any, shape: Shape, p: float) -> Any:
    return xp.asarray((_unit(math.prod(shape), dtypes.float32, state) < np.float32(p)).reshape(shape))


def _randint(xp: Any, state: Any, shape: Shape, dtype: Any, low: int, high: int) -> Any:
    """A 64-bit word scaled to the range: no rejection, a bias below (high - low) / 2^64."""
    scaled = philox.multiply_high(philox.pairs(*_key(state), math.prod(shape)), high - low)
    return xp.asarray((scaled + np.uint64(low % 2**64)).astype(np.int64).astype(dtype).reshape(shape))


def _permutation(xp: Any, state: Any, count: int) -> Any:
    """The order that sorts 64-bit words; of equal ones, which are as good as impossible, the first comes first."""
    return xp.asarray(np.argsort(philox.pairs(*_key(state), count), kind="stable").astype(np.int64))


def _dropout(xp: Any, x: Any, state: Any, p: float) -> Any:
    keep = xp.asarray((_unit(x.size, dtypes.float32, state) >= np.float32(p)).reshape(x.shape))
    wide = x.astype(xp.float32) if x.dtype.itemsize == 2 else x
    return xp.where(keep, wide * wide.dtype.type(1 / (1 - p)), xp.zeros_like(wide)).astype(x.dtype)


STATE_BYTES = 16
STATES_AHEAD = 256  # that are sent to a GPU at once


def _counted(adds: int, multiplies: int, special: int, bounds: int = 0) -> Any:
    """The cost of two floating-point numbers, and of a counter for their bounds; drawing words is integer arithmetic, and no FLOP.

    A counter gives four numbers, or two of 64 bits, all of which are made.
    """

    def cost(*values: Any) -> dict[str, int]:
        wide = values[-1].dtype.itemsize == 8
        counters = -(-values[-1].size // (2 if wide else 4))
        pairs = counters * (1 if wide else 2)
        return {
            "adds": adds * pairs, "multiplies": multiplies * pairs + bounds * counters,
            "special_ops": special * pairs + bounds * counters, "bytes_read": STATE_BYTES,
        }  # fmt: skip

    return cost


def _draws(name: str, reference: Any, work: tuple[int, ...], batch: Any = drawing) -> Any:
    return op(name, kind=OWN, reference=reference, cost=_counted(*work), batch=batch)


_draw_uniform = _draws("uniform", _uniform, (2, 4, 0))
_draw_normal = _draws("normal", _normal, (3, 7, 4))
_draw_truncated = _draws("truncated_normal", _truncated_normal, (6, 8, 2, 2))
_draw_bernoulli = _draws("bernoulli", _bernoulli, (0, 2, 0))
_draw_randint = _draws("randint", _randint, (0, 0, 0))
_draw_permutation = _draws("permutation", _permutation, (0, 0, 0), shuffling)
_drop = op("dropout", kind=LINEAR, reference=_dropout, takes="float", inputs=2, batch=dropping,
           example=normal_example((3, 5), np.array([7, 1], np.uint64), params=(0.3,)),
           cost=lambda x, state, p, y: {"multiplies": y.size + -(-y.size // 4) * 4, "bytes_read": distinct_bytes(x) + STATE_BYTES},
           pullback=(lambda g, state, p: apply(_drop, (g, state), (p,)), None))  # fmt: skip


# ---- generators


class _Drawn(threading.local):
    """How this thread's draws are repeated.

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
        return self._draw(_draw_uniform, (_shape("uniform", shape), _float("uniform", dtype)), low, high)

    def normal(self, shape: Any = (), mean: float = 0.0, std: float = 1.0, *, dtype: Any = None) -> Tensor:
        """Normal with this mean and standard deviation, float32 where no dtype is given."""
        mean, std = _number("normal", "mean", mean), _number("normal", "std", std)
        if std < 0:
            raise PullbackError(f"normal: std={std} is negative.")
        return self._draw(_draw_normal, (_shape("normal", shape), _float("normal", dtype)), mean, std)

    def truncated_normal(
        self, shape: Any = (), mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0, *, dtype: Any = None
    ) -> Tensor:
        """Normal, cut off at mean + low * std and mean + high * std (low and high in standard deviations)."""
        names = ("mean", "std", "low", "high")
        params = [_number("truncated_normal", name, value) for name, value in zip(names, (mean, std, low, high))]
        mean, std, low, high = params
        if not low < high:
            raise PullbackError(f"truncated_normal: low={low} must be less than high={high}; both count in standard deviations.")
        return self._draw(_draw_truncated, (_shape("truncated_normal", shape), _float("truncated_normal", dtype)), *params)

    def bernoulli(self, shape: Any = (), p: float = 0.5) -> Tensor:
        """True with probability p."""
        p = _number("bernoulli", "p", p)
        if not 0 <= p <= 1:
            raise PullbackError(f"bernoulli: p={p} is not a probability; it must be from 0 to 1.")
        return self._draw(_draw_bernoulli, (_shape("bernoulli", shape),), p)

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
        return self._draw(_draw_randint, (_shape("randint", shape), wanted), first, last)

    def permutation(self, x: Any) -> Tensor:
        """The integers below x in random order, or the rows of a tensor in random order."""
        if isinstance(x, (int, np.integer)):
            return self._draw(_draw_permutation, (length("permutation", "x", x),))
        x = as_tensor(x)
        return x[self._draw(_draw_permutation, (x.shape[0],), device=x.device)]


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
    return apply(_drop, (x, per_example(state, drawn.alike)), (float(p),))


__all__: Sequence[str] = ("Generator", "bernoulli", "normal", "permutation", "randint", "seed", "truncated_normal", "uniform")
