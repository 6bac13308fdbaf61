"""Interoperation: NumPy's functions on tensors, and the inspection functions of the array API standard."""
