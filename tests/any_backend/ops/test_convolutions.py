"""Convolutions against torch and finite differences: every geometry, dtype and layout, all derivatives, batches, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS, dtype_of, host
from pullback import nn
from pullback.nn import functional as F

# x, weight, and the arguments of conv2d.
GEOMETRIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 7, 8), (4, 3, 3, 2), {}),
    "one pixel": ((2, 3, 5, 4), (4, 3, 1, 1), {}),
    "whole": ((3, 2, 4, 5), (6, 2, 4, 5), {}),
    "padding": ((2, 3, 6, 5), (4, 3, 3, 3), {"padding": (1, 2)}),
    "wide padding": ((1, 2, 3, 3), (2, 2, 2, 3), {"padding": 4}),
    "same": ((2, 3, 6, 7), (4, 3, 4, 3), {"padding": "same", "dilation": (1, 2)}),
    "valid": ((2, 3, 6, 7), (4, 3, 4, 3), {"padding": "valid", "stride": 2}),
    "stride": ((2, 3, 9, 8), (4, 3, 3, 3), {"stride": (2, 3)}),
    "stride above kernel": ((2, 3, 9, 9), (4, 3, 2, 1), {"stride": 3, "padding": 1}),
    "dilation": ((2, 3, 9, 9), (4, 3, 3, 2), {"dilation": (2, 3), "padding": 1}),
    "stride and dilation": ((2, 3, 11, 10), (4, 3, 3, 3), {"dilation": (2, 3), "stride": (4, 2), "padding": (2, 3)}),
    "groups": ((2, 6, 6, 5), (4, 3, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": ((2, 5, 7, 9), (5, 1, 3, 3), {"groups": 5, "padding": 1}),
    "depthwise, two each": ((2, 3, 7, 9), (6, 1, 3, 3), {"groups": 3, "stride": 2}),
    "many channels": ((2, 70, 5, 6), (65, 70, 2, 2), {"padding": 1}),
    "long kernel": ((1, 5, 20, 20), (3, 5, 16, 15), {"padding": 2}),
    "many pixels": ((3, 2, 33, 40), (20, 2, 3, 3), {"padding": 1}),
    "tall": ((1, 1, 400, 9), (2, 1, 5, 3), {"padding": (2, 1)}),
    "small images": ((50, 3, 2, 3), (4, 3, 2, 2), {"padding": 1}),
}
TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 4, 5), (3, 4, 3, 2), {}),
    "stride": ((2, 3, 4, 5), (3, 4, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "stride above kernel": ((2, 3, 4, 5), (3, 4, 2, 1), {"stride": (3, 2), "output_padding": (2, 1)}),
    "dilation": ((2, 3, 4, 5), (3, 4, 3, 3), {"stride": (1, 3), "dilation": 2, "padding": (2, 1)}),
    "groups": ((2, 4, 4, 5), (4, 3, 3, 2), {"groups": 2, "stride": 2}),
}


def draw(*shapes: Any, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def gradients(f: Callable[..., Any], arrays: list[Any], dtype: Any) -> list[Any]:
    """Returns y and the gradients of sum(y²) by all arrays, in float64."""
    tensors = [pb.tensor(a, dtype=dtype) for a in arrays]
    with pb.GradientTape() as tape:
        tape.watch(tensors)
        y = f(*tensors)
        loss = pb.sum(y.astype("float64") ** 2)
    return [host(t.astype("float64")) for t in (y, *tape.gradient(loss, tensors))]


def torch_gradients(f: Callable[..., Any], arrays: list[Any], dtype: str) -> list[Any]:
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(a, dtype=getattr(torch, dtype), requires_grad=True) for a in arrays]
    y = f(torch)(*tensors)
    (y.double() ** 2).sum().backward()
    return [y.detach().numpy(), *[t.grad.numpy() for t in tensors]]


def assert_close(found: list[Any], wanted: list[Any], dtype: str) -> None:
    tolerance = {"float64": 1e-10, "float32": 1e-4}[dtype]
    for a, b in zip(found, wanted):
        assert a.shape == b.shape
        assert np.abs(a - b).max(initial=0) <= tolerance * max(1, np.abs(b).max(initial=0))


# ---- values and gradients


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.filterwarnings("ignore:Using padding=.same.")
def test_conv2d_is_that_of_torch(name: str, dtype: str) -> None:
    x, w, how = GEOMETRIES[name]
    arrays = draw(x, w, w[:1])
    found = gradients(lambda x, w, b: F.conv2d(x, w, b, **how), arrays, dtype)
    wanted = torch_gradients(lambda torch: lambda x, w, b: torch.nn.functional.conv2d(x, w, b, **how), arrays, dtype)
    assert_close(found, wanted, dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_conv_transpose2d_is_that_of_torch(name: str, dtype: str) -> None:
    x, w, how = TRANSPOSED[name]
    arrays = draw(x, w, (w[1] * how.get("groups", 1),))
    found = gradients(lambda x, w, b: F.conv_transpose2d(x, w, b, **how), arrays, dtype)
    wanted = torch_gradients(lambda torch: lambda x, w, b: torch.nn.functional.conv_transpose2d(x, w, b, **how), arrays, dtype)
    assert_close(found, wanted, dtype)


@pytest.mark.parametrize("how", [{}, {"padding": "same", "dilation": 3}, {"stride": 2, "padding": 1, "groups": 2}], ids=str)
def test_conv1d_is_that_of_torch(how: dict[str, Any]) -> None:
    arrays = draw((2, 4, 17), (6, 4 // how.get("groups", 1), 3), (6,))
    found = gradients(lambda x, w, b: F.conv1d(x, w, b, **how), arrays, "float64")
    wanted = torch_gradients(lambda torch: lambda x, w, b: torch.nn.functional.conv1d(x, w, b, **how), arrays, "float64")
    assert_close(found, wanted, "float64")


def test_conv_transpose1d_is_that_of_torch() -> None:
    arrays, how = draw((2, 4, 7), (4, 3, 5), (6,)), {"stride": 3, "padding": 2, "output_padding": 1, "groups": 2, "dilation": 2}
    found = gradients(lambda x, w, b: F.conv_transpose1d(x, w, b, **how), arrays, "float64")
    wanted = torch_gradients(lambda torch: lambda x, w, b: torch.nn.functional.conv_transpose1d(x, w, b, **how), arrays, "float64")
    assert_close(found, wanted, "float64")


def test_a_convolution_by_hand() -> None:
    x, w = np.arange(9.0).reshape(1, 1, 3, 3), np.array([[[[1.0, 10.0], [100.0, 1000.0]]]])
    assert host(F.conv2d(pb.tensor(x), pb.tensor(w))).tolist() == [[[[4310.0, 5421.0], [7643.0, 8754.0]]]]
    assert host(F.conv_transpose1d(pb.tensor([[[1.0, 2.0]]]), pb.tensor([[[1.0, 10.0]]]))).tolist() == [[[1.0, 12.0, 20.0]]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_half_precision_is_rounded_once(dtype: str) -> None:
    x, w, b = [np.asarray(a).astype(dtype_of(dtype)) for a in draw((2, 3, 6, 7), (4, 3, 3, 3), (4,))]
    y = F.conv2d(pb.tensor(x), pb.tensor(w), pb.tensor(b), padding=1)
    wide = F.conv2d(*[pb.tensor(np.asarray(a, np.float64)) for a in (x, w, b)], padding=1)
    assert y.dtype == dtype_of(dtype)
    eps = {"float64": 1e-14, "float32": 1e-6, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    assert np.abs(host(y).astype(np.float64) - host(wide)).max() <= 1.01 * eps * np.abs(host(wide)).max() + 1e-6


def test_layouts() -> None:
    x, w = draw((2, 3, 6, 7), (4, 3, 3, 2))
    wanted = host(F.conv2d(pb.tensor(x), pb.tensor(w)))
    turned = pb.permute_dims(pb.tensor(np.ascontiguousarray(x.transpose(3, 0, 2, 1))), (1, 3, 2, 0))
    strided = pb.tensor(np.repeat(w, 2, axis=3))[..., ::2]
    assert (host(F.conv2d(turned, strided)) == wanted).all()
    assert (host(F.conv2d(turned[:1], strided)) == wanted[:1]).all() or pb.config.reproducible == "machine"
    spread = pb.broadcast_to(pb.tensor(x[:1]), x.shape)
    assert np.allclose(host(F.conv2d(spread, pb.tensor(w)))[1], wanted[0], atol=1e-13)


def test_a_single_image_needs_no_batch() -> None:
    x, w, b = map(pb.tensor, draw((3, 6, 7), (4, 3, 3, 2), (4,)))
    assert F.conv2d(x, w, b).shape == (4, 4, 6)
    assert (host(F.conv2d(x, w, b)) == host(F.conv2d(x[None], w, b)[0])).all()
    assert F.conv1d(x[:, 0], w[:, :, 0], b).shape == (4, 6)


@pytest.mark.parametrize("shape", [(0, 3, 5, 5), (2, 0, 5, 5)])
def test_empty_operands(shape: tuple[int, ...]) -> None:
    x, w, b = pb.zeros(shape), pb.ones((4, shape[1], 3, 3)), pb.ones(4)
    with pb.GradientTape() as tape:
        tape.watch([x, w, b])
        y = F.conv2d(x, w, b, padding=1)
        loss = pb.sum(y)
    gx, gw, gb = tape.gradient(loss, [x, w, b])
    assert (y.shape, gx.shape, gw.shape) == ((shape[0], 4, 5, 5), x.shape, w.shape)
    assert (host(y) == 1).all()
    assert (host(gw) == 0).all()
    assert host(gb).tolist() == [25.0 * shape[0]] * 4


# ---- derivatives


def _scalar(how: dict[str, Any]) -> Callable[..., Any]:
    return lambda x, w, b: pb.sum(pb.tanh(F.conv2d(x, w, b, **how)))


DERIVED = ["stride and dilation", "groups", "depthwise", "same"]


@pytest.mark.parametrize("name", DERIVED)
def test_first_and_second_derivatives_by_differences(name: str) -> None:
    x, w, how = GEOMETRIES[name]
    arrays = draw(x, w, w[:1])
    directions = [pb.tensor(v) for v in draw(x, w, w[:1], seed=1)]
    f = _scalar(how)

    def slope(*values: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(list(values))
            y = f(*values)
        return sum(pb.sum(g * v) for g, v in zip(tape.gradient(y, list(values)), directions))

    def moved(h: float) -> list[Any]:
        return [pb.tensor(a) + h * v for a, v in zip(arrays, directions)]

    h = 1e-5
    here = moved(0.0)
    assert slope(*here).item() == pytest.approx((f(*moved(h)) - f(*moved(-h))).item() / (2 * h), rel=1e-6, abs=1e-7)
    with pb.GradientTape() as tape:
        tape.watch(here)
        y = slope(*here)
    second = sum(pb.sum(g * v) for g, v in zip(tape.gradient(y, here), directions))
    by_differences = (slope(*moved(h)) - slope(*moved(-h))).item() / (2 * h)
    assert second.item() == pytest.approx(by_differences, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", DERIVED)
def test_forward_mode_is_the_pairing_with_reverse_mode(name: str) -> None:
    x, w, how = GEOMETRIES[name]
    values, directions = [[pb.tensor(a) for a in draw(x, w, w[:1], seed=seed)] for seed in (0, 1)]
    f = lambda x, w, b: F.conv2d(x, w, b, **how)
    y, tangent = pb.jvp(f, tuple(values), tuple(directions))
    u = pb.tensor(draw(y.shape, seed=2)[0])
    with pb.GradientTape() as tape:
        tape.watch(values)
        y = f(*values)
    back = tape.gradient(y, values, output_gradients=u)
    wanted = sum(pb.sum(g * v) for g, v in zip(back, directions))
    assert pb.sum(u * tangent).item() == pytest.approx(wanted.item(), rel=1e-11)


@pytest.mark.parametrize("on", [(0, None, None), (None, 0, None), (0, 0, None), (0, 0, 0), (None, None, 0), (0, None, 0)], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_vmap_is_a_loop(on: tuple[Any, ...], groups: int) -> None:
    shapes = [(2, 4, 6, 5), (6, 4 // groups, 3, 2), (6,)]
    arrays = [pb.tensor(a) for a in draw(*[(3, *s) if axis == 0 else s for s, axis in zip(shapes, on)])]

    def f(x: Any, w: Any, b: Any) -> Any:
        return F.conv2d(x, w, b, stride=2, padding=1, groups=groups)

    def derived(*values: Any) -> Any:
        return pb.grad(lambda *v: pb.sum(pb.tanh(f(*v))), (0, 1, 2))(*values)

    for function in (f, derived):
        found = pb.vmap(function, in_axes=on)(*arrays)
        rows = [function(*[a[i] if axis == 0 else a for a, axis in zip(arrays, on)]) for i in range(3)]
        each = list(zip(*rows)) if isinstance(found, tuple) else [rows]
        for t, wanted in zip(found if isinstance(found, tuple) else (found,), each):
            np.testing.assert_allclose(host(t), np.stack([host(r) for r in wanted]), rtol=1e-11, atol=1e-12)


def test_vmap_of_a_transposed_convolution_is_a_loop() -> None:
    x, w = [pb.tensor(a) for a in draw((3, 2, 4, 5, 4), (3, 4, 3, 3, 2))]
    for on in ((0, 0), (0, None), (None, 0)):
        given = [a if axis == 0 else a[0] for a, axis in zip((x, w), on)]
        found = pb.vmap(lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=2), in_axes=on)(*given)
        rows = [[a[i] if axis == 0 else a[0] for a, axis in zip((x, w), on)] for i in range(3)]
        wanted = np.stack([host(F.conv_transpose2d(*row, stride=2, groups=2)) for row in rows])
        np.testing.assert_allclose(host(found), wanted, rtol=1e-11, atol=1e-12)


def test_gradients_of_each_example() -> None:
    """The examples are single images, so each has its own gradient of the weights."""
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3, stride=2, groups=2)).to("float64")
    x = pb.tensor(draw((5, 2, 6, 6))[0])
    parameters = list(net.parameters())

    def loss(_: Any, image: Any) -> Any:
        return pb.sum(pb.sin(net(image)))

    per = pb.per_example_grad(loss)(parameters, x)
    norms = pb.per_example_norm(loss)(parameters, x)
    for i in range(5):
        with pb.GradientTape() as tape:
            y = loss(None, x[i])
        wanted = tape.gradient(y, parameters)
        for found, g in zip(per, wanted):
            np.testing.assert_allclose(host(found[i]), host(g), rtol=1e-10, atol=1e-13)
        assert host(norms)[i] == pytest.approx(sum((host(g) ** 2).sum() for g in wanted), rel=1e-10)


# ---- Modules


def test_modules_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    x = draw((2, 4, 9, 8))[0]
    rows: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("Conv2d", (4, 6, 3), {}),
        ("Conv2d", (4, 6, (3, 2)), {"stride": 2, "padding": (1, 0), "dilation": (1, 2), "groups": 2, "bias": False}),
        ("Conv2d", (4, 4, 3), {"padding": "same", "groups": 4}),
        ("ConvTranspose2d", (4, 6, 3), {}),
        ("ConvTranspose2d", (4, 6, 3, 2, 1, 1, 2), {}),
        ("Conv1d", (4, 6, 3), {"padding": 1}),
    ]
    for kind, given, how in rows:
        ours, theirs = getattr(nn, kind)(*given, **how).to("float64"), getattr(torch.nn, kind)(*given, **how).double()
        state = {name: value.numpy() for name, value in theirs.state_dict().items()}
        assert {name: value.shape for name, value in ours.state_dict().items()} == {name: a.shape for name, a in state.items()}
        ours.load_state_dict(state)
        assert repr(ours) == repr(theirs)
        batch = x[..., 0] if kind == "Conv1d" else x
        np.testing.assert_allclose(host(ours(pb.tensor(batch))), theirs(torch.tensor(batch)).detach().numpy(), atol=1e-12)


def test_initial_weights() -> None:
    for layer, fan in (
        (nn.Conv2d(8, 64, 5), 200),
        (nn.ConvTranspose2d(64, 32, 4, groups=2), 256),
        (nn.Conv1d(6, 90, 7, groups=3), 14),
    ):
        for p in layer.parameters():
            bound = 1 / np.sqrt(fan)
            assert 0.8 * bound < np.abs(host(p)).max() <= bound, (layer, p.name)
            assert abs(host(p).std() / (bound / np.sqrt(3)) - 1) < 0.35


# ---- errors


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x, w: F.conv2d(x, w[:, :2]), pb.ShapeError, "3 channels"),
        (lambda x, w: F.conv2d(x[0, 0], w), pb.ShapeError, "batch, channels, height, width"),
        (lambda x, w: F.conv2d(x, w[0]), pb.ShapeError, "4 axes"),
        (lambda x, w: F.conv2d(x, w, pb.ones(3)), pb.ShapeError, r"Give it shape \(4,\)"),
        (lambda x, w: F.conv2d(x, w, stride=0), pb.ShapeError, "stride=0"),
        (lambda x, w: F.conv2d(x, w, stride=(1, 2, 3)), pb.ShapeError, "stride"),
        (lambda x, w: F.conv2d(x, w, dilation=1.5), pb.ShapeError, "dilation"),
        (lambda x, w: F.conv2d(x, w, padding=-1), pb.ShapeError, "padding"),
        (lambda x, w: F.conv2d(x, w, padding="full"), pb.ArgumentError, '"valid", "same"'),
        (lambda x, w: F.conv2d(x, w, padding="same", stride=2), pb.ArgumentError, "stride must be 1.* here 1, 1, makes ceil"),
        (lambda x, w: F.conv2d(x, w, groups=2), pb.ShapeError, "groups=2 must divide"),
        (lambda x, w: F.conv2d(x, w, dilation=4), pb.ShapeError, "does not fit"),
        (lambda x, w: F.conv2d(x.astype("int32"), w.astype("int32")), pb.DTypeError, "floating"),
        (lambda x, w: F.conv_transpose2d(x, w), pb.ShapeError, "needs 4"),
        (lambda x, w: F.conv_transpose2d(x, w[:3], output_padding=1), pb.ShapeError, "smaller than the stride"),
        (lambda x, w: F.conv_transpose2d(x, w[:3], padding=9), pb.ShapeError, "takes away more"),
        (lambda x, w: nn.Conv2d(3, 4, 3, padding_mode="reflect"), pb.PullbackError, "only \"zeros\""),
        (lambda x, w: nn.Conv2d(3, 4, 0), pb.ShapeError, "kernel_size=0"),
        (lambda x, w: nn.Conv2d(0, 4, 3), pb.ShapeError, "in_channels=0"),
        (lambda x, w: nn.Conv2d(3, 4, 3, groups=2), pb.ShapeError, "groups=2"),
    ],
)
def test_errors_say_what_does_not_fit(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(pb.ones((2, 3, 6, 7)), pb.ones((4, 3, 3, 3)))
