"""Writes the derived files: the work of kernels (ops/_counts.py, optim/_counts.py), the stubs for type checkers, and the table of
ops in docs/reproducibility.md.

Run it after changing a row of csrc/math/*.def, a public name or the declaration of an op: python tools/generate.py [--check]
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pullback.autodiff.primitive import OPS
from pullback.backends import native

PACKAGE = Path(__file__).parent.parent / "python" / "pullback"
REPRODUCIBILITY = PACKAGE.parent.parent / "docs" / "reproducibility.md"
BEGIN, END = "<!-- the table of ops: written by tools/generate.py -->", "<!-- end of the table of ops -->"
# Modules from which users import names that are defined elsewhere. A type checker takes such a name for private unless a stub
# says `import a as a`, and it cannot see names that are imported at their first use.
EXPORTING = ("", "nn", "nn.functional", "optim", "data", "profiling", "linalg", "random")


COUNTED = (
    '"""The work of one element in each {kernel}: (additions, multiplications, special ops), measured by running its\n'
    'functor on the counting scalar. Written by tools/generate.py; a test compares it with the native module."""\n\n'
    "from typing import Final\n\n"
    "{name}: Final[dict[str, tuple[int, int, int]]] = {{\n{rows}}}\n"
)


def counted(name: str, kernel: str, table: dict[str, tuple[int, int, int]]) -> str:
    """Returns the text of a module with the work per element of each kernel in a table."""
    rows = "".join(f'    "{row}": {figures},\n' for row, figures in sorted(table.items()))
    return COUNTED.format(name=name, kernel=kernel, rows=rows)


ACTIVATIONS = (
    "\n# The activations that `linear` fuses. An activation's number is its position.\nACTIVATIONS: Final = (None, {names})\n"
)


def activations() -> str:
    return ACTIVATIONS.format(names=", ".join(f'"{name}"' for name in native.module.activations[1:]))


def stub(source: Path, module: Any) -> str:
    """Returns the stub of a package that only imports names. The stub imports each name again in the form that makes it public."""
    lines = [line for node in ast.parse(source.read_text()).body for line in exports(node, module)]
    header = [f"# Written by tools/generate.py from {source.name}.", "# ruff: noqa"]
    used = [line for name, line in (("numpy", "import numpy"), ("Any", "from typing import Any")) if name in "".join(lines)]
    return "\n".join([*header, *used, "", *lines]) + "\n"


def exports(node: ast.stmt, module: Any) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.level and node.module != "exports":
        home = "." * node.level + (node.module or "")
        for name in node.names:
            public = name.asname or name.name
            if public == "*":
                yield f"from {home} import *"
            elif public != name.name and not _private(public):  # `import a as b` would make b private
                yield f"{public}: {kind(getattr(module, public))}"
            elif not _private(public):
                yield f"from {home} import {public} as {public}"
    elif isinstance(node, ast.Assign):
        names = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        if names == ["_LATE"]:
            yield from late(ast.literal_eval(node.value), module)
        elif names != ["__all__"]:
            yield from [f"{name}: {kind(getattr(module, name))}" for name in names if not _private(name)]
    elif isinstance(node, ast.FunctionDef) and not _private(node.name) and node.name not in ("__getattr__", "__dir__"):
        yield f"def {node.name}{signature(node)}: ..."


def late(homes: dict[str, tuple[str, ...]], module: Any) -> Iterator[str]:
    """Yields the stub lines of the names that are imported when they are first used. `homes` maps each module to its names."""
    for home, names in homes.items():
        for name in names:
            value = getattr(module, name)
            if isinstance(value, np.dtype):
                yield f"{name}: {kind(value)}"
            elif isinstance(value, ModuleType):
                yield f"from {home[: -len(name)].rstrip('.') or '.'} import {name} as {name}"
            else:
                yield f"from {home} import {name} as {name}"


def kind(value: Any) -> str:
    """Returns the type of a value as an annotation."""
    if isinstance(value, np.dtype):
        return "numpy.dtype[Any]"
    return "None" if value is None else type(value).__name__


def signature(node: ast.FunctionDef) -> str:
    """Returns the signature of a function as its source has it, but with Any under its public name."""
    return f"({ast.unparse(node.args)}) -> {ast.unparse(node.returns) if node.returns else 'Any'}".replace("_Any", "Any")


def _private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def stubs() -> dict[Path, str]:
    """Returns the expected text of every stub, by path."""
    made: dict[Path, str] = {}
    for name in EXPORTING:
        place = PACKAGE.joinpath(*name.split("."))
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        made[source.with_suffix(".pyi")] = stub(source, importlib.import_module(f"pullback.{name}".rstrip(".")))
    return made


def with_ops(text: str) -> str:
    """Returns the page with a table between its marks that says, for each op, if it gives the same bits everywhere."""
    importlib.import_module("pullback.nn")  # Importing the modules declares their ops.
    importlib.import_module("pullback.ops.random")
    words = {op.name: "yes" if op.same_bits is True else f"no: {op.same_bits}" for op in OPS.values()}
    rows = "".join([f"| `{name}` | {OPS[name].kind.name} | {words[name]} |\n" for name in sorted(words)])
    found, count = re.subn(
        f"{BEGIN}.*?{END}", f"{BEGIN}\n| op | kind | same bits everywhere |\n|---|---|---|\n{rows}{END}", text, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"{REPRODUCIBILITY} needs one place between {BEGIN} and {END}.")
    return found


def main() -> int:
    files = stubs()
    if native.module is None:
        print(f"generate: without the native module the counts stay as they are ({native.reason})")
    else:
        files[REPRODUCIBILITY] = with_ops(REPRODUCIBILITY.read_text())
        files[PACKAGE / "ops" / "_counts.py"] = counted("COUNTS", "elementwise op", native.module.counts) + activations()
        files[PACKAGE / "optim" / "_counts.py"] = counted("UPDATE_COUNTS", "update rule", native.module.update_counts)
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if "--check" not in sys.argv:
            path.write_text(files[path])
        print(f"{'stale' if '--check' in sys.argv else 'written'}: {path.relative_to(PACKAGE.parent.parent)}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
