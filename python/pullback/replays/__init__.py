"""Capture: records a function once per signature of its arguments, and replays the recording on later calls.

A recording is the list of launches that passed the door (csrc/launch/plan.h). Capture needs no tracing and no second set of ops.
"""
