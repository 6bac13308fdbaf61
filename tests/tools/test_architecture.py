"""The map of the project (docs/architecture.md): the paths that it names exist."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from conftest import ROOT

PAGE = ROOT / "docs" / "architecture.md"
if not PAGE.exists():
    pytest.skip("the source tree is not here: an installed package", allow_module_level=True)
ROOTS = ("benchmarks", "csrc", "docs", "python", "tests", "tools", "CMakeLists.txt", "Makefile")


def paths() -> list[str]:
    found = re.findall(rf"(?<![\w/])(?:{'|'.join(ROOTS)})(?:/[\w.]+)*/?", PAGE.read_text())
    return sorted({path.rstrip(".") for path in found if "/" in path or "." in path})


@pytest.mark.parametrize("path", paths())
def test_a_path_of_the_map_exists(path: str) -> None:
    assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).exists(), path


def test_the_map_names_every_folder_of_sources() -> None:
    folders = [*(ROOT / "csrc").iterdir(), *(p for p in (ROOT / "python" / "pullback").iterdir() if (p / "__init__.py").exists())]
    folders += [p for p in (ROOT / "tests").iterdir() if list(p.glob("**/test_*.py"))]
    missing = [p.relative_to(ROOT) for p in folders if p.is_dir() and f"{p.relative_to(ROOT).as_posix()}/" not in PAGE.read_text()]
    assert not missing


def test_tests_for_any_backend_are_in_the_rooms_of_the_package() -> None:
    package, tests = ROOT / "python" / "pullback", ROOT / "tests" / "any_backend"
    rooms = {p.stem for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()} | {"package"}
    files = sorted(p.relative_to(tests) for p in tests.rglob("*.py"))
    assert len(files) > 100
    assert [str(p) for p in files if len(p.parts) != 2 or p.parts[0] not in rooms] == []


def test_no_two_files_of_tests_have_the_same_name() -> None:
    names = Counter(p.name for p in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []  # pytest imports a file by its name


def test_functions_that_the_map_names_are_where_it_says() -> None:
    for path, name in re.findall(r"`(\w+)` in\s+`([\w/.]+)`", PAGE.read_text()):
        assert re.search(rf"\b{path}\b", (ROOT / name).read_text()), f"{path} is not in {name}"


def test_every_word_of_the_glossary_is_a_word_of_the_sources() -> None:
    words = re.findall(r"^\| \*([\w ]+)\* \|", PAGE.read_text(), flags=re.M)
    assert len(words) > 30
    assert words == sorted(words)
    sources = "\n".join(p.read_text().lower() for end in ("py", "h") for p in ROOT.glob(f"[cp]*/**/*.{end}"))
    assert [word for word in words if not re.search(rf"\b{word}", sources)] == []
