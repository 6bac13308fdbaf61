"""The phase that launches are attributed to, and the ledger of a thread, both passed on to the door of the native kernels.

A launch is one native kernel, one library call or one reference op. The code that begins a phase sets it (the tape's backward
pass, an optimizer's step, a loader); no other code handles phases.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from types import CodeType
from typing import Any, Final

from ..autodiff.kept import Kept
from ..autodiff.listeners import listeners
from ..autodiff.site import call_site, current_frame, user_frame
from . import capturing
from .ledger import (
    BACKWARD as BACKWARD,
    DATA as DATA,
    DETAILS,
    END,
    FIGURES,
    FORWARD,
    OPTIMIZER as OPTIMIZER,
    OTHER as OTHER,
    PHASES as PHASES,
    RECOMPUTE as RECOMPUTE,
    SOLVER as SOLVER,
    Launch,
    Ledger,
)
from .scopes import Scope, given, number, scopes as scopes


class _Attention:
    # True while ledgers or a recording receive a thread's launches, or a checkpoint notes its Modules; False after its end
    _counted = False

    def tell(self, told: bool) -> None:
        global profiling
        profiling, self._counted = profiling + told - self._counted, told  # one statement, so that Ctrl-C cannot split it

    def __del__(self) -> None:
        if self._counted and type(profiling) is int:  # the global is gone at interpreter exit
            self.tell(False)


Modes = dict[int, tuple[Any, bool]]  # Modules and whether they were in training mode, by the id of the Module


class _Door(threading.local):
    def __init__(self) -> None:
        self.attention = _Attention()
        self.replaced: Modes = {}  # modes that Modules have in this thread only

    phase: int = FORWARD
    scope: int = 0
    running: tuple[Ledger, ...] = ()  # the ledgers that have begun and not ended, the innermost last
    ledger: Ledger | None = None  # holds the launches since one of these last began or ended
    detail: int = 0  # the detail of `ledger`
    recording_active: bool = False  # True while a recording runs
    charged: int = 0  # > 0 inside a launch whose cost includes the launches inside it
    modes: tuple[Modes, ...] = ()  # receive the modes of the Modules that run
    observer: Callable[..., Any] | None = None  # receives each op before the listeners do
    times_tapes: bool = False  # the time of the listeners counts as "tape"


state: Final = _Door()
profiling = 0  # number of threads with ledgers, recordings or `modes`; scopes are kept up to date only if it is not 0
_finished = 0  # number of launches that any thread has moved from `ledger` to its running ledgers
_unrecorded = 0  # number of reference launches in threads without a ledger, while any thread had one
_natives: Final[list[Any]] = []  # the modules of kernels
host_kernels: Any = None  # the module of the CPU's kernels, if there is one


def connect(native: Any, host: bool = False) -> None:
    """Passes phases, scopes and ledgers to this module of kernels from now on. host: it holds the CPU's kernels."""
    global label, enter_scope, leave_scope, set_phase, host_kernels
    native.scopes_by(given)
    native.set_phase(state.phase)
    native.set_scope(scope_now())
    if state.ledger is not None:
        native.ledger_begin(state.detail)
    _natives.append(native)
    host_kernels = native if host else host_kernels
    if len(_natives) == 1:
        label, enter_scope, leave_scope, set_phase = native.label, native.enter_scope, native.set_scope, native.set_phase
    else:
        label, enter_scope, leave_scope, set_phase = _label, _enter, _leave, _set_phase


def attend(on: bool) -> None:
    """Notes that a recording begins (on) or ends in this thread. Like a ledger, a recording receives phases and scopes."""
    state.recording_active = on
    _attend()
    for native in _natives if on else ():
        native.set_phase(state.phase)


def _attend() -> None:
    state.attention.tell(state.recording_active or bool(state.running) or bool(state.modes))
    _listen()


def enter(phase: int) -> int:
    """Attributes this thread's launches to `phase`. Returns the previous phase, which a second `enter` restores."""
    before = state.phase
    state.phase = phase
    if profiling:
        set_phase(phase)
    return before


def _set_phase(phase: int) -> None:
    for native in _natives:
        native.set_phase(phase)
    if not _natives:
        _border(phase)


set_phase: Callable[[int], Any] = _set_phase  # the native function if there is only one module of kernels


def _border(phase: int) -> None:
    if state.ledger is not None and state.detail > 0:
        state.ledger.borders.append((time.monotonic_ns(), phase))


class charged_to(Kept):
    """Attributes the launches inside to `phase`, like `enter` twice, for code where a microsecond does not matter."""

    def __init__(self, phase: int) -> None:
        self._phase, self._before, self._scope = phase, state.phase, scope_now()

    def _begin(self) -> None:
        enter(self._phase)

    def _end(self) -> None:
        enter(self._before)
        leave_scope(self._scope)


# ---- the modes of Modules


def note_modes(modes: tuple[Modes, ...]) -> None:
    """Makes these receive the mode that each Module of this thread has before its first call and its first change of mode."""
    state.modes = modes
    _attend()


def note_mode(module: Any) -> None:
    """Notes the mode of a Module that is about to run or to change its mode."""
    if capturing.thread.recording is not None:
        capturing.thread.recording.mode(module)
    for modes in state.modes:
        modes.setdefault(id(module), (module, module.training))


# ---- scopes: the modules and ops that launches are attributed to


def scope_now() -> int:
    """Returns the number of the scope that this thread's launches are attributed to."""
    return _natives[0].scope() if _natives else state.scope


def _enter(name: str) -> int:
    if not _natives:
        before, state.scope = state.scope, given(name, None, 0, state.scope)[0]
        return before
    return max([native.enter_scope(name) for native in _natives])  # all modules are in the same scope


def _leave(before: int) -> None:
    state.scope = before
    for native in _natives:
        native.set_scope(before)


def _label(op: str, code: CodeType, offset: int) -> int:
    if not _natives:
        return given(op, code, offset, state.scope)[1]
    return max([native.label(op, code, offset) for native in _natives])


# With only one module of kernels these are its own functions, because a fifth of a microsecond matters here.
enter_scope: Callable[[str], int] = _enter  # attributes this thread's launches to a Module's path; returns the previous scope
leave_scope: Callable[[int], Any] = _leave  # attributes this thread's launches to this scope
# Attributes the launches since the last call to this op, called from this line; returns the scope of the op's pullback.
label: Callable[[str, CodeType, int], int] = _label


# ---- ops


def observe(op: Any, *_: Any) -> None:
    """Receives the ops that run, except those that only a tape records."""
    charge(op.facts.shown)


def charge(op: str) -> None:
    """Attributes this thread's launches since the last op to this op, called from the user's line."""
    if not scopes[scope_now()].op:
        frame = user_frame(current_frame(1))
        label(op, frame.f_code, frame.f_lasti)


def _in_turn(observer: Callable[..., Any] | None, record: Callable[..., None], timed: bool) -> Callable[..., None]:
    """Returns a function that passes ops to the observer, then to the listeners. timed: this time counts as "tape"."""

    def in_turn(*args: Any) -> None:
        with host_time("tape") if timed else nullcontext():
            if observer is not None:
                observer(*args)
            record(*args)

    return in_turn


def _around(record: Callable[..., None] | None, receivers: Sequence[Any]) -> Callable[..., None] | None:
    """Returns the function that receives ops in place of the listeners' `record`: the observer, then the listeners in `receivers`.

    A tape that is the only listener `observes` on its own.
    """
    observer = state.observer
    if record is None:
        return observer
    if len(receivers) == 1 and getattr(receivers[0], "observes", False):
        observer = None
    return record if observer is None and not state.times_tapes else _in_turn(observer, record, state.times_tapes)


def observe_by(observer: Callable[..., Any] | None) -> None:
    """Makes `observer(op, y, inputs, params)` receive each op of this thread. None removes it."""
    state.observer = observer
    listeners.around = _around if observer is not None or state.times_tapes else None
    listeners.stack = listeners.stack  # wraps its `record`


def _listen() -> None:
    """Installs the observer of ops if there is a ledger or a recording, and times tapes if the ledger's detail is "kernel"."""
    state.times_tapes = state.ledger is not None and state.detail == DETAILS.index("kernel")
    observe_by(observe if state.ledger is not None or state.recording_active else None)


@contextmanager
def host_time(what: str) -> Generator[None]:
    """Adds the host's time inside to `what`, one of HOST, if a profile runs in this thread."""
    begin_ns = time.monotonic_ns()
    try:
        yield
    finally:
        if state.ledger is not None:
            state.ledger.host[what] += time.monotonic_ns() - begin_ns


def op_of(kernel: str) -> str:
    """Returns the op that a kernel belongs to: tanh for tanh_pullback."""
    return kernel.partition("_pullback")[0]


# ---- the ledger


def begin(detail: str = "phase", dry: bool = False) -> Ledger:
    """Starts a ledger of this thread, inside the ledgers that run already. With `dry`, launches are counted but kernels do not
    run, and the outer ledgers do not receive these launches.
    """
    ledger = Ledger(-1 if dry else DETAILS.index(detail))
    _change(lambda: (*state.running, ledger))
    ledger.elsewhere = -_launches_of_all()
    return ledger


def end(ledger: Ledger) -> Ledger:
    """Stops a ledger and returns it. A ledger that does not run in this thread is not changed."""
    if ledger in state.running:
        _change(lambda: tuple([x for x in state.running if x is not ledger]))
        ledger.elsewhere = max(0, ledger.elsewhere + _launches_of_all() - ledger.count) if ledger.detail >= 0 else 0
    return ledger


def _launches_of_all() -> int:
    return _finished + _unrecorded + sum([native.launches_elsewhere() for native in _natives])


def _change(running: Callable[[], tuple[Ledger, ...]]) -> None:
    """Passes the launches so far to the running ledgers. Later launches go to the ledgers that running() returns.

    The launches that a dry ledger counts do not go to the ledgers around it.
    """
    global _finished
    if state.ledger is not None:
        part, dry = _take(), [place for place, ledger in enumerate(state.running) if ledger.detail < 0]
        state.ledger = None
        for ledger in state.running[dry[0] if dry else 0 :]:
            ledger.extend(part)
        if not dry:
            count = part.count
            _finished += count
    state.running = running()
    details = [ledger.detail for ledger in state.running]
    if details:
        state.ledger, state.detail = Ledger(), min(details) if min(details) < 0 else max(details)
        for native in _natives:
            native.set_phase(state.phase)
            native.ledger_begin(state.detail)
        if not _natives:
            _border(state.phase)
    _attend()


def end_others(running: tuple[Ledger, ...]) -> None:
    """Ends all ledgers but these. An interrupted profile may have left ledgers that still run."""
    state.charged = 0
    _change(lambda: running)


def _take() -> Ledger:
    """Returns the launches since a ledger last began or ended, and stops recording in the native modules."""
    if not _natives:
        _border(END)
    found = state.ledger
    assert found is not None
    part = Ledger(state.detail, borders=found.borders, host=found.host)
    for native in _natives:
        native.ledger_end()
        taken = native.ledger_take()
        if taken is not None:
            part.merge("cpu" if native is host_kernels else "cuda", *taken)
    for key, (launches, nanoseconds, *figures) in found.sums.items():
        part.add(key, launches, nanoseconds, figures)
    part.launches = sorted(part.launches + found.launches, key=lambda launch: launch.begin_ns)
    return part


def copy_cost(*arrays: Any, of: Any = None) -> dict[str, int]:
    """Returns the cost of a launch that computes nothing: it reads `of` and writes the arrays."""
    return {"bytes_read": 0 if of is None else of.nbytes, "bytes_written": sum([a.nbytes for a in arrays])}


def run_counted(name: str, run: Callable[[], Any], cost: Callable[[Any], dict[str, Any] | None]) -> Any:
    """Runs a launch that is not a native kernel. `cost(result)` returns its figures by their names in FIGURES (and "dtype", the
    dtype it computes in), or None if the cost is not known.

    Its cost includes the launches inside it, which are not counted again.
    """
    capturing.refuse_opaque(f"{name}, which is not a native kernel,", "Do it outside, or with other ops.")
    if state.ledger is None:
        if profiling:
            _count_unrecorded()
        return run()
    charged_already = state.charged > 0
    state.charged += 1
    begin_ns = _time()
    try:
        result = run()
    finally:
        state.charged -= 1
    if not charged_already:
        state.ledger.add_launch(_launch(name, cost(result), begin_ns, _time()))
    return result


def _count_unrecorded() -> None:
    global _unrecorded
    _unrecorded += 1


def _time() -> int:
    return time.monotonic_ns() if state.detail > 0 else 0


def in_place(name: str, run: Callable[[], Any], cost: Callable[[Any], dict[str, Any] | None]) -> None:
    """Like `run_counted`, for launches that change memory: under a dry ledger, which only counts launches, they do not run."""
    run_counted(name, run if state.ledger is None or state.detail >= 0 else lambda: None, cost)


def _launch(name: str, figures: dict[str, Any] | None, begin_ns: int, end_ns: int) -> Launch:
    found: dict[str, Any] = dict.fromkeys(FIGURES, 0)
    found.update(figures or {})
    dtype = str(found.pop("dtype", ""))
    flops = found["adds"] + found["multiplies"] + 2 * found["fmas"]
    if dtype and "float" not in dtype:  # integer arithmetic
        found["integer_ops"] += flops + found["special_ops"]
        found |= dict.fromkeys(("adds", "multiplies", "fmas", "matmul_flops", "special_ops"), 0)
    elif not found["executed_flops"]:
        found["executed_flops"] = flops
    live = max([native.live_bytes() for native in _natives], default=0)
    scope = scope_now()
    base = scopes[scope]
    if not base.op:
        scope = number(Scope(base.module, op_of(name), *call_site(), base.order))
    return Launch(
        name, state.phase, scope, dtype, **found, live_bytes=live, begin_ns=begin_ns, end_ns=end_ns, known=figures is not None
    )
