"""Errors state the request, what is wrong and what to do. check_gradients and debug_nans find the faults they look for."""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import errors, nn

HERE = r'".*test_errors\.py", line \d+'


# ---- the classes


def test_every_error_is_a_pullback_error_and_an_ordinary_one() -> None:
    for name, also in {
        "ArgumentError": ValueError, "ShapeError": ValueError, "AxisError": IndexError, "DTypeError": TypeError,
        "NonFiniteError": ArithmeticError,
        "GradientCheckError": AssertionError,
        "FileFormatError": ValueError, "LinAlgError": np.linalg.LinAlgError,
        "OutOfMemoryError": MemoryError, "UnconnectedError": pb.TapeError,
        "StaleValueError": pb.TapeError,
        "DeviceError": Exception, "CaptureError": Exception,
    }.items():
        cls = getattr(pb, name)
        assert issubclass(cls, pb.PullbackError), name
        assert issubclass(cls, also), name
    assert issubclass(pb.ZeroGradientWarning, UserWarning)


def test_every_class_is_public_and_says_what_it_is_for() -> None:
    for name, cls in vars(errors).items():
        if isinstance(cls, type):
            assert getattr(pb, name) is cls
            assert cls.__doc__


# ---- messages


T, CE = pb.tensor, nn.functional.cross_entropy
LOGITS, LABELS = pb.ones((2, 3)), pb.tensor([0, 2])
CASES: list[tuple[Any, Any, str]] = [
    (lambda: T([1.0, 2.0]) + T([1.0, 2.0, 3.0]), pb.ShapeError, r"add.*\(2,\).*\(3,\).*lengths 2 and 3.*expand_dims"),
    (lambda: T(np.ones((2, 3))) @ T(np.ones((4, 5))), pb.ShapeError, r"matmul.*\(2, 3\).*\(4, 5\).*length 3.*has 4.*mT"),
    (lambda: T(1.0) @ T(1.0), pb.ShapeError, r"matmul.*0-d.*a \* b"),
    (lambda: pb.reshape(T([1.0, 2.0, 3.0]), (2, -1)), pb.ShapeError, r"reshape.*3 elements.*\(2, -1\)"),
    (lambda: pb.sum(T([1.0]), axis=3), pb.ShapeError, r"sum.*axis 3.*1 axes.*from -1 to 0"),
    (lambda: pb.sum(T(np.ones((2, 2))), axis=(0, 0)), pb.ShapeError, r"sum.*twice"),
    (lambda: pb.max(T(np.zeros((0, 3)))), pb.ShapeError, r"max.*\(0, 3\).*empty"),
    (lambda: pb.concat([T([1.0]), T([[1.0]])]), pb.ShapeError, r"concat.*\(1,\).*\(1, 1\)"),
    (lambda: pb.stack([T([1.0]), T([1.0, 2.0])]), pb.ShapeError, r"stack.*\(1,\).*\(2,\)"),
    (lambda: pb.broadcast_to(T([1.0, 2.0]), (3,)), pb.ShapeError, r"broadcast_to.*2 and 3"),
    (lambda: pb.permute_dims(T([[1.0]]), (0, 0)), pb.ShapeError, r"permute_dims.*\(0, 0\).*permutation"),
    (lambda: pb.split(T([1.0, 2.0, 3.0]), 2), pb.ShapeError, r"split.*length 3.*2 equal parts"),
    (lambda: pb.squeeze(T([1.0, 2.0]), axis=0), pb.ShapeError, r"squeeze.*\(2,\)"),
    (lambda: pb.einsum("ij,jk->ik", T([[1.0]]), T([1.0])), pb.ShapeError, r"einsum.*jk.*\(1,\)"),
    (lambda: T([[1.0, 2.0]])[5], IndexError, r"\[5\].*\(1, 2\)"),
    (lambda: T([1.0, 2.0])[T([0, 7])], IndexError, r"index 7 (at position \[1\]|is out of range).*length 2"),
    (lambda: pb.take(T([1.0]), T([0.5])), pb.DTypeError, r"take.*float32.*astype"),
    (lambda: T([1.0, 2.0]).at[[0, 1]].set(T([1.0, 2.0, 3.0])), pb.ShapeError, r"at\[.*set.*\(2,\).*\(3,\)"),
    (lambda: T([1.0]) & T([1.0]), pb.DTypeError, r"bitwise_and.*float32.*integer"),
    (lambda: T([1, 2], dtype="int8") + 1000, pb.DTypeError, r"add.*1000.*int8.*-128 to 127"),
    (lambda: T([1], dtype="uint64") + T([1], dtype="int64"), pb.DTypeError, r"uint64.*int64|int64.*uint64"),
    (lambda: T([1.0], dtype="complex64"), pb.DTypeError, r"complex64.*not supported"),
    (lambda: T(["a"]), pb.DTypeError, r"numbers"),
    (lambda: T([[1.0], [1.0, 2.0]]), pb.ShapeError, r"equal lengths"),
    (lambda: T([1.0], dtype="float99"), pb.DTypeError, r"float99.*pb\.float32"),
    (lambda: T([1.0, 2.0]).item(), pb.ShapeError, r"item\(\).*\(2,\).*numpy\(\)"),
    (lambda: bool(T([1.0, 2.0])), pb.ShapeError, r"bool\(\).*\(2,\).*pb\.all"),
    (lambda: [1, 2, 3][T(1.0)], pb.DTypeError, r"float32.*index"),
    (lambda: pb.Parameter([1.0, 2.0], name="w").assign([1.0]), pb.ShapeError, r'"w".*\(2,\).*\(1,\)'),
    (lambda: pb.ones(2, device="tpu"), pb.DeviceError, r"'tpu'.*\"cpu\""),
    (lambda: T([1.0]).to("gpu"), pb.DTypeError, r"'gpu'.*\"cpu\", \"cuda\""),
    (lambda: pb.reshape(T([1.0, 2.0, 3.0]), (2, -1)), pb.ShapeError, r"must divide 3, without the -1"),
    (lambda: CE(LABELS, LOGITS), pb.ShapeError, r"int64 of shape \(2,\).*swapped.*cross_entropy\(logits, target\)"),
    (lambda: nn.functional.nll(LABELS, LOGITS), pb.ShapeError, r"swapped.*nll\(input, target\)"),
    (lambda: CE(LOGITS, T([[0], [1]])), pb.ShapeError, r"\(2, 1\).*target\.reshape\(\(2,\)\)"),
    (lambda: CE(LOGITS, T([[0, 1, 0], [1, 0, 0]])), pb.ShapeError, r"one-hot.*astype\(pb\.float32\)"),
    (lambda: CE(LOGITS, T([0, 1, 2])), pb.ShapeError, r"one class number for each row"),
    (lambda: CE(LOGITS, T([0.0, 1.0])), pb.ShapeError, r"Class numbers must be integers.*astype\(pb\.int64\)"),
    (lambda: pb.random.normal(2, 1, (3,)), pb.PullbackError, r"normal: std=\(3,\).*shape comes first.*normal\(shape, mean, std\)"),
    (lambda: pb.random.uniform((3,), "a"), pb.PullbackError, r"uniform: low='a'.*uniform\(shape, low, high\)"),
    (lambda: pb.random.bernoulli((3,), (0.5,)), pb.PullbackError, r"bernoulli: p=.*bernoulli\(shape, p\)"),
    (lambda: pb.jvp(pb.sin, T(1.0), T(1.0)), pb.TapeError, r"jvp: primals must be a tuple.*jvp\(f, \(x,\), \(v,\)\)"),
    (lambda: pb.jvp(pb.sin, (T(1.0),), T(1.0)), pb.TapeError, r"jvp: tangents must be a tuple.*is a Tensor"),
    (lambda: pb.grad(lambda x: (x, 1))(T(1.0)), pb.TapeError, r"grad: <lambda> returned a tuple of 2.*has_aux=True"),
    (lambda: pb.grad(lambda x: None)(T(1.0)), pb.TapeError, r"grad: <lambda> returned None.*return"),
    (lambda: pb.grad(lambda x: x, has_aux=True)(T(1.0)), pb.TapeError, r"grad: <lambda> returned a Tensor; with has_aux"),
    (lambda: pb.grad(T(1.0)), pb.TapeError, r"grad: takes a function.*a Tensor.*pb\.grad\(f\)\(x\)"),
    (lambda: pb.vjp(T(1.0), T(1.0)), pb.TapeError, r"vjp: takes a function.*pb\.vjp\(f, x\)"),
    (lambda: pb.jvp(T(1.0), (T(1.0),), (T(1.0),)), pb.TapeError, r"jvp: takes a function.*pb\.jvp\(f, \(x,\), \(v,\)\)"),
    (lambda: pb.vmap(T(1.0)), pb.TapeError, r"vmap: takes a function"),
    (lambda: pb.hessian(T(1.0)), pb.TapeError, r"takes a function"),
    (lambda: nn.Sequential([nn.Linear(1, 1)]), pb.PullbackError, r"item 0 is a list.*Sequential\(\*modules\)"),
    (lambda: nn.Linear(2, 1)(pb.ones((1, 2)), pb.ones(2)), pb.ArgumentError, r"activation is a Tensor; use None, 'relu'"),
    (lambda: T([1.0]) + None, pb.DTypeError, r"add: b: None is not made of numbers.*return"),
    (lambda: T(["a", 1]), pb.DTypeError, r"a list with a str in it is not made of numbers"),
    (lambda: T(nn.Linear(1, 1)), pb.DTypeError, r"a Linear is not made of numbers.*module\.parameters\(\)"),
    (lambda: len(T(1.0)), TypeError, r"0-d tensor.*t\.size"),
    (lambda: pb.zeros((-1,)), pb.ShapeError, r"negative"),
    (lambda: pb.where(T([True]), 1000, T([1], dtype="int8")), pb.DTypeError, r"where: 1000 .*int8.*-128 to 127"),
    (lambda: T([1], dtype="int8").at[0].set(300), pb.DTypeError, r"300.*int8"),
    (lambda: T([1], dtype="int8").at[0].set(1.5), pb.DTypeError, r"at\[...\].set: 1\.5 .*int8"),
    (lambda: T([1], dtype="int8").at[0].set([1.5]), pb.DTypeError, r"at\[...\].set: .*float32.*int8"),
    (lambda: T([1], dtype="uint8").at[0].add(-1), pb.DTypeError, r"at\[...\].add: -1 does not fit uint8 \(from 0 to 255\)"),
    (lambda: T([1], dtype="int8").at[0].set(np.int64(300)), pb.DTypeError, r"at\[...\].set: 300 does not fit int8"),
    (lambda: pb.clip(T([0, 255], dtype="uint8"), -1, 9), pb.DTypeError, r"^clip: -1 does not fit uint8 \(from 0 to 255\)"),
    (lambda: pb.clip(T([0, 255], dtype="uint8"), None, 300), pb.DTypeError, r"^clip: 300 does not fit uint8"),
    (lambda: T([1.0, 2.0]).clip([0.0, 0.0, 0.0]), pb.ShapeError, r"^clip: shapes \(2,\) and \(3,\) do not broadcast"),
    (lambda: pb.round(T([1.5]), 0.5), pb.ShapeError, r"^round: decimals=0\.5"),
    (lambda: pb.pad(T([1], dtype="int8"), 1, value=1.5), pb.DTypeError, r"pad: value 1\.5.*int8"),
    (lambda: pb.pad(T([1]), (1, 2, 3)), pb.ShapeError, r"pad_width \(1, 2, 3\)"),
    (lambda: T([1000], dtype="int8"), pb.DTypeError, r"1000.*int8.*wider"),
    (lambda: pb.full((2,), 1000, dtype="int8"), pb.DTypeError, r"1000.*int8.*wider"),
    (lambda: pb.sin(None), pb.DTypeError, r"None is not made of numbers.*nested lists"),
    (lambda: pb.Parameter([1.0]).assign([1j]), pb.DTypeError, r"made of numbers"),
    (lambda: pb.moveaxis(T([[1.0]]), (0, 1), (1,)), pb.ShapeError, r"moveaxis.*\(0, 1\).*\(1,\)"),
    (lambda: pb.roll(T([[1.0]]), (1, 2, 3), axis=(0, 1)), pb.ShapeError, r"roll: 3 shifts for 2 axes"),
    (lambda: pb.reshape(T([[1.0, 2.0], [3.0, 4.0]]).T, (4,), copy=False), pb.ArgumentError, r"reshape.*copy"),
    (lambda: pb.repeat(T([1.0, 2.0]), [1, 2, 3]), pb.ShapeError, r"repeat: 3 counts.*length 2"),
    (lambda: pb.tile(T([1.0]), -1), pb.ShapeError, r"tile.*negative"),
    (lambda: pb.arange(0, 1, 0), pb.ShapeError, r"arange: step=0"),
    (lambda: pb.zeros(2.5), pb.ShapeError, r"shape 2\.5"),
    (lambda: pb.sum(T(1.0), axis=0), pb.ShapeError, r"sum: axis 0.*without axes"),
    (lambda: pb.random.Generator(0).uniform((2,), 2.0, 1.0), pb.PullbackError, r"low=2\.0.*high=1\.0"),
    (lambda: pb.zeros((1 << 44,)), pb.OutOfMemoryError, r"17592186044416.*float32"),
    (lambda: pb.matmul(pb.ones((1 << 20, 1)), pb.ones((1, 1 << 24))), pb.OutOfMemoryError, r"memory"),
    (lambda: pb.GradientTape().watch(T([1])), pb.TapeError, r"watch.*int64.*float32"),
    (lambda: pb.GradientTape().watch([1.0]), pb.TapeError, r"watch.*float"),
]


@pytest.mark.parametrize(("ask", "error", "words"), CASES, ids=[words[:30] for _, _, words in CASES])
def test_a_message_has_the_essential_words(ask: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match="(?s)" + words):
        ask()


def test_item_assignment_shows_what_to_write_instead() -> None:
    t = pb.tensor([1.0, 2.0])
    with pytest.raises(TypeError, match=r"t\.at\[index\]\.set\(value\)"):
        t[0] = 1.0


def test_a_target_that_is_not_a_scalar_is_told_three_choices() -> None:
    w = pb.Parameter([1.0, 2.0])
    with pb.GradientTape() as tape:
        y = w * w
    with pytest.raises(pb.TapeError, match=r"\(2,\).*pb\.sum.*tape\.jacobian.*output_gradients"):
        tape.gradient(y, w)


@pytest.mark.parametrize("bad", [3.0, "x", object()])
def test_sources_and_targets_must_be_tensors(bad: Any) -> None:
    w = pb.Parameter(2.0)
    with pb.GradientTape(persistent=True) as tape:
        y = w * w
    with pytest.raises(pb.TapeError, match=r"source.*not a tensor"):
        tape.gradient(y, [w, bad])
    with pytest.raises(pb.TapeError, match=r"target.*not a tensor"):
        tape.gradient(bad, w)


def test_an_error_in_the_backward_pass_names_the_forward_line() -> None:
    x = pb.Parameter([0.0, 1.0])
    with pb.GradientTape() as tape:
        y = pb.sum(pb.sqrt(x))
    with pytest.raises(pb.NonFiniteError, match=r"in the backward pass of sqrt, recorded at " + HERE), pb.debug_nans():
        tape.gradient(y, x)


# ---- errors inside a Module


class Block(nn.Module):
    def __init__(self) -> None:
        self.layers = [nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(5))]
        self.heads = {"a": nn.Linear(4, 1)}

    def forward(self, x: Any, head: str | None = None) -> Any:
        return self.heads[head](x) if head else self.layers[0](x)


class Net(nn.Module):
    def __init__(self) -> None:
        self.encoder, self.free = Block(), [lambda x: x @ pb.ones((7, 1))]

    def forward(self, x: Any, head: str | None = None) -> Any:
        return self.encoder(x, head)


CHAIN = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(9, 2))
PLACES: list[tuple[Any, Any, str]] = [
    (lambda: CHAIN(pb.ones((3, 4))), pb.ShapeError, r"nn\.Linear\(8, 2\).*\(in item 2 of Sequential, Linear\(in_features=9, "),
    (lambda: Net()(pb.ones((3, 4))), pb.ShapeError, r"\(in encoder\.layers\.0\.1 of Net, LayerNorm\(\(5,\)"),
    (lambda: Net()(pb.ones((3, 5)), "a"), pb.ShapeError, r"nn\.Linear\(5, 1\).*\(in encoder\.heads\.a of Net, Linear\("),
    (lambda: nn.Linear(64, 2)(pb.ones((3, 8, 8))), pb.ShapeError, r"to \(3, 64\).*nn\.Flatten\(\)\. \(in Linear\("),
    (lambda: nn.Linear(3, 8)(pb.ones((5, 8))), pb.ShapeError, r"weight\.mT.*\(in Linear\("),
    (lambda: nn.Linear(3, 8)(pb.tensor(1.0)), pb.ShapeError, r"axis of features"),
    (lambda: nn.Sequential(Net().free[0])(pb.ones((3, 4))), pb.ShapeError, r"matmul.*\(in Sequential\)$"),
    (lambda: nn.Sequential(nn.Embedding(3, 2))(pb.ones(2)), pb.DTypeError, r"\(in item 0 of Sequential, Embedding\(3, 2\)\)$"),
]


@pytest.mark.parametrize("profiled", [False, True])
@pytest.mark.parametrize(("ask", "error", "words"), PLACES, ids=[words[-24:] for *_, words in PLACES])
def test_an_error_inside_of_a_module_names_the_layer(ask: Any, error: type[Exception], words: str, profiled: bool) -> None:
    with pb.profile() if profiled else contextlib.nullcontext(), pytest.raises(error, match=words) as told:
        ask()
    assert str(told.value).count("(in ") == 1  # The layer is named once, however many Modules the error passes.


# ---- debug_nans


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pb.log(T([1.0, -1.0])), r"log\(\(2,\) float32\) made the first nan, at index \(1,\)"),
        (lambda: T([1.0, 0.0]) / 0.0, r"divide.*made the first (inf|nan)"),
        (lambda: pb.exp(T([[1.0], [1000.0]])), r"exp.*first inf, at index \(1, 0\)"),
        (lambda: pb.sum(T([3e38, 3e38])), r"sum.*first inf"),
        (lambda: pb.matmul(T([[3e38]]), T([[10.0]])), r"matmul.*first inf"),
        (lambda: pb.mean(pb.zeros((0,))), r"mean.*first nan"),
    ],
)
def test_debug_nans_stops_at_the_op_that_made_the_first_one(make: Any, words: str) -> None:
    make()
    with pytest.raises(pb.NonFiniteError, match=f"(?s){words}.*at {HERE}"), pb.debug_nans():
        make()


def test_debug_nans_does_not_blame_an_op_whose_input_is_bad() -> None:
    x = T([1.0, math.nan, math.inf])
    with pb.debug_nans():
        y = pb.sum(x * 2) + math.inf
        z = T([1, 2]) + 1
    assert math.isnan(y.item())
    assert z.tolist() == [2, 3]


def test_debug_nans_ends_with_its_block_and_nests_with_tapes() -> None:
    from pullback.autodiff.listeners import listeners

    x = pb.Parameter(2.0)
    with pb.debug_nans(), pb.GradientTape() as outer:
        with pb.GradientTape() as inner:
            y = x**3
        g = inner.gradient(y, x)
    assert outer.gradient(g, x).item() == 12.0
    assert listeners.stack == ()
    assert math.isnan(pb.log(T(-1.0)).item())


# ---- check_gradients


def test_check_gradients_returns_the_largest_error() -> None:
    x, y = np.array([0.3, -1.2]), np.array([[1.0], [2.0]])
    assert pb.check_gradients(lambda x, y: pb.sin(x) * y, [x, y], order=3) < 1e-8
    assert pb.check_gradients(lambda p: {"a": p["w"] ** 2, "b": [pb.exp(p["b"])]}, [{"w": x, "b": y}]) < 1e-8
    assert pb.check_gradients(lambda x: pb.sum(pb.tanh(x)), [np.random.default_rng(0).standard_normal((20, 20))]) < 1e-8


def test_check_gradients_accepts_integers_and_constants_beside() -> None:
    index = np.array([2, 0])
    assert pb.check_gradients(lambda x, i, k: pb.take(x, i) * k, [np.array([1.0, 2.0, 3.0]), index, 2.0]) < 1e-8


def test_check_gradients_names_argument_index_and_both_values() -> None:
    def wrong(x: Any, y: Any) -> Any:
        return x * x + y * pb.stop_gradient(y)

    words = r"order 1, argument 1, element \(0,\): the tape says .*, finite differences say"
    with pytest.raises(AssertionError, match=words) as caught:
        pb.check_gradients(wrong, [np.array([1.0]), np.array([2.0, 3.0])])
    assert isinstance(caught.value, pb.PullbackError)


def test_check_gradients_sees_a_wrong_second_derivative() -> None:
    def right_once(x: Any) -> Any:
        return pb.stop_gradient(pb.exp(x)) * (x - pb.stop_gradient(x)) + pb.stop_gradient(pb.exp(x))

    x = np.array([0.5, 1.0])
    assert pb.check_gradients(lambda x: pb.exp(x), [x], order=2) < 1e-8
    with warnings.catch_warnings(), pytest.raises(pb.GradientCheckError):
        pb.check_gradients(right_once, [x], order=2)


def test_check_gradients_without_anything_to_check() -> None:
    with pytest.raises(pb.TapeError, match="no argument"):
        pb.check_gradients(lambda x: x, [3])
    with pytest.raises(pb.TapeError, match="nothing to differentiate"):
        pb.check_gradients(lambda x: pb.argmax(x), [np.ones(3)])


class Tied(nn.Module):
    def __init__(self) -> None:
        self.W = pb.Parameter(np.ones((3, 2)), name="W")
        self.WT = self.W.T

    def forward(self, x: Any) -> Any:
        return x @ self.WT


def test_a_view_that_was_taken_before_the_tape_is_named_as_the_cause() -> None:
    net = Tied()
    with pb.GradientTape() as tape:
        loss = pb.sum(net(pb.ones((4, 2))))
    with pytest.raises(pb.UnconnectedError, match=r'"W".*a view of it that was taken before.*take the view inside'):
        tape.gradient(loss, net.W)
    del net.WT
    with pb.GradientTape() as tape:
        loss = pb.sum(pb.ones(2))
    with pytest.raises(pb.UnconnectedError, match=r'"W" \(it was not used while the tape recorded\)'):
        tape.gradient(loss, net.W)


def test_a_buffer_is_called_one_and_keeps_its_place() -> None:
    layer = nn.Linear(2, 2)
    layer.mean = held = nn.module.Buffer([1.0, 2.0])
    with pytest.raises(pb.ShapeError, match=r"an unnamed Buffer of shape \(2,\)"):
        held.assign([1.0])
    for value in (held * 0.9, pb.Parameter([1.0, 2.0])):
        with pytest.raises(pb.PullbackError, match=r"mean is a Buffer.* mean\.assign\(value\)") as caught:
            layer.mean = value
        assert "pb.Parameter(" not in str(caught.value)
    assert layer.mean is held
    layer.mean = nn.module.Buffer([3.0, 4.0])
    layer.mean = None
    layer.mean = pb.Parameter([1.0, 2.0])


def test_a_tensor_that_went_to_torch_is_told_with_the_line_of_the_user(on_cpu: None) -> None:
    torch = pytest.importorskip("torch")
    p = pb.Parameter([1.0, 2.0], name="p")
    with pb.GradientTape() as tape:
        loss = pb.sum(pb.tensor(torch.from_dlpack(p).numpy()))
    with pytest.raises(pb.UnconnectedError, match=r"cut by __dlpack__\(\) at .*test_errors\.py"):
        tape.gradient(loss, p)


def test_arrays_that_are_not_in_a_list_are_asked_for_in_one() -> None:
    a, b = pb.ones((2, 2)), pb.zeros((2, 2))
    for join, name in ((pb.concat, "concat"), (pb.stack, "stack")):
        for second in (b, [b]):
            with pytest.raises(
                pb.ShapeError, match=rf"(?s){name}: axis=.*The arrays come in one list: pb\.{name}\(\[a, b\], axis=0\)"
            ):
                join(a, second)  # pyright: ignore
        assert join([a, b], pb.tensor(1)).shape == ((2, 4) if name == "concat" else (2, 2, 2))  # pyright: ignore


def test_a_shape_in_several_arguments_is_asked_for_in_one() -> None:
    for make in (pb.zeros, pb.ones):
        with pytest.raises(
            pb.DTypeError, match=r"dtype 3 is not known.*Several lengths, or several axes, are one argument: \(2, 3\)"
        ):
            make(2, 3)
    with pytest.raises(pb.PullbackError, match=r"low=3\.0 is above high=1\.0.*The shape comes first, as one argument"):
        pb.random.uniform(2, 3)


@pytest.mark.parametrize("bounds", [(0.0, np.inf), (-np.inf, 0.0), (-3e38, 3e38), (0.0, np.nan)])
def test_a_range_without_a_finite_width_is_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(pb.PullbackError, match="is wider than float32 holds"):
        pb.random.uniform((2,), *bounds)


def test_a_module_in_a_set_is_refused() -> None:
    class Net(nn.Module):
        pass

    net = Net()
    for value in ({nn.Linear(2, 2)}, frozenset([pb.Parameter([1.0])])):
        with pytest.raises(pb.PullbackError, match=r"Net\.layers: a set has no order.*Put them in a list"):
            net.layers = value
    net.names = {"a", "b"}
    assert net.parameters() == []
