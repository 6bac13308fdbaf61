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
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timing
from machine import has
from singles import singles

import device
from workloads import CAPTURED, EAGER, PRECISIONS, SEVERAL, STEPS, WAYS, Net, workloads

HERE = Path(__file__).resolve().parent
OURS, TORCH, JAX = "pullback", "torch", "jax"
SCRIPTS = {OURS: "ours", TORCH: "rival_torch", JAX: "rival_jax"}
UNROLLED, COMPILED = f"unroll={STEPS}", "torch.compile"

# What may make the loop of jax.lax.scan faster, as XLA_FLAGS of a process: XLA unrolls loops, or runs them inside CUDA graphs.
FLAGS = {
    "XLA unrolls loops": "--xla_gpu_enable_while_loop_unrolling=WHILE_LOOP_UNROLLING_FULL_UNROLL",
    "XLA captures loops": "--xla_gpu_enable_command_buffer=+WHILE --xla_gpu_command_buffer_unroll_loops=true",
}
PREPARING = 75.0  # the most seconds in which all libraries prepare the cases of one network
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
        """The process that runs this case: the library, and its XLA_FLAGS."""
        return self.side, FLAGS.get(self.variant, "")

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

    def __init__(self, side: str, flags: str, simulated: bool) -> None:
        command = [sys.executable, str(HERE / f"{SCRIPTS[side]}.py"), *(["--simulated"] if simulated else [])]
        environment = os.environ | ({"XLA_FLAGS": flags} if flags else {})
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._answers.put(json.loads(line))
        self._answers.put({"ended": f"the process ended with status {self._process.wait()}"})

    def ask(self, **request: Any) -> None:
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except OSError:
            raise GoneError(f"the process ended with status {self._process.poll()}") from None

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
        self._process.wait()


class Turns:
    """Runs groups of cases. A library that ends is started again for the next group, and its cases become failed rows."""

    def __init__(self, simulated: bool, seconds: float) -> None:
        self._simulated, self._end = simulated, time.monotonic() + seconds
        self._patience = 10 if simulated else 1
        self._effort = timing.DRY if simulated else timing.FULL
        self._libraries: dict[tuple[str, str], Library] = {}

    def run(self, groups: Sequence[Sequence[Case]]) -> None:
        for cases in groups:
            if time.monotonic() > self._end:
                device.put(name=cases[0].name, failed="no time was left")
                continue
            ready = self._prepared(cases)
            for work in dict.fromkeys([case.work for case in ready]):
                self._in_turns({case: facts for case, facts in ready.items() if case.work == work})
        for library in self._libraries.values():
            library.close()

    def _prepared(self, cases: Sequence[Case]) -> dict[Case, dict[str, Any]]:
        """Lets all libraries prepare their cases at the same time, and returns the facts of the cases that are ready."""
        end, ready = time.monotonic() + PREPARING * self._patience, {}
        by_library: dict[tuple[str, str], list[Case]] = {}
        for case in cases:
            self._start(case.library)
            self._ask(case, prepare=case.key, work=case._asdict())
            by_library.setdefault(case.library, []).append(case)
        for library, own in by_library.items():
            waiting = {case.key: case for case in own}
            while waiting and (answer := self._answer(library, end - time.monotonic(), waiting.values())):
                case = waiting.pop(answer.pop("ready", None) or answer["failed"])
                if "failed" in answer:
                    fail(case, answer["error"], traceback=answer["traceback"])
                else:
                    ready[case] = answer
        return {case: ready[case] for case in cases if case in ready}

    def _in_turns(self, facts: Mapping[Case, dict[str, Any]]) -> None:
        """Times cases of the same work in turns, prints their rows, and releases them."""
        taken: dict[Case, list[float]] = {case: [] for case in facts}
        calls: dict[Case, int] = {}
        for _ in range(self._effort.rounds):
            for case in list(taken):
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

    def _start(self, library: tuple[str, str]) -> None:
        if library in self._libraries:
            return
        side, flags = library
        self._libraries[library] = Library(side, flags, self._simulated)
        if answer := self._answer(library, PREPARING * self._patience, ()):
            device.put(side=side, name="version", **answer["facts"])

    def _ask(self, case: Case, **request: Any) -> None:
        if library := self._libraries.get(case.library):
            with contextlib.suppress(GoneError):  # the answer will say it
                library.ask(**request)

    def _answer(self, library: tuple[str, str], seconds: float, waiting: Collection[Case]) -> dict[str, Any] | None:
        """Returns the next answer of a library. If there is none, ends the library and the cases that wait for it."""
        why = "the process has ended"
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
            if JAX in sides and way == SEVERAL:
                # Only small networks are unrolled by JAX itself: the compilation takes as many times as long as there are steps.
                variants = [*([UNROLLED] if isinstance(net, Net) else []), *FLAGS]
                out += [Case(JAX, net.name, precision, way, variant) for variant in variants]
    return out


def groups(what: str, simulated: bool) -> list[list[Case]]:
    """Returns the cases in groups. The cases of a group are prepared together, so all of them are in memory."""
    if what == "singles":
        sides = [side for side in (OURS, TORCH) if side == OURS or has(side)]
        return [[Case(side, s.name, s.precision, group=s.group) for side in sides] for s in singles(simulated)]
    if what == "compiled":
        nets = workloads(simulated)
        both = lambda net, precision, way: [Case(OURS, net.name, precision, way), Case(TORCH, net.name, precision, way, COMPILED)]
        return [[case for p in net.precisions for way in (CAPTURED, SEVERAL) for case in both(net, p, way)] for net in nets]
    sides = [side for side in (OURS, TORCH, JAX) if side == OURS or has(side)]
    return [cases_of(net, sides) for net in workloads(simulated)]


def main() -> None:
    options = device.arguments(__doc__, "what")
    device.require_native(options.simulated)
    for name in [name for name in (TORCH, JAX) if not has(name)]:
        device.put(side=name, name=name, failed="not installed")
    Turns(options.simulated, options.seconds).run(groups(options.what, options.simulated))


if __name__ == "__main__":
    main()
