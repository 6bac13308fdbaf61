"""The text of the package, and the transformer that learns it: as torch trains it, and how it writes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn, optim
from pullback.examples import gpt
from pullback.examples.run import Run
from pullback.tensors import devices

STEPS, BATCH, CONTEXT, WIDTH, LAYERS = 200, 8, 32, 32, 2


def test_the_text_is_the_published_one() -> None:
    text = pb.data.shakespeare()
    assert (text.train.shape, text.validation.shape, len(text.characters)) == ((1_003_854,), (111_540,), 65)
    whole = (text.decode(text.train) + text.decode(text.validation)).encode()
    assert hashlib.sha256(whole).hexdigest() == "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    assert text.decode(text.train[:14]) == "First Citizen:"
    assert repr(text) == "Text(1,003,854 characters for training, 111,540 for validation, of 65 kinds)"


def test_the_validation_reads_every_character_once() -> None:
    """A network that gives every character the probability of its share of the text has the text's entropy as its loss."""
    numbers = pb.tensor(np.random.default_rng(0).integers(0, 5, 16 * 400 + 1).astype(np.int32))
    counts = np.bincount(host(numbers)[1:], minlength=5)

    class Shares(nn.Module):
        def forward(self, x: Any) -> Any:
            return pb.broadcast_to(pb.log(pb.tensor(counts / counts.sum(), pb.float64)), (*x.shape, 5))

    wanted = -(counts / counts.sum() * np.log(counts / counts.sum())).sum()
    assert gpt.validate(Shares(), numbers, 16) == pytest.approx(wanted, rel=1e-12)


def test_it_writes_what_the_network_makes_certain() -> None:
    """A network that is certain that the next number is one more, modulo 7, writes 1, 2, 3, … also beyond its context."""

    class Next(nn.Module):
        def forward(self, x: Any) -> Any:
            return 1e3 * pb.one_hot((x + 1) % 7, 7)

    np.testing.assert_array_equal(host(gpt.write(Next(), 5, 20)), np.arange(1, 21) % 7)


@pytest.mark.parametrize("tied", [True, False])
def test_a_character_depends_on_those_before_it_only(tied: bool) -> None:
    net = gpt.GPT(11, 9, 2, 4, 16, tied)
    numbers = np.random.default_rng(0).integers(0, 11, (2, 9))
    whole = host(net(pb.tensor(numbers)))
    numbers[:, 5:] = 0
    np.testing.assert_array_equal(host(net(pb.tensor(numbers)))[:, :5], whole[:, :5])
    assert len([name for name, _ in net.named_parameters() if name.startswith("head")]) == (not tied)


@pytest.mark.skipif(devices.default_device() != "cpu", reason="600 steps take minutes on the simulator; the CPU runs them")
@pytest.mark.usefixtures("native", "one_torch_thread")
def test_the_loss_curve_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: there is no other library to train with")
    pb.random.seed(0)
    net = gpt.GPT(65, CONTEXT, LAYERS, 4, WIDTH)
    weights = {name: host(value).copy() for name, value in net.state_dict().items()}
    text = host(pb.data.shakespeare().train)
    places = np.random.default_rng(0).integers(0, len(text) - CONTEXT, (STEPS, BATCH, 1))
    batches = text[places + np.arange(CONTEXT + 1)]
    wanted = torch_losses(torch, weights, batches)
    assert wanted[-1] < 0.75 * wanted[0]
    for captured in (False, True):
        net.load_state_dict(weights)
        opt = optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.1)

        def step(batch: Any) -> Any:
            return opt.minimize(lambda: gpt.loss_of(net, batch))  # noqa: B023

        run = pb.capture(step) if captured else step
        found = [run(pb.tensor(batch)).item() for batch in batches]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=0, err_msg="captured" if captured else "eager")


def torch_losses(torch: Any, weights: dict[str, Any], batches: Any) -> list[float]:
    """Trains the network in torch, written with the functions of torch, and returns the loss of each step."""
    of = torch.nn.functional
    p = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    opt, losses = torch.optim.AdamW(p.values(), lr=3e-3, weight_decay=0.1), []
    for batch in torch.tensor(batches.astype(np.int64)):
        x = of.embedding(batch[:, :-1], p["characters.weight"]) + p["positions.weight"]
        for i in range(LAYERS):
            w = {name.removeprefix(f"blocks.{i}."): value for name, value in p.items()}
            h = of.layer_norm(x, (WIDTH,), w["norm1.weight"])
            heads = [part.unflatten(-1, (4, -1)).transpose(1, 2) for part in (h @ w["attention.in_proj_weight"].T).chunk(3, -1)]
            y = of.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
            x = x + y @ w["attention.out_proj.weight"].T
            x = x + of.gelu(of.layer_norm(x, (WIDTH,), w["norm2.weight"]) @ w["up.weight"].T) @ w["down.weight"].T
        logits = of.layer_norm(x, (WIDTH,), p["norm.weight"]) @ p["characters.weight"].T
        loss = of.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def test_a_short_training_beats_the_frequencies_of_the_characters() -> None:
    """The entropy of the frequencies is 3.31 nats; 40 steps of a narrow network go below it."""
    counts = np.bincount(host(pb.data.shakespeare().train))
    entropy = -(counts / counts.sum() * np.log(counts / counts.sum())).sum()
    result = gpt.train(Run(device="cpu"), steps=40, batch_size=16, lr=2e-2, context=16, layers=1, width=32)
    assert entropy == pytest.approx(3.31, abs=0.01)
    assert result.measures["validation"].value < entropy
