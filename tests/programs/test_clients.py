"""Libraries that work on any array take tensors, and gradients pass through what they compute."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import environment, host

A, B, C = [np.random.default_rng(k).standard_normal(shape) for k, shape in enumerate([(3, 4), (4, 5), (5, 2)])]


def installed(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed: pip install '.[clients]'")


def agrees(f: Any, *arrays: Any) -> None:
    """Asserts that f gives equal results for tensors and arrays, tensors for tensors, and that its gradient is right."""
    y, wanted = f(*map(pb.tensor, arrays)), f(*arrays)
    assert isinstance(y, pb.Tensor)
    np.testing.assert_allclose(host(y), wanted, rtol=1e-12)
    assert pb.check_gradients(f, list(arrays), order=1) < 1e-6


# ---- libraries that compute with the functions of an array's own library


def test_opt_einsum() -> None:
    opt_einsum = installed("opt_einsum")
    agrees(lambda *xs: opt_einsum.contract("ij,jk,kl->il", *xs), A, B, C)
    agrees(lambda a, b: opt_einsum.contract("ij,jk->", a, b, optimize="greedy"), A, B)


def test_autoray() -> None:
    do = installed("autoray").do
    assert installed("autoray").infer_backend(pb.ones(3)) == "pullback"
    agrees(lambda a, b: do("tensordot", do("tanh", a), b, axes=[[1], [0]]), A, B)
    agrees(lambda a: do("linalg.norm", do("reshape", a, (2, 6)), axis=1), A)


def test_array_api_compat() -> None:
    compat = installed("array_api_compat")
    t = pb.tensor(A)
    assert compat.array_namespace(t, t) is pb
    assert compat.is_array_api_obj(t)
    assert (compat.device(t), compat.size(t)) == (t.device, 12)


def test_array_api_extra() -> None:
    extra = installed("array_api_extra")
    agrees(lambda a: extra.atleast_nd(a, ndim=3), A)
    agrees(lambda a: extra.cov(a), A)
    agrees(lambda a: extra.kron(a, a), A)


# ---- einops


EINOPS = {
    "rearrange": lambda einops, x: einops.rearrange(x, "a (b c) -> b (c a)", b=2),
    "rearrange a list": lambda einops, x: einops.rearrange([x, x], "n a b -> a n b"),
    "reduce mean": lambda einops, x: einops.reduce(x, "a (b c) -> a b", "mean", c=2),
    "reduce prod": lambda einops, x: einops.reduce(x, "a b -> b", "prod"),
    "reduce max": lambda einops, x: einops.reduce(x, "a b -> () b", "max"),
    "repeat": lambda einops, x: einops.repeat(x, "a b -> a r b", r=3),
    "einsum": lambda einops, x: einops.einsum(x, x, "a b, c b -> a c"),
    "pack": lambda einops, x: einops.pack([x, x], "* b")[0],
}


@pytest.mark.parametrize("name", EINOPS)
def test_einops(name: str) -> None:
    einops = installed("einops")
    agrees(lambda x: EINOPS[name](einops, x), A)


def test_einops_under_vmap_and_on_parameters() -> None:
    einops = installed("einops")
    flat = pb.vmap(lambda x: einops.rearrange(x, "(a b) -> b a", a=2))(pb.tensor(A))
    np.testing.assert_array_equal(host(flat), A.reshape(3, 2, 2).swapaxes(1, 2))
    assert einops.parse_shape(pb.Parameter(A), "rows columns") == {"rows": 3, "columns": 4}
    with pytest.raises(NotImplementedError):  # as for NumPy's arrays: a mean of integers
        einops.reduce(pb.tensor([1, 2]), "a ->", "mean")


@pytest.mark.parametrize("order", ["pullback, einops", "einops, pullback", "pullback, importlib.util, einops"])
def test_einops_is_not_imported_by_pullback_and_may_come_before_or_after(order: str) -> None:
    installed("einops")
    code = f"""if True:
        import sys
        for name in {order.split(", ")}:
            before = "einops" in sys.modules
            module = __import__(name)
            if name == "pullback":
                assert ("einops" in sys.modules) == before, "pullback imported einops"
            if name == "importlib.util":  # asks whether einops is there, and does not import it
                assert module.util.find_spec("einops") is not None
        import einops, pullback as pb
        print(einops.rearrange(pb.ones((2, 3)), "a b -> b a").shape, [f for f in sys.meta_path if "pullback" in str(type(f))])
    """
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(3, 2) []"


# ---- xarray

GAPS = A.copy()
GAPS[1, 2] = np.nan
XARRAY = {
    **{name: lambda d, name=name: getattr(d, name)("x") for name in ("sum", "mean", "var", "std", "max", "min", "prod", "median")},
    "std ddof": lambda d: d.std("y", ddof=1),
    "mean skipna=False": lambda d: d.isel(y=[0, 1, 3]).mean(skipna=False),
    "quantile": lambda d: d.quantile([0.2, 0.7], "x"),
    "count": lambda d: d.count("x"),
    "argmax": lambda d: d.argmax("y"),
    "cumsum": lambda d: d.cumsum("y"),
    "arithmetic": lambda d: np.exp(-d) * d / 2 + d["x"],
    "where": lambda d: d.where(d > 0, 0.0),
    "fillna": lambda d: d.fillna(1.5),
    "sel": lambda d: d.sel(x=[10, 30]).isel(y=slice(1, 3)),
    "transpose": lambda d: d.transpose("y", "x"),
    "stack": lambda d: d.stack(z=("y", "x")),
    "shift": lambda d: d.shift(x=1),
    "pad": lambda d: d.pad(x=(1, 2), mode="edge"),
    "pad values": lambda d: d.pad(y=1, constant_values=(2.0, 3.0)),
    "diff": lambda d: d.diff("y"),
    "groupby": lambda d: d.assign_coords(g=("x", [0, 0, 1])).groupby("g").mean(),
    "weighted": lambda d: d.weighted(d["x"]).mean("x"),
    "dot": lambda d: d.fillna(0.0).dot(d.fillna(0.0), dim="y"),
    "integrate": lambda d: d.integrate("x"),
}


@pytest.mark.parametrize("name", XARRAY)
@pytest.mark.filterwarnings("ignore:Degrees of freedom <= 0:RuntimeWarning")
def test_xarray(name: str) -> None:
    xarray = installed("xarray")

    def compute(data: Any) -> Any:
        return XARRAY[name](xarray.DataArray(data, dims=("x", "y"), coords={"x": [10, 20, 30]})).data

    y, wanted = compute(pb.tensor(GAPS)), compute(GAPS)
    assert isinstance(y, pb.Tensor)
    np.testing.assert_allclose(host(y), wanted, rtol=1e-12)
    if y.dtype == pb.float64:
        slopes = pb.grad(lambda x: pb.nansum(compute(x)))(pb.tensor(GAPS))
        numbers = np.where(np.isnan(GAPS), 0.5, GAPS)
        assert (
            pb.check_gradients(lambda x: pb.nansum(compute(pb.where(pb.tensor(np.isnan(GAPS)), np.nan, x))), [numbers], order=1)
            < 1e-6
        )
        assert host(slopes)[np.isnan(GAPS)] == 0


# ---- libraries that read the values


@pytest.mark.usefixtures("on_cpu")
def test_matplotlib() -> None:
    figure = installed("matplotlib.figure").Figure()
    (line,) = figure.subplots().plot(pb.tensor(A[0]), pb.Parameter(A[1]))
    np.testing.assert_array_equal(line.get_xydata(), A[:2].T)
    np.testing.assert_array_equal(figure.subplots().imshow(pb.tensor(A)).get_array(), A)


@pytest.mark.usefixtures("on_cpu")
def test_pandas() -> None:
    pandas = installed("pandas")
    np.testing.assert_array_equal(pandas.DataFrame(pb.tensor(A), columns=list("abcd")).to_numpy(), A)
    np.testing.assert_array_equal(pandas.Series(pb.tensor(A[0])).rolling(2).sum()[1:], A[0, 1:] + A[0, :-1])


@pytest.mark.usefixtures("on_cpu")
def test_metrics_of_scikit_learn() -> None:
    metrics = installed("sklearn.metrics")
    classes, guesses = np.array([0, 1, 2, 1]), np.array([0, 2, 2, 1])
    for name in ("accuracy_score", "confusion_matrix"):
        score = getattr(metrics, name)
        np.testing.assert_array_equal(score(pb.tensor(classes), pb.tensor(guesses)), score(classes, guesses))
    for name in ("mean_squared_error", "r2_score"):
        score = getattr(metrics, name)
        assert score(pb.tensor(A), pb.tensor(A + 0.1)) == score(A, A + 0.1)
