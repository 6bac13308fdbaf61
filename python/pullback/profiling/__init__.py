"""Profiling: records which kernels ran, in which phase, and at what cost. Users call `pb.profile()`."""

from ..exports import exported
from .figures import Figures, Group, Row
from .session import Host, Memory, Profile, Span, profile

__all__ = exported(globals())
