"""Layers with weights, containers, and dropout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from ..errors import DTypeError, PullbackError, ShapeError
from ..launch import capturing
from ..ops._shapes import flag, integer, normalize_axis, probability
from ..ops.conversion import stop_gradient
from ..ops.dropout import dropout
from ..ops.elementwise import equal, where
from ..ops.gather import rows_of_ids
from ..ops.linear import ACTIVATIONS, Activation, linear
from ..ops.random import Generator
from ..ops.shape import expand_dims, reshape
from ..tensors import dtypes
from ..tensors.creation import empty
from ..tensors.operand import as_tensor, own
from ..tensors.parameter import Parameter
from ..tensors.ranges import arange
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike
from . import init, paths
from .activations import ReLU, Sigmoid, SiLU, Tanh
from .module import Module
from .walk import give_paths

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class Linear(Module):
    """Computes x @ weightᵀ + bias in one launch.

    Args:
        in_features, out_features: the lengths of the last axis of x and of the result.
        bias: False leaves out the bias.

    The weight has shape (out_features, in_features), the bias (out_features,). Both are drawn from U(±1/sqrt(in_features)), as in
    torch.nn.Linear.

    >>> nn.Linear(3, 4)(pb.ones((5, 3))).shape
    (5, 4)
    """

    bias: Parameter | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, dtype: DTypeLike | None = None, device: str | None = None
    ) -> None:
        in_features, out_features = positive_lengths("Linear", in_features=in_features, out_features=out_features)
        bias = flag("Linear", "bias", bias, "An activation is a layer of its own: nn.Sequential(nn.Linear(2, 8), nn.Tanh()).")
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty((out_features, in_features), dtype=dtype, device=device))
        self.bias = Parameter(empty(out_features, dtype=dtype, device=device)) if bias else None
        bound = 1 / math.sqrt(in_features)
        for p in (self.weight, self.bias):
            if p is not None:
                init.uniform(p, -bound, bound)

    def forward(self, x: ArrayLike, activation: Activation | None = None) -> Tensor:
        return linear(x, self.weight, self.bias, activation)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def positive_lengths(layer: str, **lengths: Any) -> list[int]:
    for name, value in lengths.items():
        if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__") or index(value) < 1:
            raise ShapeError(f"{layer}: {name}={value!r} must be an integer of 1 or more.")
    return [index(value) for value in lengths.values()]


# The activation modules that `linear` can fuse: a Linear followed by one of these runs as one launch. The result has the same bits
# as two launches, because the kernel rounds the sum before it applies the activation. In half precision the kernel would round
# once instead of twice, so only relu, which is exact, is fused there.
_FUSED: dict[type[Module], Any] = {
    module: name for module in (ReLU, Sigmoid, SiLU, Tanh) if (name := module.__name__.lower()) in ACTIVATIONS
}


class Sequential(Module):
    """Applies modules or functions one after another. The items are named "0", "1", … as in PyTorch.

    >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> net(pb.ones((5, 3))).shape
    (5, 1)
    """

    def __init__(self, *modules: Callable[..., Any]) -> None:
        for i, module in enumerate(modules):
            self._set(i, module)

    def _set(self, i: int, module: Any) -> None:
        if isinstance(module, type):
            name = module.__name__
            raise PullbackError(
                f"Sequential: item {i} is the class {name}; give a layer, which is made by calling it: {name}(...)."
            )
        if not callable(module):
            star = ", each as an argument of its own: Sequential(*modules)" if isinstance(module, (list, tuple)) else ""
            raise PullbackError(f"Sequential: item {i} is a {type(module).__name__}; give Modules or functions{star}.")
        vars(self)[str(i)] = module
        give_paths(self, str(i), module)

    def _chain(self) -> list[Any]:
        return [module for name, module in vars(self).items() if name.isdigit()]

    def append(self, module: Callable[..., Any]) -> Self:
        """Adds a module at the end and returns the Sequential."""
        capturing.tell_change("appending to a Sequential", "Do it outside.", self)
        self._set(len(self), module)
        return self

    def __len__(self) -> int:
        return len(self._chain())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._chain())

    def __setitem__(self, i: int, module: Callable[..., Any]) -> None:
        """Replaces an item. Raises IndexError, DTypeError for a position that is not an integer."""
        place = self._place(i)
        capturing.tell_change(f"setting item {place} of a Sequential", "Do it outside.", self)
        self._set(place, module)

    def __delitem__(self, i: int | slice) -> None:
        """Removes items. Those that follow get the numbers that become free, also in the paths of their Parameters."""
        places = range(len(self))[i] if isinstance(i, slice) else (self._place(i),)
        capturing.tell_change("removing an item of a Sequential", "Do it outside.", self)
        rest = [module for place, module in enumerate(self._chain()) if place not in places]
        others = {name: value for name, value in vars(self).items() if not name.isdigit()}
        object.__setattr__(self, "__dict__", others | {str(place): module for place, module in enumerate(rest)})
        paths.give(self)

    def _place(self, i: Any) -> int:
        try:
            place, count = index(i), len(self)
        except TypeError:
            raise DTypeError(
                f"Sequential: an index is a {type(i).__name__}; give an integer, or a slice to get or delete items."
            ) from None
        if not -count <= place < count:
            raise IndexError(f"Sequential: index {place} is out of range for {count} items.")
        return place % count

    @overload
    def __getitem__(self, i: slice) -> Sequential: ...
    @overload
    def __getitem__(self, i: int) -> Any: ...
    def __getitem__(self, i: int | slice) -> Any:
        chain = self._chain()
        return Sequential(*chain[i]) if isinstance(i, slice) else chain[self._place(i)]

    def forward(self, x: Any) -> Tensor:
        chain = self._chain()
        i, count = 0, len(chain)
        while i < count:
            module = chain[i]
            activation = _FUSED.get(type(chain[i + 1])) if type(module) is Linear and i + 1 < count else None
            if activation and (activation == "relu" or module.weight.array.itemsize > 2):
                x = module(x, activation)
                i += 2
            else:
                x = module(x)
                i += 1
                if issubclass(x.__class__, tuple) and i < count:
                    _check_results(i, x, chain[i])
        return x


def _check_results(i: int, results: tuple[Any, ...], following: Any) -> None:
    """Raises ShapeError if item i, a layer of ours, takes one tensor, and the item before it returned several results."""
    kind = type(following)
    if kind.__module__.startswith("pullback.") and not issubclass(kind, (Sequential, Identity)):
        raise ShapeError(
            f"Sequential: item {i - 1} returned {len(results)} results, and item {i} ({kind.__name__}) takes one tensor. Put a "
            f"function between them that takes the one that is meant: lambda results: results[0]."
        )


class Identity(Module):
    """Returns x unchanged.

    >>> nn.Identity()(pb.ones(3))
    tensor([1., 1., 1.])
    """

    def forward(self, x: T) -> T:
        return x


class Flatten(Module):
    """Merges the axes from start_axis to end_axis into one. The default keeps the batch axis. A 0-d tensor gets shape (1,).

    >>> nn.Flatten()(pb.ones((5, 3, 8, 8))).shape
    (5, 192)
    """

    def __init__(self, start_axis: int = 1, end_axis: int = -1) -> None:
        self.start_axis, self.end_axis = integer("Flatten", "start_axis", start_axis), integer("Flatten", "end_axis", end_axis)

    def forward(self, x: ArrayLike) -> Tensor:
        x = own(x)
        if not x.ndim:
            return reshape(x, (1,))
        first, last = [normalize_axis("Flatten", axis, x.ndim) for axis in (self.start_axis, self.end_axis)]
        if first > last:
            raise ShapeError(f"Flatten: axis {self.start_axis} comes after axis {self.end_axis} in a tensor of shape {x.shape}.")
        return reshape(x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


class Dropout(Module):
    """In training mode, sets each element to zero with probability p and divides the other elements by 1 - p.

    >>> nn.Dropout(0.5).eval()(pb.ones(3))
    tensor([1., 1., 1.])
    """

    def __init__(self, p: float = 0.5, *, generator: Generator | None = None) -> None:
        self.p, self.generator = probability("Dropout", "p", p), generator

    def forward(self, x: ArrayLike) -> Tensor:
        return dropout(x, self.p, self.training, generator=self.generator)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Embedding(Module):
    """Looks up rows of a table by integer indices.

    Args:
        num_embeddings: the number of rows of the table. embedding_dim: the length of a row.
        padding_idx: a row that starts at 0 and gets no gradient. A negative number counts from the last row; negative indices do
            not, and are an IndexError.

    The weight has shape (num_embeddings, embedding_dim) and is drawn from N(0, 1), as in torch.nn.Embedding.

    >>> nn.Embedding(10, 4)(pb.tensor([1, 5, 5])).shape
    (3, 4)
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        sizes = positive_lengths("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = sizes
        self.weight = init.normal(Parameter(empty(sizes, dtype=dtype, device=device)))
        self.padding_idx = None if padding_idx is None else self._row(padding_idx)
        if self.padding_idx is not None:
            others = arange(self.num_embeddings, device=device) != self.padding_idx
            self.weight.assign(where(expand_dims(others, axis=-1), self.weight, 0.0))

    def _row(self, row: int) -> int:
        count = self.num_embeddings
        if not -count <= integer("Embedding", "padding_idx", row) < count:
            raise ShapeError(f"Embedding: padding_idx={row} is not a row of a table of {count} rows.")
        return row % count

    def forward(self, indices: ArrayLike) -> Tensor:
        """Maps integers of shape (…) to (…, embedding_dim). Raises IndexError naming an index out of range, DTypeError."""
        indices = as_tensor(indices)
        if dtypes.is_float(indices.dtype):
            raise DTypeError(f"Embedding: indices have dtype {indices.dtype}; they must be integers. Use .astype(pb.int64).")
        rows = rows_of_ids("Embedding", self.weight, indices)
        if self.padding_idx is None:
            return rows
        return where(expand_dims(equal(indices, self.padding_idx), axis=-1), stop_gradient(rows), rows)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
