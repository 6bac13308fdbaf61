"""Describes a pullback rule by its right-hand side in the declaration of its op, read from the source of the package."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any, TypeGuard

from ..autodiff.primitive import Op, Rule, parameters, same


def rule_text(op: Op, rule: Rule) -> str:
    """Returns what a rule does to the cotangent g: an expression of the values that the tape keeps, or the rule's docstring.

    Without the source (a package without .py files), the text is the rule's name and its parameters.
    """
    declared = op.pullback[op.rules.index(rule)] if isinstance(op.pullback, tuple) else op.pullback
    return "g" if declared is same else re.sub(r"\b_+(?=[a-z])", "", _text(declared))  # drops the underscore of private names


def _text(function: Callable[..., Any]) -> str:
    node = definition_of(function)
    signature = f"{function.__name__.strip('<>_')}({', '.join([name for name in parameters(function) if name != 'needs'])})"
    if node is None:
        return signature
    if isinstance(node, ast.FunctionDef):
        document = ast.get_docstring(node)
        if document:
            return document.split("\n\n")[0].replace("\n", " ").rstrip(".")
        result = node.body[0]
        if not isinstance(result, ast.Return) or result.value is None:
            return signature
        return ast.unparse(result.value)
    return _called(function, node.body) or ast.unparse(node.body)


def _called(function: Callable[..., Any], body: ast.expr) -> str | None:
    """Returns the text of the function that a rule calls, if the rule only passes its arguments to a private function."""
    if not isinstance(body, ast.Call) or not isinstance(body.func, ast.Name) or not body.func.id.startswith("_"):
        return None
    target = function.__globals__.get(body.func.id)
    if not inspect.isfunction(target):
        return None
    if not body.args or not isinstance(body.args[0], ast.Name):
        return None
    names = [argument.id if isinstance(argument, ast.Name) else None for argument in body.args]
    if target.__doc__ is None and names != list(parameters(target)):
        return None
    return _text(target)


def definition_of(function: Callable[..., Any]) -> ast.Lambda | ast.FunctionDef | None:
    """Returns the syntax tree of a Python function; None if its source is not available.

    Several lambdas may begin on one line, so the compiled code decides between them.
    """
    try:
        return _definition(inspect.getsourcefile(function) or "", function.__code__)
    except (OSError, SyntaxError, TypeError):
        return None


@cache  # The key is the code and not the function, which may hold arrays.
def _definition(path: str, code: CodeType) -> ast.Lambda | ast.FunctionDef | None:
    found = [node for node in ast.walk(_parsed(path)) if _begins_there(node, code)]
    return found[0] if len(found) == 1 else next((node for node in found if _compiles_to(node, code)), None)


@cache
def _parsed(path: str) -> ast.Module:
    with open(path, encoding="utf-8") as file:
        return ast.parse(file.read())


def _begins_there(node: ast.AST, code: CodeType) -> TypeGuard[ast.Lambda | ast.FunctionDef]:
    if isinstance(node, ast.FunctionDef):
        first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
        return (first, node.name) == (code.co_firstlineno, code.co_name)
    if not isinstance(node, ast.Lambda) or node.lineno != code.co_firstlineno or code.co_name != "<lambda>":
        return False
    return tuple([argument.arg for argument in node.args.args]) == code.co_varnames[: code.co_argcount]


def _compiles_to(node: ast.Lambda | ast.FunctionDef, code: CodeType) -> bool:
    if isinstance(node, ast.FunctionDef):
        return False
    made = compile(ast.Expression(node), "<rule>", "eval").co_consts[0]
    return (made.co_code, made.co_names, made.co_consts) == (code.co_code, code.co_names, code.co_consts)
