"""Random programs whose objects change between calls: each gives captured what it gives eagerly, or raises a CaptureError.

`Program(seed)` is a function, as text, and a script of calls with changes between them. `outcome` builds the program twice, runs it
eagerly and captured, and compares the bits of the results and of all that the program can observe afterwards:

- "same": everything is equal;
- "told": a CaptureError was raised, and everything before it is equal;
- "silent": something else came without an error;
- "broken": an error other than the eager one was raised.

`python tests/changing_programs.py 0 5000` prints the seeds that fail, each with the parts that it needs to fail, and sums by mode
and by parts. `python tests/changing_programs.py 17` prints one program, and the smallest program inside that fails in each mode.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, Final

import numpy as np

import pullback as pb
from changing_facts import MODES
from changing_source import PRELUDE, Call, Program

COUNT: Final = int(os.environ.get("PULLBACK_CHANGING", "300"))
OFFSET: Final = int(os.environ.get("PULLBACK_CHANGING_FROM", "0"))
K: Final = 3  # the steps of one call in the mode "steps"


def digest(value: Any) -> Any:
    """Returns what can be compared with ==: the bits of tensors, and the types of all other values."""
    if isinstance(value, (pb.Tensor, np.ndarray)):
        array = attempt(lambda: np.asarray(value))
        if isinstance(array, str):  # a value of a vmap that has ended, or a stale view
            return array
        return "array", str(array.dtype), array.shape, array.tobytes()
    if isinstance(value, dict):
        return tuple((key, digest(item)) for key, item in value.items())
    if isinstance(value, (list, tuple, set)):
        return type(value).__name__, tuple(map(digest, value))
    return type(value).__name__, repr(value) if isinstance(value, (bool, int, float, str, type(None), np.generic)) else ""


def leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [leaf for item in value.values() for leaf in leaves(item)] if isinstance(value, dict) else [value]


def stacked(results: list[Any]) -> Any:
    """Returns what `steps=K` gives for these results of K eager calls."""
    if isinstance(results[0], dict):
        return {key: stacked([result[key] for result in results]) for key in results[0]}
    if isinstance(results[0], (list, tuple)):
        return type(results[0])(stacked(list(items)) for items in zip(*results, strict=True))
    return pb.stack(results)


def argument(seed: int, call: Call, mode: str) -> Any:
    shape = {"steps": (K, call.rows, 3), "vmap": (2, call.rows, 3)}.get(mode, (call.rows, 3))
    array = np.random.default_rng([seed, call.number]).uniform(-1.5, 1.5, shape).astype(call.dtype)
    return pb.tensor(array) if call.kind == "tensor" or mode in ("tape", "vmap") else array


def called(f: Callable[..., Any], x: Any, others: list[Any], sources: list[Any], mode: str, captured: bool) -> Any:
    x = x if captured else pb.asarray(x)  # a captured function gets tensors
    if mode == "steps" and not captured:
        return stacked([f(x[k], *others) for k in range(K)])
    if mode == "vmap":
        return pb.vmap(lambda x: f(x, *others))(x)
    if mode != "tape":
        return f(x, *others)
    with pb.GradientTape() as tape:
        tape.watch(x)
        result = f(x, *others)
        total = sum(pb.sum(pb.sin(leaf)) for leaf in leaves(result))
    return result, tape.gradient(total, [x, *sources], unconnected="zero")


def in_thread(f: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((f(), None))
        except Exception as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = found[0]
    if error is not None:
        raise error
    return result


def run(program: Program, mode: str, captured: bool) -> Iterator[tuple[Any, Any]]:
    """Yields (the digest of the result or the class of the error, the digest of what can be observed) for each call."""
    pb.random.seed(program.seed)
    random.seed(program.seed)
    np.random.seed(program.seed)  # noqa: NPY002 programs draw from the global generator
    module = sys.modules["program"] = types.ModuleType("program")  # dataclasses look their module up
    namespace = vars(module)
    namespace["capture"] = pb.capture if captured else lambda f: f
    exec(compile(PRELUDE + program.source(), f"<program {program.seed}>", "exec"), namespace)
    f = namespace["f"]
    if captured:
        f = pb.capture(f, steps=K if mode == "steps" else None, fusion=("exact", "none")[program.seed % 2])
    names = [name for _, part in program.parts for name in part.arguments]
    expressions = [expression for _, part in program.parts for expression in part.watch]
    for call in program.script:
        for _, change in call.changes:
            attempt(lambda change=change: exec(change, namespace))
        watched = [attempt(lambda e=e: eval(e, namespace)) for e in expressions]
        sources = [leaf for leaf in leaves(watched) if isinstance(leaf, pb.Parameter) and not isinstance(leaf, pb.nn.Buffer)]
        how, others = call.how if mode == "mixed" else mode, [namespace[name] for name in names]
        x = argument(program.seed, call, how)
        try:
            work = lambda x=x, others=others, sources=sources, how=how: called(f, x, others, sources, how, captured)
            with pb.amp.autocast("bfloat16") if call.autocast else nullcontext():
                result = digest(in_thread(work) if call.thread else work())
        except pb.CaptureError as error:
            yield error, None
            return
        except Exception as error:
            result = type(error).__name__
        yield result, [digest(attempt(lambda e=e: eval(e, namespace))) for e in expressions] + [pb.random.state_dict()]


def attempt(f: Callable[[], Any]) -> Any:
    """Returns f(), or the name of its error: a change or an expression may have lost its object, eagerly and captured alike."""
    try:
        return f()
    except Exception as error:
        return type(error).__name__


def outcome(program: Program, mode: str) -> tuple[str, str]:
    """Returns "same", "told", "silent" or "broken", and a sentence that says where the captured run differs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = list(run(program, mode, captured=False))
        for k, (got, state) in enumerate(run(program, mode, captured=True)):
            if isinstance(got, pb.CaptureError):
                return "told", f"call {k} raised: {got}"
            if got != wanted[k][0]:
                return "broken" if isinstance(got, str) else "silent", f"call {k} gave {difference(got, wanted[k][0])}"
            if state != wanted[k][1]:
                return "silent", f"after call {k} the state is {difference(state, wanted[k][1])}"
    return "same", ""


def difference(got: Any, wanted: Any) -> str:
    """Returns in words where two digests differ first."""
    if isinstance(got, (tuple, list)) and isinstance(wanted, (tuple, list)) and len(got) == len(wanted):
        if got[0] == wanted[0] == "array" and got[1:3] == wanted[1:3]:
            values = [np.frombuffer(digest[3], digest[1]).ravel() for digest in (got, wanted)]
            return f"{values[0][:6]} instead of {values[1][:6]}, of shape {got[2]}"
        return next(difference(g, w) for g, w in zip(got, wanted) if g != w)
    return f"{str(got)[:200]} instead of {str(wanted)[:200]}"


def allowed(program: Program, found: str) -> bool:
    return found == "same" or (found == "told" and program.may_raise)


def smallest(program: Program, mode: str, smaller: Callable[[Program], Iterator[Program]] = Program.smaller) -> Program:
    """Returns a program that fails in the same way, and of which no smaller program does."""
    found = outcome(program, mode)[0]
    for less in smaller(program):
        if mode in less.modes and outcome(less, mode)[0] == found and not allowed(less, found):
            return smallest(less, mode, smaller)
    return program


def report(program: Program, mode: str) -> str:
    small = smallest(program, mode)
    found, why = outcome(small, mode)
    return f"seed {program.seed}, mode {mode}: {found}, {why}\n\n{small}"


def main(first: int, last: int) -> None:
    by_mode: Counter[tuple[str, str]] = Counter()
    failures: Counter[str] = Counter()
    for seed in range(first, last):
        program = Program(seed)
        for mode in program.modes:
            found, _ = outcome(program, mode)
            by_mode[mode, found] += 1
            if not allowed(program, found):
                kinds = "; ".join(smallest(program, mode, Program.with_fewer_parts).kinds)
                failures[kinds] += 1
                print(seed, mode, found, kinds, flush=True)
    for mode in MODES:
        print(mode, {found: count for (name, found), count in sorted(by_mode.items()) if name == mode})
    for kinds, count in failures.most_common():
        print(f"{count:6} {kinds}")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        whole = Program(int(sys.argv[1]))
        print(whole)
        for how in whole.modes:
            print("\n", how, *outcome(whole, how))
            if not allowed(whole, outcome(whole, how)[0]):
                print(report(whole, how))
    else:
        gc.freeze()  # what was imported is no program's
        main(int(sys.argv[1]), int(sys.argv[2]))
