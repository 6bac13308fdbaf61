"""Sentences that answer several names."""

from __future__ import annotations

from typing import Final

TAPE: Final = (
    "a tape computes gradients and returns them: `with pb.GradientTape() as tape: loss = f(x)`, then tape.gradient(loss, "
    "net.parameters())."
)
NO_GRAD: Final = (
    "nothing is recorded outside of a tape, so this is not needed. Inside one use `with tape.stop_recording():`, or "
    "pb.stop_gradient(t) for one tensor."
)
IMMUTABLE: Final = "tensors are immutable: use the result of an op, t.at[index].set(value), or p.assign(value) for a Parameter."
ADD: Final = "write p.assign(p + x), or p += x, which does the same."
SUB: Final = "write p.assign(p - x), or p -= x, which does the same."
ZERO_GRAD: Final = "gradients are returned by tape.gradient(...) and never accumulated, so there is nothing to set to zero."
CLIP: Final = "the optimizer clips inside its step: optim.Adam(net.parameters(), clip_norm=1.0), or clip_value= for each element."
GLOBAL_NORM: Final = "write pb.sqrt(sum([pb.sum(pb.square(g)) for g in pb.tree.leaves(gradients)]))."
CLIP_ONE: Final = (
    "it clips one tensor: g * pb.minimum(1.0, most / pb.linalg.norm(g)). The clip_norm= of an optimizer is the joint norm of all."
)
CLIP_ALL: Final = (
    "an optimizer clips the joint norm of its gradients: optim.Adam(net.parameters(), clip_norm=1.0). For two optimizers scale by "
    "hand: norm = pb.linalg.norm(pb.concat([g.flatten() for g in gradients]))."
)
CATEGORICAL: Final = (
    "it is nn.cross_entropy(logits, target) here, which takes logits; for probabilities write nn.nll(pb.log(p), target)."
)
BINARY: Final = (
    "it is nn.binary_cross_entropy(p, target) here for probabilities, and nn.bce_with_logits(logits, target) for from_logits=True."
)
EXPONENTIAL: Final = (
    "write optim.schedules.Exponential(base, factor=decay_rate ** (1 / decay_steps)); with staircase=True it is "
    "optim.schedules.Step(base, every=decay_steps, factor=decay_rate)."
)
CROSS_ENTROPY: Final = 'it is nn.cross_entropy with reduction="none"; the default is the mean.'
RULES: Final = "this rule is not here yet. `dir(pullback.optim)` lists those that are."
FACTORS: Final = "this factorisation is not here yet. pb.linalg has cholesky, qr, eigh, svd and what is solved with them."
LU: Final = (
    "the factors of LU are not here. pb.linalg.solve(a, b), inv, det and slogdet factorise the matrix themselves; for several "
    "right sides write pb.linalg.solve(a, pb.stack([b, c], axis=-1))."
)
HOUSEHOLDER: Final = "reflectors are not here. pb.linalg.qr(t) returns Q and R as matrices."
TENSOR_SOLVE: Final = (
    "write pb.reshape(pb.linalg.solve(pb.reshape(a, (b.size, b.size)), pb.reshape(b, (b.size,))), a.shape[b.ndim:])."
)
TENSOR_INV: Final = (
    "with n = math.prod(t.shape[:ind]), write pb.reshape(pb.linalg.inv(pb.reshape(t, (n, n))), t.shape[ind:] + t.shape[:ind])."
)
CHOLESKY_SOLVE: Final = (
    "solve twice with the factor: y = pb.linalg.solve_triangular(c, b, upper=False), then pb.linalg.solve_triangular(c.mT, y, "
    "upper=True)."
)
OF_SYMMETRIC: Final = (
    "functions of matrices are not here yet. For a symmetric matrix write w, v = pb.linalg.eigh(t), then (v * f(w)) @ v.mT."
)
LOGDET: Final = "pb.linalg.slogdet(t) has the sign of the determinant and the logarithm of its absolute value."
EIGENVALUES: Final = (
    "a matrix that is not symmetric may have complex eigenvalues, and there are no complex dtypes. pb.linalg.eigh is for symmetric "
    "ones; for others NumPy's takes a copy and has no derivative: np.linalg.eig(t.numpy())."
)
CONTROL: Final = (
    "write a Python if, for or while: a tape records the ops that ran. pb.where(condition, a, b) chooses per element, and pb.scan "
    "repeats a function; both can be captured."
)
CAPTURE: Final = "it is pb.capture(f) here, and goes outermost: around pb.grad, pb.vmap and tapes, as in pb.capture(pb.grad(f))."
DEVICE: Final = 'a device is a string: t.to("cuda:1"), and `with pb.use_device("cuda"):` for new tensors.'
STACK: Final = "use pb.concat([a, b], axis=0) for an axis that exists, pb.stack([a, b], axis=0) for a new one."
LIST: Final = "a Module finds Parameters and Modules in Python's own lists and dicts: self.layers = [nn.Linear(8, 8), nn.ReLU()]."
SESSION: Final = "there are no graphs and sessions: ops run when they are called, and pb.capture(f) makes a function fast."
GENERATOR: Final = "pb.random.seed(n) sets the seed, and pb.random.Generator(n) is a stream of its own."
SCHEDULE: Final = (
    "pass a schedule as the learning rate, lr=optim.schedules.Cosine(1e-3, steps=1000), or set opt.lr at any time. With "
    "optim.schedules.ReduceOnPlateau, opt.observe(loss) lowers the rate when the loss of the validation stops falling."
)
WATCHED: Final = (
    "a tape watches trainable Parameters by itself, and other tensors after tape.watch(t). p.trainable = False freezes a Parameter."
)
COMPLEX: Final = "there are no complex dtypes; keep the real and the imaginary part in two tensors."
MODULE_TO: Final = 'net.to("cuda") or net.to("cpu") moves it, net.to(pb.float16) or net.to(pb.float64) converts it.'
FREEZE: Final = "net.trainable = False freezes all Parameters inside, p.trainable = False one of them."
TRAINABLE: Final = "write [p for p in net.parameters() if p.trainable]; opt.parameters are those that the optimizer updates."
NO_PIPELINE: Final = "a Loader has the whole arrays: pb.data.Loader((x, x), batch_size=32, shuffle=True, drop_last=False)."
ADVANCES: Final = (
    "opt.step(gradients) advances the schedule by itself, and opt.observe(metric) moves a ReduceOnPlateau; opt.lr is the rate of "
    "the next step."
)
LAYERS: Final = "this layer is not here yet. `dir(pullback.nn)` lists those that are; a subclass of nn.Module may be any other."
LOSSES: Final = "this loss is not here yet. A loss is a function: write its formula in functions of pb."
DISTRIBUTIONS: Final = (
    "transform what pb.random.uniform or pb.random.normal drew, or give pb.asarray the numbers that NumPy drew. Classes of "
    "log-probabilities x are pb.argmax(x - pb.log(-pb.log(pb.random.uniform(x.shape))), axis=-1)."
)
NO_ONNX: Final = "there is no export to ONNX; pb.save(path, net.state_dict()) writes safetensors."
NO_HUB: Final = "nothing is downloaded here. Load the weights with their own library, and give them to net.load_state_dict."
ONE_DEVICE: Final = "one device runs a program."
METRICS: Final = "a metric is an expression: pb.mean(pb.argmax(t, axis=1) == x) is the accuracy."
SAVING: Final = "write pb.save(path, net.state_dict()), or pb.save_training(path, net, opt) to resume a run."
DATA: Final = "pb.data.Loader takes the arrays themselves: pb.data.Loader([x, y], batch_size=32)."
NUMPY: Final = "this function is not here. NumPy's takes a copy and has no derivative; call it with t.numpy()."
SPARSE: Final = "there are no sparse and no ragged tensors. pb.take, pb.segment_sum and t.at[indices].add(values) work on indices."
SCOPE: Final = "ops have no names here; a profile names them by their module and line."
DTYPE: Final = 'a dtype is NumPy\'s: pb.float32 is np.dtype("float32").'
PYTREE: Final = "lists, tuples, dicts and dataclasses are trees; other classes are leaves."
