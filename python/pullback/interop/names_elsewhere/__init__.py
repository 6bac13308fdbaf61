"""Names of TensorFlow, PyTorch, JAX and NumPy that pullback does not have, each with what to write instead.

`NAMES` maps a public module or a class to its names, and each name to an answer. An answer that ends with a period is a sentence;
any other answer is the expression to write. In both, `pb`, `nn` and `optim` are modules, and `t` is a tensor, `p` a Parameter,
`tape` a GradientTape, `opt` an optimizer, `net` a Module, `f` a function and `x` an array. A test evaluates every name after a dot.

Each library has a file, and `tables.py` joins them. A name that several libraries have is in the file of one of them. Errors import
all but `methods.py` and `results.py`, which are needed when the classes are made.
"""
