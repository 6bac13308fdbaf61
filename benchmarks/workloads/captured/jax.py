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


WORKLOADS = {
    name: eager.WORKLOADS[name] for name in ("chain", "mlp 2-16-16-2", "mlp 784-128-10", "mlp 784-1024-1024-10")
} | {
    "mlp 2-16-16-2, 100 steps": lambda: scanned((2, 16, 16, 2), 100),
    "jacobian": transforms.WORKLOADS["jacobian"],
    "hessian": transforms.WORKLOADS["hessian"],
}  # fmt: skip

facts = eager.facts
