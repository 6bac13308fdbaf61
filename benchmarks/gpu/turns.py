"""Times the same work of several libraries in turns on one GPU: `python turns.py steps`, `singles` or `compiled`.

Each library is a process (serving.py) that stays alive. All libraries first prepare their cases, which includes all compilation.
Then each round times one library after the other, so that a change of clocks or of the machine's load meets all of them. A rival's
row has the ratio of every round: pullback's time over the rival's. The results are printed as lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timing
from machine import has
from singles import singles

import device
from workloads import CAPTURED, EAGER, PRECISIONS, SEVERAL, STEPS, WAYS, Net, Recurrent, nets, others, workloads

HERE = Path(__file__).resolve().parent
OURS, TORCH, JAX = "pullback", "torch", "jax"
SCRIPTS = {OURS: "ours", TORCH: "rival_torch", JAX: "rival_jax"}

# What may make the loop of jax.lax.scan faster: unrolling by JAX, and XLA_FLAGS with which XLA unrolls loops or captures them in
# CUDA graphs. Each has a process, so that a compilation that takes too long costs only itself. CELLS is the loop inside of a GRU.
UNROLLED, UNROLLS, CAPTURES, CELLS = f"unroll={STEPS}", "XLA unrolls loops", "XLA captures loops", "GRU unroll=8"
FLAGS = {
    UNROLLED: "",
    UNROLLS: "--xla_gpu_enable_while_loop_unrolling=WHILE_LOOP_UNROLLING_FULL_UNROLL",
    CAPTURES: "--xla_gpu_enable_command_buffer=+WHILE,+CONVOLUTION --xla_gpu_graph_min_graph_size=1",
}
COMPILED = "torch.compile"
STARTING = 45.0  # the most seconds until a library is imported
PREPARING = 45.0  # the most seconds in which a library prepares the cases of a group
COMPILING = 90.0  # the same for one case of torch.compile, which runs compilers of C++ and of Triton
ONE_CALL = 60.0  # the most seconds until a library has timed a round, or has released a case


class Case(NamedTuple):
    """What one library runs: a training step of a network, or a single kernel (then `way` is empty).

    Attributes:
        variant: one of several forms of the same work, such as a way to compile it. Its rows are compared under the same way.
    """

    side: str
    name: str
    precision: str
    way: str = ""
    variant: str = ""
    group: str = "steps"

    @property
    def work(self) -> tuple[str, str, str]:
        """What is compared with one another."""
        return self.name, self.precision, self.way

    @property
    def library(self) -> tuple[str, str]:
        """The process that runs this case: the library, and the variant that needs a process."""
        return self.side, self.variant if self.variant in FLAGS else ""

    @property
    def key(self) -> str:
        return " | ".join([*self.work, self.variant])

    def row(self) -> dict[str, Any]:
        shown = {key: value for key, value in self._asdict().items() if value}
        return shown | ({"does": PRECISIONS[self.precision][self.side]} if self.way else {})


class GoneError(Exception):
    """The process of a library has ended, or does not answer."""


class Library:
    """The process of one library."""

    def __init__(self, side: str, variant: str, simulated: bool, cache: str) -> None:
        command = [sys.executable, str(HERE / f"{SCRIPTS[side]}.py"), *(["--simulated"] if simulated else [])]
        # XLA tries several kernels for a product. JAX's processes share what they find, so only the first one tries them.
        environment = os.environ | ({"JAX_COMPILATION_CACHE_DIR": cache} if side == JAX else {})
        environment |= {"XLA_FLAGS": flags} if (flags := FLAGS.get(variant)) else {}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            with contextlib.suppress(ValueError):  # not a line of ours
                self._answers.put(json.loads(line))
        self._answers.put({"ended": f"the process ended with status {self._process.wait()}"})

    def ask(self, **request: Any) -> None:
        with contextlib.suppress(OSError):  # the answer will say that the process has ended
            print(json.dumps(request), file=self._process.stdin, flush=True)

    def answer(self, seconds: float) -> dict[str, Any]:
        """Returns the next answer. Raises GoneError if there is none within this time."""
        try:
            found = self._answers.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise GoneError(f"the process did not answer within {seconds:.0f} s") from None
        if "ended" in found:
            raise GoneError(found["ended"])
        return found

    def close(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


class Turns:
    """Runs groups of cases. A library that ends is started again for the next group, and its cases become failed rows.

    Attributes:
        broken: the libraries that could not be started, and why.
    """

    def __init__(self, simulated: bool, seconds: float, preparing: float = PREPARING) -> None:
        self._simulated, self._end, self._preparing = simulated, time.monotonic() + seconds, preparing
        self._patience = 10 if simulated else 1
        self._effort = timing.DRY if simulated else timing.FULL
        self._cache = tempfile.TemporaryDirectory(prefix="pullback-xla-")
        self._libraries: dict[tuple[str, str], Library] = {}
        self.broken: dict[tuple[str, str], str] = {}

    def run(self, groups: Sequence[Sequence[Case]]) -> None:
        longest = 0.0
        for cases in groups:
            begin = time.monotonic()
            if begin + longest > self._end:
                device.put(name=cases[0].name, failed="no time was left")
                continue
            ready = self._prepared(cases)
            for work in dict.fromkeys([case.work for case in ready]):
                self._in_turns({case: facts for case, facts in ready.items() if case.work == work})
            longest = max(longest, time.monotonic() - begin)
        for library in self._libraries.values():
            library.close()
        self._cache.cleanup()

    def _prepared(self, cases: Sequence[Case]) -> dict[Case, dict[str, Any]]:
        """Lets all libraries prepare their cases, and returns the facts of the cases that are ready.

        A library that tries kernels while it compiles does so alone: first those without XLA, then JAX as it is, then its variants,
        which find what it has tried in their cache.
        """
        by_library: dict[tuple[str, str], list[Case]] = {}
        for case in cases:
            by_library.setdefault(case.library, []).append(case)
        self._start(list(by_library))
        ready: dict[Case, dict[str, Any]] = {}
        for phase in range(3):
            chosen = {library: own for library, own in by_library.items() if (library[0] == JAX) + bool(library[1]) == phase}
            end = time.monotonic() + self._preparing * self._patience
            for case in [case for own in chosen.values() for case in own]:
                self._ask(case, prepare=case.key, work=case._asdict())
            for library, own in chosen.items():
                ready |= self._facts(library, own, end)
        return {case: ready[case] for case in cases if case in ready}

    def _facts(self, library: tuple[str, str], cases: Sequence[Case], end: float) -> dict[Case, dict[str, Any]]:
        """Waits until a library has prepared its cases, and returns the facts of those that are ready."""
        waiting, ready = {case.key: case for case in cases}, {}
        while waiting and (answer := self._answer(library, end - time.monotonic(), waiting.values())):
            case = waiting.pop(answer.pop("ready", None) or answer["failed"])
            if "failed" in answer:
                fail(case, answer["error"], traceback=answer["traceback"])
            else:
                ready[case] = answer
        return ready

    def _in_turns(self, facts: Mapping[Case, dict[str, Any]]) -> None:
        """Times cases of the same work in turns, prints their rows, and releases them. Each round begins with the next library."""
        taken: dict[Case, list[float]] = {case: [] for case in facts}
        calls: dict[Case, int] = {}
        for number in range(self._effort.rounds):
            order = list(taken)
            for case in [order[(number + k) % len(order)] for k in range(len(order))]:
                answer = self._one(case, time=case.key, seconds=self._effort.seconds)
                if answer is None:
                    del taken[case]
                else:
                    taken[case].append(answer["us"])
                    calls[case] = answer["calls"]
        ours = next((times for case, times in taken.items() if case.side == OURS), None)
        for case, times in taken.items():
            after = self._one(case, release=case.key)
            if after is None:
                continue
            us = timing.summary(times)
            row = {**case.row(), **facts[case], "us": us, "calls_a_round": calls[case], "rounds": len(times)}
            row |= figures(case, us["median"], self._simulated)
            if ours and case.side != OURS:
                row["ratio"] = timing.summary([a / b for a, b in zip(ours, times)])
            device.put(**row, **{key: value for key, value in after.items() if key != "released"})

    # ---- one process

    def _start(self, libraries: Sequence[tuple[str, str]]) -> None:
        """Starts the processes that do not run, and prints their facts. One that cannot be started is not tried again."""
        new = [library for library in libraries if library not in self._libraries and library not in self.broken]
        for side, variant in new:
            self._libraries[side, variant] = Library(side, variant, self._simulated, self._cache.name)
        end = time.monotonic() + STARTING * self._patience
        for library in new:
            try:
                facts = self._libraries[library].answer(end - time.monotonic())["facts"]
            except GoneError as error:
                self._libraries.pop(library).close()
                self.broken[library] = str(error)
            else:
                device.put(side=library[0], name="version", variant=library[1], **facts)

    def _ask(self, case: Case, **request: Any) -> None:
        if library := self._libraries.get(case.library):
            library.ask(**request)

    def _answer(self, library: tuple[str, str], seconds: float, waiting: Collection[Case]) -> dict[str, Any] | None:
        """Returns the next answer of a library. If there is none, ends the library and the cases that wait for it."""
        why = self.broken.get(library, "the process has ended")
        if library in self._libraries:
            try:
                return self._libraries[library].answer(seconds)
            except GoneError as error:
                why = str(error)
                self._libraries.pop(library).close()
        for case in waiting:
            fail(case, why)
        return None

    def _one(self, case: Case, **request: Any) -> dict[str, Any] | None:
        """Returns the answer to a request, or None after a row that says why there is none."""
        self._ask(case, **request)
        answer = self._answer(case.library, ONE_CALL * self._patience, [case])
        if answer and "failed" in answer:
            fail(case, answer["error"], traceback=answer["traceback"])
            return None
        return answer


def figures(case: Case, us: float, simulated: bool) -> dict[str, float]:
    """Returns the bytes or FLOPs per second of a single kernel."""
    if case.way:
        return {}
    found = [single for single in singles(simulated) if (single.name, single.precision) == (case.name, case.precision)]
    return found[0].figures(us)


def fail(case: Case, why: str, **more: Any) -> None:
    device.put(**case.row(), failed=why, **more)


# ---- the cases


def cases_of(net: Any, sides: Sequence[str]) -> list[Case]:
    """Returns the cases of a network's training step: all precisions and ways, in the order in which they are timed."""
    out = []
    for way in reversed(WAYS):
        for precision in net.precisions:
            out += [Case(side, net.name, precision, way) for side in sides if side != JAX or way != EAGER]
            if JAX in sides:
                out += [Case(JAX, net.name, precision, way, variant) for variant in variants(net, way)]
    return out


def variants(net: Any, way: str) -> list[str]:
    """Returns the forms of JAX's step that may be faster than the plain one."""
    cells = [CELLS] if isinstance(net, Recurrent) and way != EAGER else []
    if way != SEVERAL:
        return cells
    # Only networks of dense layers are unrolled: the compilation takes as many times as long as there are steps.
    return [*cells, *([UNROLLED, UNROLLS] if isinstance(net, Net) else []), CAPTURES]


def groups(what: str, simulated: bool) -> list[list[Case]]:
    """Returns the cases in groups. The cases of a group are prepared together, so all of them are in memory."""
    sides = [side for side in (OURS, TORCH, JAX) if side == OURS or has(side)]
    if what == "singles":
        return [[Case(side, s.name, s.precision, group=s.group) for side in sides if side != JAX] for s in singles(simulated)]
    if what == "steps":
        small, middle, large = nets(simulated)  # if time is short, the largest network is left out
        return [cases_of(net, sides) for net in (middle, small, *others(simulated), large)]
    if what != "compiled":
        raise SystemExit(f"{what!r} is not one of steps, singles, compiled")
    # torch.compile leaves out a GRU and compiles only the layers around it.
    chosen = [net for net in workloads(simulated) if not isinstance(net, Recurrent)] if TORCH in sides else []
    works = [(net.name, precision, way) for net in chosen for precision in net.precisions for way in (CAPTURED, SEVERAL)]
    return [[Case(OURS, *work), Case(TORCH, *work, COMPILED)] for work in works]


def main() -> None:
    options = device.arguments(__doc__, "what")
    device.require_native(options.simulated)
    for name in [name for name in (TORCH, JAX) if not has(name)]:
        device.put(side=name, name=name, failed="not installed")
    preparing = COMPILING if options.what == "compiled" else PREPARING
    Turns(options.simulated, options.seconds, preparing).run(groups(options.what, options.simulated))


if __name__ == "__main__":
    main()
