"""A captured program whose objects change between calls gives what it gives eagerly, bit for bit, or raises a CaptureError."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import pullback as pb
from captured_step import needs_kernels
from changing_programs import COUNT, OFFSET, allowed, outcome, report, run, smallest
from changing_source import Program

ON_HOST = pytest.mark.skipif(pb.zeros(1).device != "cpu", reason="the programs mix tensors of the host with NumPy's functions")
pytestmark = ON_HOST


@needs_kernels
@pytest.mark.parametrize("seed", range(OFFSET, OFFSET + COUNT))
def test_a_captured_program_gives_what_it_gives_eagerly_while_its_objects_change(seed: int) -> None:
    """Only a program that carries state from call to call, or draws random numbers of the host, may be refused instead."""
    program = Program(seed)
    for mode in program.modes:
        if not allowed(program, outcome(program, mode)[0]):
            pytest.fail(report(program, mode))


def eager(program: Program, mode: str) -> list[object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [result for result, _ in run(program, mode, captured=False)]


def test_the_changes_of_most_programs_change_their_results() -> None:
    """Otherwise the programs would prove little: a recording that notices nothing would pass them."""
    programs = [program for program in map(Program, range(200)) if any(call.changes for call in program.script)]
    changed = 0
    for program in programs:
        still = program.variant(script=[call.without_changes() for call in program.script])
        changed += eager(program, program.modes[0]) != eager(still, program.modes[0])
    assert changed > 0.7 * len(programs)


def test_few_calls_of_the_programs_raise_errors_eagerly() -> None:
    results = [result for program in map(Program, range(200)) for result in eager(program, program.modes[0])]
    assert sum(isinstance(result, str) for result in results) < 0.1 * len(results)


def test_a_capture_that_notices_nothing_fails_most_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(f: Any, **options: Any) -> Any:
        kept: dict[Any, Any] = {}

        def wrapped(x: Any, *others: Any) -> Any:
            key = (x.shape, str(x.dtype))
            if key not in kept:
                kept[key] = f(x, *others)
            return kept[key]

        return wrapped

    monkeypatch.setattr(pb, "capture", forgetful)
    assert sum(outcome(program, "plain")[0] == "silent" for program in map(Program, range(50))) > 45


def test_the_smallest_program_that_fails_has_only_the_parts_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    program = next(program for program in map(Program, range(100)) if len(program.parts) == 4)
    needed = program.parts[2]
    monkeypatch.setattr("changing_programs.outcome", lambda program, mode: ("silent" if needed in program.parts else "same", ""))
    small = smallest(program, "plain")
    assert small.parts == [needed]
    assert len(small.script) == 1
    assert not small.script[0].changes
