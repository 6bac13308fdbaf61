"""Random generators, whose counter-based streams give the same numbers on all devices.

Every call consumes one serial, whatever its shape. Its numbers depend on (seed, serial, position) only. Threads that draw from one
generator share its serials, and each serial is drawn once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from operator import index
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from ..autodiff.batching import Batch
from ..autodiff.primitive import apply
from ..backends import kernels_on
from ..errors import DTypeError, PullbackError, ShapeError, shown
from ..interop.gate import explained, ungated
from ..launch import capturing
from ..launch.made import MadeOutside
from ..tensors import devices, dtypes
from ..tensors.nested import has_tensor
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike, P, ShapeLike
from . import _stream
from ._shapes import Shape, length, real
from ._stream import Stream, checked_seed
from .by_name import in_dtype, per_example
from .conversion import to_device
from .draws import (
    check_bounds,
    draw_bernoulli,
    draw_normal,
    draw_permutation,
    draw_randint,
    draw_truncated,
    draw_uniform,
)
from .elementwise import less, subtract

STATES_AHEAD = 256  # number of states of a generator that are copied to a GPU at once

# ---- the order of arguments

_ORDER: Final = "The shape comes first, as one argument: pb.random.{}(shape, {})."
_PARAMETERS: Final = {
    "uniform": "low, high", "normal": "mean, std", "truncated_normal": "mean, std, low, high", "bernoulli": "p"
}


def _shape_first(draw: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Decorates a method that takes the shape before the parameters. It refuses a number 0 as the shape if parameters follow.

    Where the parameters come first, as in NumPy, 0 is a mean or a lower bound. Here the result would be empty.
    """
    name, inside = draw.__name__, explained(draw)
    parameters = set(_PARAMETERS[name].split(", "))

    @ungated
    @wraps(draw)
    def call(*args: P.args, **options: P.kwargs) -> Tensor:
        _, shape, *more = (*args, None) if len(args) < 2 else args
        if isinstance(shape, (int, float, np.number)) and shape == 0 and (more or options.keys() & parameters):
            order = _ORDER.format(name, _PARAMETERS[name])
            raise ShapeError(
                f"{name}: the shape is {shape}, so nothing would be drawn. {order} An empty tensor has the shape (0,)."
            )
        return inside(*args, **options)

    return call


# ---- generators


class States(dict[Any, dict[str, Any]]):
    """The states of generators before draws that will be repeated, by generator. "memory" holds what `Generator.rewind` needs."""


class _Drawn(threading.local):
    """Per-thread bookkeeping that makes draws repeatable.

    Attributes:
        before: one dict per function that will repeat its draws: maps each generator to its state before the first draw.
        alike: the batches that began after the draws that are being repeated. All their examples get the same numbers.
        memories: in a recording that repeats draws of another one: for each generator the tensor with the state that the other
            recording began to draw with, and the serial that this state had when the recording was made.
        again: the streams of generators whose draws this thread repeats. Other threads go on with the generators' own streams.
    """

    before: tuple[dict[Generator, dict[str, Any]], ...] = ()
    alike: tuple[Batch, ...] = ()
    memories: Mapping[Generator, tuple[Tensor, int]] = MappingProxyType({})
    again: Mapping[Generator, Stream] = MappingProxyType({})

    def note(self, generator: Generator, device: str = "cpu") -> None:
        """Notes the state of a generator that is about to draw.

        If a recording keeps values for a backward pass, the state of each replay is among them, as "memory".
        """
        for states in self.before:
            if generator not in states:
                turn = generator.stream.turn()  # first, so that check() sees draws of others after it
                states[generator] = {**generator.state_dict(), "turn": turn}
                recording = capturing.thread.recording
                if recording is not None and recording.keeps and states.__class__ is States:
                    states[generator]["memory"] = Tensor(generator.recorded_state(recording, device))

    def check(self, generator: Generator) -> None:
        """Raises PullbackError if another thread has drawn from the generator since its state was noted.

        The draws since then are not consecutive, so they could not be repeated.
        """
        if any([states[generator].get("turn") != generator.stream.turn() for states in self.before]):
            raise PullbackError(
                "another thread drew from the same random generator while this one ran a function whose draws will be repeated, "
                "such as that of pb.checkpoint. Give each thread a generator of its own: generator=pb.random.Generator(seed)."
            )


drawn: Final = _Drawn()


class Generator(MadeOutside):
    """A stream of random numbers, which depend on `seed` and the number of the call and are the same on every device.

    Args:
        seed: an integer from 0 to 2^64 - 1.
        device: the device that makes the numbers; None for the default device.

    Every drawing method returns a tensor and consumes one serial, whatever the shape of the tensor is.
    """

    def __init__(self, seed: int = 0, device: str | None = None) -> None:
        self.begin_stream(seed, None if device is None else devices.check_device(device))

    def begin_stream(self, seed: int, device: str | None) -> None:
        """Starts a stream as a new generator does, but even inside a captured function, where this module may be imported first."""
        self._device, self.own = device, Stream(checked_seed(seed))
        self._ahead: tuple[Any, Any] = (None, None)

    @property
    def stream(self) -> Stream:
        """The stream from which this thread draws."""
        return drawn.again.get(self, self.own)

    def seed(self, seed: int) -> None:
        """Starts the stream of this seed from its beginning. Raises PullbackError for a seed outside [0, 2^64)."""
        capturing.refuse("seeding a generator", "Seed it outside.")
        self.stream.jump(checked_seed(seed))

    def __repr__(self) -> str:
        where = f', device="{self._device}"' if self._device else ""
        return f"Generator(seed={self.stream.seed}{where}; {self.stream.serial:,} draws)"

    def state_dict(self) -> dict[str, int]:
        """Returns the seed and the number of calls so far, from which a run can be resumed exactly.

        The state of `pb.random` also has the number of processes forked so far, as "children", unless it is 0.
        """
        seed, serial, children = self.stream.now()
        return {"seed": seed, "serial": serial, **({"children": children} if children else {})}

    def load_state_dict(self, state: Any) -> None:
        """Continues from a state that `state_dict` returned. Raises PullbackError for anything else; nothing has changed then."""
        given = state if isinstance(state, dict) else {}
        seed, serial, children = given.get("seed", -1), given.get("serial", -1), given.get("children", 0)
        if not all([type(number) is int and number >= 0 for number in (seed, serial, children)]):
            raise PullbackError(
                f"load_state_dict: {state!r:.80} is not a generator's state. Give the dict that state_dict() returned."
            )
        capturing.refuse("loading a generator's state", "Load it outside.")
        self.stream.jump(checked_seed(seed), serial, children)

    def rewind(self, state: dict[str, Any]) -> None:
        """Continues from a state that was noted before a draw. If it has a memory, this holds the numbers of the present call."""
        to = self.repeated(state)
        self.stream.jump(to.seed, to.serial, self.stream.children)

    def repeated(self, state: dict[str, Any]) -> Stream:
        """Returns the stream from a state that was noted before a draw, for `drawn.again`."""
        seed, serial, memory = state["seed"], state["serial"], state.get("memory")
        if memory is not None and capturing.thread.recording is None:
            seed, serial = devices.move(memory.array, "cpu").tolist()
        elif memory is not None:
            drawn.memories = {**drawn.memories, self: (memory, serial)}
        return Stream(seed, serial)

    def take(self, count: int) -> tuple[int, int]:
        """Consumes serials. Returns the seed and the first serial. Raises PullbackError if they will be repeated and cannot be."""
        taken = self.stream.take(count)
        if drawn.before:
            drawn.check(self)
        return taken

    def recorded_state(self, recording: capturing.Recording, device: str) -> Any:
        """Returns the present [seed, serial] of a recording, which each replay computes anew."""
        if self in drawn.memories:
            memory, serial = drawn.memories[self]
            return kernels_on(device).random_state(memory.array, self.stream.serial - serial)
        return recording.random_state(self, self.state_dict(), device)

    def next_state(self, device: str = "cpu") -> Any:
        """Consumes one serial and returns [seed, serial] as uint64 in the device's memory."""
        drawn.note(self, device)
        if capturing.thread.recording is not None:
            state = self.recorded_state(capturing.thread.recording, device)
            self.take(1)
            return state
        seed, serial = self.take(1)
        if device == "cpu":
            return np.array([seed, serial], np.uint64)
        block, place = divmod(serial, STATES_AHEAD)
        key, ahead = self._ahead
        if key != (device, seed, block):
            states = np.full((STATES_AHEAD, 2), seed, np.uint64)
            states[:, 1] = np.arange(STATES_AHEAD) + block * STATES_AHEAD
            ahead = devices.move(states, device)
            self._ahead = ((device, seed, block), ahead)
        return ahead[place]

    def _draw(self, op: Any, kind: Sequence[Any], *params: Any, device: str | None = None) -> Tensor:
        """Returns the op's result for the next state and the params (*kind, *params)."""
        device = device or self._device or devices.default_device()
        y = apply(op, (per_example(Tensor(self.next_state(device)), drawn.alike),), (*kind, *params))
        return y if y.device == device else to_device(y, device)

    @_shape_first
    def uniform(self, shape: ShapeLike = (), low: float = 0.0, high: float = 1.0, *, dtype: DTypeLike | None = None) -> Tensor:
        """Draws from the uniform distribution over [low, high), up to rounding; float32 if no dtype is given.

        Bounds may be tensors that broadcast to the shape. Gradients pass to them.
        Raises PullbackError, ShapeError, DTypeError.
        """
        lengths = _shape("uniform", shape)
        if _has_tensor(low, high):
            return _scaled("uniform", self.uniform(lengths, dtype=dtype), subtract(high, low), low)
        low, high = _number("uniform", "low", low), _number("uniform", "high", high)
        wanted = _float("uniform", dtype)
        widest = dtypes.finfo(dtypes.promote(wanted, dtypes.DEFAULT)).max  # half precision is computed in float32
        if not abs(high - low) <= widest:
            raise PullbackError(f"uniform: the range from {low} to {high} is wider than {wanted} holds. Draw from a part of it.")
        if not low <= high:
            raise PullbackError(f"uniform: low={low} is above high={high}. {_ORDER.format('uniform', _PARAMETERS['uniform'])}")
        return self._draw(draw_uniform, (lengths, wanted), low, high)

    @_shape_first
    def normal(self, shape: ShapeLike = (), mean: float = 0.0, std: float = 1.0, *, dtype: DTypeLike | None = None) -> Tensor:
        """Draws from the normal distribution with this mean and standard deviation; float32 if no dtype is given.

        They may be tensors that broadcast to the shape. Gradients pass to them.
        Raises PullbackError, ShapeError, DTypeError.
        """
        lengths = _shape("normal", shape)
        if _has_tensor(mean, std):
            return _scaled("normal", self.normal(lengths, dtype=dtype), std, mean)
        mean, std = _number("normal", "mean", mean), _number("normal", "std", std)
        if std < 0:
            raise PullbackError(f"normal: std={std} is negative.")
        return self._draw(draw_normal, (lengths, _float("normal", dtype)), mean, std)

    @_shape_first
    def truncated_normal(
        self,
        shape: ShapeLike = (),
        mean: float = 0.0,
        std: float = 1.0,
        low: float = -2.0,
        high: float = 2.0,
        *,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draws from the normal distribution truncated to [mean + low * std, mean + high * std]; float32 if no dtype is given.

        mean and std may be tensors that broadcast to the shape. Gradients pass to them.
        Raises PullbackError, ShapeError, DTypeError.
        """
        lengths = _shape("truncated_normal", shape)
        if _has_tensor(mean, std):
            return _scaled("truncated_normal", self.truncated_normal(lengths, low=low, high=high, dtype=dtype), std, mean)
        names = ("mean", "std", "low", "high")
        params = [_number("truncated_normal", name, value) for name, value in zip(names, (mean, std, low, high))]
        check_bounds(params[2], params[3], kind := _float("truncated_normal", dtype))
        return self._draw(draw_truncated, (lengths, kind), *params)

    @_shape_first
    def bernoulli(self, shape: ShapeLike = (), p: float = 0.5) -> Tensor:
        """Draws bools that are True with probability p, a number or a tensor that broadcasts to the shape.

        Raises PullbackError, ShapeError, DTypeError.
        """
        lengths = _shape("bernoulli", shape)
        if _has_tensor(p):
            return _of_shape("bernoulli", less(self.uniform(lengths), p), lengths)
        p = _number("bernoulli", "p", p)
        if not 0 <= p <= 1:
            raise PullbackError(f"bernoulli: p={p} is not a probability; it must be from 0 to 1.")
        return self._draw(draw_bernoulli, (lengths,), p)

    def randint(self, low: int, high: int | None = None, shape: ShapeLike = (), *, dtype: DTypeLike | None = None) -> Tensor:
        """Draws integers from [low, high), or from [0, low) if only one bound is given; int64 if no dtype is given.

        Raises PullbackError, ShapeError, DTypeError.
        """
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

    def permutation(self, x: ArrayLike) -> Tensor:
        """Returns the integers from 0 to x - 1, or the rows of a tensor x, in random order. Raises ShapeError."""
        if isinstance(x, (int, np.integer)):
            return self._draw(draw_permutation, (length("permutation", "x", x),))
        x = as_tensor(x)
        if not x.ndim:
            raise ShapeError(f"permutation: x is one number of dtype {x.dtype}, and not rows. Give a Python integer, int(x).")
        return x[self._draw(draw_permutation, (x.shape[0],), device=x.device)]


def _shape(name: str, shape: Any) -> Shape:
    """Returns the shape as a tuple. Raises ShapeError."""
    try:
        lengths = tuple([index(n) for n in shape]) if isinstance(shape, (tuple, list)) else (index(shape),)
    except (TypeError, PullbackError):
        instead = f" A generator draws by its methods: generator.{name}(shape)." if isinstance(shape, Generator) else ""
        raise ShapeError(f"{name}: shape {shape!r} is not an integer or a sequence of integers.{instead}") from None
    if any([n < 0 for n in lengths]):
        raise ShapeError(f"{name}: shape {lengths} has a negative length.")
    return lengths


def _has_tensor(*values: Any) -> bool:
    return any([isinstance(value, Tensor) or has_tensor(value) for value in values])


def _scaled(name: str, drawn: Tensor, scale: Any, shift: Any) -> Tensor:
    """Returns drawn * scale + shift in the shape and dtype of what was drawn. Raises ShapeError."""
    return in_dtype(_of_shape(name, drawn * scale + shift, drawn.shape), drawn.dtype)


def _of_shape(name: str, y: Tensor, shape: Shape) -> Tensor:
    if y.shape != shape:
        raise ShapeError(f"{name}: the parameters have the shape {y.shape}, which does not broadcast to {shape}.")
    return y


def _number(name: str, what: str, value: Any) -> float:
    """Returns a parameter of a distribution as a float. Raises DTypeError."""
    if isinstance(value, Tensor):
        return real(name, what, value)  # raises DTypeError
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise DTypeError(f"{name}: {what}={shown(value)} is not a number. {_ORDER.format(name, _PARAMETERS[name])}") from None


def _float(name: str, dtype: Any) -> Any:
    wanted = dtypes.DEFAULT if dtype is None else dtypes.as_dtype(dtype)
    if not dtypes.is_float(wanted):
        raise DTypeError(f"{name}: dtype {wanted} is not floating-point.")
    return wanted


default: Generator = object.__new__(Generator)  # the generator of layers, initialisers and dropout, unless another one is passed
default.begin_stream(0, None)
_stream.follow_forks(default.own)

seed, state_dict, load_state_dict = default.seed, default.state_dict, default.load_state_dict
uniform, normal, truncated_normal = default.uniform, default.normal, default.truncated_normal
bernoulli, randint, permutation = default.bernoulli, default.randint, default.permutation
