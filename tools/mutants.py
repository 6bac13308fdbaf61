"""The mutants of tools/mutate.py: small changes of the sources, each behind a switch of its own.

Mutants of Python come from the syntax tree, mutants of C++ from patterns of lines.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "python/pullback"
# A line of these files is drawn three times as often.
CORE = ("ops/", "transforms/", "autodiff/", "tensors/", "optim/", "nn/", "replays/")
LEFT_OUT = {"_counts.py", "simulated.py", "__main__.py", "_examples.py"}
# The copy's package has this file. A byte of the table says of a mutant that it was reached (1) or is switched on (2).
PYTHON_SWITCH = """import mmap
import os

if "PULLBACK_MUTANTS" in os.environ:
    with open(os.environ["PULLBACK_MUTANTS"], "r+b") as _file:
        _table = mmap.mmap(_file.fileno(), 0)
else:
    _table = bytearray(4096)


def on(mutant):
    if _table[mutant] == 2:
        return True
    _table[mutant] = 1
    return False
"""


@dataclass
class Mutant:
    file: str
    line: int
    start: int  # byte offset
    end: int
    kind: str
    text: str  # replaces the bytes from start to end; {on} stands for the switch
    was: str  # the text before the change
    change: str  # for the reader: what `was` becomes


# ---- Python

OPPOSITE: dict[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is",
    ast.In: "not in", ast.NotIn: "in", ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//",
}
# the weights of kinds of mutants on the same line; 1 for the other kinds
OFTEN = {"guard": 4, "deleted": 2, "swap": 0.25}
LEAVES = (ast.Raise, ast.Return, ast.Continue, ast.Break)


class Sites(ast.NodeVisitor):
    """Collects the mutants of one file."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, self.inside, self.found = file, source, False, list[Mutant]()
        self.lines = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
        self.visit(ast.parse(source))

    def place(self, node: Any) -> tuple[int, int]:
        return self.lines[node.lineno - 1] + node.col_offset, self.lines[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: Any) -> str:
        start, end = self.place(node)
        return self.source[start:end].decode()

    def add(self, node: Any, kind: str, change: str) -> None:
        (start, end), was = self.place(node), self.text(node)
        text = f"if not {{on}}: {was}" if kind == "deleted" else f"(({change}) if {{on}} else ({was}))"
        if self.inside:
            self.found.append(Mutant(self.file, node.lineno, start, end, kind, text, was, change))

    def visit_FunctionDef(self, node: Any) -> None:
        """Visits the body only: defaults and decorators are evaluated while the package is imported, before a switch is set."""
        outer, self.inside = self.inside, True
        for child in node.body:
            self.visit(child)
        self.inside = outer

    def visit_JoinedStr(self, node: Any) -> None:
        """Leaves f-strings alone, because Python 3.11 reports wrong positions for the expressions inside them."""

    def visit_AnnAssign(self, node: Any) -> None:
        if node.value:
            self.visit(node.value)

    def visit_If(self, node: Any) -> None:
        if "TYPE_CHECKING" in self.text(node.test):
            return
        guard = not node.orelse and len(node.body) == 1 and isinstance(node.body[0], LEAVES)
        self.add(node.test, "guard", "False") if guard else self.add(node.test, "branch", f"not ({self.text(node.test)})")
        self.generic_visit(node)

    def visit_IfExp(self, node: Any) -> None:
        self.add(node.test, "branch", f"(not ({self.text(node.test)}))")
        self.generic_visit(node)

    def visit_BoolOp(self, node: Any) -> None:
        word = " or " if isinstance(node.op, ast.And) else " and "
        self.add(node, "and/or", "(" + word.join([f"({self.text(v)})" for v in node.values]) + ")")
        self.generic_visit(node)

    def visit_Compare(self, node: Any) -> None:
        if len(node.ops) == 1:
            left, right = self.text(node.left), self.text(node.comparators[0])
            self.add(node, "compare", f"(({left}) {OPPOSITE[type(node.ops[0])]} ({right}))")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: Any) -> None:
        if isinstance(node.op, (ast.Not, ast.USub)):
            self.add(node, "not" if isinstance(node.op, ast.Not) else "minus", f"({self.text(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: Any) -> None:
        text = [isinstance(getattr(x, "value", None), str) or isinstance(x, ast.JoinedStr) for x in (node.left, node.right)]
        if type(node.op) in OPPOSITE and not any(text):
            self.add(node, "arithmetic", f"(({self.text(node.left)}) {OPPOSITE[type(node.op)]} ({self.text(node.right)}))")
        self.generic_visit(node)

    def visit_Call(self, node: Any) -> None:
        if len(node.args) >= 2 and not any([isinstance(a, ast.Starred) for a in node.args]):
            (a, b), (start, end) = [self.place(x) for x in node.args[:2]], self.place(node)
            middle = self.source[b[0] : b[1]] + self.source[a[1] : b[0]] + self.source[a[0] : a[1]]
            self.add(node, "swap", (self.source[start : a[0]] + middle + self.source[b[1] : end]).decode())
        self.generic_visit(node)

    def other(self, node: Any) -> str:
        return str(not node.value) if isinstance(node.value, bool) else f"({node.value} + 1)"

    def visit_Constant(self, node: Any) -> None:
        if isinstance(node.value, (bool, int, float)):
            self.add(node, "constant", self.other(node))

    def visit(self, node: Any) -> None:
        call = isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Yield))
        stores = isinstance(node, ast.Assign) and not any([isinstance(t, (ast.Name, ast.Tuple)) for t in node.targets])
        if call or stores or isinstance(node, (ast.AugAssign, ast.Delete)):
            self.add(node, "deleted", "(nothing)")
        super().visit(node)


def compiles(source: bytes, m: Mutant) -> bool:
    try:
        compile(source[: m.start] + m.text.replace("{on}", "on(0)").encode() + source[m.end :], m.file, "exec")
    except SyntaxError:
        return False
    return True


def python_mutants(seed: int, count: int) -> list[Mutant]:
    """Draws lines, those of the core three times as often, and one mutant for each drawn line."""
    lines: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        if path.name not in LEFT_OUT:
            for m in Sites(str(path.relative_to(ROOT)), path.read_bytes()).found:
                lines[m.file, m.line].append(m)
    chance = random.Random(seed)
    core = tuple([f"{PACKAGE}/{name}" for name in CORE])
    order = sorted(lines, key=lambda key: chance.random() ** (1 / (3 if key[0].startswith(core) else 1)), reverse=True)
    drawn = (chance.choices(lines[key], [OFTEN.get(m.kind, 1) for m in lines[key]])[0] for key in order)
    return list(itertools.islice((m for m in drawn if compiles((ROOT / m.file).read_bytes(), m)), count))


# ---- C++

WORDS = {
    " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ", " && ": " || ", " || ": " && ",
    " + ": " - ", " - ": " + ", " * ": " + ", " / ": " * ", "std::min": "std::max", "std::max": "std::min", "true": "false",
    "false": "true",
}
ELSEWHERE = {"bindings", "count", "cuda", "cudasim"}  # folders that get no mutants
CPP_SWITCH = """#pragma once
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
inline unsigned char* const pullback_mutants = [] {
  static unsigned char none[4096];
  const char* name = std::getenv("PULLBACK_MUTANTS");
  return name ? static_cast<unsigned char*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, open(name, O_RDWR), 0)) : none;
}();
inline bool pullback_mutant(int mutant) {
  if (pullback_mutants[mutant] == 2) return true;
  pullback_mutants[mutant] = 1;
  return false;
}
"""


def changed(expression: str) -> Iterator[str]:
    for old, new in WORDS.items():
        for hit in re.finditer(re.escape(old), expression):
            yield expression[: hit.start()] + new + expression[hit.end() :]
    for hit in re.finditer(r"(?<![\w.])\d+(?![\w.])", expression):
        yield expression[: hit.start()] + str(int(hit[0]) + 1) + expression[hit.end() :]


def cpp_line(line: str, before: str) -> Iterator[tuple[str, str, str]]:
    """Yields (kind, the line with {on} as the placeholder of the switch, the change) for each mutant of a line."""
    code = line.split("//")[0].rstrip()
    if not code or (before.strip() and before.split("//")[0].strip()[-1:] not in (";", "{", "}", "")) or "{on}" in code:
        return
    if hit := re.fullmatch(r"(\s*(?:\} else )?if \()((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)(\).*)", code):
        for kind, new in [("guard", "false"), *[("condition", c) for c in changed(hit[2])]]:
            yield kind, f"{hit[1]}{{on}} ? ({new}) : ({hit[2]}){hit[3]}", new
    elif hit := re.fullmatch(r"(\s*for \([^;]*; )([^;]*)(; [^;]*\) ?\{?)", code):
        for new in changed(hit[2]):
            yield "loop", f"{hit[1]}{{on}} ? ({new}) : ({hit[2]}){hit[3]}", new
    elif hit := re.fullmatch(r"(\s*(?:return|(?:const )?[\w:]+ \w+ =) )([^{}]*)(;)", code):
        for new in changed(hit[2]):
            yield "value", f"{hit[1]}{{on}} ? ({new}) : ({hit[2]}){hit[3]}", new
    elif re.fullmatch(r"(?!\s*(?:using|return|static))\s*[\w.:>\[\]-]+(?: [+*|&-]?= [^{}]*|\([^{}]*\));", code):
        yield "deleted", f"if (!{{on}}) {{ {code.strip()} }}", "(deleted)"


def cpp_mutants(seed: int, count: int) -> list[Mutant]:
    lines: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    folders = [folder for folder in (ROOT / "csrc").iterdir() if folder.name not in ELSEWHERE]
    for path in sorted(p for folder in folders for p in folder.glob("*.*")):
        text, at = path.read_text().splitlines(keepends=True), 0
        for number, (before, line) in enumerate(zip(["", *text], text), 1):
            for kind, new, what in [] if path.suffix == ".def" else cpp_line(line.rstrip("\n"), before):
                end = at + len(line.rstrip("\n").encode())
                m = Mutant(str(path.relative_to(ROOT)), number, at, end, kind, new, line.strip(), what)
                lines[m.file, number].append(m)
            at += len(line.encode())
    chance = random.Random(seed)
    return [chance.choice(lines[key]) for key in chance.sample(sorted(lines), min(count, len(lines)))]


def without_errors(mutants: list[Mutant], log: str) -> list[Mutant]:
    """Returns the mutants whose lines a compiler's log does not name. A file has one more line at its top than before."""
    wrong = {(file, int(line) - 1) for file, line in re.findall(r"(csrc/\S+?):(\d+):", log)}
    return [m for m in mutants if (m.file, m.line) not in wrong]
