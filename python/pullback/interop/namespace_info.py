"""What pullback says of itself to code written for any array library (array API standard 2024.12, "Inspection")."""

from __future__ import annotations

from typing import Any

from ..tensors import devices, dtypes

_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


class NamespaceInfo:
    """`pb.__array_namespace_info__()`: capabilities, devices and dtypes, by the names of the standard."""

    def capabilities(self) -> dict[str, Any]:
        """Masks and data-dependent shapes are supported; a tensor has up to 64 axes (kernels take 8, NumPy the others)."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        return devices.default_device()

    def devices(self) -> list[str]:
        """The devices that can be used now."""
        return ["cpu"] + ([] if devices.why_not("cuda") else ["cuda"])

    def default_dtypes(self, *, device: str | None = None) -> dict[str, Any]:
        integer = dtypes.default_of(0)
        return {"real floating": dtypes.DEFAULT, "integral": integer, "indexing": integer}

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, Any]:
        """The standard's dtypes by name, those of a kind (or of several) where one is given: pb.isdtype's kinds."""
        found = {name: dtypes.as_dtype(name) for name in _DTYPES}
        return {name: dtype for name, dtype in found.items() if kind is None or dtypes.isdtype(dtype, kind)}
