"""The tables of all libraries in one: `NAMES` of names, `KEYWORDS`, `KEYWORDS_OF`, `CALLS` and `OPTIONS` of arguments."""

from __future__ import annotations

from typing import Final

from . import arguments, jax, methods, numpy, pytorch, results, scipy, tensorflow
from .arguments import CALLS, KEYWORDS
from .scipy import OPTIONS

LIBRARIES: Final = (tensorflow, pytorch, jax, numpy, scipy, methods, results)
NAMES: Final[dict[str, dict[str, str]]] = {}
KEYWORDS_OF: Final = {**arguments.KEYWORDS_OF, **scipy.KEYWORDS_OF}
for _library in LIBRARIES:
    for _place, _names in _library.NAMES.items():
        NAMES.setdefault(_place, {}).update(_names)

__all__ = ["CALLS", "KEYWORDS", "KEYWORDS_OF", "LIBRARIES", "NAMES", "OPTIONS"]
