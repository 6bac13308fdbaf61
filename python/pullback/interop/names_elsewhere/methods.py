"""Methods and attributes of tensors, tapes, optimizers and modules in other libraries."""

from __future__ import annotations

from typing import Final

from .sentences import (
    ADD,
    ADVANCES,
    COMPLEX,
    DEVICE,
    DISTRIBUTIONS,
    FREEZE,
    IMMUTABLE,
    LOGDET,
    METRICS,
    MODULE_TO,
    NO_PIPELINE,
    NUMPY,
    ONE_DEVICE,
    SESSION,
    SPARSE,
    SUB,
    TAPE,
    TRAINABLE,
    WATCHED,
    ZERO_GRAD,
)

# Methods of PyTorch's tensors that are functions here, of the tensor alone, of two tensors, and in place.
ALSO_FUNCTIONS: Final = (
    "argwhere count_nonzero deg2rad diag diff digamma lgamma logit "
    "nan_to_num nanmean nansum negative positive rad2deg rot90 signbit sinc"
)
OF_TWO: Final = (
    "atan2 bitwise_left_shift bitwise_right_shift copysign fmax fmin fmod heaviside hypot inner isclose kron logaddexp logical_and "
    "logical_or logical_xor nextafter outer quantile nanquantile xlogy tensordot"
)
IN_PLACE: Final = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfinv exp exp2 expm1 floor log log10 log1p log2 nan_to_num "
    "negative reciprocal relu round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc tril triu"
)
HOOK: Final = "a subclass may do anything before and after super().forward(x); tape.on_gradient(t, f) sees gradients."

NAMES: Final[dict[str, dict[str, str]]] = {
    "Tensor": {
        "backward": TAPE, "grad": TAPE, "grad_fn": "tape.explain(loss)", "retain_grad": TAPE, "detach": "pb.stop_gradient(t)",
        "requires_grad": WATCHED, "requires_grad_": WATCHED,
        "is_leaf": "tapes watch Parameters, and tensors after tape.watch(t).", "register_hook": "tape.on_gradient(t, f)",
        "data": "a tensor is its value: use t itself, t.numpy() for its numbers, or p.assign(value) for a Parameter.",
        "cpu": 't.to("cpu")', "cuda": 't.to("cuda")', "is_cuda": "t.device", "float": "t.to(pb.float32)",
        "double": "t.to(pb.float64)", "half": "t.to(pb.float16)", "bfloat16": "t.to(pb.bfloat16)", "long": "t.to(pb.int64)",
        "int": "t.to(pb.int32)", "bool": "t.to(pb.bool)", "type": "t.astype(pb.float32)", "dim": "t.ndim", "numel": "t.size",
        "nelement": "t.size", "element_size": "t.itemsize", "get_shape": "t.shape", "view": "t.reshape",
        "view_as": "t.reshape(x.shape)", "reshape_as": "t.reshape(x.shape)", "permute": "pb.permute_dims(t, axes)",
        "unsqueeze": "pb.expand_dims(t, axis=0)", "expand": "pb.broadcast_to(t, shape)", "expand_as": "pb.broadcast_to(t, x.shape)",
        "contiguous": "every op takes any strides.",
        "clone": "t.copy()", "t": "t.T", "mm": "t @ x", "bmm": "t @ x", "mv": "t @ x", "add": "t + x",
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
        "block_until_ready": "pb.cuda.synchronize() waits for a GPU; the CPU computes at once.",
        "value": "use p itself, or p.numpy() for its numbers.",
        "read_value": "use p itself, or pb.copy(p) for its value now.", "assign_add": ADD, "assign_sub": SUB, "add_": ADD,
        "sub_": SUB, "mul_": "write p.assign(p * x), or p *= x, which does the same.",
        "div_": "write p.assign(p / x), or p /= x, which does the same.", "copy_": "p.assign(value)", "zero_": "p.assign(0 * p)",
        "fill_": "p.assign(pb.full_like(p, value))", "clamp_": "p.assign(p.clip(low, high))", "normal_": "nn.init.normal(p)",
        "uniform_": "nn.init.uniform(p)", "fill": IMMUTABLE, "put": IMMUTABLE, "itemset": IMMUTABLE, "resize": IMMUTABLE,
        "partition": IMMUTABLE, "setfield": IMMUTABLE, "setflags": IMMUTABLE, "conj": COMPLEX, "conjugate": COMPLEX,
        "real": COMPLEX, "imag": COMPLEX, "flat": "t.flatten()", "tobytes": "t.numpy().tobytes()", "tofile": "pb.save(path, t)",
        "dump": "pb.save(path, t)", "dumps": "pickle.dumps(t)", "strides": "t.array.strides", "stride": "t.array.strides",
        "repeat_interleave": "pb.repeat(t, n, axis=0)", "new_full": "pb.full(shape, value, t.dtype)",
        "new_empty": "pb.empty(shape, t.dtype)", "new": "pb.tensor(values, t.dtype)", "short": "t.to(pb.int16)",
        "char": "t.to(pb.int8)", "byte": "t.to(pb.uint8)", "type_as": "t.to(x.dtype)", "addmm": "t + a @ b", "addmv": "t + a @ b",
        "baddbmm": "t + a @ b", "lerp": "t + weight * (x - t)", "addcmul": "t + value * a * b", "addcdiv": "t + value * a / b",
        "rsub": "x - t", "neg": "-t", "subtract": "t - x", "divide": "t / x", "multiply": "t * x", "true_divide": "t / x",
        "floor_divide": "t // x", "remainder": "t % x", "bitwise_not": "~t", "bitwise_and": "t & x", "bitwise_or": "t | x",
        "bitwise_xor": "t ^ x", "logical_not": "pb.logical_not(t)", "greater": "t > x", "greater_equal": "t >= x", "less": "t < x",
        "less_equal": "t <= x", "not_equal": "t != x", "equal": "t == x gives a bool per element; pb.all(t == x) one for all.",
        "is_contiguous": "every op takes any strides.", "is_floating_point": 'pb.isdtype(t.dtype, "real floating")',
        "is_complex": COMPLEX, "is_sparse": SPARSE, "to_dense": SPARSE, "to_sparse": SPARSE, "coalesce": SPARSE,
        "is_pinned": "pb.data.Loader gathers batches on the device.", "pin_memory": "pb.data.Loader gathers batches on the device.",
        "share_memory_": "tensors can be pickled for other processes; each has its own copy.",
        "is_shared": "tensors can be pickled for other processes; each has its own copy.",
        "data_ptr": "t.array", "storage_offset": "t.array", "untyped_storage": "t.array", "get_device": "t.device",
        "is_cpu": "t.device", "layout": "t.array.flags", "ndimension": "t.ndim", "unflatten": "t.reshape",
        "split_with_sizes": "pb.split(t, positions)", "tensor_split": "pb.split(t, positions)", "hsplit": "pb.split(t, n, axis=1)",
        "vsplit": "pb.split(t, n, axis=0)", "select": "t[:, index]", "narrow": "t[start:stop]", "movedim": "pb.moveaxis(t, 0, 1)",
        "swapdims": "t.swapaxes(0, 1)", "take_along_dim": "pb.take_along_axis(t, indices, axis=1)",
        "index_put": "t.at[indices].set(values)", "index_copy": "t.at[indices].set(values)",
        "index_fill": "t.at[indices].set(value)",
        "masked_scatter": "t.at[mask].set(values)", "scatter_": IMMUTABLE, "scatter_add_": IMMUTABLE, "index_add_": IMMUTABLE,
        "index_copy_": IMMUTABLE, "index_fill_": IMMUTABLE, "index_put_": IMMUTABLE,
        "masked_fill_": "p.assign(pb.where(mask, value, p))",
        "fill_diagonal_": IMMUTABLE, "resize_": IMMUTABLE, "set_": IMMUTABLE, "squeeze_": "t.squeeze()", "unsqueeze_":
        "pb.expand_dims(t, axis=0)", "t_": "t.T", "transpose_": "t.swapaxes(0, 1)", "detach_": "pb.stop_gradient(t)",
        "apply_": "pb.vmap(f)(t)", "map_": "pb.vmap(f)(t)", "random_": "p.assign(pb.random.uniform(p.shape))",
        "exponential_": "p.assign(-pb.log(1 - pb.random.uniform(p.shape)))", "bernoulli_": "p.assign(pb.random.bernoulli(p.shape))",
        "bernoulli": "pb.random.uniform(t.shape) < t", "multinomial": DISTRIBUTIONS,
        "median": "pb.median is the mean of the two in the "
        "middle, and PyTorch's the lower one: pb.quantile(t, 0.5, method=\"lower\").",
        "nanmedian": 'pb.nanquantile(t, 0.5, method="lower")', "mode": NUMPY, "cov": NUMPY,
        "corrcoef": NUMPY,
        "histc": NUMPY, "bincount": "pb.segment_sum(pb.ones(t.shape), t)", "unique": "pb.unique_values(t)",
        "dist": "pb.linalg.norm(t - x)",
        "allclose": "pb.all(pb.isclose(t, x))", "absolute": "t.abs()", "arccos": "t.acos()", "arcsin": "t.asin()",
        "arctan": "t.atan()",
        "arccosh": "t.acosh()", "arcsinh": "t.asinh()", "arctanh": "t.atanh()", "arctan2": "pb.atan2(t, x)", "fix": "t.trunc()",
        "frac": "t - t.trunc()", "sgn": "t.sign()", "clamp_min": "t.clip(min=0.0)", "clamp_max": "t.clip(max=1.0)", "vdot":
        "pb.vecdot(t.flatten(), x.flatten())", "ger": "pb.outer(t, x)", "adjoint": "t.mT", "H": "t.T", "mH": "t.mT",
        "values": SPARSE, "indices": SPARSE, "compress": "t[mask]",
        "choose": "pb.where(condition, t, x)", "searchsorted": "pb.searchsorted(t, x)", "ptp": "t.max() - t.min()",
        "sum_to_size": "t.sum(axis=0)", "msort": "pb.sort(t, axis=0)", "kthvalue": "pb.sort(t)[..., k - 1]", "aminmax":
        "write t.min() and t.max().", "renorm": "nn.functional.normalize(t)",
        **{name: f"pb.linalg.{name}(t)" for name in ("det", "slogdet", "svd", "qr", "cholesky")}, "logdet": LOGDET,
        "inverse": "pb.linalg.inv(t)", "pinverse": "pb.linalg.pinv(t)", "matrix_power": "pb.linalg.matrix_power(t, n)",
        "lstsq": "pb.linalg.lstsq(t, x)",
        "as_list": "[*t.shape]", "set_shape": "tensors have all their lengths.", "eval": "t.numpy()", "op": SESSION,
        "graph": SESSION,
        "devices": "t.device", "sharding": ONE_DEVICE, "is_deleted": "t stays valid.",
        "weak_type": "pb.result_type",
        **{name: f"pb.{name}(t, axis=0)" for name in ("cummax", "cummin", "logcumsumexp")},
        **{name: f"pb.{name}(t)" for name in ALSO_FUNCTIONS.split()}, **{name: f"pb.{name}(t, x)" for name in OF_TWO.split()},
        **{f"{name}_": f"p.assign(pb.{name}(p))" for name in IN_PLACE.split()},
    },
    "GradientTape": {
        "backward": "call tape.gradient(loss, sources), which returns the gradients.",
        "watched_variables": "net.parameters() lists the Parameters of a Module; print(tape) counts what it watches.",
        "hessian": "pb.hessian(f)", "jvp": "pb.jvp(f, (x,), (v,))", "zero_grad": ZERO_GRAD,
    },
    "Optimizer": {
        "zero_grad": ZERO_GRAD, "apply_gradients": "opt.step(gradients)",
        "param_groups": "use opt.groups, whose values are attributes: opt.groups[0].lr = 0.1; opt.lr is that of all other groups.",
        "add_param_group": "give all groups when the optimizer is made: optim.SGD(parameters, groups={'*.bias': {'lr': 0.1}}).",
        "learning_rate": "opt.lr",
        "variables": "opt.parameters", "weights": "opt.parameters", "iterations": "opt.steps", "state": "opt.slots(p)",
        "update": "use opt.step(gradients), or opt.preview(gradients) for the change alone.", "get_lr": "opt.lr",
        "set_lr": "set opt.lr = 1e-3.", "init": "an optimizer has its state when it is made: opt.slots(p) shows it.",
        "trainable_variables": "opt.parameters", "params": "opt.parameters",
        **dict.fromkeys(("compute_gradients", "get_gradients"), "use tape.gradient(loss, opt.parameters)."),
        "get_config": "print(opt) shows the hyper-parameters.", "get_weights": "opt.state_dict()",
        "set_weights": "opt.load_state_dict(state)",
    },
    "LossScaler": {
        "unscale_": "scaler.step divides the gradients before the optimizer clips them: optim.SGD(parameters, lr, clip_norm=1.0).",
        "get_scale": "scaler.value", "get_growth_factor": "scaler.growth_factor", "get_backoff_factor": "scaler.backoff_factor",
        "get_growth_interval": "scaler.growth_interval", "is_enabled": "leave the scaler out: opt.minimize(loss_fn, scaler=None).",
    },
    "Cuda": {
        "empty_cache": "pb.cuda.trim()", "memory_allocated": "pb.cuda.memory()", "max_memory_allocated": "pb.cuda.memory()",
        "memory_summary": "pb.cuda.memory()", "set_device": DEVICE, "current_device": DEVICE, "device": DEVICE,
        "current_stream": "pb.cuda.stream", "Stream": "all work runs on one stream, pb.cuda.stream.",
        "manual_seed": "pb.random.seed(n) seeds every device.", "Event": "pb.profile() times launches on a GPU.", "amp": "pb.amp",
    },
    "Module": {
        "zero_grad": ZERO_GRAD, "cuda": MODULE_TO, "cpu": MODULE_TO, "float": MODULE_TO, "double": MODULE_TO,
        "half": MODULE_TO, "bfloat16": MODULE_TO, "type": MODULE_TO, "children": "use net.modules(), which includes net itself.",
        "named_children": "use net.named_modules(), which includes net itself.",
        "register_parameter": "set an attribute: self.scale = pb.Parameter(1.0).",
        "register_buffer": "set an attribute: self.count = nn.Buffer(0.0).",
        "add_module": "set an attribute: self.head = nn.Linear(8, 2).",
        "register_module": "set an attribute: self.head = nn.Linear(8, 2).",
        **dict.fromkeys(("requires_grad_", "freeze", "unfreeze"), FREEZE),
        **dict.fromkeys(("trainable_variables", "trainable_weights", "trainable_parameters"), TRAINABLE),
        "non_trainable_variables": "net.buffers()", "non_trainable_weights": "net.buffers()", "variables": "net.parameters()",
        "weights": "net.parameters()", "get_weights": "net.state_dict()", "set_weights": "net.load_state_dict(state)",
        "save_weights": "pb.save(path, net.state_dict())", "load_weights": "net.load_state_dict(pb.load(path))",
        "fit": "training is a Python loop: for x, y in loader: opt.minimize(lambda: nn.mse(net(x), y)).",
        "apply": "for m in net.modules(): f(m).", "share_memory": "a Module can be pickled for other processes.",
        "get_submodule": "dict(net.named_modules())[path]", "get_parameter": "dict(net.named_parameters())[path]",
        "to_empty": MODULE_TO, "compile": "pb.capture(f)", "register_forward_pre_hook": HOOK, "register_backward_hook":
        "tape.on_gradient(t, f)", "layers": "net.modules()", "evaluate": METRICS, "predict": "net(x)", "count_params":
        "sum([p.size for p in net.parameters()])", "init": "a Module has its Parameters when it is made.", "build":
        "a Module has its Parameters when it is made.", "call": "name the method forward.", "add_weight": "pb.Parameter(value)",
        "summary": "print(net) lists the modules inside, and pb.profile() counts what they cost.", "named_buffers": "net.buffers()",
        "register_forward_hook": HOOK, "kernel": "net.weight", "gamma": "net.weight", "beta": "net.bias",
        "save": "pb.save(path, net.state_dict())", "get_layer": "dict(net.named_modules())[path]",
        **dict.fromkeys(("losses", "add_loss"), "add what you want to the loss: loss + 0.01 * pb.sum(net.weight ** 2)."),
        "add": "make the Sequential from its layers: nn.Sequential(nn.Linear(8, 8), nn.ReLU()).",
        "register_full_backward_hook": "tape.on_gradient(t, f)", "all_weights": "net.parameters()", "flatten_parameters":
        "the weights of a recurrent layer need no such call: its kernels read them where they are.",
        "reset_parameters": "make the layer again, or draw its weights with nn.init.uniform(net.weight, -0.1, 0.1).",
    },
    "At": {
        **dict.fromkeys(("divide", "div"), "t.at[index].set(t[index] / x)"), "mul": "t.at[index].multiply(x)",
        **dict.fromkeys(("power", "pow"), "t.at[index].set(t[index] ** x)"), "sub": "t.at[index].add(-x)",
        "subtract": "t.at[index].add(-x)", "apply": "write t.at[index].set(f(t[index])).",
    },
    "Loader": {
        **dict.fromkeys(("batch", "map", "repeat", "cache", "take", "skip", "as_numpy_iterator"), NO_PIPELINE),
        **dict.fromkeys(("dataset", "sampler", "collate_fn", "num_workers", "enumerate"), NO_PIPELINE),
        "prefetch": "a Loader that reads from the host (memory-mapped files, or from_host=True) reads two batches ahead.",
        "cardinality": "len(loader) is the number of batches.",
    },
    "Schedule": {
        "step": ADVANCES, "get_last_lr": ADVANCES, "get_lr": ADVANCES,
        "get_config": "print(optim.schedules.Cosine(1e-3, steps=1000)) shows all numbers of a schedule.",
    },
}  # fmt: skip
