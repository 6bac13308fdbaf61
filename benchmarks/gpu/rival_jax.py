"""JAX's times for the same training steps: jax.jit of the whole step with donated state, and lax.scan over several steps."""

from __future__ import annotations

import os
import traceback
from functools import partial
from typing import Any

# JAX takes memory only as it needs it, so that the other processes find enough.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import timing

import device
from workloads import PRECISIONS, STEPS, WAYS, Net, nets

SIDE = "jax"
MATMUL = {"float32": "highest", "tf32": "tensorfloat32", "bfloat16": "highest"}


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


def logits(layers: Any, x: Any, precision: str) -> Any:
    for place, (w, b) in enumerate(layers):
        x = jax.nn.relu(x) if place else x
        x = (rounded_product(x, w) if precision == "bfloat16" else x @ w.T) + b
    return x


def loss_of(layers: Any, x: Any, y: Any, precision: str) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(layers, x, precision)), y[:, None], 1).mean()


def step(state: Any, x: Any, y: Any, precision: str) -> Any:
    """Performs one step of Adam. state is (layers, first moments, second moments, number of steps done)."""
    layers, first, second, count = state
    loss, gradients = jax.value_and_grad(loss_of)(layers, x, y, precision)
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
    a, b = 1 - 0.9**count, 1 - 0.999**count
    layers = jax.tree.map(lambda p, m, v: p - 1e-3 * (m / a) / (jnp.sqrt(v / b) + 1e-8), layers, first, second)
    return (layers, first, second, count), loss


def fresh_state(net: Net) -> Any:
    weights = net.weights()
    layers = [
        tuple(jnp.asarray(weights[f"{2 * place}.{kind}"]) for kind in ("weight", "bias")) for place in range(len(net.sizes) - 1)
    ]
    return layers, jax.tree.map(jnp.zeros_like, layers), jax.tree.map(jnp.zeros_like, layers), jnp.float32(0)


def time_step(net: Net, precision: str, way: str, effort: timing.Effort) -> dict[str, Any]:
    x, y = map(jnp.asarray, net.examples())
    count = STEPS if way == WAYS[2] else 1
    one = partial(step, precision=precision)
    if count > 1:
        many = lambda state, xs, ys: jax.lax.scan(lambda state, batch: one(state, *batch), state, (xs, ys))
        x, y = jnp.stack([x] * count), jnp.stack([y] * count)
    compiled = jax.jit(many if count > 1 else one, donate_argnums=0)
    kept = [fresh_state(net), None]
    error = net.error(jax.jit(partial(logits, precision=precision))(kept[0][0], x[0] if count > 1 else x))

    def run() -> None:
        kept[:] = compiled(kept[0], x, y)

    figures = timing.measure(run, lambda: jax.block_until_ready(kept[0]), effort, count)
    return {**figures, "error": error, "loss_after": float(jnp.mean(kept[1]))}


def main() -> None:
    options = device.arguments(__doc__, "what")
    device.put(side=SIDE, name="version", version=jax.__version__, on=jax.default_backend())
    effort = timing.DRY if options.simulated else timing.FULL
    for way in WAYS[1:]:
        for precision in PRECISIONS:
            for net in nets(options.simulated):
                row = {"name": net.name, "precision": precision, "way": way, "does": PRECISIONS[precision][SIDE]}
                try:
                    with jax.default_matmul_precision(MATMUL[precision]):
                        row |= time_step(net, precision, way, effort)
                except Exception as error:
                    row |= {"failed": f"{type(error).__name__}: {error}"[:1500], "traceback": traceback.format_exc()[-1500:]}
                device.put(side=SIDE, group="steps", on=jax.default_backend(), **row)


if __name__ == "__main__":
    main()
