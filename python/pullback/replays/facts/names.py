"""Names: the chains of attributes and constant items, such as `self.gamma` or `d["w"][0]`, that a code object reads and stores.

One pass over the instructions follows the top of the evaluation stack as far as it is known. An instruction that is not listed here
empties it, and so does the target of a jump, where two stacks meet. What is unknown ends a chain, but no load is lost by it.
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
from collections import Counter
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary


class Step(NamedTuple):
    """A step of a chain: ("attr", name), ("item", constant), or ("each", None) for every item that the code iterates over."""

    kind: str  # while a code object is read also "zipped", the chains that are zipped, and "unpack", the index in a tuple
    key: Any


class Chain(NamedTuple):
    """A chain is a variable and the steps from it. Its root is "global", "free" or "argument" (a parameter of the code)."""

    root: str  # while a code object is read also "local", and "zip" for the result of zip or enumerate
    name: str
    steps: tuple[Step, ...]

    def then(self, *steps: Step) -> Chain:
        return Chain(self.root, self.name, self.steps + steps)


class Names(NamedTuple):
    """The chains that a code object reads, and those that it assigns to or deletes.

    A counter is a chain that the code reads only in order to assign to it: `self.calls += 1`. It is in no other set.
    """

    loads: frozenset[Chain]
    stores: frozenset[Chain]
    counters: frozenset[Chain]


def names_in(code: CodeType) -> Names:
    """Returns the names in a code object and, through its free names, in the functions that it makes."""
    if code not in _NAMES:
        found = _Reader(code).read()
        # An iterator, such as the argument ".0" of a comprehension, runs only once, and nobody else can read what it gives.
        loads, stores, augmented = [{c: n for c, n in chains.items() if "." not in c.name and _is_public(c)} for chains in found]
        prefixes = {c._replace(steps=c.steps[:k]) for c in loads for k in range(len(c.steps))}
        counters = {c for c, n in augmented.items() if loads.get(c) == n and c not in stores and c not in prefixes}
        _NAMES[code] = Names(*[frozenset(chains) for chains in ({*loads} - counters, {*stores, *augmented} - counters, counters)])
    return _NAMES[code]


def _is_public(chain: Chain) -> bool:
    return all([step.kind != "unpack" for step in chain.steps])


_NAMES: WeakKeyDictionary[CodeType, Names] = WeakKeyDictionary()
_EACH = Step("each", None)
_GLOBAL = ("GLOBAL", "NAME", "FROM_DICT_OR_GLOBALS")
_VARIABLE = re.compile("(LOAD|STORE|DELETE)_(FAST|DEREF|CLASSDEREF|FROM_DICT_OR_DEREF|" + "|".join(_GLOBAL) + ")")
_WITHOUT_EFFECT = ("CACHE", "EXTENDED_ARG", "GET_ITER", "NOP", "PRECALL", "SET_FUNCTION_ATTRIBUTE")
_READS = ("LOAD_ATTR", "LOAD_METHOD", "BINARY_SUBSCR")
_WRITES = ("STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR")
_COPIES = {"DUP_TOP": (1,), "DUP_TOP_TWO": (2, 2)}


@functools.cache
def _variables(op: str) -> list[tuple[str, str]]:
    """Returns the verb and the kind of each variable of an instruction: STORE_FAST_LOAD_FAST has two."""
    return _VARIABLE.findall(op)


def _is_key(x: Any) -> bool:
    """True if a constant, as a subscript, names an item, which a slice does not."""
    return all(map(_is_key, cast("tuple[Any]", x))) if isinstance(x, tuple) else not isinstance(x, slice)


class _Constant(NamedTuple):
    value: Any


@dataclass
class _Function:
    """A function that the code makes."""

    code: CodeType
    roots: dict[str, Chain]  # what its free names are in the code that makes it
    iterable: Chain | None = None  # what a comprehension or a generator expression iterates over


class _Reader:
    """Reads one code object."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        self.parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
        self.stack: list[Chain | _Constant | _Function | None] = []  # None is an unknown value
        self.before = ""  # name of the instruction before this one
        self.target: Chain | None = None  # attribute or item that an augmented assignment, which has begun, will assign to
        self.aliases: dict[str, Chain] = {}
        self.functions: list[_Function] = []
        # CPython 3.12 and later run a comprehension as a loop in the code itself, in which its variables hide others of their names.
        self.scopes: list[tuple[str, str]] = []  # (name of a variable, its name without a double)
        self.ends: dict[str, int] = {}  # offsets at which these loops end
        self.cells: set[str] = set()
        self.loads, self.stores, self.augmented = Counter[Chain](), Counter[Chain](), Counter[Chain]()

    def read(self) -> list[Counter[Chain]]:
        """Returns how often the code reads each chain, assigns to it or deletes it, and assigns to it by `+=` and the like."""
        labels, meets = set(dis.findlabels(self.code.co_code)), False
        for i in dis.get_instructions(self.code):
            meets = meets or i.offset in labels
            if i.opname in _WITHOUT_EFFECT:
                continue
            if meets and i.opname != "FOR_ITER":  # a jump back to FOR_ITER brings the same iterator
                self.stack.clear()
            takes = i.arg or 0 if i.opname in ("COPY", "SWAP") else 3
            self.stack[:0] = [None] * (takes - len(self.stack))
            self.follow(i, i.opname)
            self.before, meets = "INPLACE" if i.opname == "BINARY_OP" and i.argrepr.endswith("=") else i.opname, False
        for function in self.functions:
            self.merge(function)
        kept = [{c: n for c, n in chains.items() if n > 0} for chains in (self.loads, self.stores, self.augmented)]
        kept[1:] = [{c: n for c, n in chains.items() if c.steps or c.root in ("global", "free")} for chains in kept[1:]]
        result = [Counter[Chain](), Counter[Chain](), Counter[Chain]()]
        for chains, resolved in zip(kept, result):
            for chain, n in chains.items():
                whole = self.resolved(chain)
                resolved.update({whole: n} if whole else {})
        return result

    def merge(self, function: _Function) -> None:
        """Adds the names of a function that the code makes, as far as they begin at its free names or at what it iterates over."""
        for mine, chains in zip((self.loads, self.stores, self.augmented), _Reader(function.code).read()):
            for chain, n in chains.items():
                if chain.root == "free":
                    mine[function.roots[chain.name].then(*chain.steps)] += n
                elif chain.name == ".0" and function.iterable:
                    mine[function.iterable.then(*chain.steps)] += n

    def resolved(self, chain: Chain) -> Chain | None:
        """Returns a chain from a root that the caller of the code knows, or None."""
        passed: set[str] = set()
        while chain.root in ("local", "zip"):
            start, rest = None, chain.steps
            if chain.root == "zip" and len(rest) > 2 and rest[2].kind == "unpack":
                start = dict(enumerate(rest[0].key)).get(rest[2].key)
                rest = (_EACH, *rest[3:])
            elif (
                chain.name not in passed and self.stores[variable := Chain("local", chain.name, ())] + self.augmented[variable] == 1
            ):
                start = self.aliases.get(chain.name)
                passed.add(chain.name)
            if start is None:
                return None
            chain = start.then(*rest)
        return chain

    def follow(self, i: dis.Instruction, op: str) -> None:
        """Follows one instruction."""
        stack = self.stack
        if op == "LOAD_FAST_AND_CLEAR":
            self.scopes.append((i.argval, f"{i.argval}@{i.offset}"))
            self.stores[Chain("local", i.argval, ())] -= 1  # the handler of an exception restores the hidden variable once more
            stack.append(None)
        elif variables := _variables(op):
            for (verb, kind), name in zip(variables, i.argval if isinstance(i.argval, tuple) else (i.argval,)):
                self.variable(verb, kind, name, i.offset)
        elif op in _READS or op in _WRITES or i.argrepr == "[]":
            self.step(i, op)
        elif op in ("LOAD_CONST", "LOAD_SMALL_INT"):
            stack.append(_Constant(i.argval))
        elif op == "COPY" or op in _COPIES:
            for depth in _COPIES.get(op, (i.arg or 1,)):
                self.push(stack[-depth])
        elif op in ("SWAP", "ROT_TWO"):
            depth = i.arg or 2
            stack[-1], stack[-depth] = stack[-depth], stack[-1]
        elif op == "ROT_THREE":
            stack.insert(-2, stack.pop())
        elif op == "POP_TOP":
            stack.pop()
        elif op == "MAKE_CELL":
            self.cells.add(self.root(i.argval).name)
        elif op in ("BUILD_LIST", "BUILD_SET", "BUILD_MAP") and not i.arg:  # between GET_ITER and FOR_ITER of a comprehension
            stack.append(None)
        elif op == "FOR_ITER":
            for _, unique in self.scopes:
                self.ends.setdefault(unique, i.argval)
            iterable = stack.pop()
            stack += [None, iterable.then(_EACH) if isinstance(iterable, Chain) else None]
        elif op == "UNPACK_SEQUENCE":
            x = stack.pop()
            stack += [x.then(Step("unpack", k)) if isinstance(x, Chain) else None for k in reversed(range(i.arg or 0))]
        elif op == "MAKE_FUNCTION":
            codes = [x.value for x in stack[-2:] if isinstance(x, _Constant) and isinstance(x.value, CodeType)]
            codes = [code for code in codes if code.co_flags & inspect.CO_OPTIMIZED and code.co_name != "__annotate__"]
            made = [_Function(code, {name: self.root(name) for name in code.co_freevars}) for code in codes]
            self.functions += made
            self.stack = [*made]
        elif op in ("CALL", "CALL_FUNCTION"):
            self.stack = [self.called(stack, i.arg or 0)]
        else:
            stack.clear()

    def push(self, x: Chain | _Constant | _Function | None) -> None:
        """Pushes a value. A chain counts as read unless it goes on."""
        self.stack.append(x)
        if isinstance(x, Chain):
            self.loads[x] += 1

    def root(self, name: str, kind: str = "DEREF") -> Chain:
        """Returns the chain of a variable alone."""
        if kind in _GLOBAL:
            return Chain("global", name, ())
        if name in dict(self.scopes):
            return Chain("local", dict(self.scopes)[name], ())
        free = kind != "FAST" and name in self.code.co_freevars
        return Chain("free" if free else "argument" if name in self.parameters else "local", name, ())

    def variable(self, verb: str, kind: str, name: str, offset: int) -> None:
        """Follows the load, the store or the deletion of a variable."""
        root = self.root(name, kind)
        if verb == "LOAD":
            # From CPython 3.13 on LOAD_FAST of a cell loads the cell itself, for a function that the code makes.
            hidden = name in ("__class__", "__classdict__") or (kind == "FAST" and root.name in self.cells)
            self.push(None if hidden else root)
        elif verb == "DELETE":
            self.stores[root] += root.root in ("global", "free")
        elif kind == "FAST" and self.ends.get(root.name, offset + 1) <= offset:  # the hidden variable gets its value back
            self.stack.pop()
            self.scopes.remove((name, root.name))
        else:
            x = self.stack.pop()
            (self.augmented if self.before.startswith("INPLACE") else self.stores)[root] += 1
            if isinstance(x, Chain):
                self.aliases[root.name] = x

    def step(self, i: dis.Instruction, op: str) -> None:
        """Follows the load, the store or the deletion of an attribute or item."""
        step, x = Step("attr", i.argval), self.stack.pop()
        if not op.endswith(("_ATTR", "_METHOD")):
            named = isinstance(x, _Constant) and _is_key(x.value)
            step, x = Step("item", x.value) if isinstance(x, _Constant) and named else None, self.stack.pop()
        chain = x.then(step) if isinstance(x, Chain) and step else None
        if op in _WRITES and self.before in ("SWAP", "ROT_TWO", "ROT_THREE"):  # the end of an augmented assignment
            self.augmented.update([self.target] if self.target else [])
        elif op in _WRITES:
            self.stores.update([chain] if chain else [])
        else:
            if isinstance(x, Chain) and chain:
                self.loads[x] -= 1
            self.push(chain)
            if self.before == "COPY" or self.before in _COPIES:  # the begin of an augmented assignment
                self.target = chain

    def called(self, stack: list[Any], count: int) -> Chain | None:
        """Notes what a comprehension is called with. Returns what zip or enumerate gives, and None for any other function."""
        function, x = stack[-2:]
        if isinstance(function, _Function) and isinstance(x, Chain):
            function.iterable = x
        arguments = [x if isinstance(x, Chain) else None for x in stack[len(stack) - count :]]
        named = stack[-1 - count] if count < len(stack) else None
        if count and named == Chain("global", "zip", ()):
            return Chain("zip", "", (Step("zipped", tuple(arguments)),))
        if count and named == Chain("global", "enumerate", ()):
            return Chain("zip", "", (Step("zipped", (None, arguments[0])),))
        return None
