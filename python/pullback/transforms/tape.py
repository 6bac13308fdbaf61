"""GradientTape: the tape for users, which also computes Jacobians and reports on its record."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ..autodiff.kept import Without
from ..autodiff.listeners import listeners
from ..autodiff.request import check_not_consumed, open_calls, ready, refuse_outside
from ..autodiff.tape import Aggregation, Tape, Unconnected
from ..duck import has
from ..errors import TapeError, an
from ..interop.gate import ungated
from ..interop.unknown_names import attach_hints
from ..interop.wrong_calls import flag
from ..tensors.tensor import Tensor
from ..typing import T, Tree

if TYPE_CHECKING:
    from ..report.diagnosis import Diagnosis
    from ..report.tape_check import Check
    from ..report.tape_report import Explanation
    from .jacobian import Chunk


for _method in (Tape.add, Tape.knows, Tape.on_escape):  # `add` reads the frame of its caller
    ungated(_method)
K = TypeVar("K")
Connected = Literal["error", "zero"]  # the values of unconnected= with which every source has a gradient


@attach_hints
class GradientTape(Tape):
    """Records the ops on watched tensors while entered; `gradient` then walks them backwards.

    Args:
        persistent: allows several calls of `gradient`; otherwise the first call frees the record while it walks back.
        watch_parameters: the tape watches trainable Parameters without a call of `watch`.
    """

    # Modules that not every program needs are imported in the methods that need them.

    def __init__(self, persistent: bool = False, watch_parameters: bool = True) -> None:
        persistent = flag("GradientTape", "persistent", persistent, "A tape takes no network: it watches Parameters by itself.")
        super().__init__(persistent, flag("GradientTape", "watch_parameters", watch_parameters))

    def __repr__(self) -> str:
        ended = "stopped" if self.journal.entered else "not started"
        state = "used up" if self.consumed else "recording" if self in listeners.stack else ended
        kind = ", persistent" if self.persistent else ""
        return f"{type(self).__name__}({len(self.nodes)} ops, {len(self.leaves)} watched, {state}{kind})"

    def stop_recording(self) -> Without:
        """Returns a context manager: this tape does not record the ops inside `with tape.stop_recording():`."""
        refuse_outside(self, "stop_recording")
        return Without(self)

    def on_gradient(self, t: Tensor, fn: Callable[[Tensor], Any]) -> None:
        """Registers `fn`, which the backward pass calls with the complete gradient of `t`.

        If `fn` returns a tensor and not None, that tensor replaces the gradient. It must have the gradient's shape.

        Raises TapeError if `t` is not on this tape.
        """
        refuse_outside(self, "on_gradient")
        if not has(t, "serial") or not callable(fn):
            raise TapeError(f"on_gradient: takes a tensor and a function, not {an(t)} and {an(fn)}: tape.on_gradient(t, print).")
        if not self.knows(t):
            raise TapeError(
                "on_gradient: the tensor is not on this tape. Call it while recording, on a watched tensor or a result."
            )
        self.hooks.setdefault(t.serial, []).append(fn)

    if TYPE_CHECKING:  # the methods of Tape, with the structure of the sources in their types

        @overload
        def gradient(
            self, target: Tree, sources: Tensor, output_gradients: Any = None, unconnected: Connected = "error",
            aggregation: Aggregation = "accumulate",
        ) -> Tensor: ...
        @overload
        def gradient(
            self, target: Tree, sources: list[T], output_gradients: Any = None, unconnected: Connected = "error",
            aggregation: Aggregation = "accumulate",
        ) -> list[Tensor]: ...
        @overload
        def gradient(
            self, target: Tree, sources: tuple[T, ...], output_gradients: Any = None, unconnected: Connected = "error",
            aggregation: Aggregation = "accumulate",
        ) -> tuple[Tensor, ...]: ...
        @overload
        def gradient(
            self, target: Tree, sources: dict[K, T], output_gradients: Any = None, unconnected: Connected = "error",
            aggregation: Aggregation = "accumulate",
        ) -> dict[K, Tensor]: ...
        @overload
        def gradient(
            self, target: Tree, sources: Tensor, output_gradients: Any = None, *, unconnected: Literal["none"],
            aggregation: Aggregation = "accumulate",
        ) -> Tensor | None: ...
        @overload
        def gradient(
            self, target: Tree, sources: list[T], output_gradients: Any = None, *, unconnected: Literal["none"],
            aggregation: Aggregation = "accumulate",
        ) -> list[Tensor | None]: ...
        @overload
        def gradient(
            self, target: Tree, sources: tuple[T, ...], output_gradients: Any = None, *, unconnected: Literal["none"],
            aggregation: Aggregation = "accumulate",
        ) -> tuple[Tensor | None, ...]: ...
        @overload
        def gradient(
            self, target: Tree, sources: dict[K, T], output_gradients: Any = None, *, unconnected: Literal["none"],
            aggregation: Aggregation = "accumulate",
        ) -> dict[K, Tensor | None]: ...
        @overload
        def gradient(
            self, target: Tree, sources: Tree, output_gradients: Any = None, unconnected: Unconnected = "error",
            aggregation: Aggregation = "accumulate",
        ) -> Any: ...
        def gradient(self, *args: Any, **options: Any) -> Any: ...

    @overload
    def gradients(self, targets: list[Tensor], sources: Tensor, unconnected: Connected = "error") -> list[Tensor]: ...
    @overload
    def gradients(self, targets: list[Tensor], sources: list[T], unconnected: Connected = "error") -> list[list[Tensor]]: ...
    @overload
    def gradients(self, targets: Tree, sources: Tree, unconnected: Unconnected = "error") -> Any: ...
    def gradients(self, targets: Any, sources: Any, unconnected: Unconnected = "error") -> Any:
        """Computes the gradients of several scalar targets: for each target the result that `gradient` would return.

        Ops that several targets depend on are pulled back for all these targets at once. Raises TapeError if a target is not a
        scalar tensor, and the errors of `gradient`.
        """
        from .gradients import tape_gradients

        return tape_gradients(self, targets, sources, ready(self, unconnected))

    @overload
    def jacobian(self, target: Tensor, source: Tensor, chunk: Chunk = "auto", unconnected: Connected = "error") -> Tensor: ...
    @overload
    def jacobian(
        self, target: Tensor, source: list[T], chunk: Chunk = "auto", unconnected: Connected = "error"
    ) -> list[Tensor]: ...
    @overload
    def jacobian(self, target: Tensor, source: Tree, chunk: Chunk = "auto", unconnected: Unconnected = "error") -> Any: ...
    def jacobian(self, target: Tensor, source: Any, chunk: Chunk = "auto", unconnected: Unconnected = "error") -> Any:
        """Computes the Jacobian of the target with respect to each source, of shape target.shape + source.shape.

        One batched backward pass handles `chunk` rows; "auto" takes as many rows as keep the memory within 256 MiB.
        Raises TapeError, UnconnectedError, StaleValueError; ValueError for an invalid chunk.
        """
        from .jacobian import tape_jacobian

        return tape_jacobian(self, target, source, chunk, ready(self, unconnected))

    def batch_jacobian(self, target: Tensor, source: Tensor, chunk: Chunk = "auto", unconnected: Connected = "error") -> Tensor:
        """Computes the Jacobian of each row of the target with respect to the same row of the source.

        A row of the target must not depend on other rows of the source. Returns a tensor of shape (batch, *target.shape[1:],
        *source.shape[1:]). Raises ShapeError if the numbers of rows differ, TapeError, and ValueError for an invalid chunk.
        """
        from .jacobian import batch_jacobian

        return batch_jacobian(self, target, source, chunk, ready(self, unconnected))

    # ---- reports

    def explain(self, target: Tree) -> Explanation:
        """Lists for each op on the way to the target(s) its pullback rule, its kept values, and the size of its dense Jacobian.

        The result prints as a table; `.rows` holds the data. `.bytes` is the memory that pullbacks refer to, and `.tape_bytes`
        the part of it that only the tape keeps alive. This runs one backward pass to find the shapes; the pass frees nothing and
        calls no hooks.

        Raises TapeError if the tape has been used up.
        """
        from ..report.tape_report import explain

        check_not_consumed(self, "explain")
        open_calls(self)
        return explain(self, target)

    def check(self, target: Tree) -> Check:
        """Compares the pullback of each op on the way to the target(s) with finite differences of the op, in float64.

        The result prints as a table, and names the op and your line of each derivative that is wrong. `.ok` is true if there is
        none, `.rows` holds the data, `.raise_if_wrong()` raises GradientCheckError.

        An op runs again in NumPy (its reference), at float64 copies of the values that the tape keeps. Values that it does not
        keep are computed again from the leaves, or drawn at random: a pullback that keeps neither an argument nor the result does
        not depend on them. Both pullbacks of an op are checked, the fused kernel and the definition. A function with
        `pb.custom_gradient`, or a `pb.black_box` with a formula for its gradient, is called again with float64 arguments; the
        inside of a `pb.checkpoint` is recomputed. At a kink, a tie or a jump (status "kink"), the derivative is a convention, so
        the pullback is checked a little away from it. An op that cannot run again is "unchecked", with the reason.

        Cost: one backward pass, then 7 to 29 runs of each op in NumPy, depending on how smooth it is. These runs take place once
        for each argument of an elementwise op, once for each element of other arguments of up to 64 elements, and along 3 random
        directions of larger ones, so that one wrong element of many is found too. The float64 values of the forward pass are held
        while later ops need them. A black box with a formula counts these calls in its `stats`.

        Raises TapeError if the tape has been used up, or if the target is not on it.
        """
        from ..report.tape_check import check

        check_not_consumed(self, "check")
        open_calls(self)
        return check(self, target)

    def diagnose(self, target: Tree, sources: Tree, output_gradients: Any = None) -> Diagnosis:
        """Finds where gradients die, vanish or turn into NaN on the way from the target(s) to the sources.

        The result prints as a table of gradient norms, shares of zeros and of saturated units for each source and each op on the
        way, followed by the findings in words. `.rows` and `.findings` hold the data, `.to_tensorboard(dir)` writes both. The
        arguments are those of `gradient`. This runs one backward pass, which frees nothing and calls no hooks, so that `gradient`
        can follow.

        Raises TapeError, StaleValueError, ShapeError as `gradient` does; a source without a gradient is a finding.
        """
        from ..report.diagnosis import diagnose

        check_not_consumed(self, "diagnose")
        open_calls(self)
        return diagnose(self, target, sources, output_gradients)
