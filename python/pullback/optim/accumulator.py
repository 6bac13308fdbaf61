"""Accumulator, which adds up the gradients of several batches for one update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, ValuesView
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np

from ..errors import DeviceError, DTypeError, PullbackError, ShapeError, StaleValueError
from ..launch import capturing, door
from ..launch.made import MadeOutside
from ..ops.by_name import in_dtype
from ..ops.conversion import copy as snapshot
from ..ops.elementwise import divide
from ..ops.shape import broadcast_to
from ..ops.writing import write
from ..tensors import devices
from ..tensors.creation import asarray
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from . import arena, arguments, sets as c, state
from .arguments import MISSING, Form, dicts, trainable
from .optimizer import Optimizer
from .options import Params
from .rounds import AccumulatorStats, Rounds

Reduce = Literal["mean", "sum"]
Stale = Literal["error", "drop", "decay"]
LEAST: Final = 1e-30  # the range of counts whose sums float32 holds
MOST: Final = 1e30
_MADE: Final = ("_adder", "_flats", "_ones", "_device", "_dtypes")  # attributes that a copy creates again in _make()


class Accumulator(MadeOutside):
    """Adds up the gradients of several batches, so that one update uses all of them.

    Args:
        params: the Parameters, in a list or any nested structure, as an optimizer takes them: usually `opt.parameters`.
        every: the number of gradients after which `add` returns True.
        reduce: "mean" gives the mean of the gradients, each weighted by its `count`: the gradient of one large batch if the loss of
            each batch is a mean over `count` examples. "sum" gives their sum, and `count` does not matter.
        stale: what happens to a gradient whose weights have been updated since it was computed: one with a `step` of less than
            `acc.step`. "error" raises StaleValueError. "drop" leaves it out and counts it. "decay" divides its weight by 1 + the
            number of updates since then (Zhang et al. 2016, "Staleness-aware Async-SGD").

    There is one buffer for each Parameter, on its device: float32 for half precision, otherwise of the Parameter's dtype. `add` is
    one launch for all Parameters, and a conversion for each gradient of half precision. A Parameter without a gradient (None) in
    some of the batches has a gradient of zeros there; without one in all of them its result is None. NaN and infinity are not
    looked for: one of them makes the result NaN or infinite, as it would in one large batch.

    Inside a captured function the counts are facts of the host. A recording is used for the calls that add and take alike; with
    `every=10` there are two, one for nine calls and one for the tenth.

    Example:
        >>> acc = optim.Accumulator(opt.parameters, every=10)
        >>> for x, y in batches:
        ...     with pb.GradientTape() as tape:
        ...         loss = nn.cross_entropy(net(x), y)
        ...     if acc.add(tape.gradient(loss, opt.parameters), count=len(x)):
        ...         opt.step(acc.take())

    Raises PullbackError for arguments of other values.
    """

    def __init__(self, params: Params, every: int = 10, reduce: Reduce = "mean", stale: Stale = "error") -> None:
        given: Any = list(params) if isinstance(params, (Iterator, ValuesView)) else params
        given, _ = dicts("Accumulator", given)
        if not (_whole(every) and every >= 1):
            raise PullbackError(f"Accumulator: every={every!r}; it must be a number of gradients, such as 10.")
        for name, value, words in (("reduce", reduce, get_args(Reduce)), ("stale", stale, get_args(Stale))):
            if value not in words:
                raise PullbackError(f"Accumulator: {name}={value!r}; use {' or '.join(map(repr, words))}.")
        self._parameters = trainable("Accumulator", given)
        self.every, self.reduce, self.stale = int(every), reduce, stale
        self._names = arguments.names(self._parameters)
        self._form = Form(given, self._parameters, "acc.add")
        self._rounds = Rounds(self.every)
        self._make()

    def __repr__(self) -> str:
        words = f"every={self.every}, reduce={self.reduce!r}, stale={self.stale!r}"
        return f"Accumulator({len(self._parameters)} parameters, {words}; step {self.step}, {self.stats.pending} pending)"

    @property
    def parameters(self) -> list[Parameter]:
        """A new list of the Parameters, in the order of their gradients."""
        return list(self._parameters)

    # ---- counts

    @property
    def step(self) -> int:
        """The number of updates: how often `take` was called. It can be set, to the count of a training that is resumed."""
        return self._rounds.step

    @step.setter
    def step(self, step: int) -> None:
        capturing.refuse("setting step of an Accumulator", "Set it outside: `take` counts each update.")
        if not (_whole(step) and step >= 0):
            raise PullbackError(f"Accumulator: step={step!r}; it must be a number of updates, 0 or more.")
        self._rounds.step = int(step)

    @property
    def stats(self) -> AccumulatorStats:
        """How many gradients were accepted and dropped since the start, and how many wait for `take`."""
        return self._rounds.stats()

    # ---- adding

    def add(self, grads: Any = MISSING, step: int | None = None, count: float = 1) -> bool:
        """Adds the gradients of a batch. Returns True if those of `every` batches or more wait for `take`.

        Args:
            grads: one gradient, or None, for each Parameter, in the order of `parameters` or the structure of `params`.
            step: `acc.step` when the forward pass that led to these gradients read the weights. None stands for now: the weights
                have not changed since. Leave it out in a captured function, which would be recorded again after each update.
            count: the number of examples that the gradients are a mean of, or another weight of the batch, from 1e-30 to 1e30.

        Raises ShapeError, DTypeError, DeviceError for a gradient that is unlike its Parameter; StaleValueError for a stale one, if
        stale="error"; PullbackError. Nothing has changed then.
        """
        leaves = [None if g is None else _array(g) for g in self._form.one_each(grads)]
        for p, dtype, g in zip(self._parameters, self._dtypes, leaves):
            if g is not None:
                self._check(p, dtype, g)
        if not (_real(count) and LEAST <= count <= MOST):
            raise PullbackError(
                f"add: count={count!r}; it must be one positive number, such as that of the examples in the batch, between "
                f"{LEAST:g} and {MOST:g}."
            )
        late = self._lateness(step)
        if late and self.stale == "drop":
            return self._rounds.drop(step)
        scale = 1 / (1 + late)
        self._accumulate(leaves, scale if self.reduce == "sum" else float(count) * scale)
        return self._rounds.accept(sum([1 << i for i, g in enumerate(leaves) if g is not None]), step)

    def _check(self, p: Parameter, dtype: Any, g: Any) -> None:
        if p.dtype != dtype:
            raise DTypeError(
                f"add: {p.label()} has changed its dtype from {dtype} to {p.dtype}, but its buffer was made for {dtype}. Make the "
                f"Accumulator after net.to(pb.{p.dtype})."
            )
        if g.shape != p.shape:
            raise ShapeError(f"add: the gradient of {p.label()} has shape {g.shape}, the parameter {p.shape}.")
        if g.dtype != p.dtype:
            raise DTypeError(
                f"add: the gradient of {p.label()} has dtype {g.dtype}, the parameter {p.dtype}. Convert it with .astype."
            )
        if devices.device_of(g) != self._device:
            raise DeviceError(
                f"add: the gradient of {p.label()} is on {devices.device_of(g)}, the buffers are on {self._device}. Move it with "
                f'.to("{self._device}"), or make the Accumulator after moving the parameters.'
            )

    def _lateness(self, step: Any) -> int:
        """Returns the number of updates since a gradient's step. Raises StaleValueError, PullbackError."""
        if step is None:
            return 0
        if not (_whole(step) and 0 <= step <= self.step):
            raise PullbackError(
                f"add: step={step!r}; it must be the `acc.step` at which the gradient was computed, a number from 0 to the present "
                f"one, which is {self.step}."
            )
        if step < self.step and self.stale == "error":
            raise StaleValueError(
                f"add: the gradient was computed at step {step}, and the Accumulator is at step {self.step}: the weights have been "
                f'updated since. Compute it again; or make the Accumulator with stale="drop", or stale="decay" to weight it less.'
            )
        return self.step - int(step)

    def _accumulate(self, leaves: list[Any], weight: float) -> None:
        with door.charged_to(door.OPTIMIZER):
            wide = [None if g is None else in_dtype(Tensor(g), arena.slot_dtype(g)) for g in leaves]
            self._adder.add([*wide, *self._ones], weight)

    # ---- taking

    def take(self) -> list[Tensor | None]:
        """Returns the mean (or sum) of the gradients since the last call, one for each Parameter in the order of `parameters`.

        A Parameter without any gradient has None. The buffers are zeros afterwards, and `acc.step` has grown by one.

        Raises PullbackError if there was no gradient.
        """
        if not self.stats.pending:
            raise PullbackError("take: no gradient was added since the last call. Call it when `add` has returned True.")
        capturing.step()
        present, found = self._rounds.present(), list[Any]([None] * len(self._parameters))
        with door.charged_to(door.OPTIMIZER):
            for flat in self._flats:
                sums = Tensor(flat.array)
                means = (snapshot(sums) if self.reduce == "sum" else divide(sums, Tensor(flat.array[-1:]))).array
                for i, start in flat.starts:
                    p = self._parameters[i]
                    if present >> i & 1:
                        found[i] = in_dtype(Tensor(means[start : start + p.size].reshape(p.shape)), p.dtype)
                write(flat.array, broadcast_to(Tensor(flat.zero), flat.array.shape).array)
        self._rounds.take()
        return found

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Returns the counts and the gradients that wait for `take`, by the names that the Parameters had when the Accumulator was
        made: what an exact resume needs.
        """
        capturing.refuse("state_dict() of an Accumulator", "Ask for it outside.")
        sums = {
            self._names[i]: Tensor(devices.copied(flat.array[start : start + self._parameters[i].size]))
            for flat in self._flats
            for i, start in flat.starts
        }
        weights = {str(flat.array.dtype): Tensor(devices.copied(flat.array[-1:])) for flat in self._flats}
        return {"reduce": self.reduce, **self._rounds.saved(self._names), "sums": sums, "weights": weights}

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        """Restores the state of an Accumulator of such Parameters. `every` and `stale` stay those of this one.

        Raises PullbackError if the state does not fit. Nothing has changed then.
        """
        capturing.refuse("loading an Accumulator's state", "Load it outside.")
        state.check_entries("the state", given, ["reduce", "step", "accepted", "dropped", "waiting", "sums", "weights"])
        if not isinstance(given["reduce"], str) or given["reduce"] != self.reduce:
            raise PullbackError(
                f"load_state_dict: the state is that of an Accumulator with reduce={given['reduce']!r}, and this one has "
                f"reduce={self.reduce!r}."
            )
        state.check_entries("the dict of sums", given["sums"], self._names)
        state.check_entries("the dict of weights", given["weights"], [str(flat.array.dtype) for flat in self._flats])
        counts = {name: given[name] for name in ("step", "accepted", "dropped")}
        waiting = self._waiting(given["waiting"])
        for name, count in counts.items():
            if not (_whole(count) and count >= 0):
                raise PullbackError(f"load_state_dict: {name} is {count!r}; it must be a count.")
        pending = sum(waiting.values())
        if counts["accepted"] < pending:
            raise PullbackError(f"load_state_dict: {pending} gradients wait, but only {counts['accepted']} were accepted.")
        loads = []
        for flat in self._flats:
            dtype = str(flat.array.dtype)
            weight = state.floats(f"the weight of {dtype}", given["weights"][dtype], (1,), self._device)
            number = float(devices.move(weight, "cpu")[0])
            if not (0 < number < math.inf if pending else number == 0):
                wanted = f"positive, because {pending} gradients wait" if pending else "0, because none waits"
                raise PullbackError(f"load_state_dict: the weight of {dtype} is {number:g}; it must be {wanted}.")
            loads.append((flat.array[-1:], weight))
            for i, start in flat.starts:
                name, size = self._names[i], self._parameters[i].size
                value = state.floats(f'the sum of "{name}"', given["sums"][name], (size,), self._device)
                loads.append((flat.array[start : start + size], value))
        for target, value in loads:
            devices.write(target, value)
        self._rounds.restore(**counts, waiting=waiting)

    def _waiting(self, given: Any) -> dict[int, int]:
        """Returns how many gradients of a state wait, by the set of their parameters. Raises PullbackError."""
        found: dict[int, int] = {}
        try:
            for count, names in given:
                mask = sum([1 << self._names.index(name) for name in {*names}])
                if not (_whole(count) and count >= 1) or len({*names}) < len(names) or mask in found:
                    raise ValueError
                found[mask] = int(count)
        except (TypeError, ValueError):
            what = "it must be a list of (count, names of Parameters), with each set of names once"
            raise PullbackError(f"load_state_dict: waiting is {given!r}; {what}.") from None
        return found

    # ---- memory

    def _make(self) -> None:
        """Allocates the buffers on the parameters' device, for each dtype in one array that ends with the sum of the weights."""
        self._device = self._parameters[0].device
        self._dtypes = [p.dtype for p in self._parameters]
        buffers: list[Any] = [None] * len(self._parameters)
        self._flats: list[_Flat] = []
        self._ones: list[Tensor] = []
        for dtype in dict.fromkeys([arena.slot_dtype(p) for p in self._parameters]):
            mine = [i for i, p in enumerate(self._parameters) if arena.slot_dtype(p) == dtype]
            starts, end = arena.offsets_of([self._parameters[i].size for i in mine], dtype.itemsize)
            array = arena.flat(end + 1, dtype, self._device)
            self._flats.append(_Flat(array, list(zip(mine, starts)), devices.full(self._device, (1,), 0, dtype)))
            self._ones.append(Tensor(devices.full(self._device, (1,), 1, dtype)))
            for i, start in self._flats[-1].starts:
                buffers[i] = _buffer(array[start : start + self._parameters[i].size].reshape(self._parameters[i].shape))
        self._adder = _Adder([*buffers, *[_buffer(flat.array[-1:]) for flat in self._flats]])

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for pickle and deepcopy, with the buffers as NumPy arrays."""
        capturing.refuse("copying an Accumulator", "Copy it outside.")
        values = [np.array(devices.move(flat.array, "cpu")) for flat in self._flats]
        return {**{name: x for name, x in vars(self).items() if name not in _MADE}, "values": values}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the Accumulator of the copied Parameters, with buffers of its own on their device."""
        values = state.pop("values")
        vars(self).update(state)
        self._make()
        for flat, value in zip(self._flats, values):
            devices.write(flat.array, devices.move(value, self._device))


class _Flat(NamedTuple):
    """The buffers of one dtype.

    Attributes:
        array: the memory of all of them, which ends with the sum of the weights.
        starts: (number of a Parameter, where its buffer starts).
        zero: an array of one zero.
    """

    array: Any
    starts: list[tuple[int, int]]
    zero: Any


class _Adder(Optimizer):
    """Adds multiples of tensors to the buffers, in one launch: a step of gradient descent with the negative weight as its rate."""

    kernel = "sgd_step"

    def __init__(self, buffers: list[Parameter]) -> None:
        super().__init__(buffers, lr=1.0)
        self._table.write_all(c.RATE_SCALE, -1.0)

    def add(self, tensors: list[Any], weight: float) -> None:
        """Adds weight * tensor to each buffer, and nothing for None."""
        self._table.launch_write(c.GRADIENT_SCALE, weight)
        self._update(tensors, preview=False, wanted=False)

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        return g, ()


def _buffer(array: Any) -> Parameter:
    """Returns a Parameter whose value is in this memory."""
    p = Parameter(Tensor(array))
    p.place(array)
    return p


def _real(x: Any) -> bool:
    return isinstance(x, (int, float, np.number)) and not isinstance(x, bool)


def _whole(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _array(g: Any) -> Any:
    return g.array if isinstance(g, Tensor) else asarray(g).array
