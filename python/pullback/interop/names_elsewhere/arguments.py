"""Arguments of functions in TensorFlow, PyTorch, JAX and NumPy that pullback's functions do not take, with what to write."""

from __future__ import annotations

from typing import Final

from .sentences import EXPONENTIAL

OF_RULE: Final = "| the rule is always computed by one fused kernel, which pb.capture can record."
SPLITS: Final = "| it is sections= here: a number of equal parts, or the positions to cut at, which are no sizes."
STATIC: Final = "| arguments that are not tensors are static by themselves: another value makes another recording."
DONATE: Final = "| Parameters and an optimizer's state are updated in place, and arguments are never copied, so nothing is donated."
GENERATORS: Final = "| there are no keys: pb.random.seed(n) seeds, and pb.random.Generator(n) is a stream of its own."

TOLERANCE: Final = "| a tolerance is relative here: rtol=, a share of the largest singular value."
ONE_ALGORITHM: Final = "| there is one algorithm, by singular values (LAPACK's gesdd)."
UNCHANGED: Final = "| tensors are immutable, so the arguments stay as they are."
LAST_AXES: Final = "| the matrices are the last two axes: move them there with pb.moveaxis."
SYMMETRIC: Final = (
    "| x stands for its symmetric part (x + x.mT) / 2; pb.tril(x) + pb.tril(x, k=-1).mT has a lower triangle on both sides."
)

# The keyword arguments of functions of matrices, in the form of KEYWORDS.
OF_MATRICES: Final = {
    "UPLO": SYMMETRIC, "symmetrize_input": SYMMETRIC, "compute_uv": "| pb.linalg.svdvals(x) gives the values alone.",
    "eigvals_only": "| pb.linalg.eigvalsh(x) gives the values alone.", "some":
    '| some=True is full_matrices=False of svd, and mode="reduced" of qr.', "rcond": "rtol", "rtol": "rcond", "cond": "rtol rcond",
    "tol": f"gtol ftol {TOLERANCE}", "atol": TOLERANCE, "hermitian":
    "| matrices of any kind, symmetric ones too, are computed alike.",
    "driver": ONE_ALGORITHM, "lapack_driver": ONE_ALGORITHM, "left": "| write pb.linalg.solve(a.mT, b.mT).mT for x a = b.",
    "lower": "| lower=True is upper=False of cholesky and solve_triangular; other functions read the whole matrix.",
    "trans": "| transpose the matrix: pb.linalg.solve_triangular(a.mT, b, upper=True) for a lower triangle.",
    "unit_diagonal": "unitriangular", "assume_a":
    "| solve takes any matrix; cholesky and solve_triangular are faster for a positive definite one.",
    "overwrite_a": UNCHANGED, "overwrite_b": UNCHANGED,
    "check_finite": "| what would not end with NaN is always checked, and all else returns NaN.",
    "pivoting": "| columns stay in order.",
    "return_rank": "| pb.linalg.matrix_rank(x) gives the rank.", **dict.fromkeys(("axis1", "axis2", "dim1", "dim2"), LAST_AXES),
}  # fmt: skip

# What to write for a call whose arguments do not fit the function in a way that users of other libraries expect.
CALLS: Final = {
    "vector_norm": "Write pb.linalg.vector_norm(x, ord=2, axis=0), or pb.linalg.norm(x, 2, 0), which takes them by position.",
    "matrix_norm": 'Write pb.linalg.matrix_norm(x, ord="fro"), or pb.linalg.norm(x, "fro"), which takes it by position.',
    "reshape": "The shape is one argument: pb.reshape(t, (2, 3)).", "permute_dims": "The axes are one argument: (1, 0).",
    "broadcast_to": "The shape is one argument: (2, 3).", "tile": "The repetitions are one argument: (2, 1).",
    "flatten": "It joins all axes, in row-major order; t.reshape(t.shape[0], -1) keeps the first.",
    "pullback": "The cotangents are one argument, in the structure of the value: pullback((v, w)) for a tuple of two.",
    "MultiheadAttention(...)": "The attention of x to itself is net(x, x, x).",
    "where": "pb.nonzero(mask) gives the places where a mask is true.", "to": 'Write t.to("cuda") or t.to(pb.float64).',
}  # fmt: skip

ONE_INPUT: Final = (
    "the layer takes one x, which is query, key and value; nn.MultiheadAttention(...)(query, key, value) takes three."
)
BATCH_FIRST: Final = "x is (batch, T, embed_dim); nn.MultiheadAttention takes the other order, too."
CAUSAL: Final = "make the layer with causal=True."
OPPOSITE: Final = "it is mask= here, True where a query sees a key, which is the opposite of nn.MultiheadAttention."
FIRST_STATE: Final = (
    "the state before the first step is the second argument: net(x, h), and net(x, (h, c)) for an LSTM. None means zeros."
)

BATCHED: Final = "all rows or columns are computed in one batched pass, and chunk= says how many at once."
DEPENDS: Final = "an argument that the value does not depend on gets zeros and a ZeroGradientWarning."
CONVERTED: Final = "convert before: pb.{}(t.astype(dtype))."
IN_RANGE: Final = "an index that is out of range raises IndexError: choose those in range before, t.at[i[i < t.shape[0]]]."
UNUSED: Final = "any indices may be given, so leave it out."
HEAD: Final = "a head has embed_dim / num_heads features; nn.MultiHeadAttention takes head_dim=."
DIRECTION: Final = "the direction is tangents= here."

# Keyword arguments of one function, or of the call of a layer, which is written with "(…)".
KEYWORDS_OF: Final[dict[str, dict[str, str]]] = {
    "matrix_norm": dict.fromkeys(
        ("dim", "axis", "axes"), "the matrices are the last two axes; pb.linalg.norm(x, ord, axis=(0, 1)) takes those of others."
    ),
    **{f"At.{name}": {**dict.fromkeys(("mode", "fill_value", "wrap_negative_indices"), IN_RANGE),
                      **dict.fromkeys(("indices_are_sorted", "unique_indices"), UNUSED)}
       for name in ("set", "add", "max", "min", "multiply", "get")},
    **{name: {"initial": f"write pb.{name}(t) {sign} initial."} for name, sign in (("sum", "+"), ("prod", "*"))},
    **{name: {"initial": f"write pb.{larger}(pb.{name}(t), initial).", "dtype": CONVERTED.format(name)}
       for name, larger in (("max", "maximum"), ("min", "minimum"))},
    **{name: {"dtype": CONVERTED.format(name)} for name in ("mean", "std", "var", "softmax", "log_softmax")},
    "qr": {
        "full_matrices": 'full_matrices=True is mode="complete" here, and False is mode="reduced".',
        "overwrite_a": UNCHANGED.removeprefix("| "),
    },
    "solve": {"upper": "pb.linalg.solve_triangular(a, b, upper=True) is for a triangle."},
    "cross": dict.fromkeys(("axisa", "axisb", "axisc"), "axis= is the same for all: move the others with pb.moveaxis."),
    "jacobian": {
        "strategy": 'it is mode= here: "forward" for "forward-mode", "reverse" for "reverse-mode".', "vectorize": BATCHED,
        "strict": DEPENDS,
    },
    "hessian": {
        **dict.fromkeys(("outer_jacobian_strategy", "mode"), "it is always the Jacobian of the gradient, by forward mode."),
        "vectorize": BATCHED, "strict": DEPENDS,
    },
    "vjp": {"v": "pb.vjp(f, x) returns the value and a function, which takes v.", "strict": DEPENDS},
    "jvp": {"v": DIRECTION, "inputs": "it is primals= here.", "strict": DEPENDS},
    "hvp": {"v": DIRECTION, "inputs": "it is primals= here.", "strict": DEPENDS},
    "MultiheadAttention": {"key_dim": HEAD, "value_dim": HEAD, "head_dim": HEAD},
    "associative_scan": {
        "fn": "it is combine= here.", "f": "it is combine= here.", "combine_fn": "it is combine= here.", "elems": "it is xs= here.",
        "combine_mode": "every function of tensors can combine, so there is no choice of a mode.",
    },
    "scan": {
        "fn": "it is f= here.", "combine_fn": "it is f= here.", "elems": "it is xs= here.",
        "initializer": "it is init= here.",
        **dict.fromkeys(("axis", "dim"),
                        "the steps are along the first axis; move another one there with pb.moveaxis(xs, axis, 0)."),
    },
    "linear_recurrence": dict.fromkeys(("h0", "init", "carry", "x0", "y0"), "the y before the first step is initial= here."),
    "scaled_dot_product_attention": {
        **dict.fromkeys(("mask", "bias"), "it is attn_mask= here: bools, True where a query sees a key, or floats that are added."),
        "causal": "it is is_causal= here.", "dropout": "it is dropout_p= here.",
        **dict.fromkeys(("q", "k", "v"), "they are query=, key= and value= here."),
    },
    "MultiHeadAttention(...)": {
        **dict.fromkeys(("query", "key", "value", "inputs_q", "inputs_k", "inputs_v", "inputs_kv"), ONE_INPUT),
        "attn_mask": OPPOSITE, "attention_mask": "it is mask= here.", "is_causal": CAUSAL, "use_causal_mask": CAUSAL,
        "key_padding_mask": "write mask=~padding[:, None, None, :], because True here is where a query sees a key.",
        **dict.fromkeys(("need_weights", "average_attn_weights", "return_attention_scores"),
                        "the weights are never formed; nn.MultiheadAttention returns them."),
    },
    "MultiHeadAttention": {
        **dict.fromkeys(("kdim", "vdim", "add_bias_kv", "add_zero_attn"), ONE_INPUT), "batch_first": BATCH_FIRST,
        "is_causal": "it is causal= here.", "key_dim": "it is head_dim= here.", "d_model": "it is embed_dim= here.",
        "num_query_heads": "it is num_heads= here.",
        **dict.fromkeys(("num_key_value_heads", "num_heads_kv", "n_kv_heads", "kv_heads"), "it is num_kv_heads= here."),
    },
    **{f"{layer}{cell}(...)": dict.fromkeys(("h0", "h_0", "c_0", "hidden", "h", "state", "initial_state", "carry"), FIRST_STATE)
       for layer in ("RNN", "LSTM", "GRU") for cell in ("", "Cell")},
    **{f"{layer}(...)": dict.fromkeys(("h0", "h_0", "hidden", "hx", "state", "initial_state", "carry"), FIRST_STATE)
       for layer in ("MinGRU", "LRU")},
}  # fmt: skip

# Keyword arguments: the keywords that a keyword may be here, of which the first that the function has is named, and after a bar a
# sentence for functions that have none of them.
KEYWORDS: Final = {
    "dim": "axis axes", "dims": "axes axis shape repetitions", "axes": "axis", "keepdim": "keepdims", "keep_dims": "keepdims",
    "perm": "axes | the axes are given by position: pb.transpose(t, 1, 0).", "permutation": "axes", "shifts": "shift",
    "multiples": "repetitions", "reps": "repetitions",
    "num_or_size_splits": SPLITS, "split_size_or_sections": SPLITS, "split_size": SPLITS,
    "indices_or_sections": "sections", "chunks": "sections chunk", "values": "arrays", "tensors": "arrays", "paddings": "pad_width",
    "pad": "pad_width", "value": "fill_value obj", "initial_value": "obj", "end": "stop", "limit": "stop", "delta": "step",
    "start_dim": "| write t.reshape(t.shape[0], -1).", "tensor": "| the first argument is given by position.",
    **dict.fromkeys(("transpose_a", "adjoint_a"), "| write pb.matmul(a.mT, b)."),
    **dict.fromkeys(("transpose_b", "adjoint_b"), "| write pb.matmul(a, b.mT)."),
    "labels": "target", "y_true": "target", "targets": "target", "y_pred": "x logits",
    "logits": "x", "from_logits": "| nn.cross_entropy and nn.bce_with_logits take logits, nn.nll logarithms.",
    "size_average": "reduction", "reduce": "reduction",
    "initializer": "| initialize it afterwards: nn.init.xavier_uniform(p).",
    "kernel_regularizer": "| add it to the loss: loss + 0.01 * pb.sum(net.weight ** 2).", "rho": "alpha",
    "output_type": "| convert with .astype(pb.int32).", "input_dim": "in_features", "output_dim": "out_features",
    "kernel_initializer": "| assign afterwards: nn.init.xavier_uniform(net.weight).", "bias_initializer":
    "| assign afterwards: nn.init.zeros(net.bias).", "activation": "| follow the layer by another: nn.Sequential(net, nn.ReLU()).",
    **dict.fromkeys(("training", "train", "deterministic"), "| net.train() and net.eval() set it for all layers."),
    "mode": "training",
    "direction": "descending", "stable_sort": "stable", "generator": "| a generator draws by its methods: generator.normal(shape).",
    "key": GENERATORS, "rng": GENERATORS, "seed": GENERATORS, "as_tuple": "| the result is a tuple with one tensor per axis.",
    "return_counts": "| write pb.unique_counts(t).", "return_inverse": "| write pb.unique_inverse(t).",
    "device": 'target | write net.to("cuda") or t.to("cuda").',
    "dtype": "target | convert before the call, with t.astype(dtype), or net.to(dtype) for a Module.",
    "memory_format": "| every op takes any strides.", "non_blocking": "| copies between devices wait.", "order":
    "| elements are in row-major order.", "copy": "| write pb.copy(t).", "ndmin": "| write t.reshape(1, -1).", "subok":
    "| the result is a Tensor.", "casting": "| convert with t.astype(pb.float32).",
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
    "decay_steps": f"steps | {EXPONENTIAL}",
    "transition_steps": "steps | Exponential has factor=decay_rate ** (1 / transition_steps), Step has every=transition_steps.",
    "staircase": "| write optim.schedules.Step(base, every=decay_steps, factor=decay_rate).", "peak_value": "base",
    "init_value": "| base= is the first rate; that of WarmupCosine is start=, and base= the highest.",
    "end_value": "| it is end= here, which Linear multiplies by base.",
    "end_learning_rate": "end", "warmup_steps": "warmup", "boundaries": "every milestones", "drop_remainder": "drop_last",
    "map_location": "device", "weights_only": "| nothing in a file is ever run, so all files are safe to load.",
    "var_list": "| an optimizer updates opt.parameters, and opt.step(gradients) leaves those alone whose gradient is None.",
    **dict.fromkeys(("fused", "foreach", "capturable", "differentiable"), OF_RULE),
    "decoupled_weight_decay": "| use optim.AdamW, whose weight_decay is decoupled.",
    "maximize": "| minimize the negative: opt.minimize(lambda: -f()).", "total_steps": "steps", "num_training_steps": "steps",
    "T_0": "steps", "T_mult": "growth", "max_lr": "high base", "pct_start": "warmup", "step_size_up": "up",
    "step_size_down": "down", "base_lr": "base", "step_size": "every", "gamma": "decay factor", "decay_rate": f"| {EXPONENTIAL}",
    "eta_min": "end", "min_lr": "end", "lr_lambda": "function", "schedulers": "schedules",
    **dict.fromkeys(("cycle_momentum", "base_momentum", "max_momentum"),
                    "| a schedule is one of the learning rate; set opt.momentum before a step."),
    "initial_learning_rate": "base", "use_bias": "bias", "rate": "p", "units": "out_features hidden_size",
    "alpha": "negative_slope", "negative_slope": "alpha",
    "num_workers": "| arrays live on the device, and a thread reads memory-mapped files ahead, so there are no workers.",
    "prefetch_factor": "| two batches are read ahead if they are read from the host (from_host=True, or memory-mapped files).",
    "pin_memory": "| arrays live on the device, and batches that are read from the host pass through pinned memory.",
    "collate_fn": "| a batch has the structure of the arrays.", "ddof": "correction", "num_classes": "depth", "size": "shape",
    "diagonal": "k", "steps": "num", "p": "ord", "grad_outputs": "output_gradients", "allow_unused": "unconnected",
    "retain_graph": "| make the tape with persistent=True.",
    "create_graph": "| record the gradient on an outer tape: pb.GradientTape blocks nest.", "loc": "mean", "scale": "std",
    "stddev": "std", "minval": "low", "maxval": "high", "argnum": "argnums", "in_dims": "in_axes", "out_dims": "out_axes",
    "learning_rate": "lr", "epsilon": "eps", "max_value": "c max",
    "kernel_constraint": "| set it afterwards: net.weight.constraint = optim.constraints.MaxNorm(2, axis=1).",
    "bias_constraint": "| set it afterwards: net.bias.constraint = optim.constraints.NonNegative().",
    "decay": "| Keras's decay is that of the learning rate: pass a schedule as lr; weight_decay= is another thing.",
    **dict.fromkeys(("beta_1", "beta_2", "b1", "b2"), "| it is the pair betas=(0.9, 0.999) here."),
    "global_clipnorm": "clip_norm", "clipvalue": "clip_value",
    "clipnorm": "| Keras clips each gradient by itself; clip_norm= here is the joint norm, which is Keras's global_clipnorm=.",
    "static_argnums": STATIC, "static_argnames": STATIC, "donate_argnums": DONATE, "donate_argnames": DONATE,
    "input_signature": "| each signature of shapes and dtypes is recorded when it is first called, and cache= are kept.",
    "reduce_retracing": "| each signature of shapes and dtypes has its own recording, and cache= are kept.",
    "holomorphic": "| there are no complex dtypes.",
    "allow_int": "| derivatives are by floating-point tensors: convert integers with t.astype(pb.float32).",
    "axis_name": "| there are no named axes: reduce the result of pb.vmap(f) outside, with pb.sum or pb.mean.",
    "axis_size": "| the number of examples is that of the arguments' axes.",
    "randomness": "| every example draws different random numbers, also from one Generator.",
    "chunk_size": "chunk | all examples run at once; call the result on slices of the batch to use less memory.",
    **dict.fromkeys(("return_sequences", "return_state"), "| a layer returns h at every step, and the last state: y, h = net(x)."),
    "reset_after": "| the reset gate acts after the matrix product, as with reset_after=True.",
    "recurrent_activation": "| the activation of the gates is always the sigmoid.",
    "recurrent_dropout": "| dropout= acts between layers; a layer does not drop elements of its own state.",
    "go_backwards": "| write net(pb.flip(x, axis=0)); a layer with bidirectional=True runs in both directions.",
    "stateful": "| give the last state to the next call: y, h = net(x, h).",
    "time_major": "| the steps come first, unless batch_first=True.",
    "unroll": "| the loop is always unrolled.",
    "policy": "| only the arguments are kept: wrap a part of f to keep more.",
    "use_reentrant": "| there is one kind of checkpoint.",
    "preserve_rng_state": "| the random numbers are always the same again.",
    "fullgraph": "| a recording is always whole: code that a replay could not repeat raises CaptureError.",
    **OF_MATRICES,
    "jit_compile": "| nothing is compiled: pb.capture(f) records the kernels of one call and repeats them.",
}  # fmt: skip
