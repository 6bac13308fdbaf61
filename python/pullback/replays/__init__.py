"""Capture: a function recorded once for each signature of its arguments, and replayed.

The recording is the list of launches that the door saw (csrc/launch/plan.h): no tracing, no second set of ops.
"""
