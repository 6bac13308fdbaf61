"""Settings of the process, which hold for all threads: `pb.config`.

`pb.config.reproducible` says where a program must give the same bits again:

- "machine" (the default): on this machine, on the same device, with any number of threads. The fastest kernels run.
- "everywhere": on every x86-64 processor from level v3 on and on every NVIDIA GPU, with any number of threads. Every product is
  then computed by pullback's own kernels, in one fixed order of terms, and no library computes it.

Set it at the start of a program, or set the variable PULLBACK_REPRODUCIBLE. Setting it raises a PullbackError if "everywhere" is
not possible here, or if another thread is inside a captured function, and a CaptureError in a thread that is inside one itself.
`docs/reproducibility.md` says what is the same and what is not.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from . import backends, variables
from .backends import modes, native
from .errors import ArgumentError, PullbackError
from .launch import capturing
from .tensors import devices
from .variables import Mode

__all__ = ["reproducible", "why_not"]

reproducible: Mode  # a property of the module's class, below


def why_not() -> str | None:
    """Returns None if the results of this thread can be the same everywhere, otherwise the reason and the remedy, in sentences."""
    for device in dict.fromkeys(["cpu", devices.default_device()]):
        if reason := backends.why_not(device):
            library = "NumPy" if device == "cpu" else "CuPy"
            return (
                f'device "{device}" has no native kernels ({reason}), and {library} adds in an order that depends on the machine. '
                f"Install pullback with its kernels, unset PULLBACK_BACKEND and PULLBACK_SIMD, use another device, or stay with "
                f'"machine".'
            )
    level = native.simd_level()
    if level == "x86-64-v2":
        return (
            "the kernels of level v2 have no fused multiply-add, so they round functions and sums of products differently. Use a "
            'processor of level v3 or higher, and unset PULLBACK_SIMD, or stay with "machine".'
        )
    if not level.startswith("x86-64-v"):
        return (
            f"it has been tested on x86-64 processors from level v3 on only, and never on this one ({level}). Use one of those, "
            f'or stay with "machine".'
        )
    if modes.precision() == "tf32":
        return (
            'this thread is inside autocast("tf32"), to which only tensor cores of a GPU round, and these add in an order that is '
            'not documented. Set it outside, or use "bfloat16", "float16" or "float32".'
        )
    return None


class Config(ModuleType):
    """The class of this module. Only a class can check what is assigned."""

    why_not = staticmethod(why_not)

    @property
    def reproducible(self) -> Mode:
        return modes.mode()

    @reproducible.setter
    def reproducible(self, mode: Mode) -> None:
        given: Any = mode
        if not isinstance(given, str) or given not in variables.MODES:
            raise ArgumentError(f"pb.config.reproducible = {mode!r}; use {' or '.join(map(repr, variables.MODES))}.")
        mode = variables.MODES[variables.MODES.index(given)]  # a plain string, also of an Enum
        if mode == modes.mode():
            return
        capturing.refuse("setting pb.config.reproducible", "Set it before the call.")
        if mode == "everywhere" and (reason := why_not()):
            raise PullbackError(f'pb.config.reproducible = "everywhere" is not possible here: {reason}')
        if not modes.set_mode(mode):
            raise PullbackError(
                f"pb.config.reproducible = {mode!r} while another thread runs a captured function, which has one mode from its "
                f"beginning to its end. Set it before the threads begin to compute, or when they have ended."
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "reproducible" and not name.startswith("__"):  # the import system sets __spec__ and the like
            why = "is a function" if name in __all__ else "does not exist"
            raise AttributeError(f"pb.config.{name} {why}, so it cannot be set. There is pb.config.reproducible.")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<pb.config: reproducible={modes.mode()!r}>"

    def __dir__(self) -> list[str]:
        return list(__all__)


sys.modules[__name__].__class__ = Config

if variables.reproducible() == "everywhere":
    if reason := why_not():
        raise variables.invalid(f"PULLBACK_REPRODUCIBLE is 'everywhere', which is not possible here: {reason}")
    modes.set_mode("everywhere")
