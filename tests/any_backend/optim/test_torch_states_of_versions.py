"""States of earlier versions of torch.optim, which rule a state is of, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import pullback as pb
from pullback import optim
from pullback.optim.torch_rules import COMMON, ROWS
from torch_runs import RULES, Run, check_next_steps, with_steps

torch = pytest.importorskip("torch", reason="torch is not installed: there is no other library to exchange states with")


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    """torch's NAdam keeps its product of momenta in torch's default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# ---- earlier versions

# What the groups of earlier versions lacked, and how such a version wrote steps.
EARLIER: dict[str, list[tuple[str, ...]]] = {
    "sgd-momentum": [(), ("maximize", "foreach")],
    "adagrad": [(), ("eps",)],
    "adam": [("decoupled_weight_decay",), ("decoupled_weight_decay", "amsgrad")],
    "adamw": [("decoupled_weight_decay",)],
    "radam": [("decoupled_weight_decay",)],
    "rmsprop-centered": [()],
    "adadelta": [()],
    "adamax": [()],
}


def of_earlier(state: Any, lacking: tuple[str, ...]) -> Any:
    """Returns a state as torch 1.x wrote it: without flags of implementations, and with steps that are ints."""
    gone = {"maximize", "foreach", "capturable", "differentiable", "fused", *lacking}
    groups = [{key: x for key, x in group.items() if key not in gone} for group in state["param_groups"]]
    return with_steps(int)({"state": state["state"], "param_groups": groups})


@pytest.mark.parametrize(("name", "lacking"), [(name, lacking) for name, versions in EARLIER.items() for lacking in versions])
def test_next_steps_from_an_earlier_version(name: str, lacking: tuple[str, ...]) -> None:
    rule, options = RULES[name]
    run = Run(rule, options)
    run.steps(0, 3)
    state = of_earlier(run.opt.state_dict(), lacking)
    if set(lacking) & ROWS[rule].keys():
        with pytest.raises(pb.PullbackError, match=r"does not say which rule wrote it.*Name it: rule="):
            optim.from_torch(state, run.ours())
    else:
        assert type(optim.from_torch(state, run.ours())) is getattr(optim, rule)
    for named in (rule, getattr(optim, rule), getattr(torch.optim, rule)):
        opt = optim.from_torch(state, run.ours(), rule=named)
        assert type(opt) is getattr(optim, rule)
        check_next_steps(copy.deepcopy(run), opt, 3)


def test_a_state_that_several_rules_had_names_them_all() -> None:
    run = Run("Adam", {})
    run.steps(0, 3)
    state = of_earlier(run.opt.state_dict(), ("decoupled_weight_decay",))
    with pytest.raises(pb.PullbackError, match=r"as those of Adam and AdamW had in earlier versions.*rule='Adam'"):
        optim.from_torch(state, run.ours())
    empty = {"state": {}, "param_groups": of_earlier(state, ("amsgrad",))["param_groups"]}
    with pytest.raises(pb.PullbackError, match="as those of Adam and Adamax and RAdam had in earlier versions"):
        optim.from_torch(empty, run.ours())


# ---- what is refused


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("other", ROWS)
def test_a_state_is_never_read_as_that_of_another_rule(name: str, other: str) -> None:
    rule, options = RULES[name]
    run = Run(rule, options)
    run.steps(0, 3)
    state = run.opt.state_dict()
    if other == rule:
        assert type(optim.from_torch(state, run.ours(), rule=other)) is getattr(optim, rule)
        return
    for given in (state, run.opt):
        with pytest.raises(pb.PullbackError, match=f"rule='{other}'"):
            optim.from_torch(given, run.ours(), rule=other)


@pytest.mark.parametrize("name", RULES)
def test_a_group_that_lacks_or_has_an_entry_is_of_no_rule(name: str) -> None:
    """Nothing of a state may be dropped in silence, and nothing may be assumed."""
    rule, options = RULES[name]
    run = Run(rule, options)
    run.steps(0, 3)
    state = run.opt.state_dict()
    (group,) = state["param_groups"]
    for key in [key for key in group if key not in COMMON]:
        if key == "amsgrad":  # what is left are the entries of RAdam, and no version of Adam had them
            continue
        lacking = {**state, "param_groups": [{k: x for k, x in group.items() if k != key}]}
        with pytest.raises(pb.PullbackError, match=r"no rule has exactly the entries|does not say which rule wrote it"):
            optim.from_torch(lacking, run.ours())
    more = {**state, "param_groups": [{**group, "warmup": 3}]}
    with pytest.raises(pb.PullbackError, match=r"whose groups have .*warmup.*name it: rule="):
        optim.from_torch(more, run.ours())
    check_next_steps(run, optim.from_torch(more, run.ours(), rule=rule), 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["state"].update({7: s["state"][0]}), "the state of a parameter 7, which is in none of its groups"),
        (lambda s: s["state"].update({"00": s["state"][0]}), "the state of a parameter '00', which is in none of its groups"),
        (lambda s: s["state"].update({"0": s["state"][0]}), "the state of a parameter '0', which is there twice"),
        (lambda s: s["state"].update({0: 3}), "the state of a parameter 0, which is no dict"),
        (lambda s: s["param_groups"][0]["params"].__setitem__(2, 1), "name a parameter twice|in none of its groups"),
        (lambda s: s["param_groups"][0].pop("params"), 'group 0 of the state_dict is no dict with a list .* as "params"'),
        (lambda s: s["param_groups"].append(None), "group 1 of the state_dict is no dict"),
        (lambda s: s["state"][0].pop("step"), "the state of the torch optimizer's parameter 0 has no step"),
        (lambda s: s["state"][0].update(step=None), "the state of the torch optimizer's parameter 0 has no step"),
        (lambda s: s["state"][0].update(step="3"), "step of the torch optimizer's parameter 0 cannot be read"),
        (lambda s: s["state"][0].update(step=[3, 4]), r"step of .*parameter 0 has shape \(2,\); it must be one number"),
        (lambda s: s["state"][0].update(exp_avg=torch.ones(4, 3, dtype=torch.complex64)), "exp_avg .* cannot be read.*complex64"),
        (lambda s: s["state"][0].update(exp_avg=torch.eye(4).to_sparse()), "exp_avg .* cannot be read"),
        (lambda s: s["state"][0].update(exp_avg=torch.ones(4, 3, device="meta")), "exp_avg .* cannot be read"),
        (lambda s: s["state"][0].update(exp_avg=[[1.0], [1.0, 2.0]]), "exp_avg .* cannot be read"),
        (lambda s: s["state"][0].update(exp_avg={}), "exp_avg .* cannot be read"),
        (lambda s: s["state"][0].update(exp_inf=torch.ones(4, 3)), "no rule has exactly the entries"),
        (lambda s: s["param_groups"][0].update(lr="fast"), "lr of the torch optimizer cannot be read"),
        (lambda s: s["param_groups"][0].update(betas=(0.9, [0.9, 0.8])), "betas"),
    ],
)
def test_a_state_that_is_not_whole_is_refused(change: Any, words: str) -> None:
    run = Run("Adam", {"lr": 0.01})
    run.steps(0, 3)
    state = run.opt.state_dict()
    state = {
        "state": {key: dict(entry) for key, entry in state["state"].items()},
        "param_groups": copy.deepcopy(state["param_groups"]),
    }
    change(state)
    with pytest.raises(pb.PullbackError, match=words):
        optim.from_torch(state, run.ours())


@pytest.mark.parametrize("rule", ["Lion", optim.Lion, 3, "adam"])
def test_rules_that_torch_does_not_have_are_refused_by_name(rule: Any) -> None:
    run = Run("Adam", {})
    with pytest.raises(pb.PullbackError, match=r"rule=.* is none of the rules that PyTorch has, too\. They are SGD"):
        optim.from_torch(run.opt.state_dict(), run.ours(), rule=rule)


def test_a_subclass_is_read_by_its_state_and_a_name() -> None:
    class Mine(torch.optim.Adam):
        pass

    run = Run("Adam", {"lr": 0.01})
    run.opt = Mine(run.params, lr=0.01)
    run.steps(0, 3)
    with pytest.raises(pb.PullbackError, match=r"Mine is not here.*give its state_dict\(\), and the name as rule="):
        optim.from_torch(run.opt, run.ours())
    check_next_steps(run, optim.from_torch(run.opt.state_dict(), run.ours(), rule="Adam"), 3)


def test_an_optimizer_may_have_entries_of_its_own_in_groups() -> None:
    run = Run("RMSprop", {"lr": 0.01}, lambda ps: [{"params": ps, "stage": 3}])
    run.steps(0, 3)
    check_next_steps(run, optim.from_torch(run.opt, run.ours()), 3)
