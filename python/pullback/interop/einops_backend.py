"""Makes the functions of einops take tensors. einops is not imported here: a backend is registered when the user imports it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ..ops import linalg, movement, shape
from ..tensors.creation import tensor
from ..tensors.dtypes import is_float
from ..tensors.ranges import arange
from ..tensors.tensor import Tensor

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


class _WhenImported:
    """A finder of modules that runs a function after the first import of one. The other finders find and load the module."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self.name, self.run = name, run

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._run_after(spec.loader)
                return spec
        return None

    def _run_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.run()

        loader.exec_module = exec_module


def attach() -> None:
    """Registers the backend: now if einops is imported already, otherwise when it is imported."""
    if "einops" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _WhenImported("einops", _register))


_registered: Final[list[type]] = []  # einops finds its backends among the living subclasses of AbstractBackend


def _register() -> None:
    try:
        from einops._backends import AbstractBackend  # type: ignore[import-not-found]
    except ImportError as error:  # another version of einops; its import must not fail because of pullback
        warnings.warn(f"einops will not take pullback's tensors: {error}.", stacklevel=2)
        return
    _registered.append(_backend(AbstractBackend))


def _backend(base: Any) -> type:
    """Returns the class that einops looks for among the subclasses of `base`."""

    class PullbackBackend(base):  # type: ignore[misc]
        """What einops asks of a library, where a tensor has no method for it."""

        framework_name = "pullback"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Tensor)

        def from_numpy(self, x: Any) -> Tensor:
            return tensor(x)

        def to_numpy(self, x: Tensor) -> Any:
            return x.numpy()

        def arange(self, start: int, stop: int) -> Tensor:
            return arange(start, stop)

        def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
            return movement.stack(tensors)

        def add_axis(self, x: Tensor, new_position: int) -> Tensor:
            return shape.expand_dims(x, axis=new_position)

        def tile(self, x: Tensor, repeats: Sequence[int]) -> Tensor:
            return movement.tile(x, repeats)

        def concat(self, tensors: list[Tensor], axis: int) -> Tensor:
            return movement.concat(tensors, axis=axis)

        def is_float_type(self, x: Tensor) -> bool:
            return is_float(x.dtype)

        def einsum(self, pattern: str, *x: Tensor) -> Tensor:
            return linalg.einsum(pattern, *x)

    return PullbackBackend
