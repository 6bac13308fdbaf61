"""Training steps that pullback records once and replays, and their counterparts that JAX compiles."""

STEPS = 100  # the number of steps of a small network in one call
