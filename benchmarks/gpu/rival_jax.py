"""JAX's side of the turns: the same training steps. `python rival_jax.py` serves them (serving.py).

One step a call is jax.jit of the whole step with donated state. Several steps a call are lax.scan of the step. A scan has variants
that may be faster: `unroll`, and what turns.py puts into XLA_FLAGS.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

# JAX takes memory only as it needs it, so that the other processes find enough.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from serving import Prepared, Server

import device
from workloads import BATCHES, LEARNING_RATE, SEVERAL, STEPS, Convolutions, Decoder, Net, Recurrent, named

MATMUL = {"float32": "highest", "tf32": "tensorfloat32", "bfloat16": "default"}
UNROLLED, CELLS_UNROLLED = f"unroll={STEPS}", "GRU unroll=8"  # variants
THREADS = 6  # XLA compiles this many steps at the same time


@jax.custom_vjp
def rounded_product(x: Any, w: Any) -> Any:
    """Returns x @ w.T with bfloat16 factors and with float32 sums and results."""
    return _rounded(x, w.T)


def _rounded(a: Any, b: Any) -> Any:
    return jnp.matmul(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), preferred_element_type=jnp.float32)


rounded_product.defvjp(
    lambda x, w: (_rounded(x, w.T), (x, w)),
    lambda kept, g: (_rounded(g, kept[1]), _rounded(g.T, kept[0])),
)


# ---- the networks: logits of a batch


def dense(p: Any, x: Any, net: Net, precision: str) -> Any:
    for place in range(len(net.sizes) - 1):
        w, x = p[f"{2 * place}.weight"], jax.nn.relu(x) if place else x
        x = (rounded_product(x, w) if precision == "bfloat16" else x @ w.T) + p[f"{2 * place}.bias"]
    return x


def convolutions(p: Any, x: Any, net: Convolutions) -> Any:
    for place in (0, 3):
        x = jax.lax.conv_general_dilated(x, p[f"{place}.weight"], (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        x = jax.nn.relu(x + p[f"{place}.bias"][:, None, None])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return x.reshape(len(x), net.flat) @ p["7.weight"].T + p["7.bias"]


def recurrent(p: Any, x: Any, net: Recurrent, unroll: int = 1) -> Any:
    inputs = jnp.swapaxes(x @ p["rows.weight_ih_l0"].T + p["rows.bias_ih_l0"], 0, 1)  # (length, batch, gates): one product

    def cell(h: Any, given: Any) -> Any:
        r, z, n = jnp.split(given, 3, -1)
        of_r, of_z, of_n = jnp.split(h @ p["rows.weight_hh_l0"].T + p["rows.bias_hh_l0"], 3, -1)
        r, z = jax.nn.sigmoid(r + of_r), jax.nn.sigmoid(z + of_z)
        return (1 - z) * jnp.tanh(n + r * of_n) + z * h, None

    h, _ = jax.lax.scan(cell, jnp.zeros((len(x), net.hidden)), inputs, unroll=unroll)
    return h @ p["classes.weight"].T + p["classes.bias"]


def normalized(x: Any, weight: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * weight


def decoder(p: Any, numbers: Any, net: Decoder) -> Any:
    x = p["characters.weight"][numbers] + p["positions.weight"][: numbers.shape[1]]
    for layer in range(net.layers):
        w = lambda name, layer=layer: p[f"blocks.{layer}.{name}.weight"]
        parts = normalized(x, w("norm1")) @ p[f"blocks.{layer}.attention.in_proj_weight"].T
        q, k, v = [part.reshape(*x.shape[:2], net.heads, -1) for part in jnp.split(parts, 3, -1)]
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ w("attention.out_proj").T
        x = x + jax.nn.gelu(normalized(x, w("norm2")) @ w("up").T, approximate=False) @ w("down").T
    return (normalized(x, p["norm.weight"]) @ p["characters.weight"].T).reshape(-1, net.characters)


def logits(p: Any, x: Any, net: Any, precision: str, variant: str = "") -> Any:
    if isinstance(net, Net):
        return dense(p, x, net, precision)
    if variant == CELLS_UNROLLED:
        return recurrent(p, x, net, 8)
    return {Convolutions: convolutions, Recurrent: recurrent, Decoder: decoder}[type(net)](p, x, net)


def loss_of(p: Any, x: Any, y: Any, net: Any, precision: str, variant: str) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(p, x, net, precision, variant)), y[:, None], 1).mean()


# ---- the training step


def step(state: Any, x: Any, y: Any, net: Any, precision: str, variant: str) -> Any:
    """Performs one step of Adam. state is (weights, first moments, second moments, number of steps done)."""
    weights, first, second, count = state
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, y, net, precision, variant)
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
    a, b = 1 - 0.9**count, 1 - 0.999**count
    move = lambda p, m, v: p - LEARNING_RATE * (m / a) / (jnp.sqrt(v / b) + 1e-8)
    return (jax.tree.map(move, weights, first, second), first, second, count), loss


def prepare(case: Mapping[str, Any], simulated: bool) -> Prepared:
    net, precision, several = named(case["name"], simulated), case["precision"], case["way"] == SEVERAL
    unroll = STEPS if case["variant"] == UNROLLED else 1
    one = partial(step, net=net, precision=precision, variant=case["variant"])
    many = lambda state, xs, ys: jax.lax.scan(lambda state, batch: one(state, *batch), state, (xs, ys), unroll=unroll)
    compiled = jax.jit(many if several else one, donate_argnums=0)
    x, y = net.batches(BATCHES)
    x, y, count = jnp.asarray(x), jnp.asarray(y.reshape(BATCHES, -1)), STEPS if several else 1
    given = [(x[k : k + count], y[k : k + count]) if several else (x[k], y[k]) for k in range(0, BATCHES, count)]
    turn = itertools.cycle(given)
    weights = {name: jnp.asarray(value) for name, value in net.weights().items()}
    kept = [(weights, jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights), jnp.float32(0)), None]
    within = partial(jax.default_matmul_precision, MATMUL[precision])
    with within():
        facts = first_facts(net, precision)

    def call() -> None:
        kept[:] = compiled(kept[0], *next(turn))

    finish, after = lambda: jax.block_until_ready(kept), lambda: {"loss_after": float(jnp.mean(kept[1]))}
    return Prepared(call, finish, len(given), count, facts, after, within)


@functools.cache
def first_facts(net: Any, precision: str) -> dict[str, Any]:
    """Returns the loss of the first batch, and the error of its logits."""
    x, y = net.batches(1)
    weights = {name: jnp.asarray(value) for name, value in net.weights().items()}
    found = np.asarray(jax.jit(partial(logits, net=net, precision=precision))(weights, x[0]), np.float64)
    return {"loss_first": mean_loss(found, y[0].reshape(-1))} | ({"error": net.error(found)} if isinstance(net, Net) else {})


def mean_loss(x: Any, y: Any) -> float:
    """Returns the mean cross entropy of logits (n, classes) and labels (n,)."""
    largest = x.max(-1)
    return float(np.mean(largest + np.log(np.exp(x - largest[:, None]).sum(-1)) - x[np.arange(len(y)), y]))


def main() -> None:
    options = device.arguments(__doc__)
    facts = {"version": jax.__version__, "on": jax.default_backend(), "flags": os.environ.get("XLA_FLAGS", "")}
    Server(lambda case: prepare(case, options.simulated), THREADS).run(**facts)


if __name__ == "__main__":
    main()
