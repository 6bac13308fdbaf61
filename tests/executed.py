"""What kernels do beyond the textbook: padding, sums in parts, another kernel for another shape."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from watched import Launch, Operand

ITEM_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "bool": 1}


class Matrix(NamedTuple):
    """As a product reads it: its rows lie in one piece, or its columns; ld: elements from one to the next."""

    transposed: bool
    ld: int

    @property
    def flipped(self) -> Matrix:
        return Matrix(not self.transposed, self.ld)


def _seen_as(shape: tuple[int, ...], strides: tuple[int, ...]) -> Matrix | None:
    (rows, columns), (down, across) = shape, strides
    if (columns <= 1 or across == 1) and (rows <= 1 or down >= columns):
        return Matrix(False, max(columns, 1) if rows <= 1 else down)
    if (rows <= 1 or down == 1) and (columns <= 1 or across >= rows):
        return Matrix(True, max(rows, 1) if columns <= 1 else across)
    return None


def matrix(v: Operand) -> Matrix:
    """The last two axes of v where they lie, or of a copy in the order of their strides."""
    shape, strides = v.shape[-2:], v.strides[-2:]
    seen = _seen_as(shape, strides) if v.dtype in ("float32", "float64") else None
    if seen is None:
        seen = _seen_as(shape, (1, shape[0]) if abs(strides[0]) < abs(strides[1]) else (shape[1], 1))
    assert seen is not None
    return seen


class Products:
    """Products of matrices in vectors of so many lanes."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes

    def padded(self, n: int) -> int:
        return -(-n // self.lanes) * self.lanes

    def product(self, m: int, n: int, k: int, a: Matrix, b: Matrix, bias: bool = False) -> Counter[str]:
        """The work of a (m, k) @ b (k, n), and of the bias if it is added on the way."""
        if m * n * k == 0:
            return Counter(adds=m * n * bias)
        if m * n <= 16 and k <= 4:
            return Counter(multiplies=m * n * k, adds=m * n * (k - 1 + bias))
        if self.is_large(m, n, k):
            return self.large(m, n, k, bias)
        if min(m, n) == 1 or k > 1024 or m * n * k > 2**26 or self.adds_along_rows(m, n, k, a, b):
            return Counter(fmas=m * n * k, adds=m * n * bias)
        if self.effort(n, m, k, a.flipped) + m * n // 2 < self.effort(m, n, k, b):
            turned = self.tiles(n, m, k)
            return turned + Counter(adds=2 * m if n == 2 else m * self.padded(n) * bias)
        return self.tiles(m, n, k) + Counter(adds=m * self.padded(n) * bias)

    def is_large(self, m: int, n: int, k: int) -> bool:
        """Of the level with the widest vectors."""
        return self.lanes >= 8 and min(m, n) >= 128 and k >= 24 * self.lanes and (k > 1024 or m * n * k > 2**26)

    def large(self, m: int, n: int, k: int, bias: bool) -> Counter[str]:
        """Tiles of eight rows; what was added up before is added to, from one part of k to the next."""
        parts = -(-k // (64 * self.lanes))
        return Counter(fmas=-(-m // 8) * 8 * self.padded(n) * k, adds=m * self.padded(n) * (parts - 1 + bias))

    def tiles(self, m: int, n: int, k: int) -> Counter[str]:
        """Whole vectors; few rows are added up in four parts each."""
        return Counter(fmas=m * self.padded(n) * k, adds=3 * m * self.padded(n) * (m <= 2))

    def effort(self, m: int, n: int, k: int, b: Matrix) -> int:
        vectors = self.padded(n) // self.lanes
        return m * k * vectors + (4 * k * vectors if b.transposed or n % self.lanes else 0)

    @staticmethod
    def adds_along_rows(m: int, n: int, k: int, a: Matrix, b: Matrix) -> bool:
        few = (m <= 8 and b.transposed) or (n <= 8 and not a.transposed)
        return (k > 32 and few) or (k > 64 and n <= 12 and not a.transposed and b.transposed)


def _collapsed(shape: tuple[int, ...], *strides: tuple[int, ...]) -> list[tuple[int, ...]]:
    """(length, strides…) of the axes that are left when those that are walked as one are."""
    kept: list[tuple[int, ...]] = []
    for length, *steps in zip(shape, *strides):
        if length == 1:
            continue
        if kept and all(before == step * length for before, step in zip(kept[-1][1:], steps)):
            kept[-1] = (kept[-1][0] * length, *steps)
        else:
            kept.append((length, *steps))
    return kept


def _batch_strides(v: Operand, shape: tuple[int, ...], copied: bool) -> tuple[int, ...]:
    """Of the axes before the last two, broadcast to `shape`."""
    lengths, strides = v.shape[:-2], v.strides[:-2]
    if copied:
        step, strides = math.prod(v.shape[-2:]), ()
        for length, stride in zip(reversed(lengths), reversed(v.strides[:-2])):
            strides, step = (step if stride else 0, *strides), step * (length if stride else 1)
    found = tuple(0 if n == 1 else s for n, s in zip(lengths, strides))
    return (0,) * (len(shape) - len(found)) + found


def matmul(launch: Launch, lanes: int) -> Counter[str]:
    (out,), (a, b) = launch.outputs, launch.inputs
    (m, k), n, batch = a.shape[-2:], b.shape[-1], out.shape[:-2]
    left, right = matrix(a), matrix(b)
    copied = [v.dtype not in ("float32", "float64") or _seen_as(v.shape[-2:], v.strides[-2:]) is None for v in (a, b)]
    steps = [_batch_strides(v, batch, c) for v, c in zip((a, b), copied)]
    whole = tuple(math.prod(batch[d + 1 :]) * m * n for d in range(len(batch)))
    axes, count = _collapsed(batch, whole, *steps), math.prod(batch)
    if len(axes) == 1 and not left.transposed:
        _, _, step, right_step = axes[0]
        if right_step == 0 and (step == m * left.ld or (m == 1 and step >= k)):  # one product of all rows
            m, count = m * count, 1
    if k == 1 and n >= 16 and not (right.transposed and right.ld != 1):
        return Counter(multiplies=count * m * n)
    one = Products(lanes).product(m, n, k, left, right)
    return Counter({name: count * figure for name, figure in one.items()})


def _rows(v: Operand) -> Matrix:
    """v (…, n) as (rows, n)."""
    lead = _collapsed(v.shape[:-1], v.strides[:-1])
    rows, n = math.prod(v.shape[:-1]), v.shape[-1]
    if len(lead) > 1:
        return Matrix(False, n)
    return matrix(Operand(v.dtype, (rows, n), (lead[0][1] if lead else n, v.strides[-1])))


def _figures(launch: Launch) -> Counter[str]:
    return Counter({name: launch.formula[name] for name in ("adds", "multiplies", "fmas", "special")})


def linear(launch: Launch, lanes: int) -> Counter[str]:
    x, w = launch.inputs[:2]
    m, n, k, bias = math.prod(x.shape[:-1]), w.shape[0], w.shape[1], len(launch.inputs) == 3
    beside = _figures(launch) - Counter(fmas=m * n * k, adds=m * n * bias)
    return beside + Products(lanes).product(m, n, k, _rows(x), matrix(w).flipped, bias)


def linear_pullback(launch: Launch, lanes: int) -> Counter[str]:
    g, x, w = launch.inputs[:3]
    gx, gw, _ = launch.outputs
    m, n, k = math.prod(g.shape[:-1]), g.shape[-1], w.shape[1]
    work, products = _figures(launch), Products(lanes)
    gz = Matrix(False, n) if launch.ints[0] else _rows(g)
    if gz.transposed:  # its rows are copied
        gz = Matrix(False, n)
    for wanted, found in (
        (gw, products.product(n, k, m, gz.flipped, _rows(x))),
        (gx, products.product(m, k, n, gz, matrix(w))),
    ):
        if wanted.dtype:
            work = work - Counter(fmas=m * n * k) + found
    return work


def softmax(launch: Launch, lanes: int, x: int = -1) -> Counter[str]:
    """Short rows are walked side by side, one in each lane."""
    shape, work = launch.inputs[x].shape, _figures(launch)
    rows = math.prod(shape[:-1])
    if shape[-1] > 32 or rows < 3:
        return work
    return Counter({name: figure // rows * Products(lanes).padded(rows) for name, figure in work.items()})


def cross_entropy(launch: Launch, lanes: int) -> Counter[str]:
    return softmax(launch, lanes, 0)


def cross_entropy_pullback(launch: Launch, lanes: int) -> Counter[str]:
    """Of rows side by side every element is changed, and the one of the label chosen."""
    rows, n = launch.inputs[1].shape
    beside = n <= 32 and rows >= 3
    return softmax(launch, lanes, 1) + Counter(adds=Products(lanes).padded(rows) * (n - 1) * beside)


def logsumexp_pullback(launch: Launch, lanes: int) -> Counter[str]:
    return softmax(launch, lanes, 1)


def norm_pullback(launch: Launch, lanes: int) -> Counter[str]:
    """The gradients of weight and bias are sums of 64 rows each, which are added up."""
    x = launch.inputs[1]
    blocks = -(-math.prod(x.shape[:-1]) // 64)
    return _figures(launch) + Counter(adds=(blocks - 1) * (len(launch.outputs) - 1) * x.shape[-1])


def clip_norm(launch: Launch, lanes: int) -> Counter[str]:
    """Sixteen sums of each tensor, what they add up to, and 1e-6."""
    return _figures(launch) + Counter(adds=16 * sum([bool(g.dtype) for g in launch.inputs]) + 2)


EXECUTED: dict[str, Callable[[Launch, int], Counter[str]]] = {
    "matmul": matmul,
    "linear": linear,
    "linear_pullback": linear_pullback,
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp", "softmax_pullback", "log_softmax_pullback"), softmax),
    "logsumexp_pullback": logsumexp_pullback,
    "cross_entropy": cross_entropy,
    "cross_entropy_pullback": cross_entropy_pullback,
    "layer_norm_pullback": norm_pullback,
    "rms_norm_pullback": norm_pullback,
    "clip_norm": clip_norm,
}


# ---- GPUs

# Their threads also work on elements that are not there: at least the formula, and how much more is their own choice.
PADDED = {
    "sum", "prod", "mean", "max", "min", "any", "all", "argmax", "argmin",
    "cumulative_sum", "cumulative_prod", "cumulative_max", "cumulative_min",
    "softmax", "log_softmax", "logsumexp", "softmax_pullback", "log_softmax_pullback", "logsumexp_pullback",
    "layer_norm", "rms_norm", "layer_norm_pullback", "rms_norm_pullback", "cross_entropy", "cross_entropy_pullback",
    "matmul", "linear", "linear_pullback", "sgd_step", "adam_step", "clip_norm", "dropout",
}  # fmt: skip


def _packable(v: Operand) -> bool:
    if v.by_value:
        return True
    step = 1
    for length, stride in zip(reversed(v.shape), reversed(v.strides)):
        if length != 1 and stride != step:
            return False
        step *= length
    return v.offset % (4 * ITEM_SIZES[v.dtype]) == 0


def packs(launch: Launch) -> Counter[str]:
    """Of elements: where all operands are in one piece, a thread computes four, also at the end."""
    (out,), work = launch.outputs, _figures(launch)
    if launch.inputs[-1].dtype == "float64" or launch.kernel == "where" or not all(map(_packable, [out, *launch.inputs])):
        return work
    return Counter({name: figure // out.size * (-(-out.size // 4) * 4) for name, figure in work.items()})
