"""State of optimizers to torch.optim and back: 50 steps there and 50 here are 100 there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import optim
from pullback.optim.torch_rules import ROWS
from update_rules import RULES

torch = pytest.importorskip("torch", reason="torch is not installed: there is no other library to exchange states with")

SHAPES = [(4, 3), (5,), (2, 3, 2), ()]
WITHOUT = 2  # the parameter that has no gradient in some steps
MORE: dict[str, tuple[Any, dict[str, Any]]] = {
    "adafactor": (optim.Adafactor, {"lr": 0.1}),
    "adafactor-decay": (optim.Adafactor, {"lr": 0.1, "eps": (1e-6, 1e-2), "d": 2.0, "weight_decay": 0.1, "beta2_decay": -0.7}),
}
OPTIONS = {**{name: row for name, row in RULES.items() if row[0].__name__ in ROWS}, **MORE}
NAMES = list(OPTIONS)


def weights(dtype: str) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for shape in SHAPES]


def gradients(step: int, dtype: str) -> list[Any]:
    rng = np.random.default_rng(1000 + step)
    found: list[Any] = [rng.standard_normal(shape).astype(dtype) for shape in SHAPES]
    if step % 3 == 0:
        found[WITHOUT] = None
    return found


class Theirs:
    """Parameters of torch with an optimizer."""

    def __init__(self, rule: str, options: dict[str, Any], dtype: str, groups: Any = None) -> None:
        self.dtype, self.params = dtype, [torch.nn.Parameter(torch.tensor(w)) for w in weights(dtype)]
        self.opt = getattr(torch.optim, rule)(self.params if groups is None else groups(self.params), **options)

    def steps(self, begin: int, end: int) -> None:
        for step in range(begin, end):
            for p, g in zip(self.params, gradients(step, self.dtype)):
                p.grad = None if g is None else torch.tensor(g)
            self.opt.step()

    def values(self) -> list[Any]:
        return [p.detach().numpy() for p in self.params]


def ours(values: list[Any]) -> list[pb.Parameter]:
    return [pb.Parameter(np.array(value), name=f"p{i}") for i, value in enumerate(values)]


def steps(opt: Any, begin: int, end: int, dtype: str) -> None:
    for step in range(begin, end):
        opt.step([None if g is None else pb.tensor(g) for g in gradients(step, dtype)])


def close(found: list[Any], expected: list[Any], dtype: str) -> None:
    rtol, atol = (1e-6, 1e-6) if dtype == "float32" else (1e-12, 0.0)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(np.asarray(a), b, rtol=rtol, atol=atol)


@pytest.fixture(autouse=True)
def _default_dtype() -> Any:
    """In float64 torch's NAdam keeps its product of momenta in torch's default dtype."""
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_fifty_steps_in_torch_and_fifty_here(name: str, dtype: str) -> None:
    cls, options = OPTIONS[name]
    torch.set_default_dtype(getattr(torch, dtype))
    whole, half = Theirs(cls.__name__, options, dtype), Theirs(cls.__name__, options, dtype)
    whole.steps(0, 100)
    half.steps(0, 50)
    params = ours(half.values())
    opt = optim.from_torch(half.opt, params)
    assert type(opt) is cls
    steps(opt, 50, 100, dtype)
    close([host(p) for p in params], whole.values(), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_fifty_steps_here_and_fifty_in_torch(name: str, dtype: str) -> None:
    cls, options = OPTIONS[name]
    torch.set_default_dtype(getattr(torch, dtype))
    whole, rest = Theirs(cls.__name__, options, dtype), Theirs(cls.__name__, options, dtype)
    whole.steps(0, 100)
    params = ours(weights(dtype))
    opt = cls(params, **options)
    steps(opt, 0, 50, dtype)
    rest.opt.load_state_dict(optim.to_torch(opt))
    for p, q in zip(rest.params, params):
        p.data.copy_(torch.tensor(q.numpy()))
    rest.steps(50, 100)
    close(rest.values(), whole.values(), dtype)


@pytest.mark.parametrize("name", NAMES)
def test_there_and_back_changes_nothing(name: str) -> None:
    cls, options = OPTIONS[name]
    params = ours(weights("float64"))
    opt = cls(params, **options)
    steps(opt, 0, 5, "float64")
    for given in (optim.to_torch(opt), _filled(cls, options, opt)):  # a dict, and an optimizer
        again = optim.from_torch(given, params)
        assert type(again) is cls
        assert again.settings() == opt.settings()
        assert again.lr == opt.lr
        for p in params:
            for slot, value in opt.slots(p).items():
                assert (again.slots(p)[slot].numpy() == value.numpy()).all()


def _filled(cls: Any, options: dict[str, Any], opt: Any) -> Any:
    theirs = Theirs(cls.__name__, options, "float64")
    theirs.opt.load_state_dict(optim.to_torch(opt))
    return theirs.opt


def test_step_counts_are_those_of_each_parameter() -> None:
    theirs = Theirs("Adam", {}, "float64")
    theirs.steps(0, 7)  # in steps 0, 3 and 6 a parameter has no gradient
    opt = optim.from_torch(theirs.opt, ours(theirs.values()))
    assert opt.steps == 7
    back = optim.to_torch(opt)["state"]
    assert [float(back[i]["step"]) for i in range(4)] == [7.0, 7.0, 4.0, 7.0]


GROUPS: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}


def test_groups_from_torch() -> None:
    def groups(ps: Any) -> Any:
        return [
            {"params": ps[:1]},
            {"params": [ps[2], ps[1]], "lr": 0.1, "betas": (0.5, 0.9)},
            {"params": ps[3:], "weight_decay": 0},
        ]

    whole, half = (Theirs("AdamW", GROUPS, "float64", groups) for _ in range(2))
    whole.steps(0, 20)
    half.steps(0, 10)
    p = ours(half.values())
    opt = optim.from_torch(half.opt, [p[0], p[2], p[1], p[3]])
    assert [[q.name for q in group.parameters] for group in opt.groups] == [["p0"], ["p2", "p1"], ["p3"]]
    assert (opt.groups[1].lr, opt.groups[1].betas, opt.groups[2].weight_decay, opt.groups[0].lr) == (0.1, (0.5, 0.9), 0.0, 0.01)
    for step in range(10, 20):
        g = [x if x is None else pb.tensor(x) for x in gradients(step, "float64")]
        opt.step([g[0], g[2], g[1], g[3]])
    close([host(q) for q in p], whole.values(), "float64")
    opt.lr = 0.5
    assert [group.lr for group in opt.groups] == [0.5, 0.1, 0.5]


def test_groups_to_torch() -> None:
    def groups(ps: Any) -> Any:
        return [{"params": [ps[0], ps[3]]}, {"params": ps[1:3], "lr": 0.1}]

    whole, rest = (Theirs("AdamW", GROUPS, "float64", groups) for _ in range(2))
    whole.steps(0, 20)
    params = ours(weights("float64"))
    opt = optim.AdamW(params, **GROUPS, groups={"p[12]": {"lr": 0.1}})
    steps(opt, 0, 10, "float64")
    rest.opt.load_state_dict(optim.to_torch(opt))
    for p, q in zip(rest.params, params):
        p.data.copy_(torch.tensor(q.numpy()))
    rest.steps(10, 20)
    close(rest.values(), whole.values(), "float64")


def test_a_schedule_gives_its_present_rate() -> None:
    params = ours(weights("float32"))
    opt = optim.SGD(params, optim.schedules.Exponential(1.0, 0.5), momentum=0.9)
    steps(opt, 1, 3, "float32")
    assert optim.to_torch(opt)["param_groups"][0]["lr"] == 0.25
    scaled = optim.SGD(opt.parameters, lr=0.5, groups={"*": {"lr_scale": 0.125}})
    assert optim.to_torch(scaled)["param_groups"][0]["lr"] == 0.0625


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_states_of_half_precision(dtype: str) -> None:
    p = torch.nn.Parameter(torch.ones(3, dtype=getattr(torch, dtype)))
    theirs = torch.optim.Adam([p])
    p.grad = torch.tensor([1.0, 2.0, 3.0], dtype=p.dtype)
    theirs.step()
    mine = pb.Parameter(np.ones(3), dtype=dtype)
    opt = optim.from_torch(theirs, [mine])
    expected = theirs.state[p]["exp_avg"].float().numpy()
    assert host(opt.slots(mine)["m"]).tolist() == expected.tolist()


def test_the_state_is_on_the_device_of_the_parameters() -> None:
    theirs = Theirs("Adam", {}, "float32")
    theirs.steps(1, 3)
    params = ours(theirs.values())
    opt = optim.from_torch(theirs.opt.state_dict(), params)
    assert {slot.device for p in params for slot in opt.slots(p).values()} == {params[0].device}


# ---- Muon, which takes matrices only, and rounds to bfloat16 in torch


MUON = {"lr": 0.1, "momentum": 0.9, "ns_steps": 4, "adjust_lr_fn": "match_rms_adamw"}
SQUARES = [(4, 3), (3, 5)]


def _matrices(count: int, opt: Any, params: list[Any], wrap: Any) -> None:
    for step in range(count):
        grads = [np.random.default_rng((step, i)).standard_normal(shape).astype(np.float32) for i, shape in enumerate(SQUARES)]
        if wrap is None:
            opt.step([pb.tensor(g) for g in grads])
            continue
        for p, g in zip(params, grads):
            p.grad = wrap(g)
        opt.step()


def test_muon_there_and_back() -> None:
    start = [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in enumerate(SQUARES)]
    theirs = [torch.nn.Parameter(torch.tensor(w)) for w in start]
    reference = torch.optim.Muon(theirs, **MUON)
    _matrices(5, reference, theirs, torch.tensor)
    params = ours([p.detach().numpy() for p in theirs])
    opt = optim.from_torch(reference, params)
    assert isinstance(opt, optim.Muon)
    assert (opt.ns_steps, opt.adjust_lr_fn, opt.dtype, opt.momentum) == (4, "match_rms_adamw", "bfloat16", 0.9)
    back = torch.optim.Muon([torch.nn.Parameter(torch.tensor(p.numpy())) for p in params])
    back.load_state_dict(optim.to_torch(opt))
    others = back.param_groups[0]["params"]
    _matrices(5, reference, theirs, torch.tensor)
    _matrices(5, opt, params, None)
    _matrices(5, back, others, torch.tensor)
    for p, q, r in zip(theirs, params, others):
        np.testing.assert_allclose(host(q), p.detach().numpy(), rtol=2e-2, atol=2e-2)
        np.testing.assert_array_equal(r.detach().numpy(), p.detach().numpy())


def test_a_muon_with_an_auxiliary_stays_here() -> None:
    with pytest.raises(pb.PullbackError, match=r"this Muon has an auxiliary rule, which torch\.optim\.Muon has not"):
        optim.to_torch(optim.Muon(ours(weights("float32"))))


# ---- what is refused


def test_rules_that_only_one_library_has() -> None:
    with pytest.raises(pb.PullbackError, match=r"to_torch: Lion has no counterpart in torch\.optim; SGD, .*Muon"):
        optim.to_torch(optim.Lion(ours(weights("float32"))))
    theirs = Theirs("ASGD", {}, "float32")
    with pytest.raises(pb.PullbackError, match=r"the rule torch\.optim\.asgd\.ASGD is not here"):
        optim.from_torch(theirs.opt, ours(weights("float32")))
    with pytest.raises(
        pb.PullbackError, match=r"no rule has exactly the entries of this state_dict, whose groups have alpha, lambd"
    ):
        optim.from_torch(theirs.opt.state_dict(), ours(weights("float32")))

    class Adam(torch.optim.Adam):
        pass

    with pytest.raises(pb.PullbackError, match="Adam is not here"):
        optim.from_torch(Adam(theirs.params), ours(weights("float32")))


def test_members() -> None:
    with pytest.raises(pb.PullbackError, match="has 3 values for as many members"):
        optim.to_torch(optim.Adam([pb.Parameter(np.ones((3, 2)))], lr=[0.1, 0.2, 0.3]))


@pytest.mark.parametrize("given", [3, None, {}, {"state": {}}, {"state": {}, "param_groups": []}])
def test_what_is_no_optimizer(given: Any) -> None:
    with pytest.raises(pb.PullbackError, match=r"give an optimizer of torch\.optim, or the dict of its state_dict"):
        optim.from_torch(given, ours(weights("float32")))


def test_other_parameters() -> None:
    theirs = Theirs("Adam", {}, "float32")
    theirs.steps(1, 2)
    with pytest.raises(pb.ShapeError, match="has 4 parameters, and 3 trainable ones"):
        optim.from_torch(theirs.opt, ours(weights("float32"))[:3])
    with pytest.raises(
        pb.ShapeError, match=r"exp_avg of the torch optimizer's parameter 0 has shape \(4, 3\), which is not that of .*\"p3\""
    ):
        optim.from_torch(theirs.opt, ours(weights("float32"))[::-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["param_groups"][0].update(maximize=True), "maximizes, and optimizers here minimize.*negate the loss here"),
        (
            lambda s: s["param_groups"][0].pop("eps"),
            "no rule has exactly the entries of this state_dict, whose groups have amsgrad, betas, decoupled_weight_decay, lr",
        ),
        (lambda s: s["state"][1].pop("exp_avg"), r'state of Parameter "p1" has no exp_avg'),
        (lambda s: s["state"][1].update(extra=torch.ones(5)), "whose state has exp_avg, exp_avg_sq, extra, step"),
        (lambda s: s["state"][1].update(step=1.5), r"parameter 1 has 1\.5 steps"),
        (lambda s: s["state"][1].update(step=float("nan")), "parameter 1 has nan steps"),
        (lambda s: s["param_groups"][0].update(lr=float("nan")), "finite"),
    ],
)
def test_damaged_states(change: Any, words: str) -> None:
    theirs = Theirs("Adam", {}, "float32")
    theirs.steps(1, 2)
    state = theirs.opt.state_dict()
    change(state)
    with pytest.raises(pb.PullbackError, match=words):
        optim.from_torch(state, ours(weights("float32")))


def test_flags_that_differ_between_groups() -> None:
    theirs = Theirs("Adam", {}, "float32", lambda ps: [{"params": ps[:2]}, {"params": ps[2:], "amsgrad": True}])
    with pytest.raises(pb.PullbackError, match="several values of amsgrad"):
        optim.from_torch(theirs.opt, ours(weights("float32")))


def test_an_adam_with_decoupled_weight_decay_is_an_adamw() -> None:
    options = {"lr": 0.1, "weight_decay": 0.5, "decoupled_weight_decay": True}
    theirs = Theirs("Adam", options, "float64")
    opt = optim.from_torch(theirs.opt, ours(weights("float64")))
    assert type(opt) is type(optim.from_torch(theirs.opt.state_dict(), ours(weights("float64")))) is optim.AdamW
    theirs.steps(1, 5)
    steps(opt, 1, 5, "float64")
    close([p.numpy() for p in opt.parameters], theirs.values(), "float64")
    mixed = Theirs("Adam", {}, "float32", lambda ps: [{"params": ps[:2]}, {"params": ps[2:], "decoupled_weight_decay": True}])
    with pytest.raises(pb.PullbackError, match="several values of decoupled_weight_decay"):
        optim.from_torch(mixed.opt, ours(weights("float32")))
    with pytest.raises(TypeError, match=r"'decoupled_weight_decay': use optim\.AdamW"):
        optim.Adam(ours(weights("float32")), **options)
