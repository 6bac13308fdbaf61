"""Records ops and differentiates them: the ops, the listeners, the tape, the backward pass, batching."""
