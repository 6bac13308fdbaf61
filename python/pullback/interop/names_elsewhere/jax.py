"""Names of JAX, Optax and jax.scipy."""

from __future__ import annotations

from typing import Final

from .sentences import CLIP, CONTROL, DEVICE, DISTRIBUTIONS, GENERATOR, GLOBAL_NORM, LAYERS, NUMPY, ONE_DEVICE, PYTREE, SCOPE

NAMES: Final[dict[str, dict[str, str]]] = {
    "pullback": {
        "pmap": "one device runs a program; pb.vmap(f) runs a function for a whole batch.",
        "jacfwd": 'pb.jacobian(f, mode="forward")', "jacrev": 'pb.jacobian(f, mode="reverse")',
        "custom_vjp": "pb.custom_gradient takes a function that returns its value and its pullback.",
        "custom_jvp": "pb.custom_gradient takes a function that returns its value and its pullback; forward mode transposes the "
        "pullback, which must be linear.",
        "tree_map": "pb.tree.map", "tree_leaves": "pb.tree.leaves", "tree_flatten": "pb.tree.flatten",
        "tree_unflatten": "pb.tree.unflatten", "tree_util": "pb.tree",
        "lax": "its functions are those of pb, or plain Python: pb.scan, pb.stop_gradient, and if, for and while.",
        "numpy": "pb itself has NumPy's functions: pb.exp, pb.sum. For the values of a tensor call t.numpy().",
        "fori_loop": CONTROL, "switch": CONTROL, "device_put": 't.to("cuda")', "device_get": "t.numpy()",
        "block_until_ready": "pb.cuda.synchronize() waits for a GPU; the CPU computes at once.", "remat": "pb.checkpoint",
        "make_jaxpr": "a captured function lists its kernels, pb.capture(f).explain(), and a tape its ops, tape.explain(loss).",
        "eval_shape": "run it once and read t.shape; pb.flops(f, x) runs on shapes alone and counts.", "Array": "pb.Tensor",
        "default_device": DEVICE, "devices": DEVICE, "vectorize": "pb.vmap(f)",
        "ravel_pytree": "pb.concat([t.flatten() for t in pb.tree.leaves(tree)])",
        "flatten_util": "write pb.concat([t.flatten() for t in pb.tree.leaves(tree)]).", "pure_callback": "pb.black_box(f)",
        "io_callback": "pb.black_box(f)",
        "experimental": "enable_x64 is not needed: pass pb.float64; host callbacks are pb.black_box.",
        "enable_x64": "float64 arrays stay float64 here; pass dtype=pb.float64 for new tensors.",
        "disable_jit": "functions run as they are unless pb.capture wraps them.", "dynamic_slice": "t[start : start + length]",
        "dynamic_slice_in_dim": "t[:, start : start + length]", "dynamic_index_in_dim": "pb.take(t, index, axis=0)",
        "dynamic_update_slice": "t.at[start : start + length].set(values)", "dynamic_update_slice_in_dim":
        "t.at[start : start + length].set(values)", "slice_in_dim": "t[start:stop]", "index_in_dim": "t[index]",
        "rev": "pb.flip(t, axis=0)",
        "grad_and_value": "pb.value_and_grad",
        "scipy": "its special functions are in pb: pb.erf, pb.lgamma; its optimizers are not here.",
        "closure_convert": "functions may use tensors from outside: pb.grad differentiates by its arguments.",
        "linear_transpose": "pb.vjp(f, x)", "named_scope": SCOPE, "named_call": SCOPE, "debug_infs": "pb.debug_nans()",
        "shard_map": ONE_DEVICE, "NamedSharding": ONE_DEVICE, "make_mesh": ONE_DEVICE, "sharding": ONE_DEVICE, "psum": ONE_DEVICE,
        "pmean": ONE_DEVICE, "pmax": ONE_DEVICE, "pmin": ONE_DEVICE, "all_gather": ONE_DEVICE, "all_to_all": ONE_DEVICE,
        "ppermute": ONE_DEVICE, "pswapaxes": ONE_DEVICE, "axis_index": ONE_DEVICE, "local_devices": DEVICE, "Device": DEVICE,
        "device_count": ONE_DEVICE, "local_device_count": ONE_DEVICE, "process_index": ONE_DEVICE, "process_count": ONE_DEVICE,
        "default_backend": DEVICE, "ShapeDtypeStruct": "pb.flops(f, x) runs on shapes alone and counts.",
        "live_arrays": "pb.profile()",
        "clear_caches": "pb.trim()", "clear_backends": "pb.trim()", "checkpoint_policies": "pb.checkpoint(f)", "image": NUMPY,
        "default_matmul_precision": 'pb.amp.autocast("tf32")', "custom_root": NUMPY, "custom_linear_solve": NUMPY,
        "batch_matmul": "pb.matmul", "dot_general": "pb.einsum", "select_n": "pb.where", "clz": NUMPY, "population_count": NUMPY,
        "convert_element_type": "pb.astype(t, pb.float32)", "bitcast_convert_type": "pb.asarray(t.numpy().view(np.int32))",
        "integer_pow": "t**3", "is_finite": "pb.isfinite", "erf_inv": "pb.erfinv", "iota": "pb.arange(n)",
        "broadcasted_iota": "pb.arange(n)", "broadcast": "pb.broadcast_to(t, shape)",
        "broadcast_in_dim": "pb.broadcast_to(t, shape)",
        "cumlogsumexp": "pb.logcumsumexp(t, axis=0)", "rem": "pb.fmod", "shift_left": "pb.bitwise_left_shift",
        "shift_right_arithmetic": "pb.bitwise_right_shift", "shift_right_logical": "pb.bitwise_right_shift",
        "reduce_and": "pb.all", "reduce_or": "pb.any", "reduce_window": LAYERS, "conv_general_dilated": "nn.functional.conv2d",
        "conv": "nn.functional.conv2d", "conv_transpose": "nn.functional.conv_transpose2d",
        "scatter_max": "t.at[indices].max(values)",
        "scatter_min": "t.at[indices].min(values)",
        "scatter_mul": "t.at[indices].multiply(values)", "logistic": "pb.sigmoid", "expit": "pb.sigmoid", "gammaln": "pb.lgamma",
        "loggamma": "pb.lgamma", "gamma": "pb.exp(pb.lgamma(t))", "psi": "pb.digamma", "betaln":
        "pb.lgamma(a) + pb.lgamma(b) - pb.lgamma(a + b)", "zeta": NUMPY, "gammainc": NUMPY, "gammaincc": NUMPY, "betainc": NUMPY,
        "ndtr": "0.5 * pb.erfc(-t / 2**0.5)", "log_ndtr": "pb.log(0.5 * pb.erfc(-t / 2**0.5))",
        "ndtri": "2**0.5 * pb.erfinv(2 * t - 1)", "entr": "-pb.xlogy(t, t)", "rel_entr": "pb.xlogy(a, a / b)", "erfcx":
        "pb.exp(t * t) * pb.erfc(t)", "i0": NUMPY, "i1": NUMPY, "multigammaln": NUMPY, "logmeanexp": "pb.logsumexp(t) - pb.log(n)",
        "log1mexp": "pb.log(-pb.expm1(-t))", "squareplus": "0.5 * (t + pb.sqrt(t * t + 4))", "typeof": "write t.shape and t.dtype.",
        "standardize": "nn.functional.layer_norm(t)",
        "dot_product_attention": "nn.functional.scaled_dot_product_attention",
        "hard_sigmoid": "nn.functional.hardsigmoid", "hard_silu": "nn.functional.hardswish",
        "hard_swish": "nn.functional.hardswish", "hard_tanh": "nn.functional.hardtanh", "soft_sign": "nn.functional.softsign",
    },
    "pullback.nn.functional": {"swish": "nn.functional.silu", "log_sigmoid": "-pb.softplus(-t)"},
    "pullback.optim": {
        "apply_updates": "opt.step(gradients)", "exponential_decay": "optim.schedules.Exponential",
        "cosine_decay_schedule": "optim.schedules.Cosine", "warmup_cosine_decay_schedule": "optim.schedules.WarmupCosine",
        "cosine_onecycle_schedule": "optim.schedules.OneCycle", "sgdr_schedule": "optim.schedules.CosineRestarts",
        "piecewise_constant_schedule": "optim.schedules.MultiStep", "join_schedules": "optim.schedules.Sequential",
        "polynomial_schedule": "optim.schedules.Polynomial", "linear_schedule": "optim.schedules.Linear",
        "constant_schedule": "optim.schedules.Schedule", "reduce_on_plateau": "optim.schedules.ReduceOnPlateau",
        "clip": CLIP, "chain": "one optimizer has its clipping and its schedule: optim.Adam([p], lr=1e-3, clip_norm=1.0).",
        "global_norm": GLOBAL_NORM, "scale_by_adam": "optim.Adam", "adamw": "optim.AdamW",
        "set_to_zero": "p.trainable = False freezes a Parameter.",
        "MultiSteps": "optim.Accumulator", "lamb": "optim.LAMB", "rmsprop": "optim.RMSprop", "muon": "optim.Muon",
        "adafactor": "optim.Adafactor",
    },
    "pullback.random": {
        "PRNGKey": GENERATOR, "key": GENERATOR, "split": GENERATOR, "fold_in": GENERATOR, "wrap_key_data": GENERATOR,
        "rademacher": "2.0 * pb.random.bernoulli(shape) - 1.0", "gumbel": "-pb.log(-pb.log(pb.random.uniform(shape)))",
        "exponential": "-pb.log(1 - pb.random.uniform(shape))", "bits": "pb.random.randint(0, 2**32, shape, dtype=pb.uint32)",
        "laplace": DISTRIBUTIONS, "logistic": "pb.logit(pb.random.uniform(shape))", "cauchy": DISTRIBUTIONS, "beta": DISTRIBUTIONS,
        "gamma": DISTRIBUTIONS, "loggamma": DISTRIBUTIONS, "poisson": DISTRIBUTIONS, "dirichlet": DISTRIBUTIONS, "t": DISTRIBUTIONS,
        "ball": DISTRIBUTIONS, "binomial": DISTRIBUTIONS, "multivariate_normal": "pb.random.normal(shape) @ factor.T + mean",
    },
    "pullback.tree": {
        "tree_map": "pb.tree.map", "multimap": "pb.tree.map", "tree_leaves": "pb.tree.leaves", "tree_flatten": "pb.tree.flatten",
        "tree_unflatten": "pb.tree.unflatten", "tree_structure": "pb.tree.flatten(tree)[1]",

        "reduce": "functools.reduce(f, pb.tree.leaves(tree))", "tree_reduce": "functools.reduce(f, pb.tree.leaves(tree))",
        "all": "all(pb.tree.leaves(tree))", "tree_all": "all(pb.tree.leaves(tree))", "all_leaves":
        "all(leaf is tree for leaf in pb.tree.leaves(tree))", "transpose": "pb.tree.map(lambda *x: list(x), *trees)",
        "tree_transpose": "pb.tree.map(lambda *x: list(x), *trees)", "map_with_path": "pb.tree.map",
        "tree_map_with_path": "pb.tree.map",
        "register_pytree_node": PYTREE, "register_pytree_node_class": PYTREE, "register_dataclass": PYTREE, "Partial":
        "functools.partial works with pb.grad(f) and pb.capture(f).",
    },
}  # fmt: skip
