"""How cotangents pass through the recorded call of a function: what a tape asks the `call` of an Op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ..autodiff.backward import Sums
    from ..autodiff.node import Recorded
    from ..autodiff.tape import Tape


class Passage:
    """The passage of cotangents through a call or one of its outputs. A subclass is a call that did not record the ops inside.

    Attributes:
        takes_sums: True if the sums of cotangents are passed on as they are, so that the ops inside add to them as if there were no
            call.
        apart: CALL for a call of which not every output depends on every input, OUTPUT for its outputs. The inputs of such an
            output are the call, and the inputs of the call that it depends on.
        recompute: makes the nodes that the call of a checkpoint did not record.
        captured: True for the call of a captured function. Its method `open` replaces all such calls on a tape by the ops inside.
    """

    takes_sums: bool = True
    apart: int = 0
    recompute: Any = None
    captured: bool = False

    def pull(self, tape: Tape, edges: Sequence[Any], g: Any, reach: set[int], sums: Sums) -> Sequence[Recorded]:
        """Pulls g back through a joint rule. Returns the nodes to walk next."""
        raise NotImplementedError

    def gradient(self, tape: Tape, target: Any, sources: Any, output_gradients: Any, aggregation: str) -> Any:
        """Returns what tape.gradient does, if the call is all that the tape holds. Returns None if the tape has to walk."""
        return None

    def copied(self, of: Callable[[Any], Any]) -> Passage:
        """Returns the passage with functions that refer to other values: see `Call.copied`."""
        return self


OF_OUTPUT: Final = Passage()  # passes the cotangent of one output on to the call
