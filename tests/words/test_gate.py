"""The gate around public functions and methods: it explains calls whose arguments do not fit, and shows in nothing else."""

from __future__ import annotations

import importlib
import inspect
import pickle
import traceback
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

import pullback as pb
from pullback import nn, optim
from pullback.interop.gate import explained
from pullback.interop.unknown_names import SPACES, public
from refused import refusal

X = pb.ones((2, 3))
PB: Any = pb
NN: Any = nn


def functions() -> Iterator[tuple[str, FunctionType]]:
    """Yields the public functions, with the path by which users call them."""
    for space, short in SPACES.items():
        for name in public(space):
            value = getattr(importlib.import_module(space), name)
            if inspect.isfunction(value):
                yield f"{short}.{name}", value


def methods() -> Iterator[tuple[str, Any]]:
    """Yields the public methods and the constructors of public classes, and of what `t.at` returns."""
    kinds = [type(X.at), type(pb.cuda)]
    for space in SPACES:
        found = [getattr(importlib.import_module(space), name) for name in public(space)]
        kinds += [x for x in found if isinstance(x, type) and not issubclass(x, BaseException)]
    for kind in dict.fromkeys(kinds):
        for name, value in inspect.getmembers(kind, inspect.isfunction):
            if value.__module__.startswith("pullback") and (name[0] != "_" or name == "__init__") and name != "forward":
                yield f"{kind.__name__}.{name}", value


FUNCTIONS, METHODS = dict(functions()), dict(methods())


def takes_any_keyword(function: Any) -> bool:
    return any([p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()])


def test_signatures_have_what_a_function_takes_and_nothing_else() -> None:
    signature = inspect.signature(pb.sum)
    assert str(signature.replace(parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()])).startswith(
        "(x, axis=None, dtype=None, *, keepdims=False)"
    )
    for path, function in {**FUNCTIONS, **METHODS}.items():
        assert "unknown" not in inspect.signature(function).parameters, path


def test_a_function_has_one_gate() -> None:
    assert nn.mse is nn.functional.mse
    assert pb.softmax is nn.functional.softmax
    assert vars(pb.Tensor)["sum"] is pb.sum
    assert len({id(f) for f in FUNCTIONS.values()}) == len({id(inspect.unwrap(f)) for f in FUNCTIONS.values()})


@pytest.mark.parametrize("path", FUNCTIONS)
def test_a_function_keeps_its_names_its_source_and_its_pickle(path: str) -> None:
    function: Any = FUNCTIONS[path]
    assert pickle.loads(pickle.dumps(function)) is function
    assert function.__module__ in SPACES
    assert function.__qualname__ == function.__name__
    assert function.__doc__ == inspect.unwrap(function).__doc__
    assert f"def {inspect.unwrap(function).__code__.co_name}" in inspect.getsource(function) or path.rpartition(".")[2] in dir(pb)


def test_methods_can_be_pickled() -> None:
    for path in ("reshape", "repeat", "flatten", "sum", "to", "item"):
        method = getattr(pb.Tensor, path)
        assert pickle.loads(pickle.dumps(method)) is method
    assert pickle.loads(pickle.dumps(X.sum))(0).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("path", {**FUNCTIONS, **METHODS})
def test_a_wrong_keyword_is_answered_everywhere(path: str) -> None:
    function: Any = {**FUNCTIONS, **METHODS}[path]
    if takes_any_keyword(function) or not hasattr(function, "__wrapped__"):
        return
    required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    text = refusal(lambda: function(*[None] * len(required), qqqq=1))
    assert "() got an unexpected keyword argument 'qqqq'. " in text, text


def test_only_ops_of_elements_and_what_runs_for_every_op_has_no_gate() -> None:
    bare = {path for path, function in {**FUNCTIONS, **METHODS}.items() if not hasattr(function, "__wrapped__")}
    methods = {path for path in bare if path.partition(".")[0] not in ("pb", "nn")}
    assert {path for path in methods if path.startswith("Tensor") and path.partition(".")[2] not in dir(pb)} == {"Tensor.__init__"}
    assert {path for path in methods if not path.startswith(("Tensor", "Parameter", "Buffer"))} == {
        "GradientTape.add", "GradientTape.knows", "GradientTape.on_escape", "debug_nans.add", "debug_nans.on_escape"
    }
    assert {"pb.exp", "pb.add", "nn.functional.relu"} <= bare
    assert "pb.sum" not in bare


def test_an_error_names_the_users_line() -> None:
    with pytest.raises(TypeError) as caught:
        PB.sum(X, dim=0)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[0].filename == __file__
    assert len(frames) == 2
    assert caught.value.__suppress_context__


def test_the_line_of_a_watch_is_the_users() -> None:
    x = pb.ones(2)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.sum(pb.ones(2) * 2)
    assert f'watched at "{__file__}"' in refusal(lambda: tape.gradient(y, x))


def test_a_gate_keeps_the_signature_and_python_tells_what_is_missing() -> None:
    @explained
    def f(x: int, y: int = 2, *, z: int = 3) -> int:
        return x + y + z

    assert [*inspect.signature(f).parameters] == ["x", "y", "z"]
    assert (f(1), f(1, 1, z=1)) == (6, 3)
    wrong: Any = f
    text = refusal(lambda: wrong(1, 2, 3))
    assert text.endswith("f() takes x and y by position, and 3 arguments were given by position. Pass what follows by keyword: z=.")
    assert refusal(lambda: wrong(1, zz=1)).endswith("f() got an unexpected keyword argument 'zz'. Did you mean: 'z'?")
    assert refusal(lambda: wrong()).endswith("f() missing 1 required positional argument: 'x'")
    assert refusal(lambda: wrong(1, x=1)).endswith("f() got multiple values for argument 'x'")


def test_an_error_that_a_function_raises_itself_stays_as_it_is() -> None:
    """A gate rewrites only what Python says of arguments that do not fit."""

    @explained
    def concat(arrays: Any, axis: int = 0) -> Any:
        return len(arrays, axis)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match=r"^len\(\) takes exactly one argument \(2 given\)$"):
        concat([])
    wrong: Any = concat
    with pytest.raises(TypeError, match=r"^concat\(\) got an unexpected keyword argument 'values': it is arrays= here\.$"):
        wrong(values=[])
    assert [*inspect.signature(concat).parameters] == ["arrays", "axis"]


class Schedule(optim.schedules.Schedule):
    def __init__(self, base: float, *, factor: float = 0.5) -> None:
        super().__init__(base)


class Net(nn.Module):
    def __init__(self, size: int) -> None:
        self.layer = NN.Linear(size, 2, use_bias=False)


CALLS: dict[str, Callable[[], Any]] = {
    "sum() got an unexpected keyword argument 'dim': it is axis= here.": lambda: PB.sum(X, dim=0),
    "nanmean() got an unexpected keyword argument 'keepdim': it is keepdims= here.": lambda: PB.nanmean(X, keepdim=True),
    "std() takes one axis by position. Several axes are one tuple: axis=(0, 1).": lambda: PB.std(X, 0, 1),
    "mean() takes one axis by position. Write keepdims=True by keyword.": lambda: PB.mean(X, 0, True),
    "argmax() takes one axis by position.": lambda: PB.argmax(X, 0, 1),
    "Generator.normal() got an unexpected keyword argument 'size': it is shape= here.": lambda: PB.random.normal(size=3),
    "At.get() got an unexpected keyword argument 'mode': an index that is out of range": lambda: PB.ones(3).at[0].get(mode="fill"),
    "pullback() takes cotangents by position, and 2 arguments": lambda: pb.vjp(pb.sin, X)[1](X, X),
    "flatten() takes tree by position, and 2 arguments were given by position. It has no other arguments.": (
        lambda: PB.tree.flatten(X, 1)
    ),
    "Tensor.flatten() takes x by position, and 2 arguments were given by position. It joins all axes": lambda: X.flatten(1),  # type: ignore
    "Linear() got an unexpected keyword argument 'use_bias': it is bias= here.": lambda: Net(3),
    "Net() got an unexpected keyword argument 'width'. It takes size.": lambda: Net(width=3),  # type: ignore[call-arg]
    "Schedule() got an unexpected keyword argument 'gamma': it is factor= here.": lambda: Schedule(0.1, gamma=1),  # type: ignore[call-arg]
    "Pruning needs schedule, too: Pruning(opt, schedule).": lambda: PB.optim.Pruning(0.75),
    "Linear.extra_repr() got an unexpected keyword argument 'depth'. It takes no arguments.": (
        lambda: NN.Linear(2, 2).extra_repr(depth=1)
    ),
}


@pytest.mark.parametrize("words", CALLS)
def test_a_call_that_does_not_fit_is_explained(words: str) -> None:
    assert refusal(CALLS[words]).startswith(words)


FOUND_IN_PROGRAMS: dict[str, str] = {
    "pullback": "contrib estimator version futures serialization view_as_complex trainable_variables ConfigProto memmap seterr "
    "read_file are_deterministic_algorithms_enabled channels_last as_strided addbmm elementwise_grad "
    "hessian_vector_product ndindex group",
    "pullback.nn": "compact nce_loss ChannelShuffle LPPool2d ZeroPad1d CircularPad2d",
    "pullback.nn.functional": "local_response_norm pixel_unshuffle multi_margin_loss",
    "pullback.optim": "incremental_update inject_hyperparams", "pullback.data": "SubsetRandomSampler get_worker_info StackDataset",
    "pullback.solve": "fmin_powell brenth fixed_point linear_sum_assignment", "pullback.random": "weibull_min",
}


@pytest.mark.parametrize("place", FOUND_IN_PROGRAMS)
def test_names_of_public_programs_are_answered(place: str) -> None:
    for name in FOUND_IN_PROGRAMS[place].split():
        with pytest.raises(AttributeError, match=f"has no attribute '{name}': "):
            getattr(importlib.import_module(place), name)
    for name in ("is_bf16_supported", "device_count", "manual_seed_all", "memory_reserved", "get_device_name", "CUDAGraph"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}': "):
            getattr(pb.cuda, name)
