"""What `dir` and `help` show of classes: no name that does not exist, and examples that run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pickle
import pydoc
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import pytest

import pullback as pb
from public_names import names_elsewhere
from pullback import nn, optim
from pullback.interop.unknown_names import SPACES, public
from refused import refusal

T = TypeVar("T")


def classes() -> Iterator[type]:
    """Yields every public class, and the classes of results and of `t.at`, which are not public."""
    yield from (type(pb.ones(1).at), type(pb.linalg.svd(pb.eye(2))), type(pb.linalg.eigh(pb.eye(2))), type(pb.cuda))
    for space in SPACES:
        module = importlib.import_module(space)
        yield from [kind for name in public(space) if isinstance(kind := getattr(module, name), type)]


CLASSES = [*dict.fromkeys(classes())]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_dir_lists_names_that_exist(kind: type) -> None:
    missing = [name for name in dir(kind) if name != "__abstractmethods__" and not hasattr(kind, name)]
    assert missing == []


def test_every_class_with_hints_is_tried() -> None:
    answered = {place for place in names_elsewhere() if not place.startswith("pullback")}
    assert answered - {base.__name__ for kind in CLASSES for base in kind.__mro__} <= {
        "Cuda", "QRResult", "SlogdetResult", "LstsqResult", "LeastSquaresResult", "RootResult", "MinimizeResult",
        "ConstrainedResult",
        "Minimization", "Iteration", "StepInfo",
    }


@pytest.mark.parametrize(("kind", "name"), [(nn.Linear, "kernel"), (pb.Tensor, "view"), (pb.GradientTape, "backward"),
                                            (optim.Adam, "zero_grad"), (optim.schedules.Cosine, "get_lr")])
def test_help_does_not_list_a_name_that_is_only_answered(kind: type, name: str) -> None:
    assert f"\n |  {name}" not in pydoc.plain(pydoc.render_doc(kind))


PB: Any = pb
NN: Any = nn

HINTS: dict[str, Any] = {
    "'Linear' object has no attribute 'kernel': it is net.weight here.": lambda: NN.Linear(2, 2).kernel,
    "type object 'Linear' has no attribute 'fit': training is a Python loop": lambda: NN.Linear.fit,
    "'Tensor' object has no attribute 'view': it is t.reshape here.": lambda: PB.ones(2).view,
    "'SVDResult' object has no attribute 'V': write .Vh.mT": lambda: PB.linalg.svd(pb.eye(2)).V,
    "'At' object has no attribute 'apply': write t.at[index].set(f(t[index])).": lambda: PB.ones(2).at[0].apply,
    "'Cosine' object has no attribute 'get_lr': ": lambda: getattr(optim.schedules.Cosine(0.1, steps=3), "get_lr"),  # noqa: B009
    "'Loader' object has no attribute 'other'": lambda: PB.data.Loader((pb.ones(3),), batch_size=1).other,
}


@pytest.mark.parametrize("words", HINTS)
def test_the_hints_still_answer(words: str) -> None:
    with pytest.raises(AttributeError) as caught:
        HINTS[words]()
    assert str(caught.value).startswith(words)


def test_an_error_inside_a_property_is_not_hidden_by_the_hints() -> None:
    class Late(optim.schedules.Schedule):
        @property
        def broken(self) -> Any:
            return [].missing  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'list' object has no attribute 'missing'"):
        Late(0.1).broken  # noqa: B018


def test_a_module_may_be_abstract_generic_and_pickled() -> None:
    class Base(nn.Module, ABC, Generic[T]):
        @abstractmethod
        def forward(self, x: T) -> T: ...

    class Net(Base[Any]):
        def forward(self, x: Any) -> Any:
            return x

    assert isinstance(Net(), Base)
    assert "abstract" in refusal(lambda: Base())  # type: ignore[abstract]
    assert type(pickle.loads(pickle.dumps(nn.Linear(2, 2)))) is nn.Linear
    assert pickle.loads(pickle.dumps(nn.Linear)) is nn.Linear


def test_a_class_in_a_with_statement_is_answered() -> None:
    def with_the_class(kind: Any) -> None:
        with kind:
            pass

    assert refusal(lambda: with_the_class(pb.GradientTape)) == (
        "GradientTape is a class, and `with` takes an object: write GradientTape()."
    )


# ---- examples

LAYERS = [kind for kind in vars(nn).values() if inspect.isclass(kind) or inspect.isfunction(kind)]
EXAMPLES = [
    test
    for thing in LAYERS
    for test in doctest.DocTestFinder(recurse=False).find(thing, globs={"pb": pb, "nn": nn})
    if test.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_in_a_docstring_prints_what_it_says(example: doctest.DocTest) -> None:
    with pb.use_device("cpu"):
        found = doctest.DocTestRunner().run(example)
    assert (found.failed, found.attempted) == (0, len(example.examples))


def test_the_most_used_layers_have_an_example() -> None:
    assert len(EXAMPLES) >= 35
