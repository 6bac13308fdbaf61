"""Pruning by magnitude: the smallest weights become 0 and stay 0, inside the update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ...errors import DTypeError, PullbackError
from ...launch import capturing, door
from ...launch.made import MadeOutside
from ...tensors import devices, dtypes
from ...tensors.creation import asarray
from ...tensors.tensor import Tensor
from ...tree import in_order
from ..memory import OptimizerMemory
from ..optimizer import Optimizer
from ..options import Params
from ..sparsity import Sparsity, as_sparsity, checked_share

SCOPES = ("tensor", "global")


class Pruning(MadeOutside):
    """Prunes weights of an optimizer's parameters by magnitude (Zhu & Gupta 2017): a pruned weight, its slots and its average are
    exactly 0 after every step, for every rule.

    Args:
        opt: the optimizer, whose kernel applies the masks. They are a part of its state and of its copies.
        schedule: the share of weights that are pruned: a number, `optim.schedules.PolynomialSparsity`, or a function of the number
            of steps that were done before.
        params: the Parameters to prune, in a list or any nested structure; None for those with two axes or more, so that biases
            are left out.
        scope: "tensor" prunes that share of each Parameter, "global" the smallest weights of all of them together.

    The masks are chosen again in each step in which the schedule has another value than before, on the device and without waiting
    for it. The number of pruned weights is the share of all, rounded. Pruned weights stay pruned unless the share falls; then some
    of them come back, as zeros. A Parameter without a gradient stays as it is: its mask is chosen in its next step with one, and
    "global" compares the weights of those that have one. With members the masks of each member are chosen for it alone.

    A captured function chooses masks before its launches begin, so a call with steps=K, or with several steps inside, chooses
    them once for all of its steps.

    Raises PullbackError for a schedule or parameters that do not fit, and if the optimizer is pruned already.
    """

    def __init__(
        self,
        opt: Optimizer,
        schedule: float | Sparsity,
        params: Params | None = None,
        *,
        scope: Literal["tensor", "global"] = "tensor",
    ) -> None:
        self._opt: Any = opt
        if not isinstance(self._opt, Optimizer):
            raise PullbackError(f"Pruning: a {type(opt).__name__} was given, and not an optimizer. Write Pruning(opt, schedule).")
        if scope not in SCOPES:
            raise PullbackError(f'Pruning: scope={scope!r}; it is "tensor" or "global".')
        if self._opt.pruning is not None:
            raise PullbackError("Pruning: the optimizer is pruned already; call opt.pruning.remove() before.")
        self.schedule, self.scope = as_sparsity(schedule), scope
        self._share()
        self._entries = _entries(opt, params)
        if scope == "global" and len({opt.parameters[i].dtype for i in self._entries}) > 1:
            raise DTypeError('Pruning: scope="global" compares weights, which must have one dtype. Use scope="tensor".')
        self._chosen = dict.fromkeys(self._entries, 0.0)  # the sparsity that each mask was chosen for
        capturing.tell_change("Pruning()", "Make it outside.", self)
        masks: list[Any] = [None] * len(opt.parameters)
        for i in self._entries:
            masks[i] = devices.full(opt.parameters[i].device, opt.parameters[i].shape, True, dtypes.bool_)
        self._set(masks, self)

    @property
    def _memory(self) -> OptimizerMemory:
        return self._opt._memory

    def _set(self, masks: list[Any] | None, pruning: Pruning | None) -> None:
        self._memory.masks, self._memory.copied_masks, self._opt._pruning = masks, None, pruning

    def __repr__(self) -> str:
        weights = sum([self._memory.parameters[i].size for i in self._entries])
        return (
            f"Pruning({self.schedule}, scope={self.scope!r}; {len(self._entries)} parameters of {weights:,} weights, "
            f"{self._share():.1%} pruned in the next step)"
        )

    @property
    def sparsity(self) -> Any:
        """The share of the weights of the pruned parameters that is pruned: a float, or an array of one share per member.

        A read waits for the last step.
        """
        members = self._memory.members
        pruned = sum([(~mask).reshape(members, -1).sum(axis=1) for mask in self._read()])
        shares: Any = pruned / sum([self._memory.parameters[i].size // members for i in self._entries])
        return shares if self._memory.lead else float(shares[0])

    def report(self) -> dict[str, float]:
        """Returns the share of pruned weights of each parameter, by its name in the optimizer's state. Waits for the last step."""
        return {self._opt._names[i]: float((~mask).mean()) for i, mask in zip(self._entries, self._read())}

    def masks(self) -> dict[str, Tensor]:
        """Returns copies of the masks, False for pruned weights, by the names of the parameters in the optimizer's state."""
        self._refuse("masks()")
        return {self._opt._names[i]: Tensor(devices.copied(self._masks()[i])) for i in self._entries}

    def remove(self) -> None:
        """Ends the pruning. The weights stay as they are, zeros included, but the following steps may change all of them.

        Without it, and after the end of a schedule, pruned weights stay 0 while the others go on training.
        """
        self._check_used()
        capturing.tell_change("Pruning.remove()", "Call it outside.", self)
        self._set(None, None)

    def _check_used(self) -> None:
        if self._opt.pruning is not self:
            raise PullbackError("this Pruning was removed from its optimizer.")

    def _refuse(self, what: str) -> None:
        self._check_used()
        capturing.refuse(f"reading {what}", "Read it outside.")

    def _masks(self) -> list[Any]:
        return self._memory.masks or []

    def _read(self) -> Iterator[Any]:
        """Yields the masks as NumPy arrays."""
        self._refuse("the masks")
        for i in self._entries:
            yield devices.move(self._masks()[i], "cpu")

    def _share(self) -> float:
        return checked_share("Pruning", f"the schedule after {self._opt._steps} steps", self.schedule(self._opt._steps))

    # ---- in a step

    def begin(self, grads: Sequence[Any], preview: bool = False) -> None:
        """Chooses the masks of a step with these gradients, if the schedule says so. Every replay does so too, before it runs.

        For a preview it gives the optimizer copies of the masks, and chooses these. The caller puts the masks back.
        """
        memory, present = self._memory, [i for i in self._entries if grads[i] is not None]
        masks: Any = memory.masks
        if not preview:
            self._prepare(self, lambda: self._choose(present, masks, self._chosen))
            return
        if memory.copied_masks is None:
            memory.copied_masks = [None if mask is None else devices.copied(mask) for mask in masks]
        copies = memory.copied_masks
        self._prepare(copies, lambda: self._choose_copies(present, masks, copies))
        memory.masks = copies

    def _prepare(self, key: Any, choose: Callable[[], None]) -> None:
        if capturing.thread.recording is not None:
            capturing.thread.recording.prepare(key, choose)
        choose()

    def _choose_copies(self, present: Sequence[int], masks: list[Any], copies: list[Any]) -> None:
        for mask, copied in zip(masks, copies):
            if mask is not None:
                devices.write(copied, mask)
        self._choose(present, copies, dict(self._chosen))

    def _choose(self, present: Sequence[int], masks: list[Any], chosen: dict[int, float]) -> None:
        share = self._share()
        late = [i for i in present if chosen[i] != share]
        if not late or (door.state.ledger is not None and door.state.detail < 0):  # A dry run changes nothing.
            return

        def run() -> None:
            with devices.working(self._memory.device):
                for entries in [present] if self.scope == "global" else [[i] for i in late]:
                    self._prune(share, entries, masks)

        if capturing.thread.recording is not None:
            run()  # The library's functions that it calls are not recorded.
        else:
            with door.charged_to(door.OPTIMIZER):
                door.in_place("prune", run, lambda _: None)
        chosen.update(dict.fromkeys(present if self.scope == "global" else late, share))

    def _prune(self, share: float, entries: Sequence[int], all_masks: list[Any]) -> None:
        """Chooses the masks of these entries, which are compared with each other."""
        memory, members = self._memory, self._memory.members
        xp = devices.array_module(memory.device)
        masks = [all_masks[i].reshape(members, -1) for i in entries]
        keys = [_keys(xp, memory.parameters[i].array, members) for i in entries]
        key, mask = [xp.concatenate(x, axis=1) if len(x) > 1 else x[0] for x in (keys, masks)]
        length = key.shape[1]
        # Pruned weights come first, with keys of which no two are equal, because many equal ones slow the selection down.
        kept = _kept(xp, xp.where(mask, key, xp.arange(-length, 0, dtype=key.dtype)), round(share * length))
        begin = 0
        for mask in masks:
            devices.write(mask, kept[:, begin : begin + mask.shape[1]])
            begin += mask.shape[1]

    # ---- copies and states

    def of(self, opt: Any) -> Pruning:
        """Returns this Pruning for a copy of its optimizer."""
        if vars(self).get("_opt", opt) is opt:
            return self
        other = Pruning.__new__(Pruning)
        vars(other).update(vars(self), _opt=opt, _chosen=dict(self._chosen))
        return other

    def saved(self) -> dict[str, Any]:
        """Returns the part of the optimizer's state that belongs to the pruning."""
        return {"masks": self.masks(), "sparsities": {self._opt._names[i]: x for i, x in self._chosen.items()}}

    def checked(self, given: Any) -> tuple[list[tuple[Any, Any]], dict[int, float]]:
        """Returns such a part as pairs of (mask, its new value) and the sparsities for `restore`. Raises PullbackError.

        None stands for masks that prune nothing.
        """
        names = {self._opt._names[i]: i for i in self._entries}
        if given is None:
            free = {name: np.ones(self._memory.parameters[i].shape, bool) for name, i in names.items()}
            given = {"masks": free, "sparsities": dict.fromkeys(names, 0.0)}
        for what in ("masks", "sparsities"):
            part = given.get(what) if isinstance(given, Mapping) else None
            if not isinstance(part, Mapping) or set(part) != set(names):
                raise PullbackError(f"load_state_dict: the state has no {what} for exactly {', '.join(names)}, which are pruned.")
        pairs, shares = [], {}
        for name, i in names.items():
            mask = asarray(given["masks"][name], device=self._memory.device).array
            if mask.shape != self._memory.parameters[i].shape or mask.dtype != dtypes.bool_:
                raise PullbackError(
                    f'load_state_dict: the mask of "{name}" has shape {mask.shape} and dtype {mask.dtype}; it must be bools of '
                    f"shape {self._memory.parameters[i].shape}."
                )
            pairs.append((self._masks()[i], mask))
            shares[i] = checked_share("load_state_dict", f'the sparsity of "{name}"', given["sparsities"][name])
        return pairs, shares

    def restore(self, sparsities: dict[int, float]) -> None:
        """Sets the sparsities that the present masks were chosen for."""
        self._chosen = sparsities


def _entries(opt: Any, params: Any) -> list[int]:
    """Returns the indices of the parameters to prune. Raises PullbackError."""
    if params is None:
        lead = 1 + opt._memory.lead
        found = [i for i, p in enumerate(opt.parameters) if p.ndim > lead and p.size]
        if not found:
            raise PullbackError("Pruning: no parameter of the optimizer has two axes or more; name those to prune with params=.")
        return found
    named = list(params) if isinstance(params, Iterator) else params
    found = sorted({opt._index(p) for p in in_order(named)})
    if not found:
        raise PullbackError("Pruning: params is empty; give the Parameters to prune.")
    return [i for i in found if opt.parameters[i].size]


def _keys(xp: Any, weights: Any, members: int) -> Any:
    """Returns integers in the order of the magnitudes of the weights: their bits without the sign. NaN is larger than all numbers.

    The shape is (members, weights of each).
    """
    bits = np.dtype(f"int{8 * weights.dtype.itemsize}")
    magnitudes = weights.reshape(members, -1).view(bits) & np.iinfo(bits).max
    return magnitudes.astype(xp.int32 if bits.itemsize == 2 else bits, copy=False)


def _kept(xp: Any, keys: Any, count: int) -> Any:
    """Returns which keys are not among the `count` smallest of their row. Of equal ones the first are."""
    if count == 0:
        return xp.ones(keys.shape, bool)
    last = xp.partition(keys, count - 1, axis=1)[:, count - 1 : count]
    kept = keys > last
    if devices.on_host(kept) and np.count_nonzero(kept) == kept.size - count * len(kept):  # a read of a GPU would wait
        return kept
    equal = keys == last
    return kept | (equal & (xp.cumsum(equal, axis=1) > count - (keys < last).sum(axis=1, keepdims=True)))
