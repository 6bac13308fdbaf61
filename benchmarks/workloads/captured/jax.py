"""The captured workloads in JAX: jit, and lax.scan over several steps."""

import jax
import jax.numpy as jnp
import numpy as np

from ..eager import jax as eager
from ..transforms import jax as transforms
from . import STEPS


def scanned(sizes, batch):
    step, state, rng = *eager.step_of(sizes), np.random.default_rng(0)
    xs = jnp.asarray(rng.standard_normal((STEPS, batch, sizes[0]), dtype=np.float32))
    ys = jnp.asarray(rng.integers(0, sizes[-1], (STEPS, batch)))
    epoch = jax.jit(lambda state, xs, ys: jax.lax.scan(lambda state, batch: step(state, *batch), state, (xs, ys)))
    kept = [state]

    def run():
        kept[0], _ = jax.block_until_ready(epoch(kept[0], xs, ys))

    return run


def gradient_of_jit(sizes, batch):
    """Returns the gradient of a compiled loss, which is not compiled as a whole."""
    (loss_of, params), rng = eager.loss_and_params(sizes), np.random.default_rng(0)
    x, y = jnp.asarray(rng.standard_normal((batch, sizes[0]), dtype=np.float32)), jnp.asarray(rng.integers(0, sizes[-1], batch))
    gradient = jax.value_and_grad(jax.jit(loss_of))
    return lambda: jax.block_until_ready(gradient(params, x, y))


WORKLOADS = {
    name: eager.WORKLOADS[name] for name in ("chain", "mlp 2-16-16-2", "mlp 784-128-10", "mlp 784-1024-1024-10")
} | {
    "mlp 2-16-16-2, 100 steps": lambda: scanned((2, 16, 16, 2), 100),
    "mlp 2-16-16-2, grad of jit": lambda: gradient_of_jit((2, 16, 16, 2), 100),
    "mlp 784-128-10, grad of jit": lambda: gradient_of_jit((784, 128, 10), 64),
    "mlp 784-1024-1024-10, grad of jit": lambda: gradient_of_jit((784, 1024, 1024, 10), 512),
    "jacobian": transforms.WORKLOADS["jacobian"],
    "hessian": transforms.WORKLOADS["hessian"],
}

facts = eager.facts
