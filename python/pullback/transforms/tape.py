"""GradientTape, the tape of users: besides gradients it gives Jacobians and reports of what it recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..autodiff.tape import Tape
from ..tensors.tensor import Tensor

if TYPE_CHECKING:
    from ..report.diagnosis import Diagnosis
    from ..report.tape_report import Explanation


class GradientTape(Tape):
    """Records the ops on watched tensors while entered; `gradient` then walks them backwards.

    Args:
        persistent: allows several calls of `gradient`; otherwise the first frees what was kept as it consumes it.
        watch_parameters: trainable Parameters are watched by themselves.
    """

    # Modules that not every program needs are imported when a method first asks for them.

    def gradients(self, targets: Any, sources: Any, unconnected: str = "error") -> Any:
        """The gradients of several scalar targets: per target what `gradient` returns.

        What several targets depend on is pulled back for all of them at once, the rest for each alone.
        """
        from .gradients import tape_gradients

        return tape_gradients(self, targets, sources, self._ready(unconnected))

    def jacobian(self, target: Tensor, source: Any, chunk: Any = "auto", unconnected: str = "error") -> Any:
        """All derivatives of the target by each source, of shape target.shape + source.shape, in one batched sweep.

        `chunk` rows at once; "auto": as many as keep the sweep's memory within 256 MiB. Raises TapeError.
        """
        from .jacobian import tape_jacobian

        return tape_jacobian(self, target, source, chunk, self._ready(unconnected))

    def batch_jacobian(self, target: Tensor, source: Tensor, chunk: Any = "auto", unconnected: str = "error") -> Tensor:
        """The Jacobian of each row of the target by the same row of the source, which alone it may depend on.

        Returns: (batch, *target.shape[1:], *source.shape[1:]). Raises ShapeError, TapeError.
        """
        from .jacobian import batch_jacobian

        return batch_jacobian(self, target, source, chunk, self._ready(unconnected))

    # ---- reports

    def explain(self, target: Any) -> Explanation:
        """For each op on the way to the target(s): its pullback rule, what was kept for it, the size of its dense Jacobian.

        Prints as a table; `.rows` are the data, `.bytes` and `.tape_bytes` the memory that pullbacks refer to, and the part
        of it that the tape alone holds. Runs one backward pass, to learn the shapes; it frees nothing and calls no hooks.

        Raises TapeError where the tape has been used.
        """
        from ..report.tape_report import explain

        self._check_not_consumed("explain")
        return explain(self, target)

    def diagnose(self, target: Any, sources: Any, output_gradients: Any = None) -> Diagnosis:
        """Where gradients die, vanish or turn into NaN on the way from the target(s) to the sources.

        Prints as a table of gradient norms, shares of zeros and of saturated units, for each source and each op on the way,
        and what is wrong in words; `.rows` and `.findings` are the data, `.to_tensorboard(dir)` writes both. Arguments as in
        `gradient`. Runs one backward pass, which frees nothing and calls no hooks, so that `gradient` can follow.

        Raises TapeError, StaleValueError, ShapeError as `gradient` does; a source without a gradient is a finding.
        """
        from ..report.diagnosis import diagnose

        self._check_not_consumed("diagnose")
        return diagnose(self, target, sources, output_gradients)
