"""Compares the bits of every op between SIMD levels, numbers of threads, devices, and ways to run it.

    python tests/same_bits.py                        all ops that differ, with one example each
    python tests/same_bits.py --ops matmul,softmax   only these, with every case that differs
    PULLBACK_SAME_BITS=long python tests/same_bits.py --threads 1,2,3,4

A process per configuration (level or GPU, number of threads) evaluates all cases of tests/bit_cases.py in several ways: alone,
captured, vectorized by vmap, on another memory layout, and as rows of larger batches. A digest of each result is compared with
those of all other configurations and ways.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import pullback as pb
from bit_cases import LONG, SLOW, Case, cases
from conftest import as_tensors, call, environment, host, ops
from pullback.autodiff.primitive import ZERO, Op
from pullback.backends import native
from pullback.tensors.dtypes import is_float

BATCHES: Final = (2, 3, 64, 257)
PROBES: Final = (0, 1, 2, 63, 256)  # the rows that are compared between batches
PARTS: Final = 3  # the processes that share the ops of a configuration
Bits = dict[str, str]  # maps each way to the digest of the result
Found = dict[str, dict[str, Bits]]  # maps each op to its results, and each result to its digests


# ---- one configuration


def digest(x: Any) -> str:
    """Returns a digest of dtype, shape and bits, in which all NaNs are equal."""
    x = np.asarray(host(x), order="C")
    if x.dtype.kind in "fV":
        x = np.where(np.isnan(x), np.asarray(np.nan, x.dtype), x)
    return hashlib.blake2b(f"{x.dtype} {x.shape} ".encode() + x.tobytes(), digest_size=8).hexdigest()


class Evaluation:
    """The result of one case, its gradients and its tangent, for fixed random cotangents and tangents."""

    def __init__(self, op: Op, case: Case) -> None:
        self.op, self.case = op, case
        self.inputs = as_tensors(case.inputs)
        self.free = [i for i, x in enumerate(self.inputs) if is_float(x.dtype)]
        y = call(op, self.inputs, case.params)
        passes = op.pullback is not None and op.pullback is not ZERO and is_float(y.dtype) and y.size
        self.sources = [i for i in self.free if passes and i not in (() if op.joint else op.dead)]
        rng = np.random.default_rng(1)

        def draw(like: Any) -> Any:  # zeros of both signs and numbers that are flushed to zero are among them
            x = np.where(rng.random(like.shape) < 0.1, rng.choice([0.0, -0.0, 1e-40], like.shape), rng.standard_normal(like.shape))
            return pb.asarray(x.astype(host(like).dtype))

        self.extra = [draw(y), *[draw(self.inputs[i]) for i in self.sources]] if self.sources else []
        names = [op.names[min(i, len(op.names) - 1)] for i in self.sources]
        self.names = ["forward", *[f"gradient of {name}" for name in names], *["tangent"] * bool(self.sources)]

    def arguments(self, place: Callable[[Any], Any] = lambda x: x) -> list[Any]:
        return [place(x) for x in (*self.inputs, *self.extra)]

    def __call__(self, *arguments: Any) -> list[Any]:
        """Returns the result, the gradients and the tangent. The arguments are the inputs, the cotangent and the tangents."""
        xs, extra = list(arguments[: len(self.inputs)]), arguments[len(self.inputs) :]
        if not extra:
            return [call(self.op, xs, self.case.params)]
        sources = [xs[i] for i in self.sources]
        with pb.GradientTape() as tape:
            tape.watch(sources)
            y = call(self.op, xs, self.case.params)
        gradients = tape.gradient(y, sources, output_gradients=extra[0], unconnected="zero")

        def forward(*free: Any) -> Any:
            given = dict(zip(self.sources, free))
            return call(self.op, [given.get(i, x) for i, x in enumerate(xs)], self.case.params)

        return [y, *gradients, pb.jvp(forward, sources, list(extra[1:]))[1]]

    # ---- ways

    def ways(self) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
        """Yields the name of each way, and a function that returns the results in this way."""
        yield "eager", lambda: self(*self.arguments())
        if SLOW and (self.case.rows or not self.case.light):
            return
        yield "captured", self._captured
        if not self.case.light:
            return
        if any([x.ndim > 1 for x in self.inputs]):
            yield "column-major", lambda: self(*self.arguments(lambda x: pb.asarray(np.asarray(host(x), order="F"))))
        if self.op.names[-1] != "state" and "state" not in self.op.names:  # each example would draw different numbers
            yield "vectorized", lambda: self._vectorized(range(len(self.arguments())))
            if len(self.inputs) > 1 and self.free:
                batched = [self.free[0], *range(len(self.inputs), len(self.arguments()))]
                yield f"vectorized over {self.op.names[self.free[0]]}", lambda: self._vectorized(batched)

    def _captured(self) -> list[Any]:
        captured = pb.capture(self)
        captured(*self.arguments())
        return captured(*self.arguments())

    def _vectorized(self, batched: Sequence[int]) -> list[Any]:
        """Returns the second example's results of three; the first and the third are other rearrangements of the same numbers."""
        arguments = self.arguments()
        axes = tuple([0 if i in batched else None for i in range(len(arguments))])
        three = [pb.stack([others(x, True), x, others(x, False)]) if i in batched else x for i, x in enumerate(arguments)]
        return [y[1] for y in pb.vmap(self, in_axes=axes)(*three)]

    def rows(self) -> Iterator[tuple[str, str, Any]]:
        """Yields single rows of the results, from batches of several sizes: (way, the name of the row, the row)."""
        own, count = self.case.rows, len(self.inputs)
        on = [i in own for i in self.sources]
        by_row = {*own, count, *[count + 1 + k for k, is_on in enumerate(on) if is_on]}  # the inputs, the cotangent, the tangents
        kept = [0, *[1 + k for k, is_on in enumerate(on) if is_on], *[1 + len(on)] * (len(on) > 0 and all(on))]
        length = self.inputs[own[0]].shape[0]
        parts = [range(i, i + 1) for i in PROBES if i < length] + [range(n) for n in BATCHES if n <= length]
        for part in parts:
            results = self(*[x[part.start : part.stop] if i in by_row else x for i, x in enumerate(self.arguments())])
            way = "alone" if len(part) == 1 else f"of {len(part)} rows"
            for row in [row for row in PROBES if row in part]:
                yield from [(way, f"{self.names[k]}, row {row}", results[k][row - part.start]) for k in kept]


def others(x: Any, first: bool) -> Any:
    return pb.flip(x) if first else x if x.ndim == 0 else pb.roll(x, 1)


def evaluate(op: Op) -> dict[str, Bits]:
    """Returns the digests of all cases of an op, in every way.

    Left out are the ways that cannot be recorded, and those whose rearranged numbers are a matrix without a factorisation.
    """
    found: dict[str, Bits] = {}
    for case in cases(op):
        evaluation = Evaluation(op, case)
        for way, run in evaluation.ways():
            try:
                for name, y in zip(evaluation.names, run(), strict=True):
                    found.setdefault(f"{case.words}: {name}", {})[way] = digest(y)
            except (pb.CaptureError, pb.LinAlgError):
                pass
        for way, name, y in evaluation.rows() if case.rows else ():
            found.setdefault(f"{case.words}: {name}", {})[way] = digest(y)
    return found


def work(chosen: Sequence[str]) -> None:
    """Prints the digests of the chosen ops, or of all, as one line of JSON for each op."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    for op in ops():
        if not chosen or op.name in chosen:
            print(json.dumps([op.name, evaluate(op)]), flush=True)


# ---- all configurations


class Configuration(NamedTuple):
    """One process: the SIMD level, or "cuda" for the GPU, and the number of threads."""

    place: str
    threads: int

    def environment(self) -> dict[str, str]:
        on_gpu = self.place == "cuda"
        variables = {"PULLBACK_DEVICE": "cuda"} if on_gpu else {"PULLBACK_DEVICE": "cpu", "PULLBACK_SIMD": self.place}
        return environment(
            PULLBACK_REPRODUCIBLE="everywhere", PULLBACK_NUM_THREADS=str(self.threads), PULLBACK_BACKEND="native", **variables
        )

    def lines(self, script: str, *arguments: str) -> list[Any]:
        """Runs a script of this folder and returns the lines of JSON that it prints."""
        command = [sys.executable, str(Path(__file__).parent / script), *arguments]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self}: {done.stderr[-3000:]}")
        return [json.loads(line) for line in done.stdout.splitlines()]


def places() -> list[str]:
    """Returns the SIMD levels with fused multiply-add that are built and run here, and "cuda" if there is a device."""
    folder = Path(pb.__file__).parent
    best = int(native.simd_level()[-1]) if native.simd_level().startswith("x86-64") else 0
    levels = [f"v{n}" for n in (3, 4) if n <= best and any(folder.glob(f"_cpu_v{n}*.so"))]
    return levels + ["cuda"] * pb.cuda.is_available()


def configurations(wanted: Sequence[str], threads: Sequence[int]) -> list[Configuration]:
    """Returns every place with every number of threads. The GPU, which uses them for little, gets the first number only."""
    return [Configuration(place, n) for place in wanted for n in (threads[:1] if place == "cuda" and not LONG else threads)]


Where = tuple[str, int, str]  # the place, the number of threads and the way


class Difference(NamedTuple):
    """A result with different bits in two runs, which differ in as few respects as possible."""

    result: str
    first: Where
    second: Where

    def axes(self) -> tuple[str, ...]:
        return tuple([axis for axis, a, b in zip(("device", "threads", "way"), self.first, self.second) if a != b])

    def __str__(self) -> str:
        here, there = [f"{place}, {threads} threads, {way}" for place, threads, way in (self.first, self.second)]
        return f"{self.result}: [{here}] and [{there}]"


def collect(wanted: Sequence[Configuration], chosen: Sequence[str] = ()) -> dict[str, list[Difference]]:
    """Runs the configurations, one process per processor at a time, and returns the differences of each op."""
    names = list(chosen) or [op.name for op in ops()]
    slowest_first = sorted(wanted)  # "cuda" comes before the levels
    parts = [(one, names[k::PARTS]) for one in slowest_first for k in range(PARTS) if names[k::PARTS]]
    found: dict[Configuration, Found] = {one: {} for one in wanted}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        lines = pool.map(lambda part: part[0].lines("same_bits.py", "--work", "--ops", ",".join(part[1])), parts)
        for (one, _), results in zip(parts, lines):
            found[one].update(dict(results))
    every = {op: dict.fromkeys(result for results in found.values() for result in results[op]) for op in names}
    return {op: [d for result in every[op] if (d := difference(op, result, found))] for op in names}


def difference(op: str, result: str, found: dict[Configuration, Found]) -> Difference | None:
    seen: dict[str, list[Where]] = {}
    for (place, threads), results in found.items():
        for way, bits in results[op].get(result, {}).items():
            seen.setdefault(bits, []).append((place, threads, way))
    if len(seen) == 1:
        return None
    groups = list(seen.values())
    pairs = [(a, b) for i, group in enumerate(groups) for other in groups[:i] for a in other for b in group]
    return Difference(result, *min(pairs, key=lambda pair: sum([x != y for x, y in zip(*pair)])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="", help="names of ops, with commas between; all by default")
    parser.add_argument("--places", help="v3,v4,cuda; by default all that there are")
    parser.add_argument("--threads", default="1,4")
    parser.add_argument(
        "--work", action="store_true", help="evaluate one configuration, that of the environment, and print its digests"
    )
    options = parser.parse_args()
    chosen = [name for name in options.ops.split(",") if name]
    if options.work:
        work(chosen)
        return
    threads = [int(n) for n in options.threads.split(",")]
    wanted = options.places.split(",") if options.places else places()
    found = collect(configurations(wanted, threads), chosen)
    for op, differences in found.items():
        axes = sorted({axis for d in differences for axis in d.axes()})
        for d in differences if chosen else differences[:1]:
            print(f"{op} ({len(differences)} results, by {', '.join(axes)}): {d}")
    print(f"{len([op for op, differences in found.items() if differences])} of {len(found)} ops differ")


if __name__ == "__main__":
    main()
