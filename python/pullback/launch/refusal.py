"""How a kernel says no to those above it; users never see these."""


class Refused(TypeError):
    """It does not take these arguments: another way must be found."""


class BadIndex(IndexError):
    """(position in the flattened index, the index, the length of the axis, the kernel's name)."""

    def __str__(self) -> str:
        where, index, length, name = (*self.args, "an op")[:4]
        return f"{name}: index {index} is out of range for an axis of length {length} (position {where}, flattened)."
