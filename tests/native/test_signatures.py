"""Kernels that are bound by a signature take what it says, return what it says, and refuse everything else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from conftest import host, on_device
from pullback.backends import native
from pullback.launch.refusal import Refused

pytestmark = pytest.mark.skipif(native.module is None, reason=f"no native kernels: {native.reason}")

KERNELS: Any = native.module
BOUND = vars(KERNELS) if KERNELS is not None else {}
SIGNATURES: dict[str, str] = {name: f.__doc__ for name, f in BOUND.items() if (getattr(f, "__doc__", None) or "").startswith("(")}
DTYPES = {"": "float32", "any": "float32", "int": "int64", "i64": "int64", "u64": "uint64", "bool": "bool", "wide": "float32"}
DOTS, CUT = (4, 3), (1, 3)  # the axes `...`, and with length 1 along the axes (0,)
NUMBERS = {"int": 2, "real": 0.5, "flag": True, "axis": 1, "axes": (0,), "shape": DOTS, "high": 9}


class Part(NamedTuple):
    before: str  # the dtype of an array, or the kind of another argument
    name: str
    axes: list[str] | None  # None for what is no array
    optional: bool

    def shape(self, lengths: dict[str, int], *, drop: bool) -> tuple[int, ...]:
        shape: list[int] = []
        for axis in self.axes or ():
            if axis.startswith("..."):
                shape += CUT if "/" in axis else DOTS
            elif axis != "(1)":
                shape.append(int(axis) if axis.isdigit() else lengths[axis])
            elif not drop:
                shape.append(1)
        return tuple(shape)


def parts_of(text: str) -> Iterator[Part]:
    for word in re.findall(r"((?:\w+ )?\w+(?:\[[^]]*\]\??)?)(?:, |$)", text):
        found = re.fullmatch(r"(?:(\w+) )?(\w+)(?:\[([^]]*)\](\?)?)?", word)
        assert found, word
        before, name, axes, optional = found.groups()
        listed = None if axes is None else [axis for axis in axes.split(", ") if axis]
        yield Part(before or "", name, listed, bool(optional))


def read(name: str) -> tuple[list[Part], list[Part], dict[str, int]]:
    """Returns the arguments, the results and a length for each name, no two of which are equal."""
    arguments, results = [list(parts_of(side.strip("()"))) for side in SIGNATURES[name].split(") -> ")]
    names = [axis for part in arguments for axis in part.axes or () if axis.isalpha()]
    names += [part.name for part in arguments if part.before == "length"]
    return arguments, results, {axis: 2 * k + 6 for k, axis in enumerate(dict.fromkeys(names))}


def array(part: Part, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    return np.ones(shape, dtype or DTYPES[part.before])


def values(arguments: list[Part], lengths: dict[str, int], *, drop: bool = False, none: bool = False) -> list[Any]:
    given: list[Any] = []
    for part in arguments:
        if part.axes is not None:
            given.append(None if none and part.optional else array(part, part.shape(lengths, drop=drop)))
        elif part.name == "dtype":
            given.append(np.dtype("int64" if part.before == "any" else "float32"))
        elif part.before == "length":
            given.append(lengths[part.name])
        else:
            given.append(NUMBERS.get(part.name, NUMBERS.get(part.before)))
    return given


def call(name: str, given: list[Any]) -> tuple[Any, ...]:
    y = getattr(KERNELS, name)(*on_device(given))
    return tuple(host(one) for one in y) if isinstance(y, tuple) else (host(y),)


def test_regular_kernels_have_signatures() -> None:
    assert SIGNATURES["rms_norm"] == "(x[..., n], weight[n]?, real eps) -> y[..., n]"
    assert len(SIGNATURES) > 35


@pytest.mark.parametrize("name", SIGNATURES)
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("none", [False, True])
def test_results_are_those_of_the_signature(name: str, drop: bool, none: bool) -> None:
    arguments, results, lengths = read(name)
    given = values(arguments, lengths, drop=drop, none=none)
    dtype = next((one for one in given if isinstance(one, np.dtype)), np.dtype("float32"))
    for part, y in zip(results, call(name, given), strict=True):
        assert y.shape == part.shape(lengths, drop=True)
        assert y.dtype == (np.dtype(DTYPES[part.before]) if part.before else dtype)


@pytest.mark.parametrize("name", SIGNATURES)
def test_another_number_of_arguments_is_refused(name: str) -> None:
    arguments, _, lengths = read(name)
    given = values(arguments, lengths)
    for wrong in (given[:-1], [*given, 1]):
        with pytest.raises(Refused, match="wrong number of arguments"):
            call(name, wrong)


@pytest.mark.parametrize("name", SIGNATURES)
def test_an_array_that_does_not_fit_is_refused(name: str) -> None:
    """Every array gets another dtype, an axis more, and each of its axes that stands elsewhere too another length."""
    arguments, _, lengths = read(name)
    given = values(arguments, lengths)
    arrays = [(k, part) for k, part in enumerate(arguments) if part.axes is not None]
    for k, part in arrays:
        others = [axis for j, other in arrays if j != k for axis in other.axes or ()]
        shape = part.shape(lengths, drop=False)
        wrong = [] if part.before == "any" and len(arrays) == 1 else [array(part, shape, "float16" if part.before else "int32")]
        if "..." in others or "..." not in (part.axes or ()):
            wrong.append(array(part, (2, *shape)))
        start = 0
        for axis in part.axes or ():
            known = axis.isdigit() or axis == "(1)" or axis in others or (axis.startswith("...") and "..." in others)
            if known:
                wrong.append(array(part, (*shape[:start], 5, *shape[start + 1 :])))
            start += len(DOTS) if axis.startswith("...") else 1
        for one in wrong:
            with pytest.raises(Refused, match=f"^{name}: (arrays whose (dtypes|shapes) do not fit|not a float dtype)$"):
                call(name, [*given[:k], one, *given[k + 1 :]])


def test_integers_are_no_floats() -> None:
    floats = [name for name in SIGNATURES if "any" not in SIGNATURES[name]]
    for name in floats:
        arguments, _, lengths = read(name)
        integers = [one.astype("int32") if isinstance(one, np.ndarray) else one for one in values(arguments, lengths)]
        if not any(part.axes is not None and part.before == "" for part in arguments):
            continue
        with pytest.raises(Refused):
            call(name, integers)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("variance", (np.ones((2, 0), "f4"),)),
        ("channel_norm", (np.ones((2, 4, 3), "f4"), None, None, 1e-5, 3)),
        ("channel_norm_pullback", (np.ones((2, 4, 3), "f4"), np.ones((2, 4, 3), "f4"), None, 1e-5, -1)),
        ("randint", (np.ones(2, "u8"), (2,), np.dtype("i4"), 3, 3)),
        ("randint", (np.ones(2, "u8"), (2,), np.dtype("f4"), 0, 3)),
        ("random_keys", (np.ones(2, "u8"), 2**32)),
        ("permutation", (np.ones(2, "u8"), -1)),
        ("one_hot", (np.ones((1,) * 8, "i8"), 3, np.dtype("f4"))),
        ("length", (np.ones((2, 3), "f4"), (0, 0))),
        ("length_pullback", (np.ones((1, 3), "f4"), np.ones((2, 3), "f4"), np.ones((2, 1), "f4"))),
        ("sort", (np.ones((2, 3), "f4"), 2, False, False)),
    ],
)
def test_what_a_signature_cannot_say_is_refused(name: str, wrong: tuple[Any, ...]) -> None:
    with pytest.raises(Refused, match=f"^{name}: "):
        call(name, list(wrong))


def test_a_state_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(Refused, match=r"^uniform: "):
        KERNELS.uniform(np.ones(4, "u8")[::2], (2,), np.dtype("f4"), 0.0, 1.0)
