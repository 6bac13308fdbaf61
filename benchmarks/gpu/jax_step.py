"""The networks' steps in JAX, compiled: `python jax_step.py` prints a JSON object each. In a process of its own: JAX keeps the
device's memory to itself."""

from __future__ import annotations

import json
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import timing

NETS = (((784, 128, 10), 64), ((784, 1024, 1024, 10), 512))  # widths, batch


def loss(params, x, y):
    for i, (w, b) in enumerate(params):
        x = x @ w.T + b
        x = jax.nn.relu(x) if i + 1 < len(params) else x
    return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()


@jax.jit
def step(params, first, second, count, x, y):
    gradients = jax.grad(loss)(params, x, y)
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
    params = jax.tree.map(
        lambda p, m, v: p - 1e-3 * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8), params, first, second
    )
    return params, first, second, count


def measure(sizes, batch) -> None:
    key = jax.random.key(0)
    params = [(0.05 * jax.random.normal(key, (n, m)), jnp.zeros(n)) for m, n in zip(sizes, sizes[1:])]
    zeros = jax.tree.map(jnp.zeros_like, params)
    x, y = jax.random.normal(key, (batch, sizes[0])), jax.random.randint(key, (batch,), 0, sizes[-1])
    state = [(params, zeros, zeros, jnp.float32(0))]

    def run() -> None:
        state[0] = step(*state[0], x, y)

    result = timing.compare(run, lambda: jax.block_until_ready(state[0]))
    name = f"MLP {'-'.join(map(str, sizes))}, batch {batch}, Adam step, jax.jit"
    result |= {"group": "rivals", "name": name, "rival": f"jax on {jax.default_backend()}"}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    for sizes, batch in NETS:
        measure(sizes, batch)
