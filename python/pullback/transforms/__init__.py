"""Transforms: functions that take a function and return one, such as grad, vmap and checkpoint."""
