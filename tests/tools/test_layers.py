"""The structure of the project: imports go downward only, files and functions stay small, names are descriptive."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT, environment
from pullback.autodiff.primitive import OPS
from pullback.examples.catalogue import EXAMPLES

PACKAGE = ROOT / "python" / "pullback"
if not PACKAGE.exists():
    pytest.skip("the source tree is not here: an installed package", allow_module_level=True)

# Packages whose modules have separate layers. All modules of any other package share one layer.
ROOMS = ("tensors", "autodiff", "launch", "interop")

# From the bottom to the top. A module imports from its own layer and from those above it in this list.
LAYERS: list[tuple[str, ...]] = [
    (
        "duck", "errors", "exports", "typing", "function_wrapper", "printable", "regular_files", "interop.unknown_names",
        "interop.hints", "interop.gate", "interop.wrong_calls",
        "launch.refusal", "variables", "autodiff.site", "autodiff.listeners", "autodiff.kept",
        "launch.ledger", "launch.scopes",
    ),
    ("launch.capturing", "launch.made"),
    ("tensors.simulated", "tensors.gpu", "tensors.gpu_libraries"),
    ("tensors.leases",),
    ("tensors.devices", "tensors.dtypes", "tensors.transfers", "launch.door", "autodiff.stand_in", "tensors.capsules"),
    ("launch.mode",),
    ("tensors.attached", "tensors.escape", "tensors.exchange", "autodiff.returned", "autodiff.shape_run"),
    ("tensors.tensor", "tensors.storage", "interop.namespace_info"),
    ("tensors.creation", "tensors.nested", "backends"),
    ("tensors.ranges",),
    ("tensors.parameter",),
    ("tree", "tensors.pickling", "tensors.precision"),
    ("autodiff.block_cotangent",),
    ("tensors.views", "tensors.operand", "autodiff.batching", "autodiff.scalars", "config"),
    ("autodiff.primitive", "autodiff.facts"),
    ("autodiff.node", "autodiff.error_text", "autodiff.journal"),
    ("autodiff.request",),
    ("autodiff.backward", "autodiff.gated"),
    ("autodiff.tape",),
    ("ops",),
    (
        "transforms", "replays", "check", "debug", "interop.numpy_signatures", "interop.dispatch", "interop.einops_backend",
        "linalg", "random", "profiling", "io", "safetensors_files", "report", "hashing", "outputs",
    ),
    ("nn", "optim", "solve", "data"),
    ("amp", "examples", "info", "resume"),
    ("cli",),
    ("__main__",),
    ("__init__",),
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}

# Imports that go up. They happen inside functions, not when the module is imported; each has its reason.
UPWARD = {
    ("tensors.tensor", "__init__"),  # __array_namespace__
    ("interop.dispatch", "__init__"),  # NumPy's functions are looked up among the public names
    ("cli", "__init__"), ("info", "__init__"), ("profiling", "__init__"),  # the version; peaks of public functions
}
PUBLIC = ("", "nn", "optim")  # what the examples import, as users do
SOURCES = sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    """Returns the name of a module or package below pullback: "autodiff.tape", "ops", and "" for pullback itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in SOURCES}


def unit(module: str) -> str:
    """Returns the entry of the list of layers that a module belongs to."""
    room, _, rest = module.partition(".")
    return f"{room}.{rest.partition('.')[0]}" if room in ROOMS and rest else room or "__init__"


def imports(module: str) -> Iterator[tuple[str, bool, int]]:
    """Yields (imported module, True if this happens when the module is imported, line). Leaves out imports for type checkers."""
    path = MODULES[module]
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    package = path.relative_to(PACKAGE).parts[:-1]
    inside = {id(node) for f in ast.walk(tree) if isinstance(f, (ast.FunctionDef, ast.Lambda)) for node in ast.walk(f)}
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found = [alias.name.partition(".")[2] for alias in node.names if re.match(r"pullback(\.|$)", alias.name)]
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("pullback")):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            rest = (node.module or "").split(".")
            parts = [*base, *(rest if node.level else rest[1:])]
            named = [".".join(part for part in (*parts, alias.name) if part) for alias in node.names]
            whole = ".".join(part for part in parts if part)
            found = [name if name in MODULES else whole for name in named]
        else:
            continue
        for name in found:
            yield name, id(node) not in inside, node.lineno


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module or "pullback")
def test_imports_go_downward(module: str) -> None:
    here = unit(module)
    if module in ROOMS:
        assert not [*imports(module)], "the package of a room imports nothing: its modules are in several layers"
        return
    assert here in LEVEL, f"{here} has no place in the layers: give it one in tests/tools/test_layers.py"
    wrong = []
    for name, at_import, line in imports(module):
        there = unit(name)
        if here == "__init__" or (here == "examples" and name in PUBLIC):
            continue
        if there not in LEVEL:
            wrong.append(f"{module}:{line} imports {name}, which is in no layer")
        elif LEVEL[there] > LEVEL[here] and (at_import or (here, there) not in UPWARD):
            wrong.append(f"{module}:{line} imports {name}, which is above it")
    assert not wrong, "\n".join(wrong)


def test_examples_import_what_users_import() -> None:
    found = {name for example in (*EXAMPLES, "mlperf_tiny") for name, _, _ in imports(f"examples.{example}")}
    assert {name for name in found if unit(name) != "examples"} == set(PUBLIC)


def test_every_exception_is_needed() -> None:
    used = {(unit(module), unit(name)) for module in MODULES for name, _, _ in imports(module)}
    assert not UPWARD - used


def circles() -> list[set[str]]:
    """Returns the groups of modules that reach each other through their imports, including imports inside functions."""
    reached = {module: {name for name, _, _ in imports(module) if name in MODULES} - {module} for module in MODULES}
    # the public names may be imported from anywhere
    reached = {module: names - {""} if module else set() for module, names in reached.items()}
    for through in MODULES:
        for module, names in reached.items():
            if through in names:
                reached[module] = names | reached[through]
    groups = [frozenset({m for m in names if module in reached[m]}) for module, names in reached.items() if module in names]
    return sorted(map(set, set(groups)), key=len, reverse=True)


def test_imports_run_in_small_circles() -> None:
    found = circles()
    assert not found or len(found[0]) <= 2, sorted(found[0])


def test_few_imports_are_inside_functions() -> None:
    inside = [f"{module}:{line}" for module in MODULES for _, at_import, line in imports(module) if not at_import]
    assert len(set(inside)) <= 31, f"{len(set(inside))}: {inside}"


def test_rules_look_up_by_name_only_what_is_declared_later() -> None:
    """`OPS["sum"]` is only for rules that are declared before the op. If a module can import an op, it must import it."""
    reached = {module: {name for name, at_import, _ in imports(module) if at_import and name in MODULES} for module in MODULES}
    for through in MODULES:
        for names in reached.values():
            if through in names:
                names |= reached[through]
    for module, path in MODULES.items():
        for name in re.findall(r'OPS\["(\w+)"', path.read_text()) if unit(module) == "ops" else ():
            declared = OPS[name].reference.__module__.removeprefix("pullback.")
            assert module in reached[declared] or module == declared, f"{module} can import {name} from {declared}"


def test_everything_that_lower_modules_call_is_attached() -> None:
    from pullback.tensors.attached import Attached, attached

    assert vars(attached).keys() == Attached.__annotations__.keys()


def test_native_code_is_named_by_the_backends_and_the_ops_only() -> None:
    for module, path in MODULES.items():
        named = re.search(r"pullback\._cpu\w*|import _cpu", path.read_text())
        if named and unit(module) not in ("backends", "info", "launch.door", "tensors.dtypes"):
            raise AssertionError(f"{path.relative_to(PACKAGE)} goes past the backends")


# ---- sizes

CODE = {"python": ("py",), "csrc": ("h", "cpp", "cu", "cuh"), "tests": ("py",), "benchmarks": ("py",)}


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


def test_the_core_is_read_in_one_sitting() -> None:
    """It is what a reader opens to understand how ops are declared and recorded, and how the backward pass runs."""
    core = [f"autodiff/{name}.py" for name in ("primitive", "listeners", "node", "tape", "backward")] + ["ops/kinds.py"]
    lengths = {name: len((PACKAGE / name).read_text().splitlines()) for name in core}
    assert sum(lengths.values()) <= 800, lengths


# ---- names


def test_no_file_is_named_after_nothing() -> None:
    forbidden = {"utils", "util", "common", "helpers", "helper", "misc", "base", "core"}
    for path in ours("python/**/*", "csrc/**/*", "tests/**/*", "benchmarks/**/*"):
        assert not forbidden & set(re.split(r"[._/]", str(path.relative_to(ROOT)).lower())), path


def test_every_file_says_in_one_sentence_what_it_is_for() -> None:
    for path in [*SOURCES, *ours("tests/**/*.py")]:
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
    """A reader cannot tell what `f(x, True)` means.

    Public functions take booleans by keyword, or in the position PyTorch gives them.
    """
    for path in [p for m, p in MODULES.items() if unit(m) in ("ops", "check", "transforms", "linalg")]:
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
