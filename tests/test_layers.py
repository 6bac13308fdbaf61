"""The structure: imports go downward only, files and functions stay small, names say what things are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import environment

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "pullback"
if not PACKAGE.exists():
    pytest.skip("the source tree is not here: an installed package", allow_module_level=True)

# From the bottom to the top. A module imports from its own layer and from those above it in this list.
LAYERS: list[tuple[str, ...]] = [
    ("errors", "refusal", "config", "site", "listeners", "kept", "ledger"),
    ("capturing",),
    ("simulated", "gpu", "gpu_libraries"),
    ("leases",),
    ("devices", "dtypes", "door", "example", "capsules"),
    ("tensor", "storage", "tree", "namespace_info", "views", "exchange"),
    ("backends",),
    ("creation", "amp"),
    ("operand", "batching", "pickling", "precision"),
    ("primitive",),
    ("tape", "explain"),
    ("ops",),
    ("sweep",),
    ("transforms", "replays", "check", "debug", "numpy_signatures", "dispatch", "linalg", "profile", "io", "report"),
    ("nn", "optim", "solve", "data"),
    ("train",),
    ("cli",),
    ("__main__",),
    ("__init__",),
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}

# Calls that go up, made when they run and not when they are imported, each with its reason.
UPWARD = {
    ("dtypes", "backends"),  # bfloat16 is made on first use, and the kernels are told of it
    ("tensor", "pickling"),  # __reduce__
    ("tensor", "creation"), ("tensor", "ops"), ("tensor", "__init__"),  # t.to(…), p.assign(…), Parameter(obj), __array_namespace__
    ("creation", "ops"), ("creation", "operand"),  # pb.asarray of a tensor is recorded
    ("tape", "sweep"), ("explain", "sweep"),  # the walk back names ops (to sum gradients), the tape does not
    ("tape", "transforms"), ("tape", "report"), ("explain", "ops"),  # tape.jacobian, tape.diagnose are methods for convenience
    ("ops", "sweep"), ("primitive", "ops"), ("batching", "ops"),  # what is repeated for every example is a view
    ("dispatch", "__init__"),  # NumPy's functions are looked up among the public names
    ("ops", "transforms"), ("cli", "__init__"), ("profile", "__init__"),  # the version; peaks of public functions
}  # fmt: skip
SOURCES = sorted(PACKAGE.rglob("*.py"))


def unit(path: Path) -> str:
    """The module or package of the layer list that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, bool, int]]:
    """(unit that is imported, whether it happens on import, line)."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    top = {id(node) for node in tree.body}
    depth = len(path.relative_to(PACKAGE).parts)
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "pullback" or alias.name.startswith("pullback."):
                    yield (alias.name.split(".") + ["__init__"])[1], id(node) in top, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
            for name in names:
                yield name if name in LEVEL else "__init__", id(node) in top, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("pullback."):
            yield node.module.split(".")[1], id(node) in top, node.lineno


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downward(path: Path) -> None:
    here = unit(path)
    assert here in LEVEL, f"{here} has no place in the layers: give it one in tests/test_layers.py"
    wrong = []
    for name, at_import, line in imports(path):
        if name not in LEVEL or here == "__init__":
            continue
        if LEVEL[name] > LEVEL[here] and (at_import or (here, name) not in UPWARD):
            wrong.append(f"{path.name}:{line} imports {name}, which is above {here}")
    assert not wrong, "\n".join(wrong)


def test_native_code_is_named_by_the_backends_and_the_ops_only() -> None:
    for path in SOURCES:
        named = re.search(r"pullback\._cpu\w*|import _cpu", path.read_text())
        if named and unit(path) not in ("backends", "cli", "door", "dtypes"):
            raise AssertionError(f"{path.relative_to(PACKAGE)} goes past the backends")


# ---- sizes

CODE = {"python": ("py",), "csrc": ("h", "cpp", "cu", "cuh"), "tests": ("py",), "benchmarks": ("py",)}


def code_lines(path: Path) -> int:
    """Lines with code: not blank, not comments, not docstrings."""
    tree = ast.parse(path.read_text())
    covered: set[int] = set()
    docstrings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.strip().startswith("#") and number not in docstrings:
            covered.add(number)
    return len(covered)


def ours(*patterns: str) -> list[Path]:
    return sorted([path for pattern in patterns for path in ROOT.glob(pattern) if "__pycache__" not in path.parts])


def test_no_file_is_longer_than_400_lines() -> None:
    files = ours(*[f"{folder}/**/*.{end}" for folder, ends in CODE.items() for end in ends])
    generated = ("_counts.py",)
    long = {str(p.relative_to(ROOT)): n for p in files if (n := len(p.read_text().splitlines())) > 400 and p.name not in generated}
    assert not long


def test_no_function_is_longer_than_40_lines() -> None:
    long: list[str] = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                length = (node.end_lineno or 0) - first.lineno + 1
                if length > 40:
                    long.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}: {length}")
    assert not long


def test_the_tape_and_the_primitive_are_read_in_one_sitting() -> None:
    assert code_lines(PACKAGE / "tape.py") + code_lines(PACKAGE / "primitive.py") <= 400


# ---- names


def test_no_file_is_named_after_nothing() -> None:
    forbidden = {"utils", "util", "common", "helpers", "helper", "misc", "base", "core"}
    for path in ours("python/**/*", "csrc/**/*", "tests/**/*", "benchmarks/**/*"):
        assert not forbidden & set(re.split(r"[._/]", str(path.relative_to(ROOT)).lower())), path


def test_every_file_says_in_one_sentence_what_it_is_for() -> None:
    for path in [*SOURCES, *ours("tests/*.py")]:
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text, f"{path} has no docstring"
    for path in ours("csrc/**/*.h", "csrc/**/*.cpp", "csrc/**/*.cu", "csrc/**/*.cuh"):
        assert path.read_text().startswith("//"), f"{path} does not begin with a comment"


def test_scalar_mathematics_includes_nothing_but_the_like() -> None:
    allowed = re.compile(r'#include (<[a-z_]+>|"math/[\w.]+"|"[a-z]+\.def")')
    for path in ours("csrc/math/*"):
        for line in path.read_text().splitlines():
            assert not line.startswith("#include") or allowed.match(line), f"{path.name}: {line}"


def test_device_code_stays_in_its_folder() -> None:
    for path in ours("csrc/**/*.cu", "csrc/**/*.cuh"):
        assert path.parent.name in ("cuda", "cudasim"), path


def test_no_option_is_a_positional_boolean() -> None:
    """`f(x, True)` tells a reader nothing: public functions take booleans by name, or where PyTorch has them."""
    for path in [p for p in SOURCES if unit(p) in ("ops", "check", "transforms", "linalg")]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                for argument in node.args.posonlyargs:
                    assert argument.annotation is None or ast.unparse(argument.annotation) != "bool", f"{path.name}: {node.name}"


# ---- what an import costs


def test_importing_pullback_imports_numpy_only() -> None:
    lazy = ["scipy", "ml_dtypes", "optree", "rich", "tqdm", "safetensors", "cupy", "torch", "jax", "matplotlib"]
    code = f"import pullback, sys; print([m for m in {lazy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
