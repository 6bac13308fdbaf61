"""The digits, the loader, and the random number generator."""

from __future__ import annotations

import array
import inspect
import itertools
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn, optim
from pullback.data import Loader, digits
from pullback.launch import door
from pullback.ops import draws, random
from pullback.ops.dropout import dropout
from pullback.ops.random import Generator

# ---- digits


def test_digits_are_the_sources_split_as_documented() -> None:
    data = digits()
    assert (data.x_train.shape, data.x_test.shape) == ((1442, 8, 8), (355, 8, 8))
    assert (data.x_train.dtype, data.y_train.dtype) == (pb.float32, pb.int64)
    x = np.concatenate([data.x_train.numpy(), data.x_test.numpy()])
    assert (x.min(), x.max()) == (0.0, 1.0)
    labels = np.concatenate([data.y_train.numpy(), data.y_test.numpy()])
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # the numbers that UCI publishes
    assert np.bincount(data.y_test.numpy()).tolist() == [n // 5 for n in np.bincount(labels)]
    # This is the first row of the source's first image, a zero, as published with scikit-learn.
    assert (data.x_train[0] * 16).numpy().astype(int)[0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert data.y_train[0].item() == 0


def test_digits_are_not_shared_between_training_and_test() -> None:
    data = digits()
    seen = {image.tobytes() for image in data.x_train.numpy()}
    assert not any(image.tobytes() in seen for image in data.x_test.numpy())


# ---- loader


def rows(loader: Loader) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def test_an_epoch_gives_every_row_once_in_an_order_of_its_own() -> None:
    loader = Loader(np.arange(10), 4)
    first, second = rows(loader), rows(loader)
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert len(loader) == 3
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(10))
    assert first != second
    assert rows(Loader(np.arange(10), 4)) == first
    assert rows(Loader(np.arange(10), 4, seed=1)) != first


def test_rows_that_belong_together_stay_together() -> None:
    x = np.arange(12.0).reshape(6, 2)
    for a, b in Loader([x, np.arange(6)], 4):
        np.testing.assert_array_equal(a.numpy(), x[b.numpy()])


def test_without_shuffling_the_order_stays_and_drop_last_drops() -> None:
    assert rows(Loader(np.arange(5), 2, shuffle=False)) == [[0, 1], [2, 3], [4]]
    loader = Loader(np.arange(5), 2, shuffle=False, drop_last=True)
    assert rows(loader) == [[0, 1], [2, 3]]
    assert len(loader) == 2


@pytest.mark.parametrize("stop", range(8))
def test_a_loader_resumes_exactly_where_it_was(stop: int) -> None:
    def stream(loader: Loader) -> Any:
        for _ in range(4):
            yield from (batch.tolist() for batch in loader)

    whole = list(stream(Loader(np.arange(10), 4)))
    loader = Loader(np.arange(10), 4)
    source = stream(loader)
    begun = [next(source) for _ in range(stop)]
    resumed = Loader(np.arange(10), 4)
    resumed.load_state_dict(loader.state_dict())
    assert (begun + list(stream(resumed)))[: len(whole)] == whole


def test_a_loop_that_is_left_early_takes_nothing_from_the_next() -> None:
    loader = Loader(np.arange(10), 4)
    for _ in loader:
        break
    next(iter(loader))
    assert loader.state_dict().items() >= {"epoch": 1, "batches": 1, "seed": 0}.items()
    assert sorted(itertools.chain(*rows(loader))) == list(range(10))
    assert loader.state_dict().items() >= {"epoch": 3, "batches": 0, "seed": 0}.items()


def test_two_iterations_of_a_loader_are_two_epochs() -> None:
    both, apart = Loader(np.arange(10), 4), Loader(np.arange(10), 4)
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(both, both)]
    assert [list(epoch) for epoch in zip(*pairs)] == [rows(apart), rows(apart)]


def test_an_epoch_is_resumed_once() -> None:
    loader = Loader(np.arange(5), np.int64(2), shuffle=False)
    loader.load_state_dict({"epoch": 4, "batches": 2, "seed": 0})
    assert [rows(loader), rows(loader)] == [[[4]], [[0, 1], [2, 3], [4]]]
    assert loader.epoch == 6


@pytest.mark.parametrize("changed", ["batch_size", "shuffle", "rows"])
@pytest.mark.parametrize("way", ["load_state_dict", "load_training"])
def test_an_epoch_is_resumed_with_the_same_batches_only(tmp_path: Any, changed: str, way: str) -> None:
    options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "rows": 12}

    def made(**other: Any) -> Any:
        chosen = {**options, **other}
        return Loader(np.arange(chosen["rows"]), chosen["batch_size"], chosen["shuffle"], seed=1)

    def resume(before: Any, after: Any) -> None:
        if way == "load_state_dict":
            after.load_state_dict(before.state_dict())
            return
        parts = [(net := nn.Linear(2, 2), optim.SGD(net.parameters(), lr=0.1)) for _ in range(2)]
        pb.save_training(tmp_path / "training", *parts[0], before)
        pb.load_training(tmp_path / "training", *parts[1], after)

    before, batches = made(), rows(made())
    for _ in zip(range(2), before):
        pass
    other = {"batch_size": 3, "shuffle": False, "rows": 14}[changed]
    words = f"a Loader with {changed}={options[changed]}, and here it is {other}, so that rows of the epoch would be left out"
    with pytest.raises(pb.PullbackError, match=words):
        resume(before, made(**{changed: other}))
    resume(before, again := made())
    assert rows(again) == batches[2:]
    old = {name: before.state_dict()[name] for name in ("epoch", "batches", "seed")}  # as older versions wrote it
    made(**{changed: other}).load_state_dict(old)
    list(before)
    resume(before, made(**{changed: other}))  # between two epochs


def test_a_loaders_launches_are_charged_to_data() -> None:
    loader = Loader(np.arange(10.0), 5)
    ledger = door.begin()
    list(loader)
    launches = door.end(ledger).launches
    assert launches
    assert {launch.phase for launch in launches} == {door.DATA}


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([np.zeros(3), np.zeros(4)], 2), pb.ShapeError, r"\[3, 4\]"),
        ((np.zeros(3), 0), pb.PullbackError, "batch_size=0"),
        ((np.zeros(3), 1.5), pb.PullbackError, "integer"),
        ((np.float32(3), 2), pb.ShapeError, "0-d"),
        (([], 2), pb.PullbackError, "no arrays"),
        ((np.zeros(3), 4, True, 0, None, True), pb.PullbackError, "no batch"),
        ((np.zeros(3), 2, True, -1), pb.PullbackError, "seed"),
        ((np.zeros(3), 2, True, None), pb.PullbackError, "Loader: seed=None must be an integer"),
    ],
)
def test_a_loader_that_cannot_work_says_why(arguments: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        Loader(*arguments)
    loader = Loader(np.zeros(3), 2)
    with pytest.raises(pb.PullbackError, match="batch 7"):
        loader.load_state_dict({"epoch": 0, "batches": 7, "seed": 0})
    with pytest.raises(pb.PullbackError, match="a dict of batches"):
        loader.load_state_dict(None)
    for name, value in (("seed", None), ("epoch", "x"), ("batches", 1.5), ("epoch", float("nan"))):
        with pytest.raises(pb.PullbackError, match=f'"{name}" of the state is {value!r}; it must be an integer'):
            loader.load_state_dict({"epoch": 0, "batches": 0, "seed": 0, name: value})


# ---- random numbers


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # Random123's known answers for philox4x32-10
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(counter: Any, key: Any, words: Any) -> None:
    got = draws.philox([np.array([c], np.uint64) for c in counter], key)
    assert tuple(int(w[0]) for w in got) == words


DRAWS: dict[str, Any] = {
    "uniform": lambda g, dtype: g.uniform((3, 5, 7), -1.0, 2.0, dtype=dtype),
    "normal": lambda g, dtype: g.normal((3, 5, 7), 1.0, 2.0, dtype=dtype),
    "truncated_normal": lambda g, dtype: g.truncated_normal((3, 5, 7), 1.0, 2.0, dtype=dtype),
}
WHOLE: dict[str, Any] = {
    "bernoulli": lambda g: g.bernoulli(1001, 0.3),
    "randint": lambda g: g.randint(-5, 70, (1001,)),
    "randint of all": lambda g: g.randint(-(2**63), 2**63 - 1, (1001,)),
    "randint of bytes": lambda g: g.randint(7, shape=(11,), dtype="uint8"),
    "permutation": lambda g: g.permutation(1001),
    "dropout": lambda g: dropout(pb.ones(1001), 0.3, generator=g),
}


def by_reference(draw: Any, *arguments: Any) -> Any:
    """Returns the draw with the kernel of every random op replaced by its reference."""
    from pullback.autodiff.primitive import OPS
    from pullback.backends import reference

    names = ("uniform", "normal", "truncated_normal", "bernoulli", "randint", "permutation", "dropout")
    before = {name: OPS[name].kernel for name in names}
    try:
        for name in names:
            OPS[name].kernel = reference.runner(OPS[name])
        return draw(*arguments).numpy()
    finally:
        for name in names:
            OPS[name].kernel = before[name]


@pytest.mark.parametrize("draw", WHOLE.values(), ids=WHOLE)
def test_the_reference_draws_the_kernels_numbers_bit_for_bit(draw: Any, native: None) -> None:
    for seed, serial in ((0, 0), (2**64 - 1, 2**40 + 7)):
        states = []
        for _ in range(2):
            g = Generator()
            g.load_state_dict({"seed": seed, "serial": serial})
            states.append(g)
        np.testing.assert_array_equal(draw(states[0]).numpy(), by_reference(draw, states[1]))
        assert states[0].state_dict() == {"seed": seed, "serial": serial + 1}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_reference_draws_the_kernels_floats(draw: Any, dtype: str, native: None) -> None:
    got, wanted = draw(Generator(5), dtype).numpy(), by_reference(draw, Generator(5), dtype)
    np.testing.assert_allclose(
        got.astype(np.float64), wanted.astype(np.float64), rtol=16 * np.finfo(dtype).eps, atol=4 * np.finfo(dtype).eps
    )


def test_draws_have_the_distribution_that_they_are_named_for() -> None:
    stats = pytest.importorskip("scipy.stats", reason="SciPy, which tests distributions, is not installed")
    g = Generator(11)
    for sample, cdf in (
        (g.uniform(20000, -1.0, 3.0), stats.uniform(-1, 4).cdf),
        (g.normal(20000, 2.0, 0.5), stats.norm(2, 0.5).cdf),
        (g.truncated_normal(20000, 1.0, 3.0, -1.0, 2.0), stats.truncnorm(-1, 2, 1, 3).cdf),
    ):
        assert stats.kstest(sample.numpy(), cdf).pvalue > 1e-3
    counts = np.bincount(g.randint(10, shape=(20000,)).numpy(), minlength=10)
    assert stats.chisquare(counts).pvalue > 1e-3
    assert g.bernoulli(20000, 0.3).numpy().mean() == pytest.approx(0.3, abs=0.02)
    assert sorted(g.permutation(100).tolist()) == list(range(100))


def test_a_call_consumes_one_serial_whatever_its_shape() -> None:
    a, b = Generator(1), Generator(1)
    a.uniform(3)
    b.normal((100, 100))
    assert a.uniform(5).tolist() == b.uniform(5).tolist()
    np.testing.assert_array_equal(Generator(1).uniform(4).numpy(), Generator(1).uniform((10, 10)).numpy().ravel()[:4])


def test_dropout_scales_what_it_keeps_and_its_gradient_has_the_same_mask() -> None:
    x = pb.Parameter(np.ones(1000))
    with pb.GradientTape() as tape:
        y = dropout(x, 0.25)
    assert set(y.numpy().tolist()) == {0.0, 1 / 0.75}
    np.testing.assert_array_equal(tape.gradient(y, x, output_gradients=pb.ones_like(y)).numpy(), y.numpy())
    assert not dropout(x, 1.0).numpy().any()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Generator(-1), "2\\*\\*64"),
        (lambda: Generator().randint(5, 5), "no integer"),
        (lambda: Generator().bernoulli(3, 1.5), "probability"),
        (lambda: Generator().normal(3, std=-1.0), "negative"),
        (lambda: Generator().truncated_normal(3, low=2.0, high=1.0), "less than"),
        (lambda: Generator().uniform(3, dtype="int32"), "floating-point"),
        (lambda: Generator().uniform((-1,)), "negative"),
    ],
)
def test_impossible_draws_are_refused(call: Any, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        call()


def test_the_default_stream_is_that_of_seed_0() -> None:
    assert pb.random.Generator().state_dict() == {"seed": 0, "serial": 0}
    np.testing.assert_array_equal(host(pb.random.Generator().uniform((5,))), host(pb.random.Generator(0).uniform((5,))))


def test_a_loader_resumes_in_the_order_of_the_state_whatever_its_own_seed() -> None:
    whole, first, second = [Loader(np.arange(10), 4, seed=seed) for seed in (1, 1, 2)]
    next(iter(first))
    second.load_state_dict(first.state_dict())
    assert second.seed == 1
    assert rows(second) == rows(whole)[1:]
    assert rows(second) == rows(whole)


def test_the_rows_of_a_tensor_are_permuted_whole() -> None:
    x = np.arange(30.0).reshape(10, 3)
    got = host(random.Generator(5).permutation(pb.tensor(x)))
    assert got.tolist() != x.tolist()
    np.testing.assert_array_equal(got, x[host(random.Generator(5).permutation(10))])


# ---- what is no array


class Pairs:
    """A dataset as torch has them: it never raises IndexError, so iterating over it would not end."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[Any, float]:
        return np.full(2, i, np.float32), float(i)


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (Pairs(), "arrays = [np.stack(field) for field in zip(*[data[i] for i in range(len(data))])]"),
        (iter([*zip(np.ones((6, 2)), np.ones(6))]), "arrays = [np.stack(field) for field in zip(*data)]"),
        ({"x": np.ones((6, 2)), "y": np.ones(6)}, "Loader(tuple(data.values()), batch_size=32)"),
        ([(1.0, 0.5), (2.0, 1.5), (3.0, 2.5)], "Loader([np.stack(field) for field in zip(*rows)], batch_size=32)"),
    ],
    ids=["dataset", "iterator", "dict", "rows"],
)
def test_what_yields_single_rows_is_refused_and_the_remedy_works(data: Any, remedy: str) -> None:
    with pytest.raises(pb.PullbackError) as caught:
        Loader(data, 2)
    assert remedy in str(caught.value)
    names = {"data": data, "rows": data, "Loader": Loader, "np": np}
    if remedy.startswith("arrays"):
        exec(remedy, names)
        remedy = "Loader(arrays, batch_size=32)"
    ((x, y),) = eval(remedy, names)
    assert x.shape[0] == y.shape[0] in (3, 6)
    np.testing.assert_array_equal(host(x).reshape(len(x), -1)[:, 0] - host(y), host(x).reshape(len(x), -1)[0, 0] - host(y)[0])


def test_arrays_that_come_one_by_one_are_refused() -> None:
    x, y, wrong = np.ones((6, 2)), np.ones(6), Loader
    for call in (lambda: wrong(x, y, batch_size=2), lambda: wrong(x, y, 2), lambda: wrong(x, y)):  # type: ignore[call-overload]
        with pytest.raises(pb.PullbackError, match=r"come in one tuple: Loader\(\(x, y\), batch_size=32\)"):
            call()
    for options in ({"shuffle": 100}, {"drop_last": "yes"}):
        with pytest.raises(pb.DTypeError, match="must be True or False"):
            Loader((x, y), 2, **options)  # type: ignore[arg-type]


def test_help_shows_the_parameters_of_a_loader() -> None:
    assert [*inspect.signature(Loader).parameters][:3] == ["arrays", "batch_size", "shuffle"]


def test_what_has_an_array_inside_is_an_array() -> None:
    class Frame:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.arange(6.0)

        def __getitem__(self, i: Any) -> Any:
            raise AssertionError

    for data in (Frame(), range(6), array.array("f", [1.0, 2.0])):
        assert len(Loader(data, 2)) in (1, 2, 3)


def test_a_network_that_float64_batches_make_wide_warns() -> None:
    net = nn.Linear(2, 1)
    for x in Loader(np.ones((4, 2), np.float32), 2):
        assert net(x).dtype == pb.float32
    for loader in (Loader(np.ones((4, 2)), 2), Loader((np.ones((4, 2)), np.ones(4)), 2, shuffle=False)):
        for batch in loader:
            with pytest.warns(pb.PrecisionWarning, match="a NumPy array of dtype float64 was given"):
                assert net(batch[0] if isinstance(batch, tuple) else batch).dtype == pb.float64
    for x in Loader(pb.ones((4, 2), pb.float64), 2):  # A tensor has the dtype that was asked for.
        assert net(x).dtype == pb.float64
