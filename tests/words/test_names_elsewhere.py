"""Names of TensorFlow, PyTorch, JAX and NumPy: an error says what they are called here, and what it says exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import environment
from public_names import names_elsewhere, spaces
from pullback import nn, optim
from pullback.interop.hints import FILE, hints, sections
from pullback.interop.unknown_names import SPACES, public

NAMES = names_elsewhere()
KEYWORDS = hints("keywords")
P = pb.Parameter([1.0, 2.0])
LM = pb.solve.LevenbergMarquardt([P])
RUN = pb.solve.minimize(lambda x: pb.sum(x**2), [1.0])
RESULTS: list[Any] = [
    pb.linalg.svd(pb.eye(2)), pb.linalg.eigh(pb.eye(2)), pb.linalg.qr(pb.eye(2)), pb.linalg.slogdet(pb.eye(2)),
    pb.linalg.lstsq(pb.eye(2), pb.ones(2)), LM, LM.step(lambda: P - 1), RUN, next(RUN), RUN.result(),
    pb.solve.least_squares(lambda x: x, [1.0]), pb.solve.root(lambda x: x, [1.0]),
    pb.solve.augmented_lagrangian(lambda x: pb.sum(x**2), [1.0]),
]
CLASSES: dict[str, type] = {
    **{type(x).__name__: type(x) for x in RESULTS},
    "Tensor": pb.Tensor, "GradientTape": pb.GradientTape, "Optimizer": optim.Optimizer, "Module": nn.Module, "Cuda": type(pb.cuda),
    "LossScaler": pb.amp.LossScaler,
    "Loader": pb.data.Loader, "At": type(pb.ones(1).at), "Schedule": optim.schedules.Schedule,
}
ROWS = [(place, name, hint) for place, names in NAMES.items() for name, hint in names.items()]
HERE = {
    "pb": pb, "nn": nn, "optim": optim, "np": np, "t": pb.ones((2, 2)), "p": P, "tape": pb.GradientTape(), "net": nn.Linear(2, 2),
    "opt": optim.SGD([P]), "pickle": pickle, "cuda": pb.cuda,
}


def value_of(path: str) -> Any:
    """Returns the value of a path such as "pb.random.seed", None if it needs a device that is not here.

    Raises an error if it does not exist or is not public.
    """
    first, *rest = path.split(".")
    value: Any = HERE[first]
    for name in rest:
        assert name in dir(value), path
        try:
            value = getattr(value, name)
        except pb.DeviceError:
            return None
    return value


def paths_in(hint: str) -> list[str]:
    return [path.rstrip(".") for path in re.findall(rf"\b(?:{'|'.join(HERE)})(?:\.\w+)+", hint)]


def calls_in(hint: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the path and the keywords of each call in a hint that is an expression, or in the parts of a sentence that are."""
    for text in [hint] if not hint.endswith(".") else re.findall(r"\b(?:pb|nn|optim|opt|tape|t|net)\.[\w.]+\([^()]*\)", hint):
        try:
            tree = ast.parse(text.partition(", which")[0])
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in paths_in(text):
                yield ast.unparse(node.func), [keyword.arg or "" for keyword in node.keywords]


def test_the_table_answers_the_common_names() -> None:
    assert len(ROWS) > 1000
    lines = re.sub(r"\n +", " ", FILE.read_text("utf-8")).split("\n")
    written = [line for line in lines if line and line[0] not in "#["]
    assert [line for line in written if not re.fullmatch(r"[^ ,]+(, [^ ,]+)*: \S.*", line)] == []
    names = sum([line.partition(": ")[0].count(", ") + 1 for line in written])
    assert names == sum([len(hints(title)) for title in sections()]), "a name is written twice"
    assert {*NAMES} - {*CLASSES} <= {*SPACES, "pullback.backends"}
    assert {*SPACES} == {space.__name__ for space in spaces()}


@pytest.mark.parametrize(("place", "name", "hint"), ROWS, ids=[f"{place}.{name}" for place, name, _ in ROWS])
def test_a_hinted_name_does_not_exist_and_what_the_hint_names_does(place: str, name: str, hint: str) -> None:
    if place in CLASSES:
        own = {*dir(CLASSES[place]), *getattr(CLASSES[place], "__annotations__", {})}
        assert name not in own, f"{place} has {name}: delete its line in interop/hints.txt"
    else:
        assert name not in vars(importlib.import_module(place)), f"{place} has {name}: delete its line in interop/hints.txt"
        assert not hasattr(importlib.import_module(place), name)
    for path in paths_in(hint):
        value_of(path)
    for path, keywords in calls_in(hint):
        known = inspect.signature(value_of(path)).parameters
        assert all([k in known for k in keywords]), f"{path} has no {keywords}"
    if not hint.endswith("."):
        ast.parse(hint)


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_hinted_keyword_names_what_exists(keyword: str) -> None:
    words, _, sentence = KEYWORDS[keyword].partition("|")
    assert sentence == "" or sentence.endswith(".")
    for path in paths_in(sentence):
        value_of(path)
    public_parameters = {
        name
        for space in SPACES
        for found in public(space)
        if callable(value := getattr(importlib.import_module(space), found))
        for name in parameters(value)
    }
    assert {*words.split()} <= public_parameters | {*inspect.signature(pb.GradientTape.gradient).parameters}


def parameters(value: Any) -> list[str]:
    try:
        return [*inspect.signature(value).parameters]
    except (ValueError, TypeError):
        return []


def error_of(expression: str) -> BaseException:
    """Evaluates the expression, which must fail, and returns the error."""
    try:
        eval(expression, {**HERE, "x": pb.ones((2, 3))})
    except Exception as error:
        return error
    raise AssertionError(f"{expression} did not fail")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("pb.cat", "module 'pullback' has no attribute 'cat': it is pb.concat here."),
        ("pb.reduce_sum", "module 'pullback' has no attribute 'reduce_sum': it is pb.sum here."),
        ("nn.CrossEntropyLoss", "module 'pullback.nn' has no attribute 'CrossEntropyLoss': losses are functions: nn.cross_"),
        ("pb.MSELoss", "module 'pullback' has no attribute 'MSELoss': it is nn.mse here."),
        ("pb.Linear", "it is nn.Linear here."),
        ("pb.norm", "it is pb.linalg.norm here."),
        ("pb.random.rand", "it is pb.random.uniform(shape) here."),
        ("pb.linalg.exp", "it is pb.exp here."),
        ("nn.init.xavier_uniform_", "it is nn.init.xavier_uniform here."),
        ("optim.lr_scheduler", "lr=optim.schedules.Cosine("),
        ("optim.schedules.StepLR", "it is optim.schedules.Step here."),
        ("optim.schedules.ReduceLROnPlateau", "it is optim.schedules.ReduceOnPlateau here."),
        ("optim.schedules.SequentialLR", "it is optim.schedules.Sequential here."),
        ("optim.schedules.ChainedScheduler", "it is optim.schedules.Product here."),
        ("optim.schedules.ReduceOnPlateau(0.1).step(0.5)", "opt.observe(metric) moves a ReduceOnPlateau"),
        ("optim.join_schedules", "it is optim.schedules.Sequential here."),
        ("pb.tree.tree_map", "it is pb.tree.map here."),
        ("pb.summ", "module 'pullback' has no attribute 'summ'. Did you mean: 'pb.sum'?"),
        ("nn.Linaer", "module 'pullback.nn' has no attribute 'Linaer'. Did you mean: 'nn.Linear'?"),
        ("optim.adam", "Did you mean: 'optim.Adam'"),
        ("pb.tree.leavs", "Did you mean: 'pb.tree.leaves'?"),
        ("t.backward()", "'Tensor' object has no attribute 'backward': a tape computes gradients"),
        ("p.grad", "'Parameter' object has no attribute 'grad': a tape computes gradients"),
        ("p.assign_sub(1.0)", "write p.assign(p - x)"),
        ("net.zero_grad()", "'Linear' object has no attribute 'zero_grad': gradients are returned"),
        ("opt.zero_grad()", "'SGD' object has no attribute 'zero_grad': gradients are returned"),
        ("opt.apply_gradients([])", "it is opt.step(gradients) here."),
        ("tape.watched_variables()", "net.parameters()"),
        ("opt.trainable_variables", "it is opt.parameters here."),
        ("net.trainable_variables", "[p for p in net.parameters() if p.trainable]"),
        ("net.requires_grad_(False)", "net.trainable = False"),
        ("net.half()", "net.to(pb.float16)"),
        ("pb.data.Loader(x, 2).batch(3)", "a Loader has the whole arrays"),
        ("optim.schedules.Cosine(0.1, 9).step()", "opt.step(gradients) advances the schedule by itself"),
        ("optim.lr_scheduler.ReduceLROnPlateau(opt)", "opt.observe(loss) lowers the rate when the loss"),
        ("pb.cuda.empty_cache()", "it is pb.cuda.trim() here."),
        ("pb.Tensor.backward", "type object 'Tensor' has no attribute 'backward'"),
        ("pb.train.Checkpoint", "pb.save_training(path, net, opt) writes a checkpoint."),
        ("pb.keras.layers.Dense", "layers are in pb.nn"),
        ("pb.expit", "it is pb.sigmoid here."),
        ("pb.gammaln", "it is pb.lgamma here."),
        ("pb.logistic", "it is pb.sigmoid here."),
        ("pb.interp", "NumPy's takes a copy and has no derivative; call it with t.numpy()."),
        ("pb.average", "write pb.sum(x * t) / pb.sum(x) for weights x"),
        ("pb.linalg.lu", "the factors of LU are not here."),
        ("pb.linalg.inv_ex", "pb.linalg.inv(t) raises pb.LinAlgError"),
        ("optim.LBFGS", 'method="L-BFGS"'),
        ("pb.solve.NonlinearConstraint", "ineq=[c], eq=[h]"),
        ("pb.linalg.svd(t).V", "'SVDResult' object has no attribute 'V': write .Vh.mT"),
        ("pb.linalg.eigh(t).L", "it is .eigenvalues here."),
        ("pb.linalg.eig", "pb.linalg.eigh is for symmetric"),
        ("pb.random.power", "transform what pb.random.uniform"),
        ("pb.unflatten", "it is t.reshape here."),
        ("nn.Conv3d", "this layer is not here yet."),
        ("nn.utils.weight_norm", "Functions for vectors of Parameters and for normed weights are not here."),
        ("nn.functional.pad", "PyTorch's starts with the last axis."),
        ("optim.lr_scheduler.StepLR", "lr=optim.schedules.Cosine("),
        ("pb.data.random_split", "index the arrays with each part."),
        ("pb.tree.reduce", "it is functools.reduce(f, pb.tree.leaves(tree)) here."),
        ("t.exp_()", "it is p.assign(pb.exp(p)) here."),
        ("t.kthvalue(1)", "it is pb.sort(t)[..., k - 1] here."),
    ],
)
def test_a_name_from_elsewhere_is_answered(expression: str, message: str) -> None:
    error = error_of(expression)
    assert type(error) is AttributeError
    assert message in str(error)
    assert repr(message)[1:-1] in repr(error) or "'" in message
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    shown = "".join(traceback.format_exception(error))
    assert shown.count("Did you mean") == str(error).count("Did you mean")


@pytest.mark.parametrize("name", ["qqqqqq", "frexp", "matrix_product", "sparse_categorical"])
def test_a_name_that_is_only_a_little_like_others_gets_no_guess(name: str) -> None:
    assert str(error_of(f"pb.{name}")).startswith(f"module 'pullback' has no attribute '{name}'")
    assert "Did you mean" not in str(error_of(f"pb.{name}"))


def test_a_name_that_nobody_knows_has_pythons_message() -> None:
    assert str(error_of("pb.qqqqqq")) == "module 'pullback' has no attribute 'qqqqqq'"
    assert str(error_of("pb.__qqqqqq__")) == "module 'pullback' has no attribute '__qqqqqq__'"
    assert str(error_of("t.qqqqqq")) == "'Tensor' object has no attribute 'qqqqqq'"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("pb.sum(x, dim=0)", "sum() got an unexpected keyword argument 'dim': it is axis= here."),
        ("x.sum(dim=0)", "sum() got an unexpected keyword argument 'dim': it is axis= here."),
        ("x.max(axis=1, keepdim=True)", "max() got an unexpected keyword argument 'keepdim': it is keepdims= here."),
        ("pb.var(x, unbiased=False)", "it is correction= here: 1 divides by n - 1"),
        ("pb.concat([x, x], dim=1)", "it is axis= here."),
        ("pb.tensordot(x, x, dims=2)", "it is axes= here."),
        ("pb.tensor([1.0], requires_grad=True)", "tensor() got an unexpected keyword argument 'requires_grad': a tape watches"),
        ("pb.zeros(3, requires_grad=True)", "a tape watches"),
        ("pb.GradientTape(watch_accessed_variables=False)", "GradientTape() got an unexpected keyword argument"),
        ("pb.GradientTape(watch_accessed_variables=False)", "it is watch_parameters= here."),
        ("tape.gradient(t, t, unconnected_gradients='zero')", "it is unconnected= here."),
        ("tape.jacobian(t, t, unconnected_gradients='zero')", "it is unconnected= here."),
        ("optim.Adam([p], learning_rate=0.1)", "Adam() got an unexpected keyword argument 'learning_rate': it is lr= here."),
        ("pb.vmap(abs, in_dims=0)", "it is in_axes= here."),
        ("optim.Lion([p], learning_rate=0.1)", "Lion() got an unexpected keyword argument 'learning_rate': it is lr= here."),
        ("optim.schedules.Step(0.1, gamma=0.5)", "it is factor= here."),
        ("optim.schedules.Cyclic(0.1, gamma=0.5)", "it is decay= here."),
        ("optim.schedules.ReduceOnPlateau(0.1, min_lr=0.01)", "it is end= here."),
        ("optim.schedules.OneCycle(0.1, cycle_momentum=False)", "set opt.momentum before a step"),
        ("optim.schedules.Exponential(0.1, decay_steps=9, decay_rate=0.5)", "factor=decay_rate ** (1 / decay_steps)"),
        ("optim.schedules.Cosine(0.1, decay_steps=9, alpha=0.5)", "it is steps= here."),
        ("optim.schedules.WarmupCosine(peak_value=0.1)", "it is base= here."),
        ("pb.data.Loader((x, x), 2, drop_remainder=True)", "it is drop_last= here."),
        ("optim.Adam([p], fused=True)", "one fused kernel"),
        ("nn.Linear(2, 3, activation='relu')", "nn.Sequential(net, nn.ReLU())"),
        ("net(x, training=True)", "net.train() and net.eval() set it for all layers."),
        ("net.to(device='cpu')", "Module.to() got an unexpected keyword argument 'device': write"),
        ("nn.cross_entropy(logits=x, labels=t)", "it is target= here."),
        ("nn.cross_entropy(x, t, from_logits=True)", "nn.nll logarithms."),
        ("nn.mse(y_true=x, y_pred=x)", "it is target= here."),
        ("nn.mse(x, x, size_average=False)", "it is reduction= here."),
        ("nn.mse(x, x, 'sum')", "takes x and target by position, and 3 arguments were given by position. Pass what follows by "),
        ("nn.smooth_l1(x, x, 0.5)", "Pass what follows by keyword: beta=, reduction=."),
        ("nn.functional.glu(x, dim=1)", "it is axis= here."),
        ("nn.functional.normalize(x, dim=1)", "it is axis= here."),
        ("nn.functional.cosine_similarity(x, x, dim=1)", "it is axis= here."),
        ("nn.functional.elu(x, negative_slope=0.1)", "it is alpha= here."),
        ("nn.functional.gelu(x, inplace=True)", "nothing is computed in place."),
        ("pb.load('x', map_location='cpu')", "it is device= here."),
        ("pb.load('x', weights_only=True)", "safe to load."),
        ("opt.minimize(abs, var_list=[p])", "an optimizer updates opt.parameters"),
        ("nn.Softmax(dim=1)", "Softmax() got an unexpected keyword argument 'dim': it is axis= here."),
        ("nn.ReLU(inplace=True)", "ReLU() got an unexpected keyword argument 'inplace': tensors are immutable"),
        ("nn.ReLU(True)", "ReLU() takes no arguments: nothing is computed in place, and the tensor goes to ReLU()(x)."),
        ("nn.Linear(2, 3, use_bias=False)", "it is bias= here."),
        ("nn.LayerNorm(3, epsilon=1e-3)", "it is eps= here."),
        (
            "pb.Parameter([1.0], requires_grad=False)",
            "Parameter() got an unexpected keyword argument 'requires_grad': it is trainable= here.",
        ),
        ("pb.data.Loader([x], 2, num_workers=2)", "so there are no workers."),
        ("pb.clip(x, a_min=0.0)", "it is min= here."),
        ("pb.random.normal(size=(2,))", "it is shape= here."),
        ("nn.functional.dropout(x, rate=0.5)", "it is p= here."),
        ("pb.capture(abs, static_argnums=0)", "another value makes another recording."),
        ("pb.sum(x, axs=0)", "sum() got an unexpected keyword argument 'axs'. Did you mean: 'axis'?"),
        ("pb.sum(x, qqqq=0)", "It takes x, axis, dtype, keepdims."),
        ("pb.sum(x, 0, True)", "keepdims=True"),
        ("pb.zeros(2, 3)", "(2, 3)"),
        ("pb.sum(x, 0, 1)", "Several lengths, or several axes, are one argument"),
        ("pb.linspace(0.0, 1.0, steps=3)", "linspace() got an unexpected keyword argument 'steps': it is num= here."),
        ("pb.one_hot([0, 1], num_classes=2)", "one_hot() got an unexpected keyword argument 'num_classes': it is depth= here."),
        ("pb.full((2,), value=1.0)", "it is fill_value= here."),
        ("pb.concat(values=[x, x], axis=0)", "concat() got an unexpected keyword argument 'values': it is arrays= here."),
        ("pb.stack(tensors=[x, x])", "it is arrays= here."),
        ("pb.split(x, num_or_size_splits=2)", "it is sections= here: a number of equal parts"),
        ("pb.roll(x, shifts=1, dims=0)", "it is shift= here."),
        ("pb.pad(x, paddings=[[1, 1], [0, 0]])", "it is pad_width= here."),
        ("pb.tile(x, 2, 1)", "The repetitions are one argument: (2, 1)."),
        ("pb.tile(x, multiples=(2, 1))", "it is repetitions= here."),
        ("pb.permute_dims(x, perm=(1, 0))", "it is axes= here."),
        ("pb.permute_dims(x, 1, 0)", "The axes are one argument: (1, 0)."),
        ("pb.transpose(x, perm=(1, 0))", "the axes are given by position"),
        ("pb.reshape(x, 3, 2)", "The shape is one argument: pb.reshape(t, (2, 3))."),
        ("pb.broadcast_to(x, 4, 2, 3)", "The shape is one argument: (2, 3)."),
        (
            "pb.matmul(x, x, transpose_b=True)",
            "matmul() got an unexpected keyword argument 'transpose_b': write pb.matmul(a, b.mT).",
        ),
        ("pb.where(x > 0)", "pb.nonzero(mask) gives the places where a mask is true."),
        ("nn.functional.leaky_relu(x, alpha=0.1)", "it is negative_slope= here."),
        ("pb.Parameter(initial_value=1.0)", "Parameter() got an unexpected keyword argument 'initial_value': it is obj= here."),
        ("pb.Parameter([1.0], initializer=None)", "initialize it afterwards"),
        ("pb.argsort(x, direction='DESCENDING')", "it is descending= here."),
        ("pb.random.normal((2,), generator=None)", "a generator draws by its methods: generator.normal(shape)."),
        ("pb.random.normal((2,), key=0)", "there are no keys"),
        ("x.flatten(1)", "t.reshape(t.shape[0], -1) keeps the first."),
        ("x.flatten(start_dim=1)", "write t.reshape(t.shape[0], -1)."),
        ("x.repeat(2, 1)", "PyTorch's repeat is pb.tile(t, (2, 1)), and NumPy's is t.repeat(2, axis=1)."),
        ("x.repeat(2, 1, 1)", "PyTorch's repeat is pb.tile(t, (2, 1, 1))."),
        ("x.item(0, 1)", "write t[0, 1].item()."),
        ("x.to(device='cpu')", "it is target= here."),
        ("x.to(pb.float64, 'cpu')", 'Write t.to("cuda") or t.to(pb.float64).'),
        ("pb.where(x > 0, lambda: 1, x)", "where: a: a function is not made of numbers"),
    ],
)
def test_a_keyword_from_elsewhere_is_answered(expression: str, message: str) -> None:
    error = error_of(expression)
    assert isinstance(error, TypeError)
    assert message in str(error)


class Dtype:
    def __repr__(self) -> str:
        return "torch.float32"


def test_dtypes_of_other_libraries_are_named() -> None:
    with pytest.raises(pb.DTypeError, match=r"\(torch\.float32 is pb\.float32 here\.\)"):
        pb.zeros(2, Dtype())
    assert pb.zeros(2, "float").dtype == pb.zeros(2, float).dtype == pb.float32


def test_a_generator_in_the_place_of_the_shape_is_told_apart() -> None:
    for draw in (pb.random.uniform, pb.random.normal, pb.random.truncated_normal, pb.random.bernoulli):
        for arguments in ((pb.random.Generator(0),), (pb.random.Generator(0), (3,))):
            with pytest.raises(pb.ShapeError, match=rf"A generator draws by its methods: generator\.{draw.__name__}\(shape\)"):
                draw(*arguments)


def test_a_hint_is_no_attribute() -> None:
    for x in (*HERE.values(), *RESULTS):
        for place in [place for place, kind in CLASSES.items() if isinstance(x, kind)]:
            for name in NAMES[place]:
                assert not hasattr(x, name)
                assert getattr(x, name, None) is None
                assert name not in dir(x)
    assert {"sum", "at", "T", "assign"} <= {*dir(P)}


@pytest.mark.parametrize("value", RESULTS, ids=[type(x).__name__ for x in RESULTS])
def test_a_hint_for_a_result_names_what_it_has(value: Any) -> None:
    for hint in NAMES[type(value).__name__].values():
        for name in re.findall(r"(?:^|[ (*])\.([a-zA-Z]\w*)", hint):
            assert hasattr(value, name), hint


def test_a_subclass_may_have_the_names_that_are_answered() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.weights = [pb.Parameter([1.0])]

        def fit(self) -> str:
            return "done"

    net = Net()
    assert net.fit() == "done"
    assert len(net.weights) == len(net.parameters()) == 1
    assert {"weights", "fit"} <= {*dir(net)}
    assert "summary" not in dir(net)


def test_hasattr_composes_no_message() -> None:
    """hasattr asks for names that do not exist by the thousand, in notebooks and in other libraries."""
    program = (
        "import sys, pullback as pb; from pullback.interop.hints import hints; before = hints.cache_info().currsize; "
        "hasattr(pb, 'cat'), hasattr(pb, 'summ'), hasattr(pb.ones(1), 'grad'); "
        "print('difflib' in sys.modules, 'pullback.nn' in sys.modules, hints.cache_info().currsize > before)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False"]
