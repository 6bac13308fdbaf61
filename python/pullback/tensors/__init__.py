"""Tensors: arrays with operators, their dtypes and devices, and where their memory lives."""
