"""Formats numbers for tables, with three digits."""

from __future__ import annotations

from typing import Final

PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")


def three_digits(x: float) -> str:
    """Formats a number with three digits, or more if its integer part has more: 1.23, 12.3, 123, 1230."""
    decimals = 2 if abs(x) < 9.995 else 1 if abs(x) < 99.95 else 0
    return f"{x:.{decimals}f}"


def quantity(x: float, unit: str = "") -> str:
    """Formats a number with three digits and a decimal prefix, but an integer below 1000 in full: 12.3 M, 4.50 kB, 640 B."""
    if abs(x) < 1000 and x == int(x):
        return f"{int(x)} {unit}".strip()
    power = 0
    while abs(x) >= 999.5 and power < len(PREFIXES) - 1:
        x, power = x / 1000, power + 1
    return f"{three_digits(x)} {PREFIXES[power]}{unit}".strip()


def duration(seconds: float) -> str:
    """Formats seconds with three digits, in s, ms or us."""
    if seconds == 0:
        return "0"
    if seconds >= 0.9995:
        return f"{three_digits(seconds)} s"
    return f"{three_digits(seconds * 1e3)} ms" if seconds >= 0.9995e-3 else f"{three_digits(seconds * 1e6)} us"
