"""`pb.capture`: what is called in the place of the function, and the recordings that it keeps."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, Final, NamedTuple

import numpy as np

from .. import amp, capturing, devices
from ..backends import kernels_on, why_not
from ..creation import asarray
from ..errors import CaptureError, PullbackError, ShapeError
from ..listeners import listeners
from ..ops.shape import concat, expand_dims
from ..refusal import Refused
from ..tensor import Parameter, Tensor
from ..tree import flatten, unflatten
from .recording import Recording
from .replay import Replay

FUSIONS: Final = ("exact", "fast", "none")
CACHE: Final = 32  # recordings that one function keeps


def capture(f: Any = None, /, *, fusion: str = "exact", steps: int | None = None, cache: int = CACHE) -> Any:
    """A function that runs `f` once for each signature, records its launches, and replays them from then on.

    Args:
        f: takes and returns nested lists, tuples, dicts; as a decorator with options, leave it out.
        fusion: "exact" makes one pass of ops that follow each other, with every rounding of the eager run; "fast" may round
            in another order; "none" replays the launches as they were.
        steps: K: runs f K times in one call, over a leading axis of K of every tensor among its arguments; results get one.
            A `pb.data.Loader` in the place of the first arguments gives the next batches: they are gathered inside, on the device.
        cache: recordings to keep, for different signatures.

    A signature is the shapes, dtypes and devices of tensors (arrays count as tensors), the values of all other arguments, the
    default device, `amp.autocast`, and the training mode of Modules. The first call of each runs f as it is. A replay repeats
    its launches, with parameters, slots, learning rates and random numbers as they are then; Python code does not run again,
    so what f prints or appends happens once. Tensors from outside that f uses are read where they are; numbers and shapes are
    as they were.

    Raises: CaptureError for what a replay could not repeat, naming the line: reading a value on the host, shapes that depend on
    values, ops without a kernel, replaced Parameters; or a tape or transform around the call that watches what is inside.
    Without native kernels for the device, f runs as it is every time.

    Example:
        >>> @pb.capture
        ... def train_step(x, y):
        ...     with pb.GradientTape() as tape:
        ...         loss = nn.cross_entropy(model(x), y)
        ...     opt.step(tape.gradient(loss, opt.parameters))
        ...     return loss
    """
    if fusion not in FUSIONS:
        raise PullbackError(f"capture: fusion={fusion!r}; use {', '.join(map(repr, FUSIONS))}.")
    for name, value in (("steps", steps), ("cache", cache)):
        if value is not None and (type(value) is not int or value < 1):
            raise PullbackError(f"capture: {name}={value!r} must be an integer of 1 or more.")
    if f is None:
        return partial(capture, fusion=fusion, steps=steps, cache=cache)
    if not callable(f):
        raise PullbackError(f"capture: a {type(f).__name__} was given, which is not a function.")
    return Captured(f, fusion, steps, cache)


class Captured:
    """What `capture` returns."""

    def __init__(self, function: Callable[..., Any], fusion: str, steps: int | None, cache: int) -> None:
        self._function, self._fusion, self._steps, self._cache = function, fusion, steps, cache
        self._replays: dict[Any, list[Replay]] = {}  # by signature, the last used at the end
        self._captures = 0
        self._last: Any = None
        self._quick: _Quick | None = None
        self._warned = False
        self._loaded: tuple[Any, Captured] | None = None  # the pb.data.Loader that was given last, and what runs on its rows
        update_wrapper(self, function)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if args and hasattr(args[0], "next_rows"):
            return self._over(args[0])(args[0].next_rows(self._steps), *args[1:], **options)
        quick = self._quick
        if quick is not None and not options and quick.serves(args):
            try:
                return quick.replay.run(args, args, self._steps or 0)
            except Refused:  # another shape, dtype or layout
                pass
        if capturing.thread.recording is not None:  # a part of what is recorded there
            return self._eagerly(args, options)
        leaves, spec = flatten(args) if not options else flatten((args, options))
        leaves = [_as_leaf(x) for x in leaves]
        if listeners.stack:
            _refuse_listeners(leaves)
        arrays = [x.array for x in leaves if x.__class__ is Tensor]
        arrays = [array if array.flags.c_contiguous else _dense(array, self._steps) for array in arrays]
        key = self._signature(leaves, arrays, spec)
        for replay in self._replays.get(key, ()):
            if replay.holds():
                self._used(key, replay, args, options)
                return replay.run(arrays, leaves, self._steps or 0)
        return self._first(key, leaves, arrays, spec, bool(options))

    def _over(self, loader: Any) -> Captured:
        """The function of the numbers of rows, which gathers its batch from the loader's arrays."""
        if self._loaded is None or self._loaded[0] is not loader:

            def step(rows: Any, *args: Any, **options: Any) -> Any:
                return self._function(*loader.gather(rows), *args, **options)

            self._loaded = (loader, Captured(step, self._fusion, self._steps, self._cache))
        return self._loaded[1]

    def _used(self, key: Any, replay: Replay, args: Sequence[Any], options: Any) -> None:
        """The next call is likely to be for the same."""
        self._last = key
        plain = not options and all([x.__class__ is Tensor for x in args])
        self._quick = _Quick(replay, len(args), devices.default_device(), amp.precision()) if plain else None

    # ---- signatures

    def _signature(self, leaves: Sequence[Any], arrays: Sequence[Any], spec: Any) -> Any:
        shapes = [(a.shape, a.dtype.num, a.strides, devices.device_of(a)) for a in arrays]
        fixed = [None if x.__class__ is Tensor else _fixed(x, i) for i, x in enumerate(leaves)]
        return (tuple(shapes), tuple(fixed), spec, devices.default_device(), amp.precision())

    def _keep(self, key: Any, replay: Replay) -> None:
        fresh = [other for other in self._replays.pop(key, ()) if other.fresh()]
        self._replays[key] = [replay, *fresh]
        if sum(map(len, self._replays.values())) <= self._cache:
            return
        oldest = next(iter(self._replays))
        del self._replays[oldest]
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._name()} has been recorded for more than {self._cache} signatures: {_difference(self._last, key)}. Each "
                f"costs a run without capture; the oldest is forgotten. Pad to fewer shapes, pass numbers that change as tensors, "
                f"or raise cache=.",
                stacklevel=4,
            )

    def _name(self) -> str:
        return f"capture({getattr(self._function, '__name__', 'f')})"

    # ---- the first run

    def _first(self, key: Any, leaves: Sequence[Any], arrays: Sequence[Any], spec: Any, named: bool) -> Any:
        device = devices.device_of(arrays[0]) if arrays else devices.default_device()
        kernels = kernels_on(device)
        if kernels is None:
            return self._eagerly(*_arguments(leaves, spec, named))
        steps = self._length(arrays)
        inputs = [(a if steps is None else a[0]).copy(order="K") for a in arrays]  # of their own: nothing else lies there
        fill = iter(inputs)
        given = [Tensor(next(fill)) if x.__class__ is Tensor else x for x in leaves]
        recording = Recording(kernels, device, inputs)
        with recording.running():
            args, options = _arguments(given, spec, named)
            outputs = self._function(*args, **options)
            replay, outputs = recording.finish(outputs, given, self._fusion, steps is not None)
        self._captures += 1
        self._keep(key, replay)
        self._last = key
        return outputs if steps is None else self._rest(replay, outputs, arrays, leaves, steps)

    def _length(self, arrays: Sequence[Any]) -> int | None:
        """The number of steps, which every tensor must have as its first axis. Raises ShapeError."""
        if self._steps is None:
            return None
        if not arrays:
            raise ShapeError(f"{self._name()} with steps={self._steps}: there is no tensor among the arguments to take steps over.")
        for array in arrays:
            if not array.ndim or array.shape[0] != self._steps:
                raise ShapeError(
                    f"{self._name()} with steps={self._steps}: an argument has shape {array.shape}; its first axis must have one "
                    f"entry for each of the {self._steps} steps."
                )
        return self._steps

    def _rest(self, replay: Replay, first: Any, arrays: Sequence[Any], leaves: Sequence[Any], steps: int) -> Any:
        """The steps after the first, and all results along the axis of steps."""
        ones, form = flatten(first)
        if steps == 1:
            return unflatten(form, [expand_dims(y, axis=0) if isinstance(y, Tensor) else y for y in ones])
        rest, _ = flatten(replay.run([a[1:] for a in arrays], leaves, steps - 1))
        stacked = [
            concat([expand_dims(y, axis=0), more]) if isinstance(y, Tensor) else y
            for y, more in zip(ones, rest)
        ]  # fmt: skip
        return unflatten(form, stacked)

    def _eagerly(self, args: Any, options: Any) -> Any:
        """The function as it is, step by step."""
        if self._steps is None:
            return self._function(*args, **options)
        leaves, spec = flatten((args, options))
        leaves = [_as_leaf(x) for x in leaves]
        steps = self._length([x.array for x in leaves if x.__class__ is Tensor]) or 0
        results = []
        for step in range(steps):
            inner, named = unflatten(spec, [x[step] if x.__class__ is Tensor else x for x in leaves])
            results.append(flatten(self._function(*inner, **named)))
        columns = zip(*[ys for ys, _ in results])
        stacked = [concat([expand_dims(y, axis=0) for y in ys]) if isinstance(ys[0], Tensor) else ys[-1] for ys in columns]
        return unflatten(results[-1][1], stacked)

    # ---- reports

    def stats(self) -> dict[str, int]:
        """Captures, replays (each of K steps counts once), and of the last used recording: kernels per replay, arena bytes."""
        if self._loaded is not None and not self._replays:
            return self._loaded[1].stats()
        replays = [replay for found in self._replays.values() for replay in found]
        last = self._replays.get(self._last, [None])[0]
        _, _, launches, kernels, arena = last.facts() if last is not None else (0, 0, 0, 0, 0)
        return {
            "captures": self._captures, "replays": sum([replay.runs for replay in replays]), "recordings": len(replays),
            "launches": launches, "kernels": kernels, "arena_bytes": arena,
        }  # fmt: skip

    def explain(self) -> Any:
        """The plan of the last used recording: each kernel, what was fused into it, and why not more. Prints as a table."""
        from .explanation import Explanation

        if self._loaded is not None and not self._replays:
            return self._loaded[1].explain()
        found = self._replays.get(self._last)
        if not found:
            reason = why_not(devices.default_device())
            raise CaptureError(f"{self._name()}: nothing is recorded yet{f' ({reason})' if reason else ''}; call it first.")
        return Explanation(self._name(), self._fusion, found[0])

    def clear(self) -> None:
        """Forgets all recordings, and gives their memory back."""
        self._replays, self._last, self._quick = {}, None, None


class _Quick(NamedTuple):
    """The recording that was used last, for arguments that are tensors: the kernel module compares these with what it recorded."""

    replay: Replay
    arguments: int
    device: str
    precision: str

    def serves(self, args: Sequence[Any]) -> bool:
        """Whether all but shapes and the like is as it was, and nobody listens."""
        return (
            len(args) == self.arguments
            and listeners.record is None
            and not listeners.batches
            and capturing.thread.recording is None
            and devices.default_device() == self.device
            and amp.precision() == self.precision
            and self.replay.holds()
        )


def _arguments(leaves: Sequence[Any], spec: Any, named: bool) -> tuple[Any, Any]:
    tree = unflatten(spec, list(leaves))
    return tree if named else (tree, {})


def _as_leaf(x: Any) -> Any:
    """Arrays count as tensors; a tensor of a class of its own as a plain one."""
    if x.__class__ is Tensor or isinstance(x, Parameter):
        return x
    if isinstance(x, Tensor):
        raise CaptureError(
            "capture: an argument is one example of a batch (under vmap, or the like). Capture the function around the transform."
        )
    return asarray(x) if isinstance(x, np.ndarray) or hasattr(x, "__cuda_array_interface__") else x


def _dense(array: Any, steps: int | None) -> Any:
    """An array that is not contiguous: as it is where it is a transposed one of the host, otherwise a copy."""
    return array if array.flags.f_contiguous and steps is None and devices.on_host(array) else devices.copied(array)


def _fixed(x: Any, place: int) -> Any:
    """What tells whether an argument that is no tensor is the same as before. Raises CaptureError."""
    if isinstance(x, Parameter):
        return _Same(x)
    try:
        hash(x)
    except TypeError:
        raise CaptureError(
            f"capture: argument leaf {place} is a {type(x).__name__}, which cannot be compared with that of the next call. Pass "
            f"tensors, and values that can be hashed."
        ) from None
    return type(x), x


class _Same:
    """Equal to itself around the same object only."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.x is self.x

    def __hash__(self) -> int:
        return id(self.x)

    def __repr__(self) -> str:
        return self.x.label()


def _refuse_listeners(leaves: Sequence[Any]) -> None:
    """A replay's inside is told to nobody: raises CaptureError where one would have to be told."""
    for listener in listeners.stack:
        knows = getattr(listener, "knows", None)
        if knows is None or listener.watch_parameters or any([knows(x) for x in leaves if isinstance(x, Tensor)]):
            raise CaptureError(
                f"a captured function was called inside a {type(listener).__name__} that watches its inputs or Parameters, "
                f"which a replay cannot tell of what runs inside. Make the tape or transform inside the captured function, or "
                f"call it with `tape.stop_recording()`."
            )


def _difference(before: Any, now: Any) -> str:
    """What differs between two signatures, in words."""
    if before is None:
        return "the recordings of a signature keep becoming invalid"
    for i, (a, b) in enumerate(zip(before[0], now[0])):
        if a != b:
            how = f"had shape {a[0]}, then {b[0]}" if a[0] != b[0] else "changed its dtype, layout or device"
            return f"tensor {i} of the arguments {how}"
    for i, (a, b) in enumerate(zip(before[1], now[1])):
        if a != b:
            return f"argument leaf {i} was {a!r}, then {b!r}"
    return "the structure of the arguments, the default device, or the precision keeps changing"
