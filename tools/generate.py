"""Writes what is derived from the tables of kernels: ops/_counts.py, optim/_counts.py and the stubs of the native modules.

Run it after a row of csrc/math/*.def or a binding has changed: python tools/generate.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from pullback.backends import native

PACKAGE = Path(__file__).parent.parent / "python" / "pullback"
SIGNATURES = {
    "register_bfloat16": "(dtype: Any) -> None",
    "forward": "(name: str, function: Any, type: Any) -> None",
    "thread_count": "() -> int",
    "set_thread_count": "(count: int) -> None",
    "trim_cache": "() -> int",
    "cache_use": "() -> tuple[int, int, str]",
    "memory_limit": '(root: str = "") -> tuple[int, str]',
    "blas_core": "() -> str",
    "blas_config": "() -> str",
}


COUNTED = (
    '"""The work of one element in each {kernel}: (additions, multiplications, special ops), measured by running its\n'
    'functor on the counting scalar. Written by tools/generate.py; a test compares it with the native module."""\n\n'
    "from typing import Final\n\n"
    "{name}: Final[dict[str, tuple[int, int, int]]] = {{\n{rows}}}\n"
)


def counted(name: str, kernel: str, table: dict[str, tuple[int, int, int]]) -> str:
    """A module with the work of one element in each kernel of a table."""
    rows = "".join(f'    "{row}": {figures},\n' for row, figures in sorted(table.items()))
    return COUNTED.format(name=name, kernel=kernel, rows=rows)


ACTIVATIONS = (
    "\n# The activations that `linear` fuses. An activation's number is its position.\n"
    "ACTIVATIONS: Final = (None, {names})\n"
)


def activations() -> str:
    return ACTIVATIONS.format(names=", ".join(f'"{name}"' for name in native.module.activations[1:]))


def stubs() -> str:
    """One line a function of the module of CPU kernels; all levels have the same ones."""
    lines = ["from typing import Any, Final", "", "activations: Final[tuple[str, ...]]"]
    lines += [f"{table}: Final[dict[str, tuple[int, int, int]]]" for table in ("counts", "update_counts")]
    lines += [""]
    for name in sorted(dir(native.module)):
        if not name.startswith("_") and callable(getattr(native.module, name)):
            lines.append(f"def {name}{SIGNATURES.get(name, '(*args: Any) -> Any')}: ...")
    return "\n".join(lines) + "\n"


def main() -> int:
    if native.module is None:
        print(f"generate: needs the native module ({native.reason})")
        return 2
    files = {
        PACKAGE / "ops" / "_counts.py": counted("COUNTS", "elementwise op", native.module.counts) + activations(),
        PACKAGE / "optim" / "_counts.py": counted("UPDATE_COUNTS", "update rule", native.module.update_counts),
        PACKAGE / "_cpu.pyi": stubs(),
    }
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if "--check" not in sys.argv:
            path.write_text(files[path])
        print(f"{'stale' if '--check' in sys.argv else 'written'}: {path.relative_to(PACKAGE.parent.parent)}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
