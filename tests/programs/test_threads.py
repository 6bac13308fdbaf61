"""Python threads and forks: tapes and ledgers are per thread, kernels may run at the same time, a child process may compute."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import environment
from pullback.launch import door


def step(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    w = pb.Parameter(rng.standard_normal((200, 200)).astype(np.float32))
    x = pb.tensor(rng.standard_normal((64, 200)).astype(np.float32))
    with pb.GradientTape() as tape:
        y = pb.mean(pb.tanh(x @ w) ** 2) + pb.sum(pb.softmax(x))
    return tape.gradient(y, w).numpy()


def test_threads_compute_what_one_thread_computes() -> None:
    wanted = [step(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for got, one in zip(pool.map(step, range(8)), wanted):
                np.testing.assert_array_equal(got, one)


def test_the_same_tensor_is_read_by_many_threads() -> None:
    t = pb.tensor(np.random.default_rng(0).standard_normal(100_000))
    wanted = pb.sum(pb.exp(t)).item()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: pb.sum(pb.exp(t)).item(), range(40))) == {wanted}


def test_an_error_in_one_thread_leaves_the_others_alone() -> None:
    errors: list[str] = []

    def bad() -> None:
        for _ in range(100):
            try:
                pb.ones(3) + pb.ones(4)
            except pb.ShapeError as error:
                errors.append(str(error))

    threads = [threading.Thread(target=bad) for _ in range(3)]
    for thread in threads:
        thread.start()
    results = [step(0) for _ in range(5)]
    for thread in threads:
        thread.join()
    assert len(errors) == 300
    assert all([np.array_equal(r, results[0]) for r in results])


def test_a_ledger_and_a_default_device_are_of_their_thread() -> None:
    ledger = door.begin()
    try:
        thread = threading.Thread(target=lambda: pb.exp(pb.ones(1000)))
        thread.start()
        thread.join()
        pb.tanh(pb.ones(10))
    finally:
        launches = door.end(ledger).launches
    assert "exp" not in [launch.kernel for launch in launches]
    assert "tanh" in [launch.kernel for launch in launches]


def test_a_thread_that_ends_inside_a_profile_leaves_no_profile_behind() -> None:
    before = door.profiling
    for _ in range(3):
        thread = threading.Thread(target=lambda: pb.profile().__enter__())
        thread.start()
        thread.join()
    assert door.profiling == before


@needs_kernels
def test_threads_record_for_more_signatures_than_are_kept() -> None:
    f = pb.capture(lambda x: pb.tanh(x) * 2, cache=3)

    def work(first: int) -> list[bool]:
        xs = [pb.full((1 + (first + k) % 6, 3), 0.5) for k in range(12)]
        return [np.array_equal(f(x).numpy(), (pb.tanh(x) * 2).numpy()) for x in xs]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(8) as pool:
            assert all([all(found) for found in pool.map(work, range(8))])
    assert f.stats().recordings <= 3


def run_program(program: str, *args: str, **options: str) -> Any:
    return subprocess.run(
        [sys.executable, "-c", program, *args], env=environment(PULLBACK_DEVICE="cpu", **options), capture_output=True, text=True,
        timeout=120, check=False,
    )


@needs_kernels
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_threads_replay_and_record_replays_and_records() -> None:
    program = """
import os, sys, threading, time, warnings
import pullback as pb
warnings.simplefilter("ignore")
x = pb.full((200, 200), 0.01)
f, g = pb.capture(lambda x: pb.sum(pb.tanh(x @ x) + x)), pb.capture(lambda x: pb.sin(x) * 2)
wanted = f(x).item()

def replay():
    while True:
        f(x)

def record():
    while True:
        g.clear()
        g(x)

for work in (replay, replay, record):
    threading.Thread(target=work, daemon=True).start()
wrong = 0
for _ in range(20):
    time.sleep(0.003)
    child = os.fork()
    if child == 0:
        threading.Timer(20, lambda: os._exit(2)).start()  # it hangs
        h = pb.capture(lambda x: pb.cos(x) * 3)
        os._exit(0 if f(x).item() == wanted and h(x).shape == h(x).shape else 1)
    wrong += os.waitpid(child, 0)[1] != 0
print(wrong)
sys.stdout.flush()
os._exit(0)
"""
    for threads in ("1", "4"):
        done = run_program(program, PULLBACK_NUM_THREADS=threads)
        assert done.stdout.strip() == "0", done.stderr


DAEMONS = {
    "eager": "x @ x",
    "captured": "f(x)",
    "recording": "f.clear(), f(x)",
    "profiled": "profiled()",
    "training": "opt.minimize(lambda: pb.sum(pb.tanh(x @ w)))",
    "trimming": "x @ x, pb.trim()",
}


@needs_kernels
@pytest.mark.parametrize("work", DAEMONS.values(), ids=DAEMONS)
def test_a_program_ends_while_a_daemon_thread_is_inside_a_kernel(work: str) -> None:
    program = f"""
import threading, time
import pullback as pb
from pullback import optim
x, w = pb.full((300, 300), 0.01), pb.Parameter(pb.full((300, 300), 0.01))
f, opt = pb.capture(lambda x: pb.tanh(x @ w)), optim.Adam([w])
f(x)

def profiled():
    with pb.profile():
        x @ x, f(x)

def work():
    while True:
        {work}

threads = [threading.Thread(target=work, daemon=True) for _ in range({1 if "opt" in work else 3})]
for thread in threads:
    thread.start()
time.sleep(0.05)
"""
    for _ in range(4):
        done = run_program(program)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_computes() -> None:
    program = """
import os, sys, warnings, numpy as np, pullback as pb
warnings.simplefilter("ignore")
x = pb.tensor(np.random.default_rng(0).standard_normal((400, 400)).astype(np.float32))
work = lambda: (pb.sum(pb.exp(x)).item(), pb.sum(x @ x).item(), pb.sum(pb.softmax(x), axis=0).numpy().tobytes())
before = work()
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(0 if work() == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert work() == before
print("done")
"""
    for threads in ("1", "4"):
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment(PULLBACK_NUM_THREADS=threads, PULLBACK_DEVICE="cpu"),
            capture_output=True, text=True,
            timeout=120, check=False,
        )
        assert done.stdout.strip() == "done", done.stderr


def test_multiprocessing_by_fork_and_by_spawn_ends() -> None:
    program = """
import multiprocessing, sys, numpy as np, pullback as pb
def work(k):
    return pb.sum(pb.exp(pb.full((50_000,), k, dtype=pb.float64))).item()
if __name__ == "__main__":
    pb.exp(pb.ones(100_000))
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(np.allclose(pool.map(work, [0.0, 1.0]), [50_000.0, 50_000.0 * np.e]))
"""
    for method in ("fork", "spawn") if hasattr(os, "fork") else ("spawn",):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"pullback_pool_{os.getpid()}.py")
        with open(path, "w") as file:
            file.write(program)
        try:
            command = [sys.executable, path, method]
            env = environment(PULLBACK_DEVICE="cpu")
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
        finally:
            os.unlink(path)
        assert done.stdout.strip() == "True", done.stderr
