"""Per-example gradients, Jacobians, Hessians, several targets and segments, in each library."""

# the shapes of the Jacobians, as (inputs, outputs)
SHAPES = ((1, 100), (2, 80), (5, 60), (10, 50), (20, 40), (40, 20), (50, 10), (60, 5), (80, 2), (100, 1))
