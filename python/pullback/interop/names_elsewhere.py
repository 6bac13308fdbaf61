"""Names of TensorFlow, PyTorch, JAX and NumPy that pullback does not have, each with what to write instead.

A value that ends with a period is a sentence; any other value is the expression to write. In both, `pb`, `nn` and `optim` are
modules, and `t` is a tensor, `p` a Parameter, `tape` a GradientTape, `opt` an optimizer, `net` a Module, `f` a function and `x` an
array. A test evaluates every name after a dot.
"""

from __future__ import annotations

from typing import Final

# ---- sentences that answer several names

_TAPE: Final = (
    "a tape computes gradients and returns them: `with pb.GradientTape() as tape: loss = f(x)`, then tape.gradient(loss, "
    "net.parameters())."
)
_NO_GRAD: Final = (
    "nothing is recorded outside of a tape, so this is not needed. Inside one use `with tape.stop_recording():`, or "
    "pb.stop_gradient(t) for one tensor."
)
_IMMUTABLE: Final = "tensors are immutable: use the result of an op, t.at[index].set(value), or p.assign(value) for a Parameter."
_ADD: Final = "write p.assign(p + x), or p += x, which does the same."
_SUB: Final = "write p.assign(p - x), or p -= x, which does the same."
_ZERO_GRAD: Final = "gradients are returned by tape.gradient(…) and never accumulated, so there is nothing to set to zero."
_CLIP: Final = "the optimizer clips inside its step: optim.Adam(net.parameters(), clip_norm=1.0), or clip_value= for each element."
_CROSS_ENTROPY: Final = 'it is nn.cross_entropy with reduction="none"; the default is the mean.'
_FUNCTIONAL: Final = "call net inside the function, and differentiate the function by dict(net.named_parameters())."
_RULES: Final = "this rule is not here yet. `dir(pullback.optim)` lists those that are."
_FACTORS: Final = "factorisations are not here yet. NumPy's take a copy and have no derivative: np.linalg.solve(t.numpy(), x)."
_CONTROL: Final = (
    "write a Python if, for or while: a tape records the ops that ran. pb.where(condition, a, b) chooses per element, and pb.scan "
    "repeats a function; both can be captured."
)
_CAPTURE: Final = "it is pb.capture(f) here, and goes outermost: around pb.grad, pb.vmap and tapes, as in pb.capture(pb.grad(f))."
_STATIC: Final = "arguments that are not tensors are static by themselves: another value makes another recording."
_DONATE: Final = "Parameters and an optimizer's state are updated in place, and arguments are never copied, so nothing is donated."
_DEVICE: Final = 'a device is a string: t.to("cuda:1"), and `with pb.use_device("cuda"):` for new tensors.'
_STACK: Final = "use pb.concat([a, b], axis=0) for an axis that exists, pb.stack([a, b], axis=0) for a new one."
_LIST: Final = "a Module finds Parameters and Modules in Python's own lists and dicts: self.layers = [nn.Linear(8, 8), nn.ReLU()]."
_SESSION: Final = "there are no graphs and sessions: ops run when they are called, and pb.capture(f) makes a function fast."
_GENERATOR: Final = "pb.random.seed(n) sets the seed, and pb.random.Generator(n) is a stream of its own."
_SCHEDULE: Final = "pass a schedule as the learning rate, lr=optim.schedules.Cosine(1e-3, steps=1000), or set opt.lr at any time."
_WATCHED: Final = (
    "a tape watches trainable Parameters by itself, and other tensors after tape.watch(t). p.trainable = False freezes a Parameter."
)
_COMPLEX: Final = "there are no complex dtypes; keep the real and the imaginary part in two tensors."
_MODULE_TO: Final = 'net.to("cuda") or net.to("cpu") moves it, net.to(pb.float64) converts it.'

NAMES: Final[dict[str, dict[str, str]]] = {
    "pullback": {
        # ---- TensorFlow
        "Variable": "pb.Parameter", "constant": "pb.tensor", "convert_to_tensor": "pb.tensor", "function": _CAPTURE,
        "reduce_sum": "pb.sum", "reduce_mean": "pb.mean", "reduce_max": "pb.max", "reduce_min": "pb.min", "reduce_prod": "pb.prod",
        "reduce_any": "pb.any", "reduce_all": "pb.all", "reduce_std": "pb.std", "reduce_variance": "pb.var",
        "reduce_logsumexp": "pb.logsumexp", "cast": "pb.astype(t, pb.float32)",
        "gather": "tf.gather is pb.take(t, indices, axis=0) here, and torch.gather is pb.take_along_axis(t, indices, axis=1).",
        "gather_nd": "index with one tensor of integers per axis: t[rows, columns].",
        "scatter_nd": "write pb.zeros(shape).at[indices].add(values).", "tensor_scatter_nd_update": "t.at[indices].set(values)",
        "tensor_scatter_nd_add": "t.at[indices].add(values)", "boolean_mask": "t[mask]", "squared_difference": "pb.square(a - b)",
        "assign_add": _ADD, "assign_sub": _SUB,
        "gradients": "write tape.gradient(loss, sources) for a tape, tape.gradients(targets, sources) for several targets, or "
        "pb.grad(f) for a function.",
        "hessians": "pb.hessian(f)", "unsorted_segment_sum": "pb.segment_sum", "unsorted_segment_mean": "pb.segment_mean",
        "unsorted_segment_max": "pb.segment_max", "unsorted_segment_min": "pb.segment_min",
        "dynamic_partition": "index each part with a mask, t[ids == k], or reduce all parts at once: pb.segment_sum(t, ids).",
        "clip_by_value": "pb.clip", "clip_by_norm": _CLIP, "clip_by_global_norm": _CLIP,
        "map_fn": "pb.vmap(f)(t)", "functional_call": _FUNCTIONAL,
        "map": "pb.tree.map is for trees; for the rows of a tensor use pb.vmap(f)(t) or pb.scan.",
        "vectorized_map": "pb.vmap(f)", "while_loop": _CONTROL, "cond": _CONTROL, "case": _CONTROL, "switch_case": _CONTROL,
        "range": "pb.arange", "rank": "t.ndim", "shape": "t.shape", "size": "t.size", "fill": "pb.full", "truediv": "pb.divide",
        "floordiv": "pb.floor_divide", "floormod": "pb.remainder", "Session": _SESSION, "placeholder": _SESSION,
        "global_variables_initializer": _SESSION, "compat": _SESSION, "Graph": _SESSION,
        "math": "its functions are those of pb: pb.exp, pb.sum.", "device": _DEVICE,
        "keras": "layers are in pb.nn and optimizers in pb.optim; a training loop is a Python loop around opt.minimize(f).",
        "layers": "pb.nn", "losses": "the losses are functions: nn.mse, nn.cross_entropy.", "optimizers": "pb.optim",
        "initializers": "nn.init", "identity": "np.identity is pb.eye(n) here, and tf.identity is pb.copy(t).",
        # ---- PyTorch
        "cat": "pb.concat", "no_grad": _NO_GRAD, "inference_mode": _NO_GRAD, "enable_grad": _NO_GRAD, "set_grad_enabled": _NO_GRAD,
        "is_grad_enabled": _NO_GRAD, "detach": "pb.stop_gradient", "as_tensor": "pb.asarray",
        "from_numpy": "pb.asarray shares the memory, as torch.from_numpy does; pb.tensor copies.", "FloatTensor": "pb.tensor",
        "LongTensor": "pb.tensor(values, pb.int64)", "is_tensor": "isinstance(t, pb.Tensor)", "manual_seed": "pb.random.seed",
        "unsqueeze": "pb.expand_dims(t, axis=0)", "view": "pb.reshape", "permute": "pb.permute_dims", "t": "t.T",
        "clamp": "pb.clip", "mm": "pb.matmul", "bmm": "pb.matmul", "mv": "pb.matmul",
        "addmm": "write c + pb.matmul(a, b), or nn.functional.linear(x, weight, bias) for a layer.", "ger": "pb.outer",
        "mul": "pb.multiply", "sub": "pb.subtract", "div": "pb.divide", "true_divide": "pb.divide", "neg": "pb.negative",
        "eq": "pb.equal", "ne": "pb.not_equal", "lt": "pb.less", "le": "pb.less_equal", "gt": "pb.greater",
        "ge": "pb.greater_equal", "rand": "pb.random.uniform(shape)", "randn": "pb.random.normal(shape)",
        "randperm": "pb.random.permutation(n)", "rand_like": "pb.random.uniform(t.shape)",
        "randn_like": "pb.random.normal(t.shape)", "numel": "t.size",
        "autograd": "use pb.GradientTape, pb.grad(f), or pb.custom_gradient(f) for a derivative of your own.",
        "func": "its transforms are in pb: pb.grad, pb.vmap, pb.jvp, pb.vjp, pb.jacobian, pb.hessian.",
        "set_default_dtype": "pass dtype= where a tensor is made, or convert: net.to(pb.float64).",
        "get_default_dtype": "the default dtype is pb.float32.", "set_default_device": _DEVICE,
        "set_num_threads": "set the environment variable PULLBACK_NUM_THREADS before the program starts.",
        "use_deterministic_algorithms": "every op is deterministic; pb.config.reproducible says on which machines.",
        "compile": _CAPTURE, "jit": _CAPTURE, "index_select": "pb.take", "masked_select": "t[mask]",
        "masked_fill": "pb.where(mask, value, t)",
        "select": "it is pb.where(condition, a, b) here; PyTorch's is t[:, index].",
        "narrow": "t[start:stop]", "chunk": "pb.split",
        "tensor_split": "pb.split", "unbind": "pb.unstack", "scatter": "t.at[indices].set(values)",
        "scatter_add": "t.at[indices].add(values)", "index_add": "t.at[indices].add(values)",
        "index_put": "t.at[indices].set(values)", "movedim": "pb.moveaxis", "swapdims": "pb.swapaxes",
        "repeat_interleave": "pb.repeat", "take_along_dim": "pb.take_along_axis", "bucketize": "pb.searchsorted",
        "bincount": "pb.segment_sum(pb.ones(ids.shape), ids)", "float": "pb.float32", "double": "pb.float64", "half": "pb.float16",
        "long": "pb.int64", "short": "pb.int16", "complex64": _COMPLEX, "complex128": _COMPLEX, "empty_cache": "pb.trim",
        "special": "its functions are those of pb: pb.erf, pb.logsumexp.",
        "utils": "its loader is pb.data.Loader, and its checkpoint is pb.checkpoint.",
        # ---- JAX
        "pmap": "one device runs a program; pb.vmap(f) runs a function for a whole batch.",
        "jacfwd": 'pb.jacobian(f, mode="forward")', "jacrev": 'pb.jacobian(f, mode="reverse")',
        "custom_vjp": "pb.custom_gradient takes a function that returns its value and its pullback.",
        "custom_jvp": "pb.custom_gradient takes a function that returns its value and its pullback; forward mode transposes the "
        "pullback, which must be linear for it.",
        "flatten_util": "join the leaves, pb.concat([t.flatten() for t in pb.tree.leaves(tree)]), and cut them with pb.split.",
        "stack_module_state": _FUNCTIONAL, "make_functional": _FUNCTIONAL,
        "tree_map": "pb.tree.map", "tree_leaves": "pb.tree.leaves", "tree_flatten": "pb.tree.flatten",
        "tree_unflatten": "pb.tree.unflatten", "tree_util": "pb.tree",
        "lax": "its functions are those of pb, or plain Python: pb.scan, pb.stop_gradient, and if, for and while.",
        "numpy": "pb itself has NumPy's functions: pb.exp, pb.sum. For the values of a tensor call t.numpy().",
        "fori_loop": _CONTROL, "switch": _CONTROL, "device_put": 't.to("cuda")', "device_get": "t.numpy()",
        "block_until_ready": "pb.cuda.synchronize() waits for a GPU; the CPU computes at once.", "remat": "pb.checkpoint",
        "make_jaxpr": "a captured function lists its kernels, pb.capture(f).explain(), and a tape its ops, tape.explain(loss).",
        "eval_shape": "run it once and read t.shape; pb.flops(f, x) runs on shapes alone and counts.", "Array": "pb.Tensor",
        "default_device": _DEVICE, "devices": _DEVICE, "vectorize": "pb.vmap(f)",
        # ---- NumPy
        "array": "pb.tensor", "asanyarray": "pb.asarray", "ascontiguousarray": "pb.copy", "asnumpy": "t.numpy()",
        "ndarray": "pb.Tensor", "concatenate": "pb.concat", "vstack": _STACK, "hstack": _STACK, "dstack": _STACK,
        "row_stack": _STACK, "column_stack": _STACK, "append": "pb.concat", "array_split": "pb.split", "vsplit": "pb.split",
        "hsplit": "pb.split", "dot": "use a @ b, which is pb.matmul(a, b); pb.vecdot(a, b) gives the products of rows.",
        "vdot": "pb.vecdot(a.flatten(), b.flatten())", "arcsin": "pb.asin", "arccos": "pb.acos", "arctan": "pb.atan",
        "arctan2": "pb.atan2", "arcsinh": "pb.asinh", "arccosh": "pb.acosh", "arctanh": "pb.atanh", "absolute": "pb.abs",
        "fabs": "pb.abs", "power": "pb.pow", "mod": "pb.remainder", "rint": "pb.round", "around": "pb.round", "fix": "pb.trunc",
        "invert": "pb.bitwise_invert", "bitwise_not": "pb.bitwise_invert", "left_shift": "pb.bitwise_left_shift",
        "right_shift": "pb.bitwise_right_shift", "amax": "pb.max", "amin": "pb.min", "cumsum": "pb.cumulative_sum(t, axis=0)",
        "cumprod": "pb.cumulative_prod(t, axis=0)", "ravel": "t.flatten()", "flatten": "t.flatten()",
        "flipud": "pb.flip(t, axis=0)", "fliplr": "pb.flip(t, axis=1)", "digitize": "pb.searchsorted",
        "unique": "pb.unique_values has the values alone, pb.unique_counts, pb.unique_inverse and pb.unique_all have more.",
        "allclose": "pb.all(pb.isclose(a, b))", "array_equal": "pb.all(pb.equal(a, b))", "average": "pb.mean", "conj": _COMPLEX,
        "conjugate": _COMPLEX, "real": _COMPLEX, "imag": _COMPLEX, "mgrid": "pb.meshgrid", "apply_along_axis": "pb.vmap(f)",
        "set_printoptions": "tensors print as NumPy's arrays do: call np.set_printoptions.", "copyto": _IMMUTABLE,
        "put": _IMMUTABLE, "fill_diagonal": _IMMUTABLE,
    },
    "pullback.nn": {
        "CrossEntropyLoss": "losses are functions: nn.cross_entropy(logits, labels).", "MSELoss": "nn.mse", "L1Loss": "nn.l1",
        "NLLLoss": "nn.nll", "BCEWithLogitsLoss": "nn.bce_with_logits", "HuberLoss": "nn.huber", "SmoothL1Loss": "nn.smooth_l1",
        "KLDivLoss": "nn.kl_div", "BCELoss": "take the logits: nn.bce_with_logits, which cannot overflow.", "ModuleList": _LIST,
        "ModuleDict": _LIST, "ParameterList": _LIST, "ParameterDict": _LIST, "Dense": "nn.Linear", "Swish": "nn.SiLU",
        "utils": _CLIP, "clip_grad_norm_": _CLIP, "clip_grad_value_": _CLIP,
        "sigmoid_cross_entropy_with_logits": "it is nn.bce_with_logits with reduction=\"none\"; the default is the mean.",
        "softmax_cross_entropy_with_logits": _CROSS_ENTROPY, "sparse_softmax_cross_entropy_with_logits": _CROSS_ENTROPY,
        "embedding_lookup": "pb.take(table, ids, axis=0)", "functional_call": _FUNCTIONAL,
        "moments": "write pb.mean(t, axis=0) and pb.var(t, axis=0).", "DataParallel": "one device runs a program.",
    },
    "pullback.nn.functional": {
        "mse_loss": "nn.mse", "l1_loss": "nn.l1", "nll_loss": "nn.nll", "huber_loss": "nn.huber", "smooth_l1_loss": "nn.smooth_l1",
        "binary_cross_entropy_with_logits": "nn.bce_with_logits", "swish": "nn.functional.silu",
        "embedding": "pb.take(table, ids, axis=0)",
    },
    "pullback.nn.init": {
        "glorot_uniform": "nn.init.xavier_uniform", "glorot_normal": "nn.init.xavier_normal",
        "he_uniform": "nn.init.kaiming_uniform", "he_normal": "nn.init.kaiming_normal", "trunc_normal_": "nn.init.truncated_normal",
        "variance_scaling": "nn.init.kaiming_normal",
    },
    "pullback.optim": {
        "lr_scheduler": _SCHEDULE, "clip_grad_norm": _CLIP, "clip_by_global_norm": _CLIP, "clip": _CLIP,
        **dict.fromkeys(("Adagrad", "Adadelta", "Adamax", "NAdam", "Nadam", "RAdam", "RMSprop", "LBFGS", "LAMB", "Muon"), _RULES),
        "apply_updates": "opt.step(gradients)", "exponential_decay": "optim.schedules.Exponential",
        "cosine_decay_schedule": "optim.schedules.Cosine", "warmup_cosine_decay_schedule": "optim.schedules.WarmupCosine",
    },
    "pullback.optim.schedules": {
        "StepLR": "optim.schedules.Step", "ExponentialLR": "optim.schedules.Exponential",
        "CosineAnnealingLR": "optim.schedules.Cosine", "LinearLR": "optim.schedules.Linear",
        "PolynomialLR": "optim.schedules.Polynomial", "OneCycleLR": "optim.schedules.WarmupCosine",
        "ReduceLROnPlateau": "compare the losses in your loop and set opt.lr.", "LambdaLR": "set opt.lr in your loop.",
        "ExponentialDecay": "optim.schedules.Exponential", "CosineDecay": "optim.schedules.Cosine",
        "PolynomialDecay": "optim.schedules.Polynomial",
    },
    "pullback.linalg": dict.fromkeys(
        ("cholesky", "det", "eig", "eigh", "expm", "inv", "logdet", "lstsq", "lu", "pinv", "qr", "slogdet", "solve",
         "solve_triangular", "svd"), _FACTORS
    ),
    "pullback.random": {
        "rand": "pb.random.uniform(shape)", "random": "pb.random.uniform(shape)", "random_sample": "pb.random.uniform(shape)",
        "randn": "pb.random.normal(shape)", "standard_normal": "pb.random.normal(shape)",
        "integers": "pb.random.randint(low, high, shape)",
        "choice": "index with random integers: t[pb.random.randint(0, n, shape)].",
        "shuffle": "use pb.random.permutation(t), which returns the rows in another order.", "randperm": "pb.random.permutation(n)",
        "default_rng": "pb.random.Generator", "RandomState": "pb.random.Generator", "PRNGKey": _GENERATOR, "key": _GENERATOR,
        "split": _GENERATOR, "fold_in": _GENERATOR, "manual_seed": "pb.random.seed", "set_seed": "pb.random.seed",
        "get_state": "pb.random.Generator(n).state_dict()",
    },
    "pullback.data": {
        "DataLoader": "pb.data.Loader",
        "Dataset": "pb.data.Loader takes the arrays themselves: pb.data.Loader([x, y], batch_size=32).",
        "TensorDataset": "pb.data.Loader takes the arrays themselves: pb.data.Loader([x, y], batch_size=32).",
    },
    "pullback.tree": {
        "tree_map": "pb.tree.map", "multimap": "pb.tree.map", "tree_leaves": "pb.tree.leaves", "tree_flatten": "pb.tree.flatten",
        "tree_unflatten": "pb.tree.unflatten", "tree_structure": "pb.tree.flatten(tree)[1]", "map_structure": "pb.tree.map",
    },
    "pullback.amp": {"GradScaler": "losses need no scale in bfloat16: `with pb.amp.autocast(\"bfloat16\"):`."},
    # ---- methods and attributes
    "Tensor": {
        "backward": _TAPE, "grad": _TAPE, "grad_fn": "tape.explain(loss)", "retain_grad": _TAPE, "detach": "pb.stop_gradient(t)",
        "requires_grad": _WATCHED, "requires_grad_": _WATCHED,
        "is_leaf": "tapes watch Parameters, and tensors after tape.watch(t).", "register_hook": "tape.on_gradient(t, f)",
        "data": "a tensor is its value: use t itself, t.numpy() for its numbers, or p.assign(value) for a Parameter.",
        "cpu": 't.to("cpu")', "cuda": 't.to("cuda")', "is_cuda": "t.device", "float": "t.to(pb.float32)",
        "double": "t.to(pb.float64)", "half": "t.to(pb.float16)", "bfloat16": "t.to(pb.bfloat16)", "long": "t.to(pb.int64)",
        "int": "t.to(pb.int32)", "bool": "t.to(pb.bool)", "type": "t.astype(pb.float32)", "dim": "t.ndim", "numel": "t.size",
        "nelement": "t.size", "element_size": "t.itemsize", "get_shape": "t.shape", "view": "t.reshape",
        "view_as": "t.reshape(x.shape)", "reshape_as": "t.reshape(x.shape)", "permute": "pb.permute_dims(t, axes)",
        "unsqueeze": "pb.expand_dims(t, axis=0)", "expand": "pb.broadcast_to(t, shape)", "expand_as": "pb.broadcast_to(t, x.shape)",
        "contiguous": "t.copy()", "clone": "t.copy()", "t": "t.T", "mm": "t @ x", "bmm": "t @ x", "mv": "t @ x", "add": "t + x",
        "sub": "t - x", "mul": "t * x", "div": "t / x", "eq": "t == x", "ne": "t != x", "lt": "t < x", "le": "t <= x",
        "gt": "t > x", "ge": "t >= x", "clamp": "t.clip", "pow": "t ** x", "matmul": "t @ x", "maximum": "pb.maximum(t, x)",
        "minimum": "pb.minimum(t, x)", "softmax": "pb.softmax(t, axis=-1)", "log_softmax": "pb.log_softmax(t, axis=-1)",
        "logsumexp": "pb.logsumexp(t, axis=-1)", "topk": "pb.topk(t, k)", "flip": "pb.flip(t, axis=0)",
        "roll": "pb.roll(t, shift, axis=0)", "tile": "pb.tile(t, repetitions)", "tril": "pb.tril(t)", "triu": "pb.triu(t)",
        "split": "pb.split(t, n) cuts into n equal parts, or at a list of positions, as NumPy does.",
        "where": "pb.where(condition, t, x)", "norm": "pb.linalg.norm(t)", "amax": "t.max", "amin": "t.min",
        "index_select": "pb.take(t, indices, axis=0)", "gather": "pb.take_along_axis(t, indices, axis=1)",
        "masked_fill": "pb.where(mask, value, t)", "masked_select": "t[mask]", "chunk": "pb.split(t, n)", "unbind": "pb.unstack(t)",
        "scatter": "t.at[indices].set(values)", "scatter_add": "t.at[indices].add(values)",
        "index_add": "t.at[indices].add(values)", "set": "t.at[index].set(value)", "new_zeros": "pb.zeros(shape, t.dtype)",
        "new_ones": "pb.ones(shape, t.dtype)", "new_tensor": "pb.tensor(values, t.dtype)",
        "block_until_ready": "pb.cuda.synchronize()", "value": "use p itself, or p.numpy() for its numbers.",
        "read_value": "use p itself, or pb.copy(p) for its value now.", "assign_add": _ADD, "assign_sub": _SUB, "add_": _ADD,
        "sub_": _SUB, "mul_": "write p.assign(p * x), or p *= x, which does the same.",
        "div_": "write p.assign(p / x), or p /= x, which does the same.", "copy_": "p.assign(value)", "zero_": "p.assign(0 * p)",
        "fill_": "p.assign(pb.full_like(p, value))", "clamp_": "p.assign(p.clip(low, high))", "normal_": "nn.init.normal(p)",
        "uniform_": "nn.init.uniform(p)", "fill": _IMMUTABLE, "put": _IMMUTABLE, "itemset": _IMMUTABLE, "resize": _IMMUTABLE,
        "partition": _IMMUTABLE, "setfield": _IMMUTABLE, "setflags": _IMMUTABLE, "conj": _COMPLEX, "conjugate": _COMPLEX,
        "real": _COMPLEX, "imag": _COMPLEX, "flat": "t.flatten()", "tobytes": "t.numpy().tobytes()", "tofile": "pb.save(path, t)",
        "dump": "pb.save(path, t)", "dumps": "pickle.dumps(t)", "strides": "t.array.strides", "stride": "t.array.strides",
    },
    "GradientTape": {
        "backward": "call tape.gradient(loss, sources), which returns the gradients.",
        "watched_variables": "net.parameters() lists the Parameters of a Module; print(tape) counts what it watches.",
        "hessian": "pb.hessian(f)", "jvp": "pb.jvp(f, (x,), (v,))", "zero_grad": _ZERO_GRAD,
    },
    "Optimizer": {
        "zero_grad": _ZERO_GRAD, "apply_gradients": "opt.step(gradients)",
        "param_groups": "there is one group: opt.parameters, with the learning rate opt.lr.",
        "add_param_group": "make an optimizer for each group: optim.SGD(parameters, lr=0.1).", "learning_rate": "opt.lr",
        "variables": "opt.parameters", "weights": "opt.parameters", "iterations": "opt.steps", "state": "opt.slots(p)",
        "update": "use opt.step(gradients), or opt.preview(gradients) for the change alone.", "get_lr": "opt.lr",
    },
    "Cuda": {
        "empty_cache": "pb.cuda.trim()", "memory_allocated": "pb.cuda.memory()", "max_memory_allocated": "pb.cuda.memory()",
        "memory_summary": "pb.cuda.memory()", "set_device": _DEVICE, "current_device": _DEVICE, "device": _DEVICE,
        "current_stream": "pb.cuda.stream", "Stream": "all work runs on one stream, pb.cuda.stream.",
        "manual_seed": "pb.random.seed(n) seeds every device.", "Event": "pb.profile() times launches on a GPU.", "amp": "pb.amp",
    },
    "Module": {
        "zero_grad": _ZERO_GRAD, "cuda": _MODULE_TO, "cpu": _MODULE_TO, "float": _MODULE_TO, "double": _MODULE_TO,
        "half": _MODULE_TO, "bfloat16": _MODULE_TO, "type": _MODULE_TO, "children": "use net.modules(), which includes net itself.",
        "named_children": "use net.named_modules(), which includes net itself.",
        "register_parameter": "set an attribute: self.scale = pb.Parameter(1.0).",
        "register_buffer": "set an attribute: self.count = nn.Buffer(0.0).",
        "add_module": "set an attribute: self.head = nn.Linear(8, 2).",
        "register_module": "set an attribute: self.head = nn.Linear(8, 2).",
        "requires_grad_": "set trainable of each Parameter: `for p in net.parameters(): p.trainable = False`.",
        "trainable_variables": "net.parameters()", "trainable_weights": "net.parameters()", "variables": "net.parameters()",
        "weights": "net.parameters()", "get_weights": "net.state_dict()", "set_weights": "net.load_state_dict(state)",
        "save_weights": "pb.save(path, net.state_dict())", "load_weights": "net.load_state_dict(pb.load(path))",
        "fit": "training is a Python loop: for x, y in loader: opt.minimize(lambda: nn.mse(net(x), y)).",
        "summary": "print(net) lists the modules inside, and pb.profile() counts what they cost.", "named_buffers": "net.buffers()",
        "register_forward_hook": "a subclass may do anything before and after super().forward(x); tape.on_gradient(t, f) sees "
        "gradients.",
        "register_full_backward_hook": "tape.on_gradient(t, f)",
    },
}  # fmt: skip

# Keyword arguments: the keywords that a keyword may be here, of which the first that the function has is named, and after a bar a
# sentence for functions that have none of them.
KEYWORDS: Final = {
    "dim": "axis axes", "dims": "axes axis shape", "axes": "axis", "keepdim": "keepdims", "keep_dims": "keepdims",
    "input": "| the first argument is given by position.",
    "other": "| the second tensor is given by position; pb.maximum(t, x) is the larger of two.",
    "out": "| tensors are immutable: use the result.", "where": "| choose the elements before, with pb.where(mask, t, 0).",
    "name": "| ops have no names here; a profile names them by their line.",
    "requires_grad": "trainable | a tape watches trainable Parameters, pb.Parameter(value), by itself, and other tensors after "
    "tape.watch(t).",
    "unconnected_gradients": "unconnected", "watch_accessed_variables": "watch_parameters",
    "unbiased": "| it is correction= here: 1 divides by n - 1, and 0, the default, by n.", "right": '| write side="right".',
    "sorted": "| the result is sorted.", "inplace": "| tensors are immutable, so nothing is computed in place.", "a_min": "min",
    "a_max": "max", "clip_value_min": "min", "clip_value_max": "max", "T_max": "steps", "total_iters": "steps",
    "decay_steps": "steps", "step_size": "every", "gamma": "factor", "decay_rate": "factor", "eta_min": "end",
    "initial_learning_rate": "base", "use_bias": "bias", "rate": "p", "units": "out_features", "alpha": "negative_slope",
    "num_workers": "| the arrays live on the device, where batches are gathered, so there are no workers.",
    "pin_memory": "| the arrays live on the device, where batches are gathered.",
    "collate_fn": "| a batch has the structure of the arrays.", "ddof": "correction", "num_classes": "depth", "size": "shape",
    "diagonal": "k", "steps": "num", "p": "ord", "grad_outputs": "output_gradients", "allow_unused": "unconnected",
    "retain_graph": "| make the tape with persistent=True.",
    "create_graph": "| record the gradient on an outer tape: pb.GradientTape blocks nest.", "loc": "mean", "scale": "std",
    "stddev": "std", "minval": "low", "maxval": "high", "argnum": "argnums", "in_dims": "in_axes", "out_dims": "out_axes",
    "learning_rate": "lr", "epsilon": "eps", "decay": "weight_decay", "beta_1": "betas", "beta_2": "betas", "b1": "betas",
    "b2": "betas", "global_clipnorm": "clip_norm", "clipvalue": "clip_value",
    "clipnorm": "| Keras clips each gradient by itself; clip_norm= here is the joint norm, which is Keras's global_clipnorm=.",
    "static_argnums": f"| {_STATIC}", "static_argnames": f"| {_STATIC}", "donate_argnums": f"| {_DONATE}",
    "donate_argnames": f"| {_DONATE}",
    "input_signature": "| each signature of shapes and dtypes is recorded when it is first called, and cache= are kept.",
    "reduce_retracing": "| each signature of shapes and dtypes has its own recording, and cache= are kept.",
    "holomorphic": "| there are no complex dtypes.",
    "allow_int": "| derivatives are by floating-point tensors: convert integers with t.astype(pb.float32).",
    "axis_name": "| there are no named axes: reduce the result of pb.vmap(f) outside, with pb.sum or pb.mean.",
    "axis_size": "| the number of examples is that of the arguments' axes.",
    "randomness": "| every example draws different random numbers, also from one Generator.",
    "chunk_size": "| all examples run at once; call the result on slices of the batch to use less memory.",
    "chunks": "chunk", "unroll": "| the loop is always unrolled.",
    "policy": "| only the arguments are kept: wrap a part of f to keep more.",
    "use_reentrant": "| there is one kind of checkpoint.", "preserve_rng_state": "| the random numbers are always the same again.",
    "fullgraph": "| a recording is always whole: code that a replay could not repeat raises CaptureError.",
    "jit_compile": "| nothing is compiled: pb.capture(f) records the kernels of one call and repeats them.",
}  # fmt: skip
