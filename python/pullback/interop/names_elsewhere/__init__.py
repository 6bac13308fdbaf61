"""Names of TensorFlow, PyTorch, JAX and NumPy that pullback does not have, each with what to write instead.

`NAMES` maps a public module or a class to its names, and each name to an answer. An answer that ends with a period is a sentence;
any other answer is the expression to write. In both, `pb`, `nn` and `optim` are modules, and `t` is a tensor, `p` a Parameter,
`tape` a GradientTape, `opt` an optimizer, `net` a Module, `f` a function and `x` an array. A test evaluates every name after a dot.

Each library has a file. A name that several libraries have is in the file of one of them.
"""

from __future__ import annotations

from typing import Final

from . import jax, methods, numpy, pytorch, tensorflow
from .arguments import CALLS, KEYWORDS

LIBRARIES: Final = (tensorflow, pytorch, jax, numpy, methods)
NAMES: Final[dict[str, dict[str, str]]] = {}
for _library in LIBRARIES:
    for _place, _names in _library.NAMES.items():
        NAMES.setdefault(_place, {}).update(_names)

__all__ = ["CALLS", "KEYWORDS", "LIBRARIES", "NAMES"]
