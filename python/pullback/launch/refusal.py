"""The exceptions that a kernel raises for its callers inside pullback. Users never see them."""


class Refused(TypeError):
    """The kernel does not support these arguments, so the caller must compute the result in a different way."""


class BadIndex(IndexError):
    """An index is out of range. args: (position in the flattened index, the index, the axis's length, the kernel's name)."""

    def __str__(self) -> str:
        where, index, length, name = (*self.args, "an op")[:4]
        return f"{name}: index {index} is out of range for an axis of length {length} (position {where}, flattened)."
