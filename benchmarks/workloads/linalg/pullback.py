"""The workloads in pullback, eager and captured."""

from functools import partial

import pullback as pb

from . import BATCHED, LARGE, positive, right_sides


def batched(name, dtype, capture):
    inputs = [pb.tensor(positive(dtype, 1000, 16, 16))] + [pb.tensor(right_sides(dtype))] * (name == "solve")
    op = getattr(pb.linalg, name)

    def run(*inputs):
        with pb.GradientTape() as tape:
            tape.watch(inputs)
            y = pb.sum(op(*inputs))
        return tape.gradient(y, inputs)

    return partial(pb.capture(run) if capture else run, *inputs)


def large(dtype):
    return partial(pb.linalg.cholesky, pb.tensor(positive(dtype, 1024, 1024)))


WORKLOADS = {
    **{name: partial(batched, *how, False) for name, how in BATCHED.items()},
    **{f"{name}, captured": partial(batched, *how, True) for name, how in BATCHED.items()},
    **{name: partial(large, dtype) for name, dtype in LARGE.items()},
}


def facts():
    from pullback.backends import native

    return f"pullback {pb.__version__}, {native.simd_level()}, {native.module.thread_count()} threads"
