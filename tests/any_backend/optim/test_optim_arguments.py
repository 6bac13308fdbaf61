"""Wrong arguments and attributes of optimizers: a clear error is raised, and nothing has changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from pullback import nn, optim


@pytest.mark.parametrize(("name", "value"), [("momentum", 0.9), ("learning_rate", 1.0), ("parameters", []), ("groups", [])])
def test_an_attribute_that_nothing_would_read_cannot_be_set(name: str, value: Any) -> None:
    opt = optim.Adam([pb.Parameter(1.0)])
    words = rf"Adam\.{name} cannot be set: lr, betas, eps, weight_decay, clip_value, gradient_scale, clip_adaptive, clip_norm can"
    with pytest.raises(pb.PullbackError, match=words):
        setattr(opt, name, value)
    opt.lr, opt.clip_norm, opt.clip_value, opt.betas, opt.weight_decay = 0.5, 2.0, 3, (0.5, 0.9), np.float32(0.25)
    assert (opt.lr, opt.clip_norm, opt.clip_value, opt.betas, opt.weight_decay) == (0.5, 2.0, 3.0, (0.5, 0.9), 0.25)
    opt.clip_norm = opt.clip_value = None
    assert (opt.clip_norm, opt.clip_value) == (None, None)


@pytest.mark.parametrize("scalar", [pb.tensor(3.0), np.float32(3.0)], ids=type)
def test_a_loss_is_no_list_of_gradients(scalar: Any) -> None:
    p = pb.Parameter(1.0)
    opt = optim.SGD([p], lr=0.1)
    for use in (opt.step, opt.preview):
        with pytest.raises(pb.PullbackError, match=r"tape\.gradient\(loss, opt\.parameters\)"):
            use(scalar)
    assert (p.item(), opt.steps) == (1.0, 0)
    opt.step([scalar])
    assert p.item() == pytest.approx(0.7)


def test_minimize_wants_a_function() -> None:
    p = pb.Parameter(1.0)
    with pytest.raises(pb.PullbackError, match=r"a Tensor was given.*opt\.minimize\(lambda.*opt\.parameters\)"):
        optim.SGD([p]).minimize(p * p)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (lambda net: net, r"a Linear among.*model\.parameters\(\)"),
        (lambda net: [net], r"a Linear among.*model\.parameters\(\)"),
        (lambda net: net.parameters, r"a method among.*model\.parameters\(\)"),
        (lambda net: [{"params": net.parameters(), "lr": 0.1}, net.weight], r"item 1 of the list of groups is no dict"),
        (lambda net: [{"params": [net.weight]}, {"params": net.parameters()}], r'"weight" is in two groups'),
        (lambda net: [{"params": net.parameters(), "lrate": 0.1}], r'group "0" has a value for lrate'),
        (lambda net: [1.0], r"a float among.*pb\.Parameter\(value\)"),
    ],
)
def test_what_is_no_parameter_is_refused_with_the_way_out(params: Any, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        optim.Adam(params(nn.Linear(2, 1)))


def test_gradients_in_a_dict_go_to_the_parameters_of_their_names() -> None:
    w, b = pb.Parameter(np.zeros(2)), pb.Parameter(np.zeros(2))
    opt = optim.SGD({"w": w, "b": b, "rest": [pb.Parameter(np.zeros(2), trainable=False)]}, lr=1.0)
    assert opt.parameters[0] is w
    assert opt.parameters[1] is b  # The order is that of the dict.
    with pb.GradientTape(persistent=True) as tape:
        loss = pb.sum(2 * w + 5 * b)
    opt.step({**tape.gradient(loss, {"w": w, "b": b}), "rest": [None]})
    np.testing.assert_array_equal(w.numpy(), [-2, -2])
    np.testing.assert_array_equal(b.numpy(), [-5, -5])
    opt.step(tape.gradient(loss, [w, b]))
    np.testing.assert_array_equal(w.numpy(), [-4, -4])


@pytest.mark.parametrize("grads", [lambda g: {"w": g, "b": g}, lambda g: [{"w": g}, {"b": g}]])
def test_an_optimizer_of_a_list_refuses_gradients_by_name(grads: Any) -> None:
    w, b = pb.Parameter(np.zeros(2)), pb.Parameter(np.zeros(2))
    opt = optim.SGD([w, b], lr=1.0)
    with pytest.raises(pb.ShapeError, match=r"(?s)step: .*opt.step\(tape.gradient\(loss, opt.parameters\)\)"):
        opt.step(grads(pb.ones(2, dtype=pb.float64)))
    opt.step([[pb.ones(2, dtype=pb.float64)], (pb.ones(2, dtype=pb.float64),)])  # Lists are matched by their order.
    assert w.numpy().tolist() == b.numpy().tolist() == [-1, -1]


def test_parameters_are_no_keys() -> None:
    w, b = pb.Parameter(np.zeros(2)), pb.Parameter(np.zeros(2))
    grads = {b: pb.ones(2, dtype=pb.float64)}
    for opt in (optim.SGD([w, b], lr=1.0), optim.SGD({"w": w, "b": b}, lr=1.0)):
        with pytest.raises(pb.PullbackError, match=r"Parameters as its keys.*opt\.step\(\[grads\.get\(p\) for p in opt"):
            opt.step(grads)
        opt.step([grads.get(p) for p in opt.parameters])
    assert (w.numpy().tolist(), b.numpy().tolist()) == ([0, 0], [-2, -2])
    for call in (lambda: optim.SGD({w: w, b: b}), lambda: opt.step([{w: w, b: b}]), lambda: pb.tree.map(pb.sin, {w: w, b: b})):
        with pytest.raises(pb.PullbackError, match="a dict has tensors as its keys"):
            call()


def test_gradients_in_a_dict_of_a_network_are_those_of_its_parameters() -> None:
    net = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(11)])  # Sorted by name, "10.weight" comes before "2.weight".
    named = dict(net.named_parameters())
    by_name, by_place = optim.SGD(named, lr=1.0), [p.numpy() for p in net.parameters()]
    grads = {name: pb.full((2, 2), float(place)) for place, name in enumerate(named)}
    by_name.step(grads)
    for place, (p, before) in enumerate(zip(net.parameters(), by_place)):
        np.testing.assert_allclose(p.numpy(), before - place, rtol=1e-6)


@pytest.mark.parametrize("frozen", [False, True])
def test_minimize_says_how_to_leave_a_parameter_alone(frozen: bool) -> None:
    used, other = pb.Parameter([1.0], name="used"), pb.Parameter([1.0], name="other")
    opt = optim.SGD([used, other])
    other.trainable = not frozen
    with pytest.raises(pb.UnconnectedError) as caught:
        opt.minimize(lambda: pb.sum(used**2))
    assert 'Parameter "other"' in str(caught.value)
    assert 'opt.step(tape.gradient(loss, opt.parameters, unconnected="none"))' in str(caught.value)
    assert "Pass unconnected" not in str(caught.value)


def test_the_loss_of_minimize_is_not_a_view_of_a_parameter_that_the_step_changes() -> None:
    p = pb.Parameter([2.0])
    opt = optim.SGD([p], lr=0.5)
    assert float(opt.minimize(lambda: pb.reshape(p, ()))) == 2.0
    value, slope = pb.value_and_grad(lambda p: pb.reshape(p, ()))(p)
    p.assign([7.0])
    assert (float(value), float(slope)) == (1.5, 1.0)
    outer = pb.grad(lambda p: pb.value_and_grad(lambda q: pb.reshape(q, ()))(p)[0] ** 2)(p)
    assert float(outer) == 14.0


RULES_OF_ALL_KINDS = {
    "SGD": lambda params: optim.SGD(params, lr=0.1, momentum=0.9),
    "Adam": optim.Adam,
    "LAMB": optim.LAMB,
    "Muon": optim.Muon,
    "Adafactor": optim.Adafactor,
    "ScheduleFreeSGD": optim.ScheduleFreeSGD,
    "rule": optim.rule(slots=("m",), lr=0.1)(lambda p, g, m, h: (-h.lr * g, m + g)),
    "masters": lambda params: optim.SGD(params, lr=0.1, master_weights=True),
}


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("rule", RULES_OF_ALL_KINDS)
def test_a_dtype_that_changes_after_the_optimizer_was_made_is_refused(rule: str, dtype: str) -> None:
    pb.random.seed(0)
    net = nn.Linear(3, 2)
    opt = RULES_OF_ALL_KINDS[rule](net.parameters())
    old, new = [[pb.ones(p.shape, dtype=each) for p in net.parameters()] for each in ("float32", dtype)]
    opt.step(old)
    net.to(dtype)
    before, state = [p.numpy() for p in net.parameters()], pb.hash(opt.state_dict())
    words = rf'"weight" has changed its dtype from float32 to {dtype}, .* Make the optimizer after net\.to\(pb\.{dtype}\)'
    for grads in (new, old, [None, new[1]]):
        for call in (opt.step, opt.preview, pb.capture(opt.step)):
            with pytest.raises(pb.DTypeError, match=words):
                call(grads)
    if not opt.composed:
        with pytest.raises(pb.DTypeError, match=words):
            opt.minimize(lambda: pb.sum(net(pb.ones((1, 3), dtype=dtype))), gate="op")
    assert pb.hash(opt.state_dict()) == state
    for p, value in zip(net.parameters(), before):
        np.testing.assert_array_equal(p.numpy(), value)
    net.to("float32")
    opt.step(old)
    assert opt.steps == 2


def test_an_accumulator_refuses_a_dtype_that_changes_later() -> None:
    net = nn.Linear(3, 2)
    acc = optim.Accumulator(net.parameters())
    net.to("float64")
    with pytest.raises(pb.DTypeError, match=r"changed its dtype from float32 to float64, .* Make the Accumulator after net\.to"):
        acc.add([pb.ones(p.shape, dtype="float64") for p in net.parameters()])
    assert acc.stats.pending == 0


@needs_kernels
def test_a_captured_function_does_not_read_what_its_replays_would_keep() -> None:
    p = pb.Parameter(0.0)
    opt = optim.SGD([p], lr=optim.schedules.Linear(1.0, 10), momentum=0.5, clip_norm=9.0)
    for read, words in (
        (lambda: opt.lr, "reading lr.*Read it after the call"),
        (lambda: opt.groups[0].lr, "reading lr"),
        (lambda: opt.groups[0]["lr"], "reading lr"),
        (lambda: opt.steps, "reading steps.*Read it after the call"),
    ):
        with pytest.raises(pb.CaptureError, match=words):
            pb.capture(lambda g, read=read: (opt.step([g]), read())[1])(pb.tensor(1.0))
    steps = opt.steps
    pb.capture(lambda g: (opt.step([g]), repr(opt), g)[2])(pb.tensor(0.0))
    assert opt.steps == steps + 1

    read = pb.capture(lambda x: x * opt.momentum + opt.groups[0].weight_decay + opt.clip_norm + opt.gradient_scale)
    for momentum, decay, norm, scale in ((0.5, 0.0, 9.0, 1.0), (0.25, 0.0, 9.0, 1.0), (0.25, 3.0, 9.0, 1.0), (0.25, 3.0, 2.0, 8.0)):
        opt.momentum, opt.weight_decay, opt.clip_norm, opt.gradient_scale = momentum, decay, norm, scale
        assert [float(read(pb.tensor(8.0))) for _ in range(2)] == [8 * momentum + decay + norm + scale] * 2
    assert read.stats().recordings == 4


def test_lists_of_an_optimizer_are_copies() -> None:
    p, q = pb.Parameter(0.0), pb.Parameter(0.0)
    for opt in (optim.SGD([p], lr=1.0), optim.Accumulator([p], every=1)):
        with pytest.raises((pb.PullbackError, AttributeError), match="parameters"):
            opt.parameters += [q]  # type: ignore[misc]
        opt.parameters.append(q)
        assert isinstance(opt.parameters, list)
        assert [x is p for x in opt.parameters] == [True]
    opt = optim.SGD([p], lr=1.0)
    with pytest.raises(pb.PullbackError, match="groups cannot be set"):
        opt.groups += [opt.groups[0]]  # type: ignore[misc]
    opt.groups.clear()
    opt.groups[0].parameters.append(q)
    opt.step([pb.ones(())])
    assert (float(p), len(opt.groups), len(opt.groups[0].parameters), opt.steps) == (-1.0, 1, 1, 1)


def test_the_learning_rate_is_shown_without_its_scale() -> None:
    p = pb.Parameter(np.zeros(1))
    opt = optim.SGD([p], lr=0.8)
    assert "lr_scale" not in repr(opt)
    opt.lr_scale = 0.5
    assert (opt.lr, opt.groups[0].lr) == (0.8, 0.8)
    assert repr(opt).startswith("SGD(lr=0.8, lr_scale=0.5, momentum=0.0")
    opt.lr = opt.lr
    opt.step([np.ones(1)])
    np.testing.assert_allclose(p.numpy(), -0.4)


def test_patterns_of_groups() -> None:
    """All patterns that match apply, and the last one that has a value decides. A name with brackets is a pattern."""
    names = ["head.w", "head.b", "body.w", "blocks[0].w"]
    patterns = {"head.*": {"lr": 0.1}, "*.w": {"lr": 0.2, "momentum": 0.5}, "blocks[0].w": {"momentum": 0.25}}
    opt = optim.SGD([pb.Parameter(1.0, name=name) for name in names], lr=0.4, momentum=0.9, groups=patterns)
    found = {group.name: (group.lr, group.momentum, [p.name for p in group.parameters]) for group in opt.groups}
    assert found == {
        "head.*": (0.1, 0.9, ["head.b"]), "head.* and *.w": (0.2, 0.5, ["head.w"]), "*.w": (0.2, 0.5, ["body.w"]),
        "*.w and blocks[0].w": (0.2, 0.25, ["blocks[0].w"]),
    }
    assert [*found] == ["head.*", "head.* and *.w", "*.w", "*.w and blocks[0].w"]
    with pytest.raises(pb.PullbackError, match=r"names no parameter.*write \[\[\] for a bracket"):
        optim.SGD(opt.parameters, groups={"blocks[0].*": {"lr": 0.1}})
    assert len(optim.SGD(opt.parameters, groups={"blocks[[]0].*": {"lr": 0.1}}).groups) == 2


def test_a_group_reads_like_a_dict() -> None:
    group = optim.SGD([pb.Parameter(1.0)], lr=0.5, momentum=0.9).groups[0]
    assert "lr" in group
    assert "params" in group
    assert "betas" not in group
    assert 0 not in group
    assert {**group}["momentum"] == dict(group)["momentum"] == 0.9
    assert next(iter(group)) == "params"


def test_groups_may_be_generators_or_frozen() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    net[1].trainable = False
    groups = [{"params": (p for p in net[0].parameters()), "lr": 0.5}, {"params": net[1].parameters(), "lr": 0.25}]
    opt = optim.SGD(groups, momentum=0.9)
    assert [(len(group.parameters), group.lr) for group in opt.groups] == [(2, 0.5), (0, 0.25)]
    opt.step([pb.ones_like(p) for p in opt.parameters])
    opt.load_state_dict(opt.state_dict())
    opt.momentum = 0.25
    opt.groups[1].momentum = 0.5
    assert opt.groups[1].lr == 0.25
    with pytest.raises(pb.PullbackError, match="there are no trainable parameters to update"):
        optim.SGD([{"params": net[1].parameters()}])


def test_rates_and_schedules_are_mixed_for_members() -> None:
    p = pb.Parameter(np.zeros((2, 1)))
    opt = optim.SGD([p], lr=[0.5, optim.schedules.Linear(1.0, 2)])
    for _ in range(2):
        opt.step([pb.ones_like(p)])
    np.testing.assert_array_equal(p.numpy(), [[-1.0], [-1.5]])


PARAMS = [pb.Parameter(np.ones((2, 2)), name="w")]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: optim.muon(PARAMS), AttributeError, r"it is optim\.Muon here"),
        (lambda: optim.adafactor(PARAMS), AttributeError, r"it is optim\.Adafactor here"),
        (lambda: optim.rule(slots=None, lr=0.1), pb.PullbackError, "slots=None; give a tuple of names"),
        (lambda: optim.rule(slots={"m": "x"}, lr=0.1)(lambda p, g, m, h: (-g, m)), pb.PullbackError, "must be a number"),
        (lambda: optim.Muon(PARAMS, auxiliary_names=None), pb.PullbackError, "auxiliary_names=None; give a list of patterns"),
        (lambda: optim.Adagrad(PARAMS, initial_accumulator_value=[0.1, 0.2]), pb.PullbackError, "must be one number, also for mem"),
        (lambda: optim.SGD(PARAMS, lr=float("nan")), pb.PullbackError, "lr=nan; it must be a finite number"),
        (lambda: optim.swa_utils, AttributeError, r"ema=0\.999"),
        (lambda: optim.lamb, AttributeError, r"it is optim\.LAMB here"),
        (lambda: optim.Accumulator(nn.Linear(2, 2)), pb.PullbackError, r"Module: optim\.Accumulator\(model\.parameters\(\)\)\."),
        (lambda: optim.SGD([{"params": "weight"}]), pb.PullbackError, r'group 0: a str.*Module: \{"params": model\.parameters'),
    ],
)
def test_wrong_arguments_are_answered_in_words(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
