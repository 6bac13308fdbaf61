"""GradientTape: the tape for users, which also computes Jacobians and reports on its record."""

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
        persistent: allows several calls of `gradient`; otherwise the first call frees the record while it walks back.
        watch_parameters: the tape watches trainable Parameters without a call of `watch`.
    """

    # Modules that not every program needs are imported in the methods that need them.

    def gradients(self, targets: Any, sources: Any, unconnected: str = "error") -> Any:
        """Computes the gradients of several scalar targets: for each target the result that `gradient` would return.

        Ops that several targets depend on are pulled back for all these targets at once. Raises TapeError if a target is not a
        scalar tensor, and the errors of `gradient`.
        """
        from .gradients import tape_gradients

        return tape_gradients(self, targets, sources, self._ready(unconnected))

    def jacobian(self, target: Tensor, source: Any, chunk: Any = "auto", unconnected: str = "error") -> Any:
        """Computes the Jacobian of the target with respect to each source, of shape target.shape + source.shape.

        One batched backward pass handles `chunk` rows; "auto" takes as many rows as keep the memory within 256 MiB.
        Raises TapeError, UnconnectedError, StaleValueError; ValueError for an invalid chunk.
        """
        from .jacobian import tape_jacobian

        return tape_jacobian(self, target, source, chunk, self._ready(unconnected))

    def batch_jacobian(self, target: Tensor, source: Tensor, chunk: Any = "auto", unconnected: str = "error") -> Tensor:
        """Computes the Jacobian of each row of the target with respect to the same row of the source.

        A row of the target must not depend on other rows of the source. Returns a tensor of shape (batch, *target.shape[1:],
        *source.shape[1:]). Raises ShapeError if the numbers of rows differ, TapeError, and ValueError for an invalid chunk.
        """
        from .jacobian import batch_jacobian

        return batch_jacobian(self, target, source, chunk, self._ready(unconnected))

    # ---- reports

    def explain(self, target: Any) -> Explanation:
        """Lists for each op on the way to the target(s) its pullback rule, its kept values, and the size of its dense Jacobian.

        The result prints as a table; `.rows` holds the data. `.bytes` is the memory that pullbacks refer to, and `.tape_bytes`
        the part of it that only the tape keeps alive. This runs one backward pass to find the shapes; the pass frees nothing and
        calls no hooks.

        Raises TapeError if the tape has been used up.
        """
        from ..report.tape_report import explain

        self._check_not_consumed("explain")
        return explain(self, target)

    def diagnose(self, target: Any, sources: Any, output_gradients: Any = None) -> Diagnosis:
        """Finds where gradients die, vanish or turn into NaN on the way from the target(s) to the sources.

        The result prints as a table of gradient norms, shares of zeros and of saturated units for each source and each op on the
        way, followed by the findings in words. `.rows` and `.findings` hold the data, `.to_tensorboard(dir)` writes both. The
        arguments are those of `gradient`. This runs one backward pass, which frees nothing and calls no hooks, so that `gradient`
        can follow.

        Raises TapeError, StaleValueError, ShapeError as `gradient` does; a source without a gradient is a finding.
        """
        from ..report.diagnosis import diagnose

        self._check_not_consumed("diagnose")
        return diagnose(self, target, sources, output_gradients)
