"""Tensors: arrays with operators, their dtypes and devices, and the memory that holds them."""
