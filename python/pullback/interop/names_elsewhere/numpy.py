"""Names of NumPy."""

from __future__ import annotations

from typing import Final

from .sentences import COMPLEX, DISTRIBUTIONS, GENERATOR, IMMUTABLE, NUMPY, STACK

NAMES: Final[dict[str, dict[str, str]]] = {
    "pullback": {
        "array": "pb.tensor", "asanyarray": "pb.asarray", "ascontiguousarray": "pb.copy", "asnumpy": "t.numpy()",
        "ndarray": "pb.Tensor", "concatenate": "pb.concat", "vstack": STACK, "hstack": STACK, "dstack": STACK,
        "row_stack": STACK, "column_stack": STACK, "append": "pb.concat",
        "array_split": "pb.split cuts into n equal parts, or at a list of positions: pb.split(t, [3, 5]).", "vsplit": "pb.split",
        "hsplit": "pb.split", "dot": "use a @ b, which is pb.matmul(a, b); pb.vecdot(a, b) gives the products of rows.",
        "vdot": "pb.vecdot(a.flatten(), b.flatten())", "arcsin": "pb.asin", "arccos": "pb.acos", "arctan": "pb.atan",
        "arctan2": "pb.atan2", "arcsinh": "pb.asinh", "arccosh": "pb.acosh", "arctanh": "pb.atanh", "absolute": "pb.abs",
        "fabs": "pb.abs", "power": "pb.pow", "mod": "pb.remainder", "rint": "pb.round", "around": "pb.round", "fix": "pb.trunc",
        "invert": "pb.bitwise_invert", "bitwise_not": "pb.bitwise_invert", "left_shift": "pb.bitwise_left_shift",
        "right_shift": "pb.bitwise_right_shift", "amax": "pb.max", "amin": "pb.min", "cumsum": "pb.cumulative_sum(t, axis=0)",
        "cumprod": "pb.cumulative_prod(t, axis=0)", "ravel": "t.flatten()",
        "flatten": "t.flatten() joins all axes, and t.reshape(t.shape[0], -1) keeps the first.",
        "flipud": "pb.flip(t, axis=0)", "fliplr": "pb.flip(t, axis=1)", "digitize": 'pb.searchsorted(bins, t, side="right")',
        "unique": "pb.unique_values has the values alone, pb.unique_counts, pb.unique_inverse and pb.unique_all have more.",
        "allclose": "pb.all(pb.isclose(a, b))", "array_equal": "pb.all(pb.equal(a, b))",
        "average": "write pb.sum(x * t) / pb.sum(x) for weights x, and pb.mean(t) without.", "conj": COMPLEX,
        "conjugate": COMPLEX, "real": COMPLEX, "imag": COMPLEX, "mgrid": "pb.meshgrid", "apply_along_axis": "pb.vmap(f)",
        "set_printoptions": "tensors print as NumPy's arrays do: call np.set_printoptions.", "copyto": IMMUTABLE,
        "put": IMMUTABLE, "fill_diagonal": IMMUTABLE,
        "interp": NUMPY, "insert": "pb.concat([t[:i], x, t[i:]])", "delete": "pb.concat([t[:i], t[i + 1 :]])",
        "tri": "pb.tril(pb.ones((n, n)))", "cbrt": "pb.sign(t) * pb.abs(t) ** (1 / 3)", "ptp": "pb.max(t) - pb.min(t)",
        "compress": "t[mask]", "extract": "t[mask]", "flatnonzero": "pb.nonzero(t.flatten())[0]", "argpartition": "pb.argsort(t)",
        "partition": "pb.sort(t)", "lexsort": NUMPY, "resize": IMMUTABLE, "place": IMMUTABLE, "putmask": IMMUTABLE,
        "put_along_axis": IMMUTABLE, "ediff1d": "pb.diff(t.flatten())", "geomspace": "pb.exp(pb.linspace(pb.log(a), pb.log(b), n))",
        "rollaxis": "pb.moveaxis", "degrees": "pb.rad2deg", "radians": "pb.deg2rad", "float_": "pb.float64", "int_": "pb.int64",
        "single": "pb.float32", "longlong": "pb.int64", "intc": "pb.int32", "uint": "pb.uint64", "ushort": "pb.uint16",
        "ulong": "pb.uint64", "intp": "pb.int64", "ndim": "t.ndim", "isscalar": "t.ndim == 0", "dsplit": "pb.split(t, n, axis=2)",
        "block": STACK, "atleast_3d": "t.reshape", "promote_types": "pb.result_type", "common_type": "pb.result_type",
        "issubdtype": 'pb.isdtype(t.dtype, "real floating")', "errstate": "pb.debug_nans()", "modf":
        "write pb.trunc(t) and t - pb.trunc(t).", "divmod": "write t // x and t % x.", "matvec": "pb.matmul", "vecmat": "pb.matmul",
        "piecewise": "pb.where(condition, a, b)", "choose": "pb.where(condition, a, b)", "ix_": "t[rows[:, None], columns]",
        "frombuffer": "give it NumPy's: pb.asarray(np.frombuffer(data)).", "fromiter": "pb.tensor([*x])",
        "loadtxt": "pb.asarray(np.loadtxt(path))", "genfromtxt": "pb.asarray(np.genfromtxt(path))",
        "fromfile": "pb.asarray(np.fromfile(path))", "savez": "pb.save(path, tree)", "savetxt": "np.savetxt(path, t.numpy())",
        "asfortranarray": "tensors are in row-major order; t.T is a view.", "require": "pb.asarray", "shares_memory":
        "np.shares_memory(t.numpy(), x)", "array_equiv": "pb.all(pb.equal(a, b))", "einsum_path": "np.einsum_path",
        "isnat": "pb.isnan",
        "bitwise_count": NUMPY, "spacing": "pb.nextafter(t, pb.inf) - t",
        "nditer": "tensors are computed as a whole: pb.vmap(f)(t).",
        "apply_over_axes": "pb.sum(t, axis=(0, 1))", "frompyfunc": "pb.vmap(f)", "fromfunction": "f(*pb.meshgrid(a, b))",
        "indices": "pb.meshgrid(a, b, indexing=\"ij\")", "ogrid": "pb.meshgrid(a, b, indexing=\"ij\")", "r_": STACK, "c_": STACK,
        "s_": "np.s_", "index_exp": "np.index_exp", "euler_gamma": "np.euler_gamma", "trim_zeros": NUMPY, "unwrap": NUMPY,
        "datetime64": "a tensor holds numbers and bool: convert to float or int before.", "matrix": "pb.tensor",
        **dict.fromkeys((
            "histogram", "histogram2d", "histogramdd", "convolve", "correlate", "polyfit", "polyval", "roots", "union1d",
            "intersect1d",
            "setdiff1d", "setxor1d", "packbits", "unpackbits", "hanning", "hamming", "blackman", "bartlett", "kaiser",
            "lookfor", "real_if_close", "ravel_multi_index", "poly", "polyder", "polyint", "polyadd", "polymul",
        ), NUMPY),
    },
    "pullback.random": {
        "rand": "pb.random.uniform(shape)", "random": "pb.random.uniform(shape)", "random_sample": "pb.random.uniform(shape)",
        "ranf": "pb.random.uniform(shape)", "sample": "pb.random.uniform(shape)", "standard_normal": "pb.random.normal(shape)",
        "integers": "pb.random.randint(low, high, shape)", "random_integers": "pb.random.randint(low, high, shape)",
        "choice": "index with random integers: t[pb.random.randint(0, n, shape)].",
        "shuffle": "use pb.random.permutation(t), which returns the rows in another order.", "permuted": "pb.random.permutation",
        "default_rng": "pb.random.Generator", "RandomState": "pb.random.Generator", "BitGenerator": "pb.random.Generator",
        "get_state": "pb.random.state_dict()", "set_state": "pb.random.load_state_dict(state)", "SeedSequence": GENERATOR,
        "PCG64": GENERATOR, "Philox": GENERATOR, "MT19937": GENERATOR, "lognormal": "pb.exp(pb.random.normal(shape))",
        "standard_exponential": "-pb.log(1 - pb.random.uniform(shape))",
        **dict.fromkeys(("chisquare", "geometric", "multinomial", "pareto", "power", "rayleigh", "triangular", "weibull", "zipf",
                         "standard_t", "standard_gamma", "standard_cauchy"), DISTRIBUTIONS),
    },
}  # fmt: skip
