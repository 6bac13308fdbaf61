"""The unknowns of a solver: a module's Parameters, or a tree of tensors, as one flat vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..duck import attribute, has
from ..errors import ArgumentError, DeviceError, DTypeError, PullbackError, ShapeError
from ..interop.wrong_calls import argument_named
from ..ops.movement import concat
from ..ops.shape import reshape
from ..tensors import dtypes
from ..tensors.creation import asarray
from ..tensors.operand import own
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tree import flatten, paths, unflatten


def in_one_dtype(leaves: list[Any]) -> list[Any]:
    """Returns the leaves, in which Python floats have the dtype of the first tensor or array among them, or else float64.

    Arrays of other libraries, which have DLPack or `__array__`, become tensors.
    """
    leaves = [own(x) if _is_foreign(x) else x for x in leaves]
    found = [x.dtype for x in leaves if has(x, "dtype") and dtypes.is_float(x.dtype)]
    return [asarray(x, dtype=found[0] if found else dtypes.float64) if isinstance(x, float) else x for x in leaves]


def _is_foreign(x: Any) -> bool:
    """True for an array that is neither a tensor nor NumPy's."""
    return not isinstance(x, (Tensor, np.ndarray, np.generic)) and (has(x, "__dlpack__") or has(x, "__array__"))


class Unknowns:
    """The unknowns that a solver changes.

    Args:
        params: a Module, a Parameter or tensor, a list of numbers, or nested lists, tuples and dicts of Parameters and tensors.
        what: the name of the solver, for messages.

    Attributes:
        tree: the argument of the user's function: the Module itself, or the structure of `params` with a Parameter for each leaf.
        shared: True if the user gave Parameters, which the user's function can read itself.
        slots: the Parameters whose values are the unknowns. They are the user's own where the user gave Parameters.
        dtype, device, size: the dtype, the device and the length of the flat vector.
    """

    def __init__(self, params: Any, what: str) -> None:
        self.what = what
        self.is_module = not isinstance(params, Tensor) and callable(attribute(params, "parameters", None))
        leaves, self.spec, names = self._leaves(params)
        held = [x if isinstance(x, Parameter) else self._slot(x, name) for x, name in zip(leaves, names)]
        self.tree = params if self.is_module else unflatten(self.spec, held)
        self.held = held
        self.shared = self.is_module or any([x is y for x, y in zip(leaves, held)])
        self.slots = [x for x in held if x.trainable]
        self._check([name for name, x in zip(names, held) if x.trainable])
        self.dtype, self.device = self.slots[0].dtype, self.slots[0].device
        self.shapes = [x.shape for x in self.slots]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.size = sum(self.sizes)
        if self.size == 0:
            raise ShapeError(f"{what}: params has no elements, so there is nothing to change. Give at least one number.")

    def _leaves(self, params: Any) -> tuple[list[Any], Any, list[str]]:
        if self.is_module:
            found, spec = flatten(params.parameters())
            return found, spec, [x.name or f"parameters()[{i}]" for i, x in enumerate(found)]
        if isinstance(params, (list, tuple)) and params and all([isinstance(x, (int, float, np.number)) for x in params]):
            params = asarray(np.asarray(params))
        if not isinstance(params, (Tensor, np.ndarray, list, tuple, dict)) and hasattr(params, "__next__"):
            params = list(params)
        leaves, spec = flatten(params)
        leaves = in_one_dtype(leaves)
        return leaves, spec, [f"params{path}" for path in (paths(params) if leaves else ())]

    def _slot(self, x: Any, name: str) -> Parameter:
        if isinstance(x, complex) or getattr(getattr(x, "dtype", None), "kind", "") == "c":
            raise DTypeError(
                f"{self.what}: {name} is complex, and solvers work with real numbers. Give real and imaginary parts apart."
            )
        try:
            value = own(x)
        except PullbackError as error:
            words = str(error).removeprefix(argument_named(x))
            raise DTypeError(
                f"{self.what}: {name} is a {type(x).__name__}. Give tensors, Parameters, arrays or numbers: {words}"
            ) from None
        if not dtypes.is_float(value.dtype):
            raise DTypeError(
                f"{self.what}: {name} has dtype {value.dtype}, and only float32 and float64 can change by small steps. Give "
                f"floats: x.astype(pb.float64) of an array, or [1.0, 2.0] for [1, 2]."
            )
        return Parameter(value)

    def _check(self, names: Sequence[str]) -> None:
        what, slots = self.what, self.slots
        if not slots:
            raise ArgumentError(
                f"{what}: params has no trainable parameter, so there is nothing to change. Give tensors or Parameters."
            )
        if len({id(x) for x in slots}) < len(slots):
            raise ArgumentError(f"{what}: a Parameter is in params twice. Give each Parameter once.")
        first = slots[0]
        for name, x in zip(names, slots):
            if x.dtype.name not in ("float32", "float64"):
                raise DTypeError(
                    f"{what}: {name} has dtype {x.dtype}; solvers need float32 or float64, because line searches compare small "
                    f"differences. Convert it: module.to(pb.float32), or x.astype(pb.float32)."
                )
            if x.dtype != first.dtype:
                raise DTypeError(f"{what}: {names[0]} has dtype {first.dtype} and {name} {x.dtype}. Convert all to one dtype.")
            if x.device != first.device:
                raise DeviceError(f"{what}: {names[0]} is on {first.device} and {name} on {x.device}. Move all to one device.")
            if x.constraint is not None:
                raise ArgumentError(
                    f"{what}: {name} has a constraint, which only optimizers apply. Remove it, and pass bounds= or use "
                    f"augmented_lagrangian."
                )

    def flat(self, values: Sequence[Any]) -> Tensor:
        """Returns tensors of the unknowns' shapes as one flat vector."""
        parts = [x if x.ndim == 1 else reshape(x, (-1,)) for x in values]
        return parts[0] if len(parts) == 1 else concat(parts)

    def parts(self, vector: Any) -> list[Any]:
        """Returns a flat vector as one part per unknown, in the unknowns' shapes."""
        found: list[Any] = []
        begin = 0
        for shape, size in zip(self.shapes, self.sizes):
            part = vector if size == self.size else vector[begin : begin + size]
            found.append(part if len(shape) == 1 else part.reshape(shape))
            begin += size
        return found

    def place(self, vector: Tensor) -> None:
        """Assigns a flat vector to the Parameters."""
        for slot, part in zip(self.slots, self.parts(vector)):
            slot.assign(part)

    def structured(self, vector: Any) -> Any:
        """Returns a flat vector in the structure of `params`. Leaves that are not trainable keep their values."""
        parts = iter(self.parts(vector))
        return unflatten(self.spec, [next(parts) if x.trainable else x for x in self.held])
