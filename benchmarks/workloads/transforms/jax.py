"""The workloads in JAX, compiled by jit, as a user of JAX would run them."""

import jax
import jax.numpy as jnp
import numpy as np


def _normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def _jitted(f, *args):
    compiled = jax.jit(f)
    return lambda: jax.block_until_ready(compiled(*args))


def per_example():
    params = [(_normal(784, 128) / 28, jnp.zeros(128)), (_normal(128, 10) / 11, jnp.zeros(10))]
    labels = jnp.asarray(np.random.default_rng(0).integers(0, 10, 64))

    def loss(params, x, y):
        (w1, b1), (w2, b2) = params
        return -jax.nn.log_softmax(jax.nn.relu(x @ w1 + b1) @ w2 + b2)[y]

    return _jitted(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)), params, _normal(64, 784), labels)


def _two_layers():
    a, b = _normal(64, 64) / 8, _normal(64, 64, seed=1) / 8
    return lambda x: jnp.tanh(b @ jnp.tanh(a @ x))


def hessian():
    net = _two_layers()
    return _jitted(jax.hessian(lambda x: jnp.square(net(x)).sum()), _normal(64))


def segments():
    data, ids = _normal(100_000, 32), jnp.asarray(np.random.default_rng(0).integers(0, 5000, 100_000))

    def both(data, ids, weight):
        y, pullback = jax.vjp(lambda data: jax.ops.segment_sum(data, ids, 5000), data)
        return y, pullback(weight)

    return _jitted(both, data, ids, _normal(5000, 32, seed=1))


def recurrence():
    def affine(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    a, b = jax.nn.sigmoid(_normal(32, 1024, 64)), _normal(32, 1024, 64, seed=1)
    return _jitted(lambda a, b: jax.lax.associative_scan(affine, (a, b), axis=1)[1], a, b)


WORKLOADS = {
    "per-example gradients": per_example,
    "jacobian": lambda: _jitted(jax.jacrev(_two_layers()), _normal(64)),
    "hessian": hessian,
    "segment_sum": segments,
    "linear recurrence": recurrence,
    "associative scan": recurrence,
}


def facts():
    return f"jax {jax.__version__}, jit, {jax.devices()[0].platform}"
