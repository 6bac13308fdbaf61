"""States of torch.optim in other containers and of other implementations: the next steps are torch's."""

from __future__ import annotations

import copy
import io
import json
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import optim
from torch_runs import RULES, Run, check_next_steps, with_steps

torch = pytest.importorskip("torch", reason="torch is not installed: there is no other library to exchange states with")


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    """torch's NAdam keeps its product of momenta in torch's default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# ---- containers


def mapped(state: Any, change: Any) -> Any:
    """Returns a copy of a state in which every tensor is change(tensor)."""
    if isinstance(state, torch.Tensor):
        return change(state)
    if isinstance(state, dict):
        return {key: mapped(x, change) for key, x in state.items()}
    return type(state)(mapped(x, change) for x in state) if isinstance(state, (list, tuple)) else state


def keyed(state: Any, key: Any) -> Any:
    """Returns a state whose parameters have other keys, in both of its parts."""
    groups = [{**group, "params": [key(number) for number in group["params"]]} for group in state["param_groups"]]
    return {"state": {key(number): entry for number, entry in state["state"].items()}, "param_groups": groups}


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(mapped(state, lambda x: x.tolist())))


def through_torch_save(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_safetensors(state: Any) -> Any:
    """Tensors by flat names in a safetensors file, whose keys are strings, and the groups as JSON beside it."""
    library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    flat = {f"{number}.{name}": x for number, entry in state["state"].items() for name, x in entry.items() if x is not None}
    entries: dict[str, Any] = {}
    for path, x in library.load(library.save(flat)).items():
        number, _, name = path.partition(".")
        entries.setdefault(number, {})[name] = x
    return {"state": entries, "param_groups": through_json(state["param_groups"])}


def through_jax(state: Any) -> Any:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    with jax.enable_x64(True):
        return mapped(state, lambda x: jax.numpy.asarray(x.numpy()))


CONTAINERS: dict[str, Any] = {
    "json": through_json,
    "torch.save": through_torch_save,
    "safetensors": through_safetensors,
    "jax": through_jax,
    "numpy": lambda state: mapped(state, lambda x: x.numpy()),
    "numpy big-endian": lambda state: mapped(state, lambda x: x.numpy().astype(">f8")),
    "pullback": lambda state: mapped(state, lambda x: pb.tensor(x.numpy())),
    "requires_grad": lambda state: mapped(state, lambda x: x.clone().requires_grad_()),
    "string keys of the state": lambda state: {**state, "state": {str(key): x for key, x in state["state"].items()}},
    "NumPy keys": lambda state: {**state, "state": {np.int64(key): x for key, x in state["state"].items()}},
    "names for keys": lambda state: keyed(state, lambda number: f"layers.{number}.weight"),
    "ids for keys": lambda state: keyed(state, lambda number: 140_234_000_000 + number),
    "OrderedDict": lambda state: OrderedDict(
        state=OrderedDict(state["state"]), param_groups=[*map(OrderedDict, state["param_groups"])]
    ),
    "MappingProxyType": lambda state: MappingProxyType({**state, "state": MappingProxyType(state["state"])}),
    "tuples": lambda state: {**state, "param_groups": tuple([{**g, "params": tuple(g["params"])} for g in state["param_groups"]])},
    "steps as ints": with_steps(int),
    "steps as floats": with_steps(float),
    "steps as arrays with an axis": with_steps(lambda x: np.array([float(x)])),
    "steps as float32": with_steps(lambda x: torch.tensor(float(x), dtype=torch.float32)),
    "reversed": lambda state: {**state, "state": dict(reversed(state["state"].items()))},
}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", RULES)
def test_next_steps_from_a_state_in_a_container(name: str, container: str) -> None:
    rule, options = RULES[name]
    run = Run(rule, options)
    run.steps(0, 3)
    opt = optim.from_torch(CONTAINERS[container](run.opt.state_dict()), run.ours())
    assert type(opt) is getattr(optim, rule)
    check_next_steps(run, opt, 3)


@pytest.mark.parametrize("container", ["json", "torch.save"])
@pytest.mark.parametrize("name", RULES)
def test_next_steps_if_a_parameter_has_no_state_yet(name: str, container: str) -> None:
    rule, options = RULES[name]
    run = Run(rule, options)
    run.steps(0, 1)
    opt = optim.from_torch(CONTAINERS[container](run.opt.state_dict()), run.ours())
    check_next_steps(run, opt, 1)


@pytest.mark.parametrize("name", RULES)
def test_next_steps_with_several_groups(name: str) -> None:
    rule, options = RULES[name]
    run = Run(rule, options, lambda ps: [{"params": [ps[2]], "lr": 0.003}, {"params": [ps[0], ps[1]], "weight_decay": 0.3}])
    run.steps(0, 3)
    p = run.ours()
    opt = optim.from_torch(through_json(run.opt.state_dict()), [p[2], p[0], p[1]])
    check_next_steps(run, opt, 3, [2, 0, 1])


# ---- implementations

FLAGS = ("foreach", "capturable", "differentiable", "fused")


def having(*flags: str) -> list[tuple[str, str]]:
    """Returns the rules with each of these flags that torch's rule has."""
    return [(name, flag) for name, (rule, options) in RULES.items() for flag in flags if flag in Run(rule, options).opt.defaults]


@pytest.mark.parametrize(("name", "flag"), having(*FLAGS))
def test_next_steps_from_every_implementation(name: str, flag: str) -> None:
    rule, options = RULES[name]
    run = Run(rule, options)
    run.steps(0, 3)
    state = run.opt.state_dict()
    for group in state["param_groups"]:
        group[flag] = True
    for given in (state, through_json(state)):
        copied = copy.deepcopy(run)
        check_next_steps(copied, optim.from_torch(given, run.ours()), 3)


@pytest.mark.parametrize("name", [name for name, _ in having("maximize")])
def test_a_maximizing_optimizer_is_one_of_the_negated_loss(name: str) -> None:
    rule, options = RULES[name]
    run = Run(rule, {**options, "maximize": True}, sign=-1.0)
    run.steps(0, 3)
    state = run.opt.state_dict()
    with pytest.raises(pb.PullbackError, match='negate the loss here, and give the state_dict with "maximize": False'):
        optim.from_torch(state, run.ours())
    for group in state["param_groups"]:
        group["maximize"] = False
    check_next_steps(run, optim.from_torch(state, run.ours()), 3)


def test_rates_and_betas_as_tensors() -> None:
    run = Run("Adam", {"lr": torch.tensor(0.01), "betas": (torch.tensor(0.8), torch.tensor(0.95)), "foreach": False})
    run.steps(0, 3)
    check_next_steps(run, optim.from_torch(run.opt.state_dict(), run.ours()), 3)


def test_what_schedulers_and_names_leave_in_groups() -> None:
    run = Run("AdamW", {"lr": 0.01}, lambda ps: [{"params": [(f"p{i}", p) for i, p in enumerate(ps)], "name": "all"}])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(run.opt, 0.1, total_steps=10)
    run.steps(0, 3)
    scheduler.step()
    state = run.opt.state_dict()
    assert {"param_names", "name", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"} <= set(
        state["param_groups"][0]
    )
    check_next_steps(run, optim.from_torch(state, run.ours()), 3)
