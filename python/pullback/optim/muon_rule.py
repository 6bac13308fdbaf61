"""Muon, which moves each matrix along the orthogonal matrix that is nearest to its momentum."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np

from ..errors import PullbackError
from ..ops._shapes import flag
from ..ops.by_name import in_dtype, reshaped
from ..ops.elementwise import maximum, minimum
from ..ops.movement import concat
from ..ops.writing import write
from ..tensors import dtypes
from ..tensors.ranges import eye
from ..tensors.tensor import Tensor
from . import arena, groups as grouping, sets as c
from .auxiliary import WithAuxiliary
from .composed import Hyper, write_slot
from .groups import Number, Rate
from .moments import AdamW
from .optimizer import OPTIONS, Optimizer
from .options import Options, Params, Unpack
from .orthogonal import orthogonal
from .stages.scaled import chosen
from .stages.stage import Step

Coefficients = tuple[Number, Number, Number]
Kind = tuple[int, int, Any]  # the shape and the dtype of matrices

_ADJUSTMENTS: Final = (None, "original", "match_rms_adamw")
_PRECISIONS: Final = ("float32", "bfloat16")
_MOST_STEPS: Final = 99


class _Numbers(NamedTuple):
    """The numbers of a step, one for each matrix, of shape (n, 1, 1) and in the dtype of the slots."""

    keep: Tensor  # the share of the momentum that stays, and of the gradient that enters it
    enter: Tensor
    ratio: Tensor  # the weight of the momentum in the matrix that is made orthogonal, in which that of the gradient is 1
    a: Tensor
    b: Tensor
    c: Tensor
    eps: Tensor
    rate: Tensor  # negative
    decay: Tensor
    clip_factor: Tensor
    clip_value: Tensor

    def part(self, first: int, end: int) -> _Numbers:
        return _Numbers(*[Tensor(number.array[first:end]) for number in self])


class Muon(WithAuxiliary):
    """Muon (Jordan 2024): torch.optim.Muon's rule at equal arguments, for matrices. Another rule updates all other Parameters.

    The momentum of each matrix is replaced by an approximation of the nearest orthogonal matrix, by `ns_steps` Newton-Schulz
    iterations. Matrices of one shape are computed together, as batched products. The slot of a matrix is "momentum"; a step moves
    24 bytes per float32 weight, and the products' operands.

    Args:
        params: Parameters of shape (m, n), and any others for the auxiliary. With hyper-parameters for M networks, Parameters of
            shape (M, m, n) are M matrices.
        lr: the learning rate of the matrices. A step changes a matrix by this times the factor of `adjust_lr_fn`.
        weight_decay: the share of the weights, times lr, by which each step reduces them.
        momentum: the share in [0, 1) that the running mean of the gradients keeps.
        nesterov: True makes the mean of the gradient and the momentum orthogonal, False the momentum itself.
        ns_coefficients: a, b and c of the iteration X ← (a + b A + c A²) X with A = X Xᵀ.
        eps: the lower bound of the norm that divides the matrix before the first iteration.
        ns_steps: the number of iterations, from 1 to 99.
        adjust_lr_fn: the factor of lr for a matrix of shape (m, n): √max(1, m / n) for "original" or None, and 0.2 √max(m, n) for
            "match_rms_adamw" (Liu et al. 2025), with which learning rates of AdamW suit.
        dtype: "bfloat16" rounds the factors of all products in the iterations, as torch.optim.Muon does; tensor cores of a GPU
            then multiply them. "float32" multiplies in the dtype of the slots, which is faster on a CPU.
        bias_correction: True divides the momentum and the gradient by 1 - momentum^t before they are added, as optax.contrib.muon
            does.
        flatten: True also updates Parameters with more axes, as matrices of shape (m, the product of the other axes), such as the
            weights of convolutions. False leaves them to the auxiliary.
        auxiliary: the class of the rule for all other Parameters, which has a kernel, such as optim.AdamW. None refuses them.
        auxiliary_options: its arguments, such as {"lr": 3e-4, "betas": (0.9, 0.95)}. Its learning rate is not that of the matrices.
        auxiliary_names: patterns of names of matrices that are left to the auxiliary, such as ["embedding.*", "head.*"].

    The optimizer's groups, clipping, averages and states include the auxiliary's parameters. A group may have values of both rules:
    {"*.bias": {"betas": (0.9, 0.99)}}. The hyper-parameters of the auxiliary are attributes of `opt.auxiliary`.

    Raises: PullbackError if no Parameter is a matrix, or for a value that is not valid.

    Example:
        >>> opt = optim.Muon(model.parameters(), lr=0.02, auxiliary_options={"lr": 3e-4}, auxiliary_names=["embedding.*"])
        >>> opt.auxiliary.lr = 1e-4
    """

    slot_names = ("momentum",)
    hyper: ClassVar[Mapping[str, int]] = {"momentum": 1, "weight_decay": 1, "ns_coefficients": 3, "eps": 1}
    momentum: Number
    weight_decay: Number
    ns_coefficients: Coefficients
    eps: Number
    _buckets: dict[Kind, list[int]]  # the parameters whose matrices have one shape and one dtype
    _stacks: dict[Kind, Any]  # their momenta, in one array of shape (n, rows, columns)
    _eyes: dict[Any, Tensor]  # identity matrices by size and dtype

    def __init__(
        self, params: Params, lr: Rate = 1e-3, weight_decay: Number = 0.1, momentum: Number = 0.95, nesterov: bool = True,
        ns_coefficients: Coefficients = (3.4445, -4.775, 2.0315), eps: Number = 1e-7, ns_steps: int = 5,
        adjust_lr_fn: Literal["original", "match_rms_adamw"] | None = None, *, dtype: Literal["float32", "bfloat16"] = "float32",
        bias_correction: bool = False, flatten: bool = False, auxiliary: type[Optimizer] | None = AdamW,
        auxiliary_options: Mapping[str, Any] | None = None, auxiliary_names: Sequence[str] = (), **options: Unpack[Options],
    ) -> None:
        self.nesterov = flag("Muon", "nesterov", nesterov)
        self.bias_correction = flag("Muon", "bias_correction", bias_correction)
        self.flatten = flag("Muon", "flatten", flatten)
        self.ns_steps, self.adjust_lr_fn, self.dtype = _steps(ns_steps), adjust_lr_fn, dtype
        _one_of("adjust_lr_fn", adjust_lr_fn, _ADJUSTMENTS)
        _one_of("dtype", dtype, _PRECISIONS)
        self._given = _checked_auxiliary(auxiliary, auxiliary_options, auxiliary_names)
        hyper = {"momentum": momentum, "weight_decay": weight_decay, "ns_coefficients": ns_coefficients, "eps": eps}
        super().__init__(params, lr, hyper, **options)

    def _takes(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == 2 or (self.flatten and len(shape) > 2)

    def _checked(self, name: str, value: Any) -> Any:
        if name == "ns_coefficients":
            value = grouping.checked("Muon", name, value, 3, signed=True)
            if "_members" in vars(self):
                grouping.check_count("Muon", name, value, self._members)
            return value
        value = super()._checked(name, value)
        if name == "momentum" and not np.all(np.asarray(value) < 1):
            raise PullbackError(f"Muon: momentum={value!r}; each number must be in [0, 1), such as 0.95.")
        return value

    def settings(self) -> dict[str, Any]:
        own = {"nesterov": self.nesterov, "ns_steps": self.ns_steps, "adjust_lr_fn": self.adjust_lr_fn, "dtype": self.dtype}
        return {**super().settings(), **own, **({} if self._auxiliary is None else {"auxiliary": self.auxiliary})}

    # ---- memory

    def _slot_shape(self, name: str, i: int) -> tuple[int, ...] | None:
        names = ("momentum",) if i in self._mine else () if self._auxiliary is None else self._auxiliary.slot_names
        return self._parameters[i].shape if name in names else None

    def _make(self) -> None:
        super()._make()
        self._buckets, self._stacks, self._eyes = {}, {}, {}
        for i in self._mine:
            if self._parameters[i].size:
                self._buckets.setdefault(self._kind(i), []).append(i)
        for (rows, columns, dtype), entries in self._buckets.items():
            side, wide = min(rows, columns), arena.slot_dtype(self._parameters[entries[0]])
            stack = arena.adjacent([(len(entries) * self._members, rows, columns)], wide, self._memory.device)[0]
            self._stacks[rows, columns, dtype] = stack
            for i, part in self._cut(stack, entries):
                self._memory.slots["momentum"][i] = part
            for each in (wide, dtypes.float32):
                self._eyes[side, str(each)] = eye(side, dtype=each, device=self._memory.device)

    def __getstate__(self) -> dict[str, Any]:
        made = ("_buckets", "_stacks", "_eyes")
        return {name: x for name, x in super().__getstate__().items() if name not in made}

    def _kind(self, i: int) -> Kind:
        shape, dtype = self._parameters[i].shape[self._lead :], self._parameters[i].dtype
        return shape[0], math.prod(shape[1:]), dtype

    def _cut(self, stack: Any, entries: Sequence[int]) -> list[tuple[int, Any]]:
        """Returns (i, the part of the stack that belongs to parameter i, in its shape) for these parameters."""
        members = self._members
        return [(i, stack[k * members : (k + 1) * members].reshape(self._parameters[i].shape)) for k, i in enumerate(entries)]

    # ---- a step

    def _computed(self, step: Step, now: Any) -> list[Any]:
        grads = step.grads
        found: list[Any] = [g if g is not None and not g.size else None for g in grads]
        present = {kind: [i for i in entries if grads[i] is not None] for kind, entries in self._buckets.items()}
        for wide in {arena.slot_dtype(self._parameters[i]): None for i in self._mine}:
            kinds = [
                kind for kind, entries in present.items() if entries and arena.slot_dtype(self._parameters[entries[0]]) == wide
            ]
            order = [i for kind in kinds for i in present[kind]]
            if not order:
                continue
            numbers, first = self._numbers(order, now, wide), 0
            for kind in kinds:
                end = first + len(present[kind]) * self._members
                change = self._changed(kind, present[kind], step, numbers.part(first, end))
                for i, part in self._cut(self._as_change(change, kind[2]), present[kind]):
                    found[i] = part
                first = end
        return found

    def _numbers(self, entries: Sequence[int], now: Any, dtype: Any) -> _Numbers:
        """Returns the numbers of all matrices of these parameters. now: the table of sets after the step has begun."""
        rows = concat([self._rows(now, i) for i in entries]).array
        h = Hyper(rows, (len(rows), 1, 1), dtype, self.hyper)
        momentum, share, eps = h.momentum, 1 - h.momentum, h.eps
        ratio = momentum / share
        if self.bias_correction:
            ratio = ratio * (1 - momentum**h.step) / (1 - momentum ** (h.step + 1))
            eps = eps * (1 - momentum**h.step)
        if self.nesterov:
            eps = eps / share
        factor = h.setting(c.CLIP_FACTOR) * h.setting(c.GRADIENT_SCALE)
        decay, bound = h.lr * h.weight_decay, h.setting(c.CLIP_VALUE)
        found: list[Any] = [momentum, share, ratio, *h.ns_coefficients, eps, -h.lr, decay, factor, bound]
        return _Numbers(*[in_dtype(number.value, dtype) for number in found])

    def _changed(self, kind: Kind, entries: Sequence[int], step: Step, h: _Numbers) -> Tensor:
        """Returns the changes of parameters whose matrices have one shape, as one stack, and writes their slots."""
        rows, columns, _ = kind
        g = self._stacked([step.grads[i] for i in entries], kind, h.rate.dtype)
        scaled, by_value = self._clips(step)
        g = g * h.clip_factor if scaled else g
        g = minimum(maximum(g, -h.clip_value), h.clip_value) if by_value else g
        whole = entries == self._buckets[kind]
        slots = self._memory.slots["momentum"]
        old = Tensor(self._stacks[kind]) if whole else self._stacked([slots[i] for i in entries], kind, h.rate.dtype)
        momentum = old * h.keep + g * h.enter
        x = momentum * h.ratio + g if self.nesterov else momentum  # The norm divides x, so that its scale matters only for eps.
        if not step.preview:
            self._keep(kind, entries, momentum, step.go)
        narrow = self.dtype == "bfloat16"
        if narrow:
            x = in_dtype(x, dtypes.float32)
        numbers = [in_dtype(number, x.dtype) for number in (h.a, h.b, h.c, h.eps, h.rate * self._adjustment(rows, columns))]
        unit = self._eyes[min(rows, columns), str(x.dtype)]
        direction = orthogonal(x, unit, (numbers[0], numbers[1], numbers[2]), numbers[3], numbers[4], self.ns_steps, narrow)
        weights = self._stacked([self._memory.exact(i).array for i in entries], kind, h.rate.dtype)
        return in_dtype(direction, h.rate.dtype) - weights * h.decay

    def _stacked(self, arrays: Sequence[Any], kind: Kind, dtype: Any) -> Tensor:
        """Returns the matrices in the arrays of several parameters, in one array of shape (n, rows, columns)."""
        rows, columns, _ = kind
        parts = [reshaped(Tensor(array), (array.size // columns, columns)) for array in arrays]
        together = parts[0] if len(parts) == 1 else concat(parts)
        return in_dtype(reshaped(together, (together.shape[0] // rows, rows, columns)), dtype)

    def _keep(self, kind: Kind, entries: Sequence[int], momentum: Tensor, go: Tensor | None) -> None:
        """Writes the new momenta."""
        if entries == self._buckets[kind] and self._memory.masks is None:
            write(self._stacks[kind], chosen(go, momentum, self._stacks[kind]).array)
            return
        for i, part in self._cut(momentum.array, entries):
            write_slot(self._memory.slots["momentum"][i], Tensor(part), self._memory.mask(i), go)

    def _adjustment(self, rows: int, columns: int) -> float:
        """Returns the factor of the learning rate for matrices of this shape."""
        if self.adjust_lr_fn == "match_rms_adamw":
            return 0.2 * math.sqrt(max(rows, columns))
        return math.sqrt(max(1, rows / columns))


def _steps(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not 1 <= count <= _MOST_STEPS:
        raise PullbackError(f"Muon: ns_steps={count!r}; it must be a whole number from 1 to {_MOST_STEPS}.")
    return int(count)


def _one_of(name: str, value: Any, known: Sequence[Any]) -> None:
    if value not in known:
        raise PullbackError(f"Muon: {name}={value!r}; use {', '.join(map(repr, known))}.")


def _checked_auxiliary(kind: Any, options: Any, names: Any) -> tuple[Any, dict[str, Any], list[str]]:
    """Returns the class of the auxiliary, its options and its patterns of names. Raises PullbackError."""
    rule = isinstance(kind, type) and issubclass(kind, Optimizer) and not kind.composed and not hasattr(kind, "eval")
    if kind is not None and not rule:
        raise PullbackError(
            f"Muon: auxiliary={kind!r}; give the class of an optimizer that one kernel computes in every mode, such as "
            f'optim.AdamW, and its arguments as auxiliary_options={{"lr": 3e-4}}.'
        )
    listed = isinstance(names, Iterable) and not isinstance(names, str)
    if not listed or not all([isinstance(name, str) for name in names]):
        raise PullbackError(f'Muon: auxiliary_names={names!r}; give a list of patterns of names: ["embedding.*"].')
    given = {} if options is None else options
    if not isinstance(given, Mapping):
        raise PullbackError(f'Muon: auxiliary_options={options!r}; give a dict of arguments: {{"lr": 3e-4}}.')
    joint = {"params", *[option.name for option in OPTIONS]}
    known = [] if kind is None else [name for name in inspect.signature(kind).parameters if name not in joint]
    for name in given:
        if name not in known:
            raise PullbackError(
                f"Muon: auxiliary_options has {name!r}; it can have {', '.join(known) or 'nothing'}. Groups and clipping are given "
                f"to Muon, which has them for all parameters."
            )
    return kind, dict(given), list(names)
