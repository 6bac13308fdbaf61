"""The tables of all libraries in one: `NAMES` of names, `KEYWORDS`, `KEYWORDS_OF` and `CALLS` of arguments."""

from __future__ import annotations

from typing import Final

from . import arguments, jax, methods, numpy, pytorch, scipy, tensorflow
from .arguments import CALLS, KEYWORDS

LIBRARIES: Final = (tensorflow, pytorch, jax, numpy, scipy, methods)
KEYWORDS_OF: Final = {**scipy.KEYWORDS_OF, **arguments.KEYWORDS_OF}
NAMES: Final[dict[str, dict[str, str]]] = {}
for _library in LIBRARIES:
    for _place, _names in _library.NAMES.items():
        NAMES.setdefault(_place, {}).update(_names)

__all__ = ["CALLS", "KEYWORDS", "KEYWORDS_OF", "LIBRARIES", "NAMES"]
