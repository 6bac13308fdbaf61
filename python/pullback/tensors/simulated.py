"""Arrays of a simulated GPU: NumPy arrays marked as the device's, and NumPy as the namespace that makes them.

If the CUDA kernels were built for the simulator (`PULLBACK_CUDA=SIM`), this module replaces CuPy. It is as strict as CuPy: host
arrays and device arrays do not mix.
"""

from __future__ import annotations

import ctypes
import math
import types
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, Final

import numpy as np

from .. import variables
from ..launch.refusal import Refused
from .gpu import Gpu

# These are set when the kernels are loaded. finish() waits for all launched kernels. new_array(size, dtype) makes an array in
# memory that is not reused before the kernels that use it are done. let_wait(device, stream) makes another library's stream wait
# for pullback's stream.
finish: Callable[[], None] = lambda: None
new_array: Callable[[int, Any], Any] | None = None
let_wait: Callable[[int, int], None] | None = None


class _Device:
    id = 0

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing: there is only one device."""


class DeviceArray(np.ndarray[Any, Any]):
    """A NumPy array in the memory of the simulated device."""

    @property
    def device(self) -> _Device:  # type: ignore[override]
        return _Device()

    def get(self) -> np.ndarray[Any, Any]:
        """Returns a copy on the host."""
        return np.array(host(self))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        refuse_mixing(inputs)
        outputs = {} if out is None else {"out": tuple([host(o) for o in out])}
        result = getattr(ufunc, method)(*_on_host(inputs), **outputs, **_on_host(options))
        return mark(result) if out is None else out[0]

    def __array_function__(self, func: Any, types: Any, args: Any, options: Any) -> Any:
        refuse_mixing(args)
        return mark(func(*_on_host(args), **_on_host(options)))

    def __setitem__(self, index: Any, value: Any) -> None:
        refuse_mixing((value,))
        host(self)[_on_host(index)] = _on_host(value)

    def __getitem__(self, index: Any) -> Any:
        return mark(host(self)[_on_host(index)])

    def __dlpack_device__(self) -> tuple[Any, Any]:
        return (2, 0)  # kDLCUDA

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """Returns a DLPack capsule. As with CuPy, the consumer's stream waits for pullback's stream."""
        if let_wait is not None and stream != -1:
            let_wait(0, stream or 1)
        return self.view(np.ndarray).__dlpack__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        finish()
        return {**self.__array_interface__, "version": 3}


def _waiting(name: str) -> Any:
    method = getattr(np.ndarray, name)

    @wraps(method)
    def call(self: DeviceArray, *args: Any, **options: Any) -> Any:
        return mark(method(host(self), *_on_host(args), **_on_host(options)))

    return call


for _name in (
    "astype", "copy", "tolist", "item", "sum", "min", "max", "prod", "mean", "any", "all", "argmax", "argmin", "argsort", "cumsum",
    "cumprod", "nonzero", "take", "dot", "round", "clip", "var", "std", "repeat", "tobytes", "__bool__", "__int__", "__float__",
    "__complex__", "__index__",
):
    setattr(DeviceArray, _name, _waiting(_name))


def host(array: Any) -> Any:
    """Waits for the kernels, and returns the same memory as a plain NumPy array."""
    finish()
    return array.view(np.ndarray) if isinstance(array, DeviceArray) else array


def mark(result: Any) -> Any:
    """Returns a NumPy result with its arrays and NumPy scalars marked as the device's."""
    if isinstance(result, (np.ndarray, np.generic)):
        return _on_device(np.asarray(result))
    if isinstance(result, (list, tuple)):
        marked = [mark(x) for x in result]
        return type(result)(*marked) if hasattr(result, "_fields") else type(result)(marked)
    return result


def _on_device(array: Any) -> Any:
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if new_array is None or not root.flags.owndata:  # there are no kernels, or this is a view of the device's memory
        return array.view(DeviceArray)
    try:
        moved = new_array(array.size, array.dtype).reshape(array.shape)
        finish()  # other threads may have launched work on that memory before they gave it back
    except Refused:  # kernels do not support the dtype, for example complex numbers
        return array.view(DeviceArray)
    moved.view(np.ndarray)[...] = array
    return moved


def _on_host(tree: Any) -> Any:
    if isinstance(tree, DeviceArray):
        return host(tree)
    if isinstance(tree, (list, tuple)):
        moved = [_on_host(x) for x in tree]
        return type(tree)(*moved) if hasattr(tree, "_fields") else type(tree)(moved)
    if isinstance(tree, dict):
        return {key: _on_host(x) for key, x in tree.items()}
    return tree


def refuse_mixing(tree: Any) -> None:
    """Raises TypeError, as CuPy does, if there is a host array in the tree. Numbers are allowed."""
    for x in tree if isinstance(tree, (list, tuple)) else ():
        if type(x) is np.ndarray and x.ndim:
            raise TypeError(f"an array of the host, of shape {x.shape}, among arrays of the device")
        refuse_mixing(x)


class Namespace(types.ModuleType):
    """The NumPy namespace, with results in the device's memory."""

    def __init__(self, module: Any) -> None:
        super().__init__(f"pullback.simulated.{module.__name__}")
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, types.ModuleType):
            found = Namespace(found)
        elif callable(found) and not isinstance(found, (type, np.ufunc)):  # ufuncs call the arrays' __array_ufunc__
            found = _marking(found)
        setattr(self, name, found)
        return found


def _marking(function: Any) -> Any:
    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        finish()
        return mark(function(*_on_host(args), **_on_host(options)))

    return call


class Exported:
    """A DLPack capsule of the simulated device's memory, presented as host memory so that NumPy accepts it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU


def owned_memory(address: int, nbytes: int, owner: Any) -> Any:
    """Returns a buffer over `nbytes` bytes of memory at `address` that keeps `owner` alive."""
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    memory.owner = owner
    return memory


namespace: Final = Namespace(np)


class _AtOnce:
    """Orders the work of a simulated device without kernels: there is nothing to wait for, because NumPy works synchronously."""

    def moment(self, number: int, stream: int) -> bool:
        """Returns a moment that has passed."""
        return True

    def passed(self, moment: Any) -> bool:
        """Returns True, because nothing is pending."""
        return True

    def wait_for(self, number: int, stream: int) -> None:
        """Does nothing, because nothing is pending."""

    def wait_for_all(self, number: int) -> None:
        """Does nothing, because nothing is pending."""

    def synchronize(self, number: int) -> None:
        """Does nothing, because nothing is pending."""


class Working:
    """The context manager of `Gpu.working`. It does nothing, because the simulated device has only one stream."""

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, *_: object) -> None:
        """Does nothing."""


class _Landing:
    """Memory that is freed, and so may be reused, in the order of a stream."""

    def __init__(self, simulator: Any, nbytes: int, stream: int) -> None:
        self._release, self._stream = simulator.release, stream  # the module is empty at the end of the interpreter
        self.address = int(simulator.allocate(nbytes))

    def __del__(self) -> None:
        if hasattr(self, "address"):  # Ctrl-C may have interrupted __init__
            self._release(self.address, self._stream)


class SimulatedGpu(Gpu):
    """The simulated device: its arrays are NumPy's, and its memory is the host's."""

    simulated = True

    def __init__(self, kernels: Any) -> None:
        super().__init__(namespace, DeviceArray, kernels, None)
        if variables.backend() == "native":
            global finish, new_array, let_wait
            finish = lambda: kernels.synchronize(0)
            kernels.register_arrays(kernels, DeviceArray)
            new_array, let_wait = kernels.new_array, kernels.let_wait

    @cached_property
    def order(self) -> Any:
        return self.kernels or _AtOnce()

    def count(self) -> int:
        return 1

    def working(self, number: int) -> Working:
        return Working()

    def wait_for_caller(self, number: int) -> None:
        """Does nothing: NumPy has already done the caller's work."""

    def from_dlpack(self, obj: Any, number: int) -> Any:
        stream = int(self.kernels.stream(number)) if self.kernels is not None else 1
        return np.from_dlpack(Exported(obj.__dlpack__(stream=stream))).view(DeviceArray)

    def from_interface(self, obj: Any) -> Any:
        """Returns an array over the memory that `__cuda_array_interface__` describes, which must be contiguous."""
        facts = obj.__cuda_array_interface__
        dtype = np.dtype(facts["typestr"])
        memory = owned_memory(facts["data"][0], max(1, math.prod(facts["shape"]) * dtype.itemsize), obj)
        return np.ndarray(facts["shape"], dtype, memory).view(DeviceArray)

    def owner_of(self, array: Any) -> Any:
        base = array.base
        while isinstance(base, np.ndarray):
            base = base.base
        return getattr(base, "owner", base)

    def over_same_memory(self, array: Any, owner: Any) -> Any:
        low, high = np.lib.array_utils.byte_bounds(array)
        memory, offset = owned_memory(low, high - low, owner), array.__array_interface__["data"][0] - low
        return np.ndarray(array.shape, array.dtype, memory, offset, array.strides).view(DeviceArray)

    def part_of(self, owner: Any, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Any:
        return np.ndarray(shape, dtype, owner, offset, strides).view(DeviceArray)

    def stream_address(self, number: int) -> int:
        return int(self.kernels.stream(number)) if self.kernels is not None else 0

    def copy_stream(self, number: int) -> int:
        self.stream_address(number)  # raises in a forked child
        if number not in self._copy_streams:
            self._copy_streams[number] = self.kernels.simulator.new_stream(False) if self.kernels is not None else 0
        return self._copy_streams[number]

    def finish_copies(self, number: int) -> None:
        if self.kernels is not None:
            self.kernels.simulator.synchronize(self._copy_streams[number])

    def pinned(self, nbytes: int, number: int) -> np.ndarray[Any, Any]:
        if self.kernels is None:
            return np.empty(nbytes, np.uint8)
        # Copies from the simulator's memory read it when they run, but copies from NumPy's memory, which is pageable, at once.
        owner = _Landing(self.kernels.simulator, max(1, nbytes), 1)
        return np.ndarray(nbytes, np.uint8, owned_memory(owner.address, max(1, nbytes), owner))

    def landing(self, shape: tuple[int, ...], dtype: Any, number: int) -> Any:
        if self.kernels is None:
            return np.empty(shape, dtype).view(DeviceArray)
        nbytes = max(1, math.prod(shape) * dtype.itemsize)
        owner = _Landing(self.kernels.simulator, nbytes, self.copy_stream(number))
        return np.ndarray(shape, dtype, owned_memory(owner.address, nbytes, owner)).view(DeviceArray)

    def address_of(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    def copy_async(self, to: int, source: int, nbytes: int, stream: int, number: int) -> None:
        if self.kernels is None:
            ctypes.memmove(to, source, nbytes)
        else:
            self.kernels.simulator.copy(stream, to, source, nbytes)

    def pool_use(self, number: int) -> tuple[int, int]:
        return 0, 0

    def driver_memory(self, number: int) -> tuple[int, int]:
        return 0, 0

    def release_pool(self) -> int:
        return 0
