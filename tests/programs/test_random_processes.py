"""What pb.random and Generators draw in forked and spawned processes and in threads, as docs/data.md says it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import environment
from pullback.ops._stream import child_seed
from pullback.random import Generator

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def printed(folder: Path, program: str, *args: str) -> Any:
    """Returns what a program prints as JSON."""
    (folder / "program.py").write_text("import json, multiprocessing, os, sys, warnings, numpy as np, pullback as pb\n" + program)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "program.py", *args], cwd=folder, env=environment(PULLBACK_DEVICE="cpu"),
        capture_output=True, text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def drawn(seed: int, count: int = 1, after: int = 0) -> list[float]:
    """Returns the numbers that a generator of this seed draws after some draws."""
    generator = Generator(seed, "cpu")
    return [generator.uniform().item() for _ in range(after + count)][after:]


@pytest.mark.parametrize(
    ("seed", "published"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]),
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]),
    ],
)
def test_seeds_of_children_are_the_published_outputs_of_splitmix64(seed: int, published: list[int]) -> None:
    assert [child_seed(seed, number) for number in range(len(published))] == published


FORK = """
def forked(f):
    \"\"\"Returns what f() returns in a forked process.\"\"\"
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, json.dumps(f()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        found = json.loads(file.read())
    assert os.waitpid(child, 0)[1] == 0
    return found

def draw(count=1):
    return [pb.random.uniform().item() for _ in range(count)]
"""


@needs_fork
def test_forked_children_draw_from_streams_of_their_own(tmp_path: Path) -> None:
    program = """
pb.random.seed(5)
first = draw(2)
children = [forked(lambda: draw(2)) for _ in range(3)]
print(json.dumps([first, children, draw(2), pb.random.state_dict()]))
"""
    first, children, then, state = printed(tmp_path, FORK + program)
    assert children == [drawn(child_seed(5, number), 2) for number in range(3)]
    assert first + then == drawn(5, 4)  # the parent's stream goes on as if nothing had been forked
    assert state == {"seed": 5, "serial": 4, "children": 3}
    assert printed(tmp_path, FORK + program) == [first, children, then, state]  # nothing depends on a process id


@needs_fork
def test_children_of_children_seeds_and_states(tmp_path: Path) -> None:
    program = """
pb.random.seed(7)
nested = forked(lambda: [draw(), forked(draw), forked(lambda: forked(draw)), draw()])
state = pb.random.state_dict()
second = forked(draw)
pb.random.load_state_dict(state)
again = forked(draw)
pb.random.seed(7)
print(json.dumps([nested, second, again, forked(draw), forked(lambda: (pb.random.seed(3), draw())[1])]))
"""
    nested, second, again, first, seeded = printed(tmp_path, FORK + program)
    child = child_seed(7, 0)
    own = drawn(child, 2)
    assert nested == [own[:1], drawn(child_seed(child, 0)), drawn(child_seed(child_seed(child, 1), 0)), own[1:]]
    assert second == again == drawn(child_seed(7, 1))  # a state knows how many children there were
    assert first == drawn(child)  # seed() begins anew
    assert seeded == drawn(3)


@needs_fork
def test_layers_captured_functions_and_checkpoints_in_children(tmp_path: Path) -> None:
    """A recording of the parent draws the child's numbers, and a backward pass in the child repeats the parent's masks."""
    program = """
f = pb.capture(lambda x: x + pb.random.uniform())
x = pb.tensor(0.0)
pb.random.seed(5)
captured = [f(x).item() for _ in range(3)]
def layers():
    first, net = f(x).item(), pb.nn.Linear(3, 2)
    return [first, net.weight.numpy().tolist(), pb.nn.functional.dropout(pb.ones(8)).numpy().tolist(), f(x).item()]
children = [forked(layers) for _ in range(2)]
p = pb.Parameter(np.ones(64))
with pb.GradientTape() as tape:
    y = pb.checkpoint(lambda x: pb.nn.functional.dropout(pb.nn.functional.dropout(x)))(p)
def backward():
    before = pb.random.state_dict()["seed"]
    (g,) = tape.gradient(y, [p], output_gradients=pb.ones(64))
    return [bool((g.numpy() == y.numpy()).all()), pb.random.state_dict()["seed"] == before]
print(json.dumps([captured, children, forked(backward)]))
"""
    captured, children, backward = printed(tmp_path, FORK + program)
    assert captured == drawn(5, 3)
    for number, (first, weights, mask, last) in enumerate(children):
        seed = child_seed(5, number)
        pb.random.seed(seed)
        assert first == pb.random.uniform().item()
        assert weights == pb.nn.Linear(3, 2).weight.numpy().tolist()
        assert mask == pb.nn.functional.dropout(pb.ones(8)).numpy().tolist()
        assert last == pb.random.uniform().item()
    assert backward == [True, True]


@needs_fork
def test_a_generator_of_ones_own_is_copied(tmp_path: Path) -> None:
    program = """
own = pb.random.Generator(5)
own.uniform()
print(json.dumps([forked(lambda: own.uniform().item()) for _ in range(2)] + [own.uniform().item()]))
"""
    assert printed(tmp_path, FORK + program) == drawn(5, after=1) * 3


POOLS = """
def work(task):
    return [pb.random.state_dict()["seed"], pb.random.uniform().item(), pb.random.Generator(task).uniform().item()]

def own(generator):
    return generator.uniform().item()

if __name__ == "__main__":
    method = sys.argv[1]
    pb.random.seed(5)
    if method == "joblib":
        import joblib
        found = joblib.Parallel(2, backend=sys.argv[2])(joblib.delayed(work)(task) for task in range(6))
        print(json.dumps([found, None]))
    else:
        generator = pb.random.Generator(9)
        generator.uniform()
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(json.dumps([pool.map(work, range(6), 1), pool.map(own, [generator] * 2)]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes(method: str, tmp_path: Path) -> None:
    if method not in __import__("multiprocessing").get_all_start_methods():
        pytest.skip(f"this system cannot start processes by {method}")
    found, own = printed(tmp_path, POOLS, method)
    seeds = {child_seed(5, number) for number in range(2)} if method == "fork" else {0}
    assert {seed for seed, *_ in found} <= seeds
    numbers = {seed: [number for other, number, _ in found if other == seed] for seed in seeds}
    for seed, mine in numbers.items():
        assert set(mine) <= set(drawn(seed, 6))  # which worker gets which task is up to the system
    assert [number for *_, number in found] == [drawn(task)[0] for task in range(6)]  # a generator for each task is up to nothing
    assert own == drawn(9, after=1) * 2  # a generator that is sent to a process goes on from its position


@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
def test_workers_of_joblib(backend: str, tmp_path: Path) -> None:
    pytest.importorskip("joblib", reason="joblib is not installed")
    found, _ = printed(tmp_path, POOLS, "joblib", backend)
    assert [number for *_, number in found] == [drawn(task)[0] for task in range(6)]
    if backend == "threading":
        assert sorted(number for _, number, _ in found) == sorted(drawn(5, 6))


@needs_fork
def test_workers_of_a_data_loader_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    program = """
import torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, i):
        return torch.tensor(pb.random.uniform(dtype="float64").item(), dtype=torch.float64)

pb.random.seed(5)
loader = torch.utils.data.DataLoader(Rows(), batch_size=1, num_workers=2, multiprocessing_context="fork")
print(json.dumps([[x.item() for x in loader] for _ in range(2)]))
"""
    generators = [Generator(child_seed(5, number), "cpu") for number in range(4)]
    expected = [[workers[i % 2].uniform(dtype="float64").item() for i in range(6)] for workers in (generators[:2], generators[2:])]
    assert printed(tmp_path, program) == expected  # rows go to the two workers in turn, and an epoch forks new ones


@needs_fork
def test_forks_while_threads_draw(tmp_path: Path) -> None:
    program = """
import threading
sys.setswitchinterval(1e-5)
stop = threading.Event()
def work():
    while not stop.is_set():
        pb.random.uniform()
threads = [threading.Thread(target=work) for _ in range(3)]
pb.random.seed(5)
for thread in threads:
    thread.start()
found = [forked(draw) for _ in range(30)]
stop.set()
print(json.dumps(found))
"""
    assert printed(tmp_path, FORK + program) == [drawn(child_seed(5, number)) for number in range(30)]


@needs_fork
def test_threads_that_fork_have_different_children(tmp_path: Path) -> None:
    program = """
import threading
sys.setswitchinterval(1e-6)
pb.random.seed(5)
found = []
def work():
    for _ in range(10):
        found.append(forked(draw))
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(found))
"""
    assert sorted(printed(tmp_path, FORK + program)) == sorted(drawn(child_seed(5, number)) for number in range(40))


# ---- threads


def in_threads(works: list[Any]) -> None:
    """Runs the functions in threads that take turns very often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("kind", ["eager", "captured", "one captured", "steps"])
def test_threads_share_a_stream_and_each_number_is_drawn_once(kind: str) -> None:
    generator = Generator(5)
    numbers: list[float] = []

    def add(x: Any) -> Any:
        return x + generator.uniform()

    if kind == "eager":
        functions: list[Any] = [add] * 4
    elif kind == "steps":
        functions = [pb.capture(add, steps=2) for _ in range(4)]
    else:
        functions = [pb.capture(add)] * 4 if kind == "one captured" else [pb.capture(add) for _ in range(4)]
    x = pb.zeros(2 if kind == "steps" else ())
    for f in functions:
        f(x), f(x)
    generator.seed(5)
    in_threads([lambda f=f: numbers.extend([v for _ in range(200) for v in np.ravel(f(x).numpy())]) for f in functions])
    count = 1600 if kind == "steps" else 800
    assert generator.state_dict() == {"seed": 5, "serial": count}
    generator.seed(5)
    assert sorted(numbers) == sorted(np.float32(generator.uniform().item()) for _ in range(count))


def test_a_generator_for_each_thread_is_reproducible() -> None:
    found: dict[int, list[float]] = {}

    def work(k: int) -> None:
        generator = Generator(k)
        found[k] = [generator.uniform().item() for _ in range(100)]

    in_threads([lambda k=k: work(k) for k in range(4)])
    assert found == {k: drawn(k, 100) for k in range(4)}


def test_a_checkpoint_repeats_its_own_masks_or_says_that_it_cannot() -> None:
    """Other threads go on with the stream while one repeats draws, and draws between those of a checkpoint are an error."""
    wrong, refused = [0], list[str]()
    dropout = pb.nn.functional.dropout
    f = pb.checkpoint(lambda x: dropout(dropout(x)))

    def work() -> None:
        x, g = pb.Parameter(np.ones(64)), pb.ones(64)
        for _ in range(150):
            try:
                with pb.GradientTape() as tape:
                    y = f(x)
                wrong[0] += not np.array_equal(tape.gradient(y, [x], output_gradients=g)[0].numpy(), y.numpy())
            except pb.PullbackError as error:
                refused.append(str(error))

    in_threads([work] * 4)
    assert wrong == [0]
    assert all("another thread drew from the same random generator" in text for text in refused)
    with (
        pb.GradientTape(),
        pytest.raises(pb.PullbackError, match=r"another thread drew .*: generator=pb\.random\.Generator\(seed\)"),
    ):
        pb.checkpoint(lambda x: (dropout(x), in_threads([lambda: pb.random.uniform()]), dropout(x))[2])(pb.Parameter(np.ones(3)))


def test_draws_of_other_threads_are_not_taken_back_by_a_checkpoint() -> None:
    seen: list[int] = []
    pb.random.seed(5)

    def f(x: Any) -> Any:
        y = pb.nn.functional.dropout(x)
        if seen:  # in the backward pass
            in_threads([lambda: seen.append(pb.random.state_dict()["serial"]), lambda: pb.random.uniform()])
        return y

    x = pb.Parameter(np.ones(64))
    with pb.GradientTape() as tape:
        y = pb.checkpoint(f)(x)
    seen.append(-1)
    assert np.array_equal(tape.gradient(y, [x], output_gradients=pb.ones(64))[0].numpy(), y.numpy())
    assert pb.random.state_dict()["serial"] == 2
    assert set(seen) <= {-1, 1, 2}
