"""Other libraries: NumPy's functions on tensors, and what code for any array library may ask."""
