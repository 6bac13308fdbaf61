"""Optimizer, which owns parameters and slots, and turns gradients into one fused update."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
from typing import Any, Final, Literal, overload

import numpy as np

from ..autodiff.error_text import IF_MEANT, MINIMIZE_IF_MEANT
from ..autodiff.tape import Tape
from ..duck import attribute
from ..errors import PullbackError, UnconnectedError
from ..interop.gate import explain_arguments, list_options
from ..interop.unknown_names import HintingABC, attach_hints
from ..interop.wrong_calls import refused_by
from ..launch import capturing
from ..ops._shapes import flag
from ..ops.conversion import copy as snapshot
from ..tensors import devices
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import Tree
from . import gates, groups as grouping, sets as c, state
from .arguments import MISSING, Form, dicts, names, of_arguments, trainable
from .gates import Gate
from .groups import Group, Number
from .launcher import Launcher, bounds_of
from .loss_scaler import LossScaler
from .options import Groups, Params
from .schedules.schedule import Schedule
from .stages.adaptive import AdaptiveClipping
from .stages.norm import NormClipping
from .stages.scaled import GradientScale
from .stages.stage import Setting, Stage
from .table import SetTable

# The attributes that a copy creates again in _make().
_MADE: Final = ("_measure", "_memory", "_native")


@explain_arguments
@attach_hints
class Optimizer(Launcher, metaclass=HintingABC):
    """Base class of optimizers.

    Args:
        params: the Parameters to update, in a list or any nested structure, or torch's list of groups, which are dicts with the
            Parameters under "params" and values of their own. Parameters that are not trainable are left out. Gradients are passed
            as a list in the order of `parameters`, or in the structure of `params`.
        lr: the learning rate, a number or one of `optim.schedules`.
        hyper: the values of the rule's other hyper-parameters, which the class attribute `hyper` lists.
        clip_norm: the largest joint L2 norm of all gradients. A step multiplies gradients with a larger norm by clip_norm / (norm +
            1e-6), as `torch.nn.utils.clip_grad_norm_` does.
        clip_value: a step clamps gradients to [-clip_value, clip_value], after clip_norm.
        clip_adaptive: the largest ratio of the norm of a unit's gradient to that of its weights, such as 0.01 (Brock et al. 2021).
            A step scales larger gradients down to it, before clip_norm, in one more launch. The rows along the first axis are
            units, and a vector is one.
        groups: {pattern of names: {hyper-parameter: value}}, for Parameters that get other values. A pattern is a name, or matches
            names as `fnmatch` does. All patterns that match a name apply, and the last one that has a value decides. "lr" is
            absolute, and "lr_scale" multiplies the optimizer's.
        ema: the share in [0, 1) that a moving average of the weights keeps of itself in each step (`averaged`), such as 0.999; the
            step that updates the weights updates the average too. None keeps no average.
        master_weights: keeps a float32 value of each half precision weight, which the update changes and rounds to the weight, so
            that changes below half a unit in the last place add up. A weight that is assigned replaces its master.
        stochastic_rounding: rounds each half precision weight, after the float32 sum with its change, up or down at random, with
            the probability that makes the sum the expected value: changes below half a unit in the last place then happen in a
            share of the steps, without memory for masters. Weights of other dtypes are rounded to the nearest.

    Every hyper-parameter is an attribute that can be set between two steps, and nothing waits or is recorded again:
    `opt.weight_decay = 0.1`. It changes all parameters but those of a group with a value of its own, which is set through
    `opt.groups`. A value may also be an array of M numbers, one for each of M networks whose weights are stacked along the first
    axis of every Parameter: the step then updates M independent networks.

    The parameters move into one flat arena (unless another optimizer placed them already) and keep their identity.

    Setting any other attribute raises PullbackError, because nothing would read the value. A subclass sets its attributes before it
    calls this class's `__init__`, or adds them to `settable`.

    A subclass is an update rule: it names its slots and its hyper-parameters and defines its `formula`. A rule with a kernel also
    defines the kernel's name. Without a kernel the formula cannot be captured, and a profile lists the rule, by its class name,
    among the launches of unknown cost. `optim.rule` makes a rule from a function, which can be captured.
    """

    slot_names: tuple[str, ...] = ()
    clip_norm = Setting[float | None](NormClipping)
    clip_adaptive = Setting[float | None](AdaptiveClipping)
    gradient_scale = Setting[float](GradientScale)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        initialize = vars(cls).get("__init__")
        if initialize is not None and initialize.__annotations__.get("options") == "Unpack[Options]":
            list_options(initialize, OPTIONS)

    def __init__(
        self, params: Params, lr: grouping.Rate, hyper: Mapping[str, Any] | None = None, *, clip_norm: float | None = None,
        clip_value: float | None = None, groups: Groups | None = None, ema: Number | None = None,
        master_weights: bool = False, clip_adaptive: float | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        rule = type(self).__name__
        given: Any = list(params) if isinstance(params, (Iterator, ValuesView)) else params
        given, listed = dicts(rule, given)
        self._parameters = trainable(rule, given)
        self._form = Form(given, self._parameters)
        self._names = names(self._parameters)  # the keys of state_dict, which stay if a Module renames the parameters later
        stages = self._new_stages({"gradient_scale": 1.0, "clip_adaptive": clip_adaptive, "clip_norm": clip_norm})
        self._stages = {stage.name: stage for stage in stages}  # in the order in which they act
        self._follow_stages()
        chosen = {"lr": lr, "lr_scale": 1.0, "clip_value": clip_value, "ema": ema, **(hyper or {})}
        self._defaults = {name: self._checked(name, value) for name, value in chosen.items()}
        if listed and groups is not None:
            raise PullbackError(f"{rule}: params is a list of groups, and groups= names groups, too; give one of them.")
        self._rounds_at_random = flag(rule, "stochastic_rounding", stochastic_rounding)
        self._keeps_masters = flag(rule, "master_weights", master_weights)
        listed = listed or grouping.split(rule, self._parameters, self._names, groups)
        self._groups = self._grouped(listed)
        if self._rounds_at_random and self._keeps_masters:
            raise PullbackError(
                f"{rule}: master_weights and stochastic_rounding are two ways to keep changes that half precision would lose. Give "
                f"one: masters are exact and take 4 bytes for each weight, random rounding takes none."
            )
        self._averages_weights = any([group.values()["ema"] is not None for group in self._groups])
        given_values = [self._defaults, *[values for group in self._groups for values in (group.rule._defaults, group.own)]]
        self._members, self._lead = grouping.members_of(rule, self._parameters, given_values)
        for group in self._groups:
            group.rule._validate(group.values())
        self._choose([group.values() for group in self._groups])
        self._fill_table()
        self._steps = 0  # a copy on the host of the number of steps, which can be read without waiting for the device
        self._make()

    def _new_stages(self, given: Mapping[str, Any]) -> list[Stage]:
        """Returns the stages with the values that were given, by the names of the options, in the order in which they act."""
        return [kind(type(self).__name__, given[kind.name]) for kind in (GradientScale, AdaptiveClipping, NormClipping)]

    def _grouped(self, listed: Sequence[tuple[str, list[int], dict[str, Any]]]) -> list[Group]:
        """Returns the groups of (name, indices of parameters, own values)."""
        return [Group(self, k, name, at, self._checked_group(name, own)) for k, (name, at, own) in enumerate(listed)]

    def _fill_table(self) -> None:
        table = self._table = SetTable(len(self._parameters), self._members)
        for stage in self._stages.values():
            stage.write(table)
        table.array[:, c.LEAST : c.MOST + 1] = np.repeat(bounds_of(self._parameters), self._members, axis=0)
        self._constraints = [p.constraint for p in self._parameters]
        for group in self._groups:
            self._write([group], list(group.rule._defaults))
        table.move_to(self._parameters[0].device)

    def __repr__(self) -> str:
        numbers = sum([p.size for p in self._parameters])
        schedule = self._defaults["lr"]
        by = f" by {schedule}" if type(schedule) is not Schedule and not isinstance(schedule, list) else ""
        shown = self._shown("lr")
        rate = f"{shown:.3g}" if isinstance(shown, float) else f"{self._members} values"
        stages = {name: stage.value for name, stage in self._stages.items() if stage.acts}
        clipped = {} if self.clip_value is None else {"clip_value": self.clip_value}
        set_to = {"lr": rate + by, **self.settings(), **clipped, **stages}
        if not np.all(np.equal(self._defaults["lr_scale"], 1)):
            set_to = {"lr": set_to["lr"], "lr_scale": self._defaults["lr_scale"], **set_to}
        hyper = ", ".join([f"{name}={value}" for name, value in set_to.items()])
        counts = f"{_count(len(self._parameters), 'parameter')} of {numbers:,} numbers, {_count(self._done(), 'step')}"
        grouped = f" in {len(self._groups)} groups" if len(self._groups) > 1 else ""
        return f"{type(self).__name__}({hyper}; {counts}{grouped})"

    def settings(self) -> dict[str, Any]:
        """Returns the rule's hyper-parameters other than the learning rate, by the names of the arguments, for `repr`."""
        return {name: getattr(self, name) for name in self.hyper}

    # ---- state

    @property
    def gradient_norm(self) -> Any:
        """The joint norm of the last step's gradients before clipping, computed only with clip_norm or a LossScaler. A read waits.

        It is a float, or an array of one norm per member.
        """
        capturing.refuse("reading gradient_norm", "Read it after the call: a replay would return the norm of the first one.")
        norms = self._table.on_host()[: self._members, c.GRADIENT_NORM]
        return norms.copy() if self._lead else float(norms[0])

    def slots(self, p: Parameter) -> dict[str, Tensor]:
        """Returns copies of the state tensors of a parameter, by name. They are zeros before the first step.

        With `ema` the moving average of the weights is one of them, "average", and with `master_weights` the float32 value of half
        precision weights, "master".
        """
        capturing.refuse("slots()", "Ask for them outside.")
        return self._memory.copied(self._index(p))

    @property
    def pruning(self) -> Any:
        """The `optim.Pruning` of this optimizer, or None."""
        return self._pruning

    def averaged(self, p: Parameter) -> Tensor:
        """Returns a copy of the moving average of a parameter's weights, which `ema` asked for (float32 for half precision).

        Before the first step with a gradient it is the parameter's value. A read waits for the step.
        """
        if self._memory.averages is None:
            raise PullbackError(f"{type(self).__name__} keeps no average of the weights; make it with ema=0.999.")
        capturing.refuse("averaged()", "Ask for it outside.")
        i = self._index(p)
        untouched = self._table.on_host()[i * self._members, c.STEP] == 0
        return Tensor(devices.copied(p.array)) if untouched else Tensor(devices.copied(self._memory.averages[i]))

    def _set_stage(self, name: str, given: Any) -> None:
        stage = self._stages[name]
        stage.set(stage.checked(type(self).__name__, given), self._table)
        self._follow_stages()

    def _follow_stages(self) -> None:
        """Notes what recordings depend on, after values of stages have changed."""
        self._acting = tuple([stage.facts() for stage in self._stages.values()])

    def _index(self, p: Any) -> int:
        for i, mine in enumerate(self._parameters):
            if mine is p:
                return i
        raise PullbackError(f"{p.label() if isinstance(p, Parameter) else p!r} is not a parameter of this {type(self).__name__}.")

    def state_dict(self) -> dict[str, Any]:
        """Returns all that an exact resume needs: the rule's name, for each parameter its settings (steps, learning rate,
        hyper-parameters, clipping) and its slots, and the rows of numbers to which the settings of schedules refer.

        The keys are the names that the parameters had when the optimizer was made.
        """
        return state.saved(self)

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        """Restores the state of an optimizer with the same rule and parameters, its hyper-parameters and clipping included.

        Raises: PullbackError. After an error nothing has changed.
        """
        state.load(self, given)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for pickle and deepcopy: the Parameters, and the slots and sets as NumPy arrays.

        __setstate__ looks up the kernels and allocates the memory again.
        """
        capturing.refuse("copying an optimizer", "Copy it outside.")
        return {**{k: x for k, x in vars(self).items() if k not in _MADE}, "_saved": self._memory.on_host()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the optimizer around the copied Parameters, with separate slots and sets on their device."""
        saved = state.pop("_saved")
        vars(self).update(state)
        self._make()
        self._memory.restore(saved)
        self._table.move_to(self._memory.device)
        self._pruning = self._pruning and self._pruning.of(self)

    # ---- updates

    @overload
    def step(self, grads: Tree, return_delta: Literal[False] = False) -> None: ...
    @overload
    def step(self, grads: Tree, return_delta: Literal[True]) -> list[Tensor]: ...
    @overload
    def step(self, grads: Tree, return_delta: bool) -> list[Tensor] | None: ...
    def step(self, grads: Any = MISSING, return_delta: bool = False) -> list[Tensor] | None:
        """Updates all parameters in one fused launch.

        A parameter without a gradient stays as it is, with its slots and its own count of steps, which Adam's bias correction
        and momentum's first step use, while its schedule goes on; so it is in PyTorch. A step without any gradient does nothing
        and does not count.

        Args:
            grads: a list of one gradient per parameter, in the order of `parameters`, or the structure that the optimizer was made
                with. None leaves a parameter unchanged. A dict with Parameters as keys is refused.
            return_delta: True returns what was added to each parameter, after constraints.

        Raises: ShapeError or DTypeError, naming the parameter; nothing has changed then. An error in a function that is a
            constraint comes after the update: that parameter is updated, but not constrained, and all others are both.
        """
        if return_delta.__class__ is not bool:
            return_delta = flag("step", "return_delta", return_delta)
        return self._update(self._form.one_each(grads), wanted=return_delta)

    def preview(self, grads: Tree) -> list[Tensor]:
        """Returns what `step(grads)` would add to each parameter, after constraints. Changes nothing."""
        leaves, masks = self._form.one_each(grads), self._memory.masks
        try:
            return self._update(leaves, preview=True, wanted=True) or []
        finally:
            self._memory.masks = masks  # A preview chooses copies of the masks of pruned weights.

    def minimize(
        self, loss_fn: Callable[..., Tensor], *args: Any, gate: Gate = "graph", scaler: LossScaler | None = None
    ) -> Tensor:
        """Computes loss_fn(*args) and its gradients, does one step, and returns the loss.

        Args:
            loss_fn: returns the loss, a scalar tensor.
            args: its arguments.
            gate: when parameters are updated. "graph": in one launch, when all gradients are complete. "op": each parameter as soon
                as its gradient is complete and no op that is still to be walked back reads the parameter; its gradient is freed
                then, so that only those of one layer or two exist at a time. The result is the same, bit for bit.
            scaler: a `pb.amp.LossScaler`, which multiplies the loss, leaves out a step whose gradients are not all finite, and then
                changes its scale. The loss that is returned is not multiplied.

        With gate="op" each parameter takes a launch. What needs all gradients at once is refused: clip_norm, scaler. An error in
        the middle of the backward pass comes after the update of the parameters that were complete; the step then counts for all
        parameters, as if the others had had no gradient.

        Raises PullbackError if loss_fn is not callable or gate is another word; with gate="op" StaleValueError if a user's function
        in the backward pass (a hook, a pullback) reads a parameter that has been updated.
        """
        if not callable(loss_fn):
            raise PullbackError(
                f"minimize: a {type(loss_fn).__name__} was given, and not a function that computes the loss, which minimize has to "
                f"record. Write opt.minimize(lambda: nn.mse(net(x), y)); or compute the loss inside `with pb.GradientTape() as "
                f"tape:` and call opt.step(tape.gradient(loss, opt.parameters))."
            )
        gates.check(self, gate, scaler)
        with Tape() as tape:
            try:
                loss = loss_fn(*args)
            except TypeError as error:
                if refused_by(error):
                    raise of_arguments(error, args) from None
                raise
            target = loss if scaler is None else scaler.scale(loss)
        viewed = attribute(loss, "storage", None) is not None
        kept = snapshot(loss) if viewed else loss  # The loss may be a view of a Parameter, which the step changes.
        try:
            if gate == "op":
                gates.update_each(self, tape, loss)
            elif scaler is None:
                self.step(tape.gradient(loss, self._parameters))
            else:
                scaler.step(self, tape.gradient(target, self._parameters))
                scaler.update()
        except UnconnectedError as error:
            raise UnconnectedError(str(error).removesuffix(IF_MEANT) + MINIMIZE_IF_MEANT) from None
        return kept

    # ---- the rule

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        """Returns what a step adds to the weights p for the clipped gradient g, and the new slots.

        All are arrays of NumPy or CuPy, of one shape and one dtype, which is float32 for half precision weights. The formula uses
        operators and NumPy's functions, which are ops where they compute tensors. h has the numbers of the step: `h.lr`, `h.step`,
        which is 1 in the first step, and the rule's hyper-parameters by their names.
        """
        raise NotImplementedError(f"{type(self).__name__} has no formula")

    def _rate(self, h: Any) -> float:
        """Returns the learning rate of a step, of which h.lr is the schedule's."""
        return h.lr

    def _step_numbers(self, h: Any) -> Sequence[float]:
        """Returns the first numbers of the rule in this step, at most four, from those of the last one, h.numbers."""
        return ()


OPTIONS: Final = tuple([p for p in inspect.signature(Optimizer.__init__).parameters.values() if p.kind is p.KEYWORD_ONLY])


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
