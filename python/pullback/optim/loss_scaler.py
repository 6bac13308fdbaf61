"""LossScaler, for gradients in float16: it multiplies the loss, and leaves out the steps whose gradients overflow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ..backends import kernels_on
from ..errors import DeviceError, DTypeError, PullbackError
from ..interop.unknown_names import attach_hints
from ..launch import capturing, door
from ..launch.made import MadeOutside
from ..ops.conversion import astype, copy
from ..ops.elementwise import multiply
from ..tensors import devices, dtypes
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import Tree
from . import launches
from .launcher import Launcher
from .state import check_entries, floats

SIZE: Final = 5  # the numbers of a scaler, in the order of csrc/math/settings.h
SCALE, GOOD_STEPS, SKIPPED_STEPS = range(3)
MOST_STEPS: Final = 2**24  # the largest count that float32 holds exactly
_COUNTS: Final = {"scale": SCALE, "good_steps": GOOD_STEPS, "skipped_steps": SKIPPED_STEPS}
_FACTORS: Final = ("growth_factor", "backoff_factor", "growth_interval")


@attach_hints
class LossScaler(MadeOutside):
    """Keeps small gradients in float16 from becoming 0, as `torch.amp.GradScaler` does.

    The loss is multiplied by a scale, and so are all gradients, of which float16 would round those below 3e-8 to 0. The update of
    the optimizer divides them by the scale again, in float32. If one of them is infinite or NaN, because the scale was too large,
    the update changes nothing: no weight, slot, average, count of steps or schedule, and the scale becomes smaller. The device
    decides that, so that the host never waits, and a captured step can be replayed.

    Buffers that the forward pass updates, such as the running statistics of `nn.BatchNorm2d`, move also in a step that is left out,
    as in PyTorch. The scale does not touch the forward pass, so they are right. If an activation itself overflows float16, they
    become infinite or NaN and stay so. No scale helps then, and the network gives NaN after `net.eval()`: compute in float32 there.

    Args:
        init_scale: the first scale.
        growth_factor: multiplies the scale after `growth_interval` steps in a row without an overflow.
        backoff_factor: multiplies the scale after a step with an overflow.
        growth_interval: a number of steps.
        device: where the scale is: on the device of the loss and of the Parameters.

    `opt.minimize(loss_fn, x, y, scaler=scaler)` does all of a step. In single calls it is:

    Example:
        >>> with pb.GradientTape() as tape:
        ...     loss = scaler.scale(loss_fn(x, y))
        >>> scaler.step(opt, tape.gradient(loss, opt.parameters))
        >>> scaler.update()

    Raises PullbackError for numbers out of range.
    """

    def __init__(
        self, init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5, growth_interval: int = 2000,
        *, device: str | None = None,
    ) -> None:
        if not _in_range(init_scale, _TINY, _LARGE):
            raise PullbackError(f"LossScaler: init_scale={init_scale!r}; it must be a positive number that float32 holds.")
        self._factors = _checked("LossScaler", growth_factor, backoff_factor, growth_interval)
        numbers = np.zeros(SIZE, np.float32)
        numbers[SCALE] = init_scale
        self._numbers = Parameter(numbers, name="LossScaler", trainable=False, device=device)
        self._stepped: list[Any] = []  # the optimizers that have done a step since the last update

    def __repr__(self) -> str:
        capturing.refuse("printing a LossScaler", "Print it outside.")
        scale, good, skipped = self._read()
        factors = ", ".join([f"{name}={value:g}" for name, value in zip(_FACTORS, self._factors)])
        return f"LossScaler(scale={scale:g}, {factors}; {good:g} good steps since its last change, {skipped:g} skipped)"

    def __getstate__(self) -> dict[str, Any]:
        capturing.refuse("copying a LossScaler", "Copy it outside.")
        return {**vars(self), "_stepped": []}

    @property
    def value(self) -> Tensor:
        """The scale, a float32 tensor of shape ()."""
        return copy(self._numbers[SCALE])

    @property
    def skipped(self) -> Tensor:
        """The number of steps that changed nothing because of an overflow, an int64 tensor of shape ()."""
        return astype(self._numbers[SKIPPED_STEPS], dtypes.int64)

    @property
    def growth_factor(self) -> float:
        """What multiplies the scale after `growth_interval` steps in a row without an overflow."""
        return self._factors[0]

    @property
    def backoff_factor(self) -> float:
        """What multiplies the scale after a step with an overflow."""
        return self._factors[1]

    @property
    def growth_interval(self) -> int:
        """The number of steps without an overflow after which the scale grows."""
        return int(self._factors[2])

    # ---- a step

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the loss times the scale, in float32, or float64 for a float64 loss.

        Raises: DTypeError for a loss that is not floating, DeviceError for one on another device.
        """
        given: Any = loss
        if not isinstance(given, Tensor):
            raise PullbackError(f"LossScaler.scale: the loss is a {type(loss).__name__}; it must be a tensor.")
        if not dtypes.is_float(loss.dtype):
            raise DTypeError(f"LossScaler.scale: the loss has dtype {loss.dtype}; it must be floating.")
        if loss.device != self._numbers.device:
            raise DeviceError(
                f"LossScaler.scale: the loss is on {loss.device}, the scale on {self._numbers.device}. Make the scaler with "
                f'pb.amp.LossScaler(device="{loss.device}").'
            )
        return multiply(loss, self._numbers[SCALE])

    def step(self, opt: Any, grads: Tree) -> None:
        """Does a step of the optimizer with the gradients of the scaled loss, or changes nothing if one of them is not finite.

        It does not change the scale, so that several optimizers can do a step, each with its own gradients. Call `update` then.

        Args:
            opt: the optimizer.
            grads: as `opt.step` takes them.

        Raises: PullbackError for an optimizer that cannot leave out a step on the device, or that has done one since the last
            `update`; what `opt.step` raises.
        """
        given: Any = opt
        if not isinstance(opt, Launcher):
            raise PullbackError(
                f"LossScaler.step: a {type(opt).__name__} was given, and not an optimizer. Write scaler.step(opt, gradients)."
            )
        if any([other is opt for other in self._stepped]):
            raise PullbackError(
                f"LossScaler.step: this {type(opt).__name__} has done a step since the last scaler.update(). Call it once after "
                f"the steps of all optimizers, and before the next loss is scaled."
            )
        given._step_scaled(grads, self._numbers)
        self._stepped.append(opt)

    def update(self) -> None:
        """Changes the scale after the steps since the last call: backoff_factor multiplies it if one of them had an overflow, and
        growth_factor if this was the last of `growth_interval` calls without one. Without a step it does nothing.
        """
        capturing.step()
        self._stepped.clear()
        if capturing.thread.recording is not None:
            capturing.thread.recording.prepare(self._stepped, self._stepped.clear)
            factors = self._factors
            capturing.thread.recording.guard(self, lambda: self._factors == factors)
        kernels = kernels_on(self._numbers.device)
        with door.charged_to(door.OPTIMIZER):
            launches.update_scale(kernels, self._numbers.array, *self._factors)
            if kernels is not None and door.profiling:
                door.charge("update_scale")
        self._numbers.storage.changed()

    # ---- state

    def _read(self) -> Any:
        return devices.move(self._numbers.array, "cpu")[:3]

    def state_dict(self) -> dict[str, Any]:
        """Returns the scale, the counts of steps, and the factors. A read waits for the step."""
        capturing.refuse("state_dict()", "Ask for it outside.")
        numbers = np.array(self._read())
        counts = {name: Tensor(numbers[k : k + 1].reshape(())) for name, k in _COUNTS.items()}
        return {**counts, **dict(zip(_FACTORS, self._factors))}

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        """Restores a state of `state_dict()`. Raises PullbackError, and then nothing has changed."""
        capturing.refuse("loading a LossScaler's state", "Load it outside.")
        check_entries("the state of a LossScaler", given, [*_COUNTS, *_FACTORS])
        factors = _checked("load_state_dict", *[given[name] for name in _FACTORS])
        numbers = np.zeros(SIZE, np.float32)
        for name, k in _COUNTS.items():
            numbers[k] = floats(f'"{name}"', given[name], (), "cpu")
            least = _TINY if k == SCALE else 0
            if not _in_range(float(numbers[k]), least, _LARGE if k == SCALE else MOST_STEPS):
                raise PullbackError(f'load_state_dict: "{name}" is {numbers[k]:g}, which is damaged.')
        devices.write(self._numbers.array, devices.move(numbers, self._numbers.device))
        self._numbers.storage.changed()
        self._factors = factors
        self._stepped.clear()


_TINY: Final = float(np.finfo(np.float32).tiny)
_LARGE: Final = float(np.finfo(np.float32).max)


def _in_range(x: Any, least: float, most: float) -> bool:
    real = isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)
    return real and math.isfinite(x) and bool(least <= x <= most)


def _checked(caller: str, growth: Any, backoff: Any, interval: Any) -> tuple[float, float, float]:
    """Returns the factors of growth and backoff and the interval. Raises PullbackError."""
    if not (_in_range(growth, 1, _LARGE) and growth > 1):
        raise PullbackError(f"{caller}: growth_factor={growth!r}; it must be a number larger than 1, such as 2.0.")
    if not (_in_range(backoff, 0, 1) and 0 < backoff < 1):
        raise PullbackError(f"{caller}: backoff_factor={backoff!r}; it must be a number between 0 and 1, such as 0.5.")
    if not (_in_range(interval, 1, MOST_STEPS) and interval == int(interval)):
        raise PullbackError(
            f"{caller}: growth_interval={interval!r}; it must be a number of steps from 1 to {MOST_STEPS}, such as 2000."
        )
    return float(growth), float(backoff), float(interval)
