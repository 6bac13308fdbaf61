"""The work of convolutions is that of the textbook, and as PyTorch counts it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn


def test_a_convolution_and_its_gradients() -> None:
    """Taps in the padding count, in both gradients too. The bias adds one per element, and its gradient is a sum over all but 8."""
    x, layer = pb.Parameter(np.zeros((2, 3, 16, 16), np.float32)), nn.Conv2d(3, 8, 3, padding=1)
    with pb.profile(strict=True) as prof:
        with pb.GradientTape() as tape:
            y = layer(x)
        tape.gradient(y, [x, *layer.parameters()], output_gradients=pb.ones(y.shape))
    assert prof.forward.matmul_flops == 221_184
    assert prof.forward.flops == 221_184 + 2 * 8 * 256
    assert prof.backward.matmul_flops == 2 * 221_184
    assert prof.backward.flops == 2 * 221_184 + 2 * 8 * 256 - 8


def test_convolutions_as_torch_counts_them() -> None:
    """The counter of PyTorch takes the gradients of groups for those of a single group, so there is one group here."""
    torch = pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter")

    def made(of: Any) -> Any:
        return of.Sequential(of.Conv2d(3, 8, 5), of.Tanh(), of.Conv2d(8, 8, 3, stride=2), of.ConvTranspose2d(8, 4, 3, 2))

    ours, theirs = made(nn), made(torch.nn)
    with counter.FlopCounterMode(display=False) as forward:
        loss = theirs(torch.zeros(2, 3, 16, 16)).sum()
    with counter.FlopCounterMode(display=False) as backward:
        loss.backward()
    with pb.profile(strict=True) as prof:
        with pb.GradientTape() as tape:
            y = pb.sum(ours(pb.zeros((2, 3, 16, 16))))
        tape.gradient(y, list(ours.parameters()))
    assert prof.forward.matmul_flops == forward.get_total_flops()
    assert prof.backward.matmul_flops == backward.get_total_flops()


def test_the_order_of_a_convolution_is_that_of_the_product_of_its_patches() -> None:
    """Channel, row and column of the kernel, with the zeros of the padding; and image, row and column for the weights."""
    rng = np.random.default_rng(0)
    x, w = [rng.standard_normal(shape).astype("float32") for shape in ((3, 40, 9, 11), (7, 40, 3, 3))]
    pad = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    patches = np.stack([pad[:, :, i : i + 9, j : j + 11] for i in range(3) for j in range(3)], 2).reshape(3, 360, 99)
    g = rng.standard_normal((3, 7, 9, 11)).astype("float32")
    before, pb.config.reproducible = pb.config.reproducible, "everywhere"
    try:
        with pb.GradientTape() as tape:
            tape.watch(weight := pb.tensor(w))
            y = nn.functional.conv2d(pb.tensor(x), weight, padding=1)
        gw = tape.gradient(y, weight, output_gradients=pb.tensor(g))
        wanted = pb.tensor(w.reshape(7, 360)) @ pb.tensor(patches)
        rows, columns = [a.transpose(1, 0, 2).reshape(a.shape[1], -1) for a in (g.reshape(3, 7, 99), patches)]
        wanted_gw = pb.tensor(rows) @ pb.tensor(columns).mT
    finally:
        pb.config.reproducible = before
    assert (y.numpy().reshape(3, 7, 99) == wanted.numpy()).all()
    assert (gw.numpy().reshape(7, 360) == wanted_gw.numpy()).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("which", ["usual", "infinite", "tiny"])
def test_images_together_have_the_bits_of_images_alone(which: str, dtype: str) -> None:
    """Many images may leave out products with zeros of the padding, which change infinite results and the sign of zeros."""
    rng = np.random.default_rng(0)
    w, g = rng.standard_normal((9, 5, 5, 4)).astype(dtype), rng.standard_normal((35, 9, 4, 3)).astype(dtype)
    if which == "infinite":
        w[3, 1, 0, 2], w[4, 2, 1, 1] = np.inf, np.nan
    if which == "tiny":  # sums of few terms underflow to zeros of either sign
        g *= rng.random(g.shape) < 0.05
        w *= float(np.finfo(dtype).tiny) ** 0.5
        g *= float(np.finfo(dtype).tiny) ** 0.5

    def gradient(g: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x := pb.zeros((len(g), 5, 8, 6), dtype=dtype))
            y = nn.functional.conv2d(x, pb.tensor(w))
        return tape.gradient(y, x, output_gradients=pb.tensor(g)).numpy()

    together, alone = gradient(g), np.concatenate([gradient(g[i : i + 1]) for i in range(len(g))])
    np.testing.assert_array_equal(np.isnan(together), np.isnan(alone))
    np.testing.assert_array_equal(together, alone)
    known = ~np.isnan(alone)
    np.testing.assert_array_equal(np.signbit(together)[known], np.signbit(alone)[known])
