"""The reason beside a profile's ratio of backward to forward FLOPs: it names what was not asked for, from what the kernels did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from pullback import nn, optim
from pullback.profiling.ratio import ratio_explained

RNG = np.random.default_rng(0)
X = RNG.standard_normal((64, 784)).astype(np.float32)
CLASSES = np.arange(64) % 10


@pytest.fixture
def net() -> nn.Module:
    net = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    net.parameters()
    return net


def told(f: Any) -> str:
    with pb.profile(detail="count") as prof:
        f()
    reason = ratio_explained(prof)
    assert reason is not None
    assert " ".join(reason.split()) in " ".join(str(prof).split())
    return reason


def backward(net: Any, x: Any, *, sources: Any, times: int = 1) -> None:
    with pb.GradientTape(persistent=times > 1) as tape:
        tape.watch([s for s in sources if not isinstance(s, pb.Parameter)])
        loss = nn.cross_entropy(net(x), CLASSES)
    for _ in range(times):
        tape.gradient(loss, sources)


def test_a_network_whose_input_needs_no_gradient(net: nn.Module) -> None:
    reason = told(lambda: backward(net, X, sources=net.parameters()))
    share = 784 * 128 / (784 * 128 + 128 * 10)
    words = f"no gradient of x was asked for in linear of 0, for {share:.1%} of the FLOPs in products"
    assert reason == f"backward 1.01 × forward: {words}"


def test_with_the_gradient_of_the_input_it_is_two(net: nn.Module) -> None:
    x = pb.tensor(X)
    reason = told(lambda: backward(net, x, sources=[*net.parameters(), x]))
    assert reason == "backward 2.00 × forward: both gradients of every product were asked for"


def test_frozen_weights(net: nn.Module) -> None:
    x = pb.tensor(X)
    reason = told(lambda: backward(net, x, sources=[x]))
    assert reason == "backward 1.00 × forward: no gradient of weight was asked for"


def test_the_facts_of_one_profile_are_not_those_of_an_earlier_one(net: nn.Module) -> None:
    x = pb.tensor(X)
    for _ in range(2):
        assert "of x was" in told(lambda: backward(net, x, sources=net.parameters()))
        assert "of weight was" in told(lambda: backward(net, x, sources=[x]))
        assert "both" in told(lambda: backward(net, x, sources=[*net.parameters(), x]))


def test_a_validation_has_no_backward_pass(net: nn.Module) -> None:
    x = pb.tensor(X)

    def step() -> None:
        backward(net, x, sources=[*net.parameters(), x])
        net(x)
        net(x)

    assert told(step) == (
        "backward 0.67 × forward: no backward pass ran in linear of 0, linear of 2, for 66.7% of the FLOPs in products"
    )


def test_several_cotangents_and_higher_derivatives(net: nn.Module) -> None:
    x = pb.tensor(X)
    assert "several cotangents were pulled back" in told(lambda: backward(net, x, sources=[*net.parameters(), x], times=3))
    w = pb.Parameter(RNG.standard_normal((64, 64)))

    def second() -> None:
        with pb.GradientTape() as outer:
            with pb.GradientTape() as inner:
                loss = pb.sum(pb.tanh(w @ w))
            g = inner.gradient(loss, w)
            penalty = pb.sum(g * g)
        outer.gradient(penalty, w)

    assert "of the backward pass are derivatives of second or higher order" in told(second)


def test_a_loop_whose_first_state_is_a_constant() -> None:
    w, start = pb.Parameter(RNG.standard_normal((64, 64))), pb.ones((8, 64), dtype=pb.float64)

    def run() -> None:
        with pb.GradientTape() as tape:
            h = start
            for _ in range(4):
                h = pb.tanh(h @ w)
            loss = pb.sum(h)
        tape.gradient(loss, w)

    reason = told(run)
    assert "no gradient of a was asked for in matmul of test_profile_ratio.py:" in reason
    assert reason.endswith(" run, for 25.0% of the FLOPs in products")


def trained(net: Any, x: Any, *, times: int = 1, also: Any = (), only_forward: int = 0) -> str:
    """Returns the reason for `times` sweeps back to the parameters and the tensors `also`."""

    def run() -> None:
        for _ in range(only_forward):
            net(x)
        with pb.GradientTape(persistent=times > 1) as tape:
            tape.watch(list(also))
            y = net(x)
            loss = pb.sum(y[0] if isinstance(y, tuple) else y)
        for _ in range(times):
            tape.gradient(loss, [*net.parameters(), *also])

    return told(run)


def sequences(steps: int) -> Any:
    return pb.tensor(RNG.standard_normal((steps, 4, 16)), dtype="float32")


RECURRENT = pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])


@RECURRENT
def test_recurrent_layers(kind: str) -> None:
    """The input product is a third of the FLOPs, and the product by the weight is one step fewer than without a gradient of h."""
    net, name = getattr(nn, kind)(16, 32), kind.lower()
    of_x = f"no gradient of x was asked for in linear of {kind}, for 33.3% of the FLOPs in products"
    of_h = f"no gradient of h was asked for in {name} of {kind}, for {{}} of the FLOPs in products"
    for steps, share in ((1, "66.7%"), (2, "33.3%"), (5, "13.3%")):
        assert trained(net, sequences(steps)).split(": ", 1)[1] == f"{of_x}; {of_h.format(share)}"
    assert trained(net, sequences(20)).split(": ", 1)[1] == of_x
    x = sequences(20)
    assert "cotangents" not in trained(net, x, also=[x])
    assert trained(net, x, also=[x], times=2).endswith(": several cotangents were pulled back")


@needs_kernels
@RECURRENT
def test_a_recurrent_layer_that_is_validated_too(kind: str) -> None:
    reason = trained(getattr(nn, kind)(16, 32), sequences(20), only_forward=3)
    assert "cotangents" not in reason
    assert f"no backward pass ran in {kind.lower()} of {kind}, linear of {kind}" in reason


def test_attention_without_some_gradients() -> None:
    q, k, v = [pb.tensor(RNG.standard_normal((2, 4, 8, 16)), dtype="float32") for _ in range(3)]
    for sources, missing in (([k, v], "query"), ([q, v], "key"), ([q, k], "value"), ([v], "query and key"), ([q], "key and value")):

        def run(sources: Any = sources) -> None:
            with pb.GradientTape() as tape:
                tape.watch(sources)
                loss = pb.sum(nn.functional.scaled_dot_product_attention(q, k, v))
            tape.gradient(loss, sources)

        reason = told(run)
        assert f"no gradient of {missing} was asked for" in reason
        assert "cotangents" not in reason


def networks() -> dict[str, tuple[nn.Module, Any, str]]:
    """Returns networks, their data, and the product that needs no gradient of the data."""
    images = pb.tensor(RNG.standard_normal((4, 3, 8, 8)), dtype="float32")
    convolutions = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 8)
    )
    return {
        "MLP": (nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 8)), sequences(1)[0], "linear of 0"),
        "CNN": (convolutions, images, "convolution of 0"),
        "GRU": (nn.GRU(16, 32, 2, bidirectional=True), sequences(20), "linear of GRU"),
        "attention": (nn.MultiHeadAttention(16, 4), pb.swapaxes(sequences(8), 0, 1), "linear of"),
    }


@pytest.mark.parametrize("name", ["MLP", "CNN", "GRU", "attention"])
def test_networks_whose_data_needs_no_gradient(name: str) -> None:
    net, x, first = networks()[name]
    reason = trained(net, x)
    assert f"no gradient of x was asked for in {first}" in reason
    assert "cotangents" not in reason
    assert "no backward pass" not in reason
    assert "several cotangents were pulled back" in trained(net, x, times=2)


def test_without_products_the_costliest_op_is_named() -> None:
    w = pb.Parameter(RNG.standard_normal((64, 64)))

    def run() -> None:
        with pb.GradientTape() as tape:
            loss = pb.sum(pb.softmax(w * 2.0) * pb.exp(w))
        tape.gradient(loss, w)

    assert "few FLOPs are in products; softmax has " in told(run)
    with pb.profile() as prof:
        pb.sum(w)
    assert ratio_explained(prof) is None


def test_the_inside_of_a_checkpoint_has_its_order_its_modules_and_its_reason(net: nn.Module) -> None:
    x = pb.tensor(X)
    kept = pb.checkpoint(net)
    with pb.profile(detail="count") as prof:
        backward(kept, x, sources=net.parameters())
    inside = {(row.phase, row.module, row.op, row.order) for row in prof.rows if row.figures.matmul_flops}
    passes = (("forward", 0), ("recompute", 0), ("backward", 1))
    assert inside == {(phase, module, "linear", order) for phase, order in passes for module in ("0", "2")}
    assert "no gradient of x was asked for in linear of 0" in str(ratio_explained(prof))


@needs_kernels
def test_replays_have_the_reason_of_their_recording(net: nn.Module) -> None:
    opt = optim.SGD(net.parameters(), lr=0.1)
    step = pb.capture(lambda x, y: opt.minimize(lambda: nn.cross_entropy(net(x), y)))
    x, y = pb.tensor(X), pb.tensor(CLASSES)
    step(x, y)
    assert "no gradient of x was asked for in linear of 0" in told(lambda: [step(x, y) for _ in range(3)])
