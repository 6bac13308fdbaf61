"""The workloads in JAX, compiled by jit, as a user of JAX would run them."""

import jax
import jax.numpy as jnp
import numpy as np


def _ready(f):
    return lambda: jax.block_until_ready(f())


def chain():
    x, c = jnp.linspace(-1, 1, 8), jnp.linspace(0, 1, 8)

    def loss(x):
        for _ in range(50):
            x = jnp.tanh(x) + c
        return x.sum()

    gradient = jax.jit(jax.grad(loss))
    return _ready(lambda: gradient(x))


def loss_and_params(sizes):
    rng = np.random.default_rng(0)
    params = [(jnp.asarray(rng.standard_normal((m, n), dtype=np.float32) / m**0.5), jnp.zeros(n)) for m, n in zip(sizes, sizes[1:])]

    def loss_of(params, x, y):
        h = x
        for i, (w, b) in enumerate(params):
            h = h @ w + b
            h = jax.nn.relu(h) if i + 1 < len(params) else h
        return -jnp.take_along_axis(jax.nn.log_softmax(h), y[:, None], 1).mean()

    return loss_of, params


def step_of(sizes):
    """Returns a function that performs one step of Adam on a batch, and the state before the first step."""
    loss_of, params = loss_and_params(sizes)

    def step(state, x, y):
        params, m, v, t = state
        loss, g = jax.value_and_grad(loss_of)(params, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        rate = 1e-3 / (1 - 0.9**t)
        params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), params, m, v)
        return (params, m, v, t + 1), loss

    zeros = jax.tree.map(jnp.zeros_like, params)
    return step, (params, zeros, zeros, jnp.asarray(1.0))


def mlp(sizes, batch):
    rng = np.random.default_rng(0)
    step, state = step_of(sizes)
    compiled, kept = jax.jit(step), [state]
    x, y = jnp.asarray(rng.standard_normal((batch, sizes[0]), dtype=np.float32)), jnp.asarray(rng.integers(0, sizes[-1], batch))

    def run():
        kept[0], _ = jax.block_until_ready(compiled(kept[0], x, y))

    return run


def _reduction(f, shape):
    x = jnp.asarray(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))
    weight = jnp.asarray(np.random.default_rng(1).standard_normal(shape, dtype=np.float32))
    gradient = jax.jit(jax.grad(lambda x: (f(x) * weight).sum()))
    return _ready(lambda: gradient(x))


def gelu():
    x = jnp.asarray(np.random.default_rng(0).standard_normal(10_000_000, dtype=np.float32))
    gradient = jax.jit(jax.grad(lambda x: jax.nn.gelu(x, approximate=False).sum()))
    return _ready(lambda: gradient(x))


def _layer_norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


WORKLOADS = {
    "chain": chain,
    "mlp 2-16-16-2": lambda: mlp((2, 16, 16, 2), 100),
    "mlp 784-128-10": lambda: mlp((784, 128, 10), 64),
    "mlp 784-1024-1024-10": lambda: mlp((784, 1024, 1024, 10), 512),
    "gelu": gelu,
    "softmax": lambda: _reduction(lambda x: jax.nn.softmax(x, -1), (4096, 1024)),
    "layer norm": lambda: _reduction(_layer_norm, (4096, 1024)),
}


def facts():
    return f"jax {jax.__version__}, jit, {jax.devices()[0].platform}"
