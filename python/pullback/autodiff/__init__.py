"""Recording ops and walking back: the primitive, the listeners, the tape, the backward pass, batching."""
