"""pickle and processes: a tensor keeps its bits and its device, and unpickling calls only pullback's constructor."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import pickle
import pickletools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn, optim
from pullback.tensors import devices
from wrapped_layers import CASES, Shared, changed


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_a_tensor_that_was_pickled_has_the_same_bits(dtype: str, protocol: int) -> None:
    for value in (np.arange(6).reshape(2, 3), np.array(1.0), np.zeros((0, 2))):
        t = pb.tensor(value).astype(dtype)
        found = pickle.loads(pickle.dumps(t, protocol))
        assert (type(found), found.shape, found.dtype) == (pb.Tensor, t.shape, t.dtype)
        assert found.numpy().tobytes() == t.numpy().tobytes()
    transposed = pb.tensor(np.arange(6.0).reshape(2, 3)).T
    np.testing.assert_array_equal(host(pickle.loads(pickle.dumps(transposed))), transposed.numpy())


def test_a_parameter_that_was_pickled_keeps_what_it_is() -> None:
    p = pb.Parameter([1.0, 2.0], name="w", trainable=False)
    found = pickle.loads(pickle.dumps(p))
    assert (type(found), found.name, found.trainable, found.version) == (pb.Parameter, "w", False, 0)
    found.assign([3.0, 4.0])
    np.testing.assert_array_equal(host(p), [1.0, 2.0])
    buffer = pickle.loads(pickle.dumps(pb.nn.module.Buffer([1.0], "b")))
    assert (type(buffer).__name__, buffer.name) == ("Buffer", "b")
    np.testing.assert_array_equal(host(pickle.loads(pickle.dumps(p[1:]))), [2.0])
    assert pickle.loads(pickle.dumps({"net": pb.nn.Linear(2, 1)}))["net"](pb.ones((1, 2))).shape == (1, 1)


def test_unpickling_calls_nothing_but_our_constructor() -> None:
    called = {(word[1] if isinstance(word, tuple) else word) for op, word, _ in pickletools.genops(pickle.dumps(pb.ones(3), 2))
              if op.name == "GLOBAL"}
    assert called == {"pullback _rebuilt", "pullback Tensor", "_codecs encode"}


def test_a_view_is_pickled_with_its_own_elements_alone() -> None:
    p = pb.Parameter(np.zeros((1000, 1000), np.float32))
    for view, elements in ((p[0], 1000), (p.T[:2], 2000), (pb.zeros((1000, 1000))[::500, 3], 2)):
        assert len(pickle.dumps(view)) < 4 * elements + 200
        found = pickle.loads(pickle.dumps(view))
        assert (type(found), found.shape, found.storage) == (pb.Tensor, view.shape, None)
    row = pickle.loads(pickle.dumps(p[0]))
    p.assign(pb.ones_like(p))
    np.testing.assert_array_equal(host(row), np.zeros(1000))


def test_a_tensor_comes_back_on_its_device() -> None:
    places = ["cpu", "cuda"] if pb.cuda.is_available() else ["cpu"]
    for device in places:
        net = nn.Linear(2, 1, device=device)
        opt = optim.Adam(net.parameters())
        for other in places:
            with pb.use_device(other):
                found = pickle.loads(pickle.dumps([pb.ones(3, device=device), pb.ones(3, device=device)[1:], net.weight, net, opt]))
            assert [x.device for x in found[:3]] == [device] * 3
            assert [p.device for p in found[3].parameters() + found[4].parameters] == [device] * 4


def test_a_tensor_from_a_device_that_is_not_here_is_on_the_cpu_and_a_warning_says_so() -> None:
    with pytest.warns(UserWarning, match=r'was pickled on device "cuda:99", and is on the CPU now: .+') as warned:
        found = pb._rebuilt(pb.Tensor, np.ones(2, np.float32).tobytes(), "float32", (2,), "cuda:99")  # pyright: ignore
    assert found.device == "cpu"
    assert warned[0].filename == __file__
    np.testing.assert_array_equal(host(found), [1.0, 1.0])


def test_gradients_stop_at_a_pickle_and_the_error_says_so() -> None:
    p = pb.Parameter([1.0, 2.0])
    with pb.GradientTape() as tape:
        loss = pb.sum(pickle.loads(pickle.dumps(p * 2)))
    with pytest.raises(pb.UnconnectedError, match=r"the path was cut by pickling at .*test_pickling\.py"):
        tape.gradient(loss, p)


class Net(nn.Module):
    def __init__(self) -> None:
        self.layers = [nn.Linear(2, 4), nn.Linear(4, 1)]
        self.tied = self.layers[1].weight
        self.scales = {"a": pb.Parameter([2.0])}
        self.count = nn.Buffer([0.0])

    def forward(self, x: Any) -> Any:
        return self.scales["a"] * self.layers[1](pb.tanh(self.layers[0](x)))


def trained(net: Net, opt: optim.Optimizer) -> Any:
    """Does one step, and returns the weights after it."""
    opt.minimize(lambda: pb.sum(net(pb.ones((3, 2))) ** 2))
    return [p.numpy() for p in net.parameters()]


def test_a_network_and_its_optimizer_go_on_as_they_would_have() -> None:
    net = Net()
    opt = optim.Adam(net.parameters(), lr=0.1)
    trained(net, opt)
    twin, its = pickle.loads(pickle.dumps((net, opt)))
    assert twin.tied is twin.layers[1].weight
    assert [p.name for p in twin.parameters()] == [p.name for p in net.parameters()]
    assert [p is q for p, q in zip(its.parameters, twin.parameters())] == [True] * 5
    assert type(twin.count) is nn.Buffer
    for ours, theirs in zip(trained(net, opt), trained(twin, its)):
        np.testing.assert_array_equal(ours, theirs)


# ---- processes

METHODS = [name for name in ("fork", "spawn") if name in multiprocessing.get_all_start_methods()]


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yields a way to start processes. A forked child computes on the CPU, because CUDA does not work there."""
    with pb.use_device("cpu" if request.param == "fork" else devices.default_device()):
        yield request.param


def doubled(given: Any, results: Any) -> None:
    """Runs in a child: doubles what comes from one queue, and gives it to the other."""
    for _ in range(3):
        x = given.get(timeout=60)
        results.put({"twice": x * 2, "type": type(x).__name__, "dtype": str(x.dtype)})


def test_queues_between_processes_take_tensors(method: str) -> None:
    context = multiprocessing.get_context(method)
    given, results = context.Queue(), context.Queue()
    child = context.Process(target=doubled, args=(given, results))
    child.start()
    for x in (pb.tensor([1.0, 2.0]), pb.Parameter([3.0]), pb.tensor([4.0]).astype(pb.bfloat16)):
        given.put(x)
    found = [results.get(timeout=60) for _ in range(3)]
    child.join(60)
    assert child.exitcode == 0
    assert [x["twice"].astype(pb.float32).numpy().tolist() for x in found] == [[2.0, 4.0], [6.0], [8.0]]
    assert [x["type"] for x in found] == ["Tensor", "Parameter", "Tensor"]
    assert [x["dtype"] for x in found] == ["float32", "float32", "bfloat16"]


def loss_of(net: Net) -> Any:
    """Runs in a worker: returns the network after one step, and its loss before the step."""
    loss = optim.SGD(net.parameters(), lr=0.1).minimize(lambda: pb.sum(net(pb.ones((3, 2))) ** 2))
    return net, loss


def test_pools_of_processes_take_tensors_and_networks(method: str) -> None:
    context, t = multiprocessing.get_context(method), pb.tensor([1.0, 4.0])
    net = Net()
    with context.Pool(1) as pool:
        assert [x.numpy().tolist() for x in pool.map(pb.sqrt, [t, t * 4])] == [[1.0, 2.0], [2.0, 4.0]]
        worked, loss = pool.apply(loss_of, (net,))
    here, expected = loss_of(net)
    assert float(loss) == float(expected)
    for p, q in zip(here.parameters(), worked.parameters()):
        np.testing.assert_array_equal(host(p), host(q))
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        assert executor.submit(pb.sum, t).result(60).item() == 5.0


def changed_values(nets: dict[str, Shared]) -> Any:
    """Runs in a worker: multiplies the Parameters of the networks, and returns what the functions of each then return."""
    return nets, {name: [CASES[name].call(f) for f in changed(net).functions()] for name, net in nets.items()}


def test_other_processes_take_networks_with_layers_in_transforms(method: str) -> None:
    nets = {name: Shared(name).eval() for name in CASES}
    for name, net in nets.items():
        for function in net.functions():
            CASES[name].call(function)
    with multiprocessing.get_context(method).Pool(1) as pool:
        worked, values = pool.apply(changed_values, (nets,))
    for name, net in nets.items():
        wanted = CASES[name].expected(changed(net).layer)
        for found in [*values[name], *[CASES[name].call(f) for f in worked[name].functions()]]:
            for y, expected in zip(found, wanted, strict=True):
                np.testing.assert_allclose(host(y), expected, rtol=1e-5, atol=1e-5)


class Squares:
    """A data set for PyTorch's DataLoader whose items are made by pullback."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        return pb.square(pb.tensor([float(i)])), i


def collated(items: list[Any]) -> Any:
    return pb.concat([x for x, _ in items]), pb.tensor([i for _, i in items])


def test_workers_of_pytorchs_data_loader_return_tensors(method: str) -> None:
    data: Any = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    loader = data.DataLoader(Squares(), batch_size=3, num_workers=1, collate_fn=collated, multiprocessing_context=method)
    batches = list(loader)
    assert [type(x) for batch in batches for x in batch] == [pb.Tensor] * 4
    assert [x.numpy().tolist() for x, _ in batches] == [[0.0, 1.0, 4.0], [9.0, 16.0, 25.0]]
