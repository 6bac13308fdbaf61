"""How a kernel says no to those above it; users never see these."""


class Refused(TypeError):
    """It does not take these arguments: another way must be found."""


class BadIndex(IndexError):
    """(position in the flattened index, the index, the length of the axis)."""
