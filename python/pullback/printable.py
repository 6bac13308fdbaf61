"""Replaces characters that stdout cannot encode, so that no report is lost where the terminal or the log is not UTF-8."""

from __future__ import annotations

import sys
from typing import Any, Final

# What is printed for a character of the reports that the encoding lacks. Any other character is printed as its escape.
ASCII: Final = {
    "×": "x", "·": "*", "÷": "/", "−": "-", "–": "-", "—": "-", "±": "+-", "∓": "-+", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~",
    "ᵀ": "^T", "²": "^2", "³": "^3", "½": "1/2", "√": "sqrt", "π": "pi", "µ": "u", "μ": "u", "σ": "sigma", "∞": "inf", "…": "...",
    "→": "->", "←": "<-", "‖": "||",
}


def printable(text: str, stream: Any = None) -> str:
    """Returns the text with ASCII in place of the characters that a stream, stdout by default, cannot encode."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = "".join([ASCII[c] if c in ASCII and not _fits(c, encoding) else c for c in text])
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text


def _fits(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
