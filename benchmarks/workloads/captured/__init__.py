"""Steps recorded once and replayed, next to what the others compile."""

STEPS = 100  # of a small step in one call
