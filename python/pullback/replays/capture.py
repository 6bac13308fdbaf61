"""`pb.capture`: the object that is called instead of the function, and the recordings that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, Protocol, overload

from ..autodiff.batching import Batched
from ..autodiff.listeners import listeners
from ..backends import kernels_on, modes, why_not
from ..duck import has
from ..errors import CaptureError, PullbackError
from ..function_wrapper import FunctionWrapper, innermost
from ..launch import capturing
from ..launch.refusal import Refused
from ..ops.movement import concat
from ..ops.shape import expand_dims
from ..tensors import devices
from ..tensors.operand import own
from ..tensors.precision import made_of
from ..tensors.tensor import Tensor
from ..tree import flatten, unflatten
from ..typing import P, R, Rest
from . import transformed
from .layout import Layout, WithLayouts, arrays_of
from .notices import Notices
from .plan_report import CaptureStats, Explanation, Parts, last_of, stats_of
from .quick import Quick
from .recording import FUSIONS, FirstCall, Recording
from .replay import Replay
from .signature import apart, as_leaf, order_of, signature, with_mode
from .steps import length_of, rest, run_step
from .under_tape import QuickUnderTape

if TYPE_CHECKING:
    from typing_extensions import Self

Fusion = Literal["exact", "fast", "none"]  # the words in FUSIONS
CACHE: Final = 32  # the default number of recordings that one function keeps


@overload
def capture(f: Callable[P, R], /, *, fusion: Fusion = "exact", steps: int | None = None, cache: int = CACHE) -> Captured[P, R]: ...
@overload
def capture(
    *, fusion: Fusion = "exact", steps: int | None = None, cache: int = CACHE
) -> Callable[[Callable[P, R]], Captured[P, R]]: ...
def capture(f: Any = None, /, *, fusion: Fusion = "exact", steps: int | None = None, cache: int = CACHE) -> Any:
    """Returns a function that runs `f` once per signature, records its kernel launches, and replays them on later calls.

    Args:
        f: takes and returns nested lists, tuples and dicts. Leave it out to use `capture` as a decorator with options.
        fusion: "exact" fuses consecutive ops into one pass and keeps every rounding of the eager run; "fast" may also change the
            order of roundings; "none" replays the launches unchanged.
        steps: the number K of times that one call runs f. Every tensor argument then needs a leading axis of length K, and every
            result gets one. A `pb.data.Loader` instead of the first arguments provides the next batches, gathered on the device
            (or on the host, if it reads them from there).
        cache: how many recordings, of different signatures, are kept.

    A signature consists of the shapes, dtypes and devices of tensors (arrays count as tensors), all other arguments (by value or
    identity), the default device, `amp.autocast` and `pb.config.reproducible`. The first call with each signature runs f eagerly. A
    replay repeats its launches with the current parameters, slots, learning rates and random numbers, and reads outside tensors and
    arrays in place. Python code does not run again. What it has read besides (globals, attributes, settings, modes: see
    docs/capture.md) is compared before each replay, and a change starts a new recording. `explain()` lists it.

    Raises: CaptureError, which names the line, for code that a replay could not repeat: reading a value on the host, shapes that
    depend on values, ops without a kernel, state that two recordings in a row leave behind, optimizers made inside. If the device
    has no native kernels, f runs eagerly on every call.

    A tape around a call records it as one op, whose forward and backward passes are a recording each. Transforms take the function
    like any other. Their results have the bits of the eager function, too.

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


class Batches(Protocol):
    """A pb.data.Loader."""

    def gather(self, rows: Tensor) -> tuple[Tensor, ...]: ...
    def take_for(self, count: int | None) -> tuple[Any, Any]: ...
    @property
    def reads_host(self) -> bool: ...


class Captured(FunctionWrapper[P, R]):
    """The function that `capture` returns. Copies have no recordings."""

    def __init__(
        self, function: Callable[P, R], fusion: Fusion, steps: int | None, cache: int, layouts: bool = False
    ) -> None:
        super().__init__(function, fusion, steps, cache, layouts)
        self._fusion: Fusion = fusion
        self._steps, self._cache, self._layouts = steps, cache, layouts  # layouts: results keep theirs, uncopied
        # By kinds of listeners: the functions that run for calls under them (transformed.py).
        self._derived: dict[Any, Captured[..., Any]] = {}
        # Recordings by signature, the last used at the end. The dict is replaced and never changed, because any thread may call.
        self._replays: dict[Any, list[Replay]] = {}
        self.under_tape: QuickUnderTape | None = None
        self._unserved: set[Any] = set()
        self._makes: set[Any] = set()  # the kinds of listeners under which the function has made Parameters
        self._captures = 0
        self._last: Any = None
        self._quick: Quick | None = None
        self._notices = Notices(self._name())
        self._loaded: tuple[Any, Captured[..., Any]] | None = None  # the last loader, and the function that runs on its rows

    def __repr__(self) -> str:
        steps = f", steps={self._steps}" if self._steps else ""
        stats = self.stats()
        counts = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in ((stats.recordings, "recording"), (stats.replays, "replay"))]
        name = getattr(self._function, "__qualname__", self._function)
        return f"capture({name}, fusion={self._fusion!r}{steps}; {', '.join(counts)})"

    @overload
    def __get__(self, owner: None, kind: Any = None) -> Self: ...
    @overload
    def __get__(self: Captured[Concatenate[Any, Rest], R], owner: object, kind: Any = None) -> Captured[Rest, R]: ...
    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return super().__get__(owner, kind)

    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> R: ...
    @overload
    def __call__(self, loader: Batches, /, *args: Any, **options: Any) -> R: ...
    def __call__(self, *args: Any, **options: Any) -> Any:
        if args and args[0].__class__ is not Tensor and has(args[0], "take_for"):
            taken, counted = args[0].take_for(self._steps)
            captured = self if args[0].reads_host else self._over(args[0])
            return captured._call((*taken, *args[1:]), options, counted)
        return self._call(args, options, None)

    def _call(self, args: tuple[Any, ...], options: dict[str, Any], counted: Any) -> Any:
        """Calls the function. The attribute `done` of `counted`, unless that is None, counts the completed steps."""
        quick = self._quick
        if quick is not None and not options and quick.serves(args):
            try:
                return quick.replay.run(args, args, self._steps or 0, counted)
            except Refused:  # The shape, dtype or layout differs.
                pass
        if capturing.thread.recording is not None:  # An outer recording includes this call.
            return self.eagerly(args, options, counted)
        if listeners.stack:
            under = self.under_tape
            if under is not None and counted is None and not options and (found := under.value(args)) is not None:
                return found[0]
            return transformed.call(self, args, options, counted)
        given, spec = flatten(args) if not options else flatten((args, options))
        leaves = [as_leaf(x) for x in given]
        arrays, layouts = arrays_of(leaves, self._steps)
        order = order_of((args, options)) if options or spec.__class__ is not tuple else ()
        key = signature(leaves, arrays, WithLayouts(spec, layouts) if layouts else spec, order)
        for replay in self._replays.get(key, ()):
            if replay.holds():
                self._used(key, replay, args, options)
                try:
                    return replay.run(arrays, given, self._steps or 0, counted)
                except Refused:  # Another thread has set pb.config.reproducible since the signature was made.
                    pass
        return self._first(key, given, leaves, arrays, layouts, spec, bool(options), counted)

    # ---- calls under listeners (transformed.py)

    @property
    def stepped(self) -> bool:
        """True if one call runs several steps."""
        return self._steps is not None

    @property
    def is_derived(self) -> bool:
        """True for a function that runs for calls of another one under listeners."""
        return self._layouts

    def derived(self, key: Any, make: Callable[[Any, Any], Any]) -> Captured[..., Any]:
        """Returns the captured function for listeners of this kind. make(function, capture) returns the function."""
        kept = dict(self._derived)
        found = kept.pop(key, None)
        if found is None:
            capture = partial(Captured, fusion=self._fusion, steps=None, cache=self._cache, layouts=True)
            found = capture(make(self._function, capture))
        kept[key] = found  # the last used one is at the end
        if len(kept) > self._cache:
            del kept[next(iter(kept))]
            self._notices.full_of_kinds(self._cache)
        self._derived = kept
        return found

    def runs_eagerly(self, kinds: Any) -> bool:
        """True if the function runs eagerly under such listeners, because a recording cannot serve them."""
        return kinds in self._unserved

    def last_used(self) -> Replay | None:
        """Returns the last used recording, if the arguments of its call were all tensors and need no copies."""
        return self._quick.replay if self._quick is not None else None

    def told(self, args: Sequence[Any]) -> tuple[Sequence[Any], Any] | None:
        """Replays the last used recording of a function that returns tensors and a constant. Returns None if it is not valid."""
        quick = self._quick
        if quick is None or not quick.serves(args):
            return None
        try:
            return quick.replay.told(args)
        except Refused:
            return None

    def run_eagerly(self, kinds: Any, makes: bool) -> None:
        """Makes calls under such listeners run eagerly from now on.

        A function that `makes` Parameters may do so in its first call only, so it gets a second chance.
        """
        if makes and kinds not in self._makes:
            self._makes.add(kinds)
        else:
            self._unserved.add(kinds)

    def _over(self, loader: Any) -> Captured[..., Any]:
        """Returns the captured function that takes row numbers and gathers its batch from the loader's arrays."""
        if self._loaded is None or self._loaded[0] is not loader:

            def step(rows: Any, *args: Any, **options: Any) -> Any:
                return self._function(*loader.gather(rows), *args, **options)

            self._loaded = (loader, Captured(step, self._fusion, self._steps, self._cache))
        return self._loaded[1]

    def _used(self, key: Any, replay: Replay, args: Sequence[Any], options: Any) -> None:
        """Moves this recording to the end, and tries it first in the next call, which probably has the same signature."""
        kept = dict(self._replays)
        kept[key] = [replay, *[other for other in kept.pop(key, ()) if other is not replay]]
        self._replays, self._last = kept, key
        plain = not options and all([x.__class__ is Tensor for x in args]) and key[2].__class__ is not WithLayouts
        self._quick = Quick(replay, len(args), devices.default_device(), modes.rounding()) if plain else None

    def quick(self) -> Quick | None:
        """Returns the last used recording if a call may replay it by itself (see `Quick.replays`); otherwise None."""
        return self._quick if self._quick is not None and self._quick.replay.plain and not self._steps else None

    # ---- recordings

    def _keep(self, key: Any, replay: Replay) -> None:
        kept = dict(self._replays)
        kept[key] = [replay, *[other for other in kept.pop(key, ()) if other.fresh()]]
        full = sum(map(len, kept.values())) > self._cache
        if full:  # the oldest recording of the signature that was used least recently
            oldest = next(iter(kept))
            kept[oldest] = kept[oldest][:-1]
            kept = {key: found for key, found in kept.items() if found}
        before, self._replays, self._last = self._last, kept, key
        self._captures += 1
        self._notices.recorded(before, key)
        if full:
            self._notices.full(before, key, self._cache)

    def _name(self) -> str:
        return f"capture({getattr(self._function, '__name__', 'f')})"

    # ---- the first run

    def _first(
        self, key: Any, given: Sequence[Any], leaves: Sequence[Any], arrays: Sequence[Any], layouts: Sequence[Layout | None],
        spec: Any, named: bool, counted: Any,
    ) -> Any:
        """Runs the function and records it. `given` holds the argument leaves as the user passed them, `leaves` after as_leaf."""
        device = devices.device_of(arrays[0]) if arrays else devices.default_device()
        kernels = kernels_on(device)
        if kernels is None:
            tensors = [x if x is leaf else made_of(x, own(x)) for x, leaf in zip(given, leaves)]
            return self.eagerly(*_arguments(tensors, spec, named), counted)
        steps = length_of(self._name(), self._steps, arrays)
        with FirstCall():
            key = with_mode(key)
            self._notices.changed([replay.facts() for replay in self._replays.get(key, ())])
            run = partial(self._record, key, kernels, device, given, leaves, arrays, layouts, spec, named, counted)
            replay, outputs = run(None if steps is None else 0)
            firsts = [outputs]
            if replay is None and steps is not None and steps > 1:  # what the first step left behind, the second one may find
                replay, outputs = run(1)
                firsts.append(outputs)
            if replay is not None:
                self._keep(key, replay)
            return outputs if steps is None else rest(replay, firsts, arrays, given, steps, counted)

    def _record(
        self, key: Any, kernels: Any, device: str, given: Sequence[Any], leaves: Sequence[Any], arrays: Sequence[Any],
        layouts: Sequence[Layout | None], spec: Any, named: bool, counted: Any, step: int | None,
    ) -> tuple[Replay | None, Any]:
        """Runs the function, or this step of it, and returns the recording and the value.

        The recording is None if the run left something behind. Raises CaptureError if the recording before it did, too.
        """
        # The Ellipsis makes a 1-D argument with one number per step an array too, and not a scalar.
        inputs = [apart(a if step is None else a[step, ...]) for a in arrays]
        fill = iter([a if layout is None else layout.of(a) for a, layout in zip(inputs, layouts or [None] * len(inputs))])
        inside = [made_of(original, Tensor(next(fill))) if x.__class__ is Tensor else x for x, original in zip(leaves, given)]
        recording = Recording(kernels, device, inputs, self._layouts, innermost(self._function), inside)
        repeated = self._notices.repeats(key)
        with recording:
            args, options = _arguments(inside, spec, named)
            tree = (args, options) if options else args
            form = flatten(tree)[1]
            returned = [run_step(self._function, args, options, counted)]
            now, form_now = flatten(tree)
            kept = form == form_now and all([a is b for a, b in zip(now, inside)])
            del tree, args, options, now
            replay, outputs = recording.finish(returned, inside, self._fusion, step is not None, kept)
            self._notices.ended(key, recording.behind, repeated)
        return replay, outputs

    def eagerly(self, args: Any, options: Any, counted: Any) -> Any:
        """Runs the function without a recording, step by step."""
        if self._steps is None:
            return run_step(self._function, args, options, counted)
        function = self._of_one_step() if listeners.stack else self._function
        given, spec = flatten((args, options))
        leaves = [x if isinstance(x, Batched) else as_leaf(x) for x in given]
        parted = [x.__class__ is Tensor or isinstance(x, Batched) for x in leaves]
        steps = length_of(self._name(), self._steps, [x for x, steps in zip(leaves, parted) if steps]) or 0
        results = []
        for step in range(steps):
            ones = [made_of(old, x[step]) if steps else x for x, old, steps in zip(leaves, given, parted)]
            inner, named = unflatten(spec, ones)
            results.append(flatten(run_step(function, inner, named, counted)))
        columns = zip(*[ys for ys, _ in results])
        stacked = [concat([expand_dims(y, axis=0) for y in ys]) if isinstance(ys[0], Tensor) else ys[-1] for ys in columns]
        return unflatten(results[-1][1], stacked)

    def _of_one_step(self) -> Captured[..., Any]:
        """Returns the captured function that runs each step of a call under listeners."""
        if "step" not in self._derived:
            self._derived = {**self._derived, "step": Captured(self._function, self._fusion, None, self._cache)}
        return self._derived["step"]

    # ---- reports

    def stats(self) -> CaptureStats:
        """Returns how often the function was recorded and replayed, and the size of the last used recording."""
        if self._loaded is not None and not self._replays:
            return self._loaded[1].stats()
        return stats_of(self)

    def explain(self) -> Explanation:
        """Returns the plan of the last used recording: its kernels, the launches fused into each, and why no more were.

        The plan prints as a table. Raises CaptureError if nothing is recorded yet.
        """
        if self._loaded is not None and not self._replays:
            return self._loaded[1].explain()
        found = last_of(self)
        if not found:
            reason = why_not(devices.default_device())
            raise CaptureError(f"{self._name()}: nothing is recorded yet{f' ({reason})' if reason else ''}; call it first.")
        return Explanation(self._name(), self._fusion, found)

    def parts(self) -> Parts:
        """Returns the recordings, and the functions that run for calls under listeners."""
        replays = [replay for found in self._replays.values() for replay in found]
        last = self._replays[self._last][0] if self._last in self._replays else None
        return Parts(self._captures, replays, last, self._derived.values())

    def clear(self) -> None:
        """Forgets all recordings. Their memory can be used for other tensors; `pb.trim()` gives it back to the system."""
        self._replays, self._last, self._quick = {}, None, None
        self._derived, self._unserved, self._makes, self.under_tape = {}, set(), set(), None
        if self._loaded is not None:
            self._loaded[1].clear()


def _arguments(leaves: Sequence[Any], spec: Any, named: bool) -> tuple[Any, Any]:
    tree = unflatten(spec, list(leaves))
    return tree if named else (tree, {})
