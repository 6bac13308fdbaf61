"""Names: the chains of attributes and constant items, such as `self.gamma` or `d["w"][0]`, that a code object reads and stores.

One pass over the instructions follows the top of the evaluation stack as far as it is known. An instruction that is not listed here
empties it, and so does the target of a jump, where two stacks meet. What is unknown ends a chain, but no load is lost by it.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary


class Step(NamedTuple):
    """A step of a chain: ("attr", name), ("item", constant), or ("each", None) for every item that the code iterates over."""

    kind: str  # within this module also "zipped", with the chains that zip got, and "unpack", with an index
    key: Any


class Chain(NamedTuple):
    """A chain is a variable and the steps from it. Its root is "global", "free" or "argument" (a parameter of the code)."""

    root: str  # within this module also "local", and "zip" for what zip or enumerate returns
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
        sets: dict[str, set[Chain]] = {"load": set(), "store": set(), "update": set()}
        for verb, chain in _Reader(code).read():
            # The argument ".0" of a comprehension is an iterator, which runs only once. The items of pairs have no steps.
            if chain.name != ".0" and all([step.kind != "unpack" for step in chain.steps]):
                sets[verb].add(chain)
        loads, stores, updates = sets.values()
        longer = {c._replace(steps=c.steps[:k]) for c in loads for k in range(len(c.steps))}
        counters = updates - loads - stores - longer
        loads |= updates - counters
        _NAMES[code] = Names(frozenset(loads), frozenset(stores | updates - counters), frozenset(counters))
    return _NAMES[code]


_NAMES: WeakKeyDictionary[CodeType, Names] = WeakKeyDictionary()
_EACH = Step("each", None)
_GLOBAL = ("GLOBAL", "NAME", "FROM_DICT_OR_GLOBALS")
_VARIABLE = re.compile("(LOAD|STORE|DELETE)_(FAST|DEREF|CLASSDEREF|FROM_DICT_OR_DEREF|" + "|".join(_GLOBAL) + ")")
_variables = cache(_VARIABLE.findall)  # the verb and the kind of each variable of an instruction: STORE_FAST_LOAD_FAST has two
_COPIES = {"DUP_TOP": (1,), "DUP_TOP_TWO": (2, 2)}
_WITHOUT_EFFECT = ("CACHE", "EXTENDED_ARG", "GET_ITER", "NOP", "PRECALL", "SET_FUNCTION_ATTRIBUTE")


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
        self.uses = Counter[tuple[str, Chain]]()  # how often the code does "load", "store" (also by del) and "update" (`+=`) a chain
        self.stack: list[Chain | _Constant | _Function | None] = []  # None is an unknown value
        self.before = ""  # the instruction before this one
        self.target: Chain | None = None  # attribute or item that the update which has begun will assign to
        self.aliases: dict[str, Chain] = {}
        self.functions: list[_Function] = []
        self.cells: set[str] = set()
        # CPython 3.12 and later run a comprehension as a loop in the code itself, where its variables hide others of the same name.
        self.scopes: list[tuple[str, str]] = []  # (name of a variable, its name without a double)
        self.ends: dict[str, int] = {}  # offsets at which these loops end

    def read(self) -> Counter[tuple[str, Chain]]:
        """Returns the uses of all chains that begin at a global name, a free name or a parameter."""
        labels, meets = set(dis.findlabels(self.code.co_code)), False
        for i in dis.get_instructions(self.code):
            meets = meets or i.offset in labels
            if i.opname in _WITHOUT_EFFECT:
                continue
            if meets and i.opname != "FOR_ITER":  # a jump back to FOR_ITER brings the same iterator
                self.stack.clear()
            op = i.opname
            if op == "BINARY_OP":  # spelled as by CPython 3.10
                op = "BINARY_SUBSCR" if i.argrepr == "[]" else "INPLACE" if i.argrepr.endswith("=") else "BINARY"
            takes = max(3, i.arg or 0) if op in ("COPY", "SWAP") else 3
            self.stack[:0] = [None] * (takes - len(self.stack))
            self.follow(i, op)
            self.before, meets = op, False
        for made in self.functions:
            for (verb, chain), n in _Reader(made.code).read().items():
                start = made.roots.get(chain.name) if chain.root == "free" else made.iterable if chain.name == ".0" else None
                if start:
                    self.uses[verb, start.then(*chain.steps)] += n
        result = Counter[tuple[str, Chain]]()
        for (verb, chain), n in self.uses.items():
            lasts = verb == "load" or chain.steps or chain.root in ("global", "free")  # the code's own variables end with it
            if n > 0 and lasts and (whole := self.resolved(chain)):
                result[verb, whole] += n
        return result

    def resolved(self, chain: Chain) -> Chain | None:
        """Returns a chain with its aliases expanded. Returns None if it begins at another local variable."""
        passed: set[str] = set()
        while chain.root in ("local", "zip"):
            start, rest = None, chain.steps
            variable = Chain("local", chain.name, ())
            if chain.root == "zip" and len(rest) > 2 and rest[2].kind == "unpack":
                start, rest = dict(enumerate(rest[0].key)).get(rest[2].key), (_EACH, *rest[3:])
            elif chain.name not in passed and self.uses["store", variable] + self.uses["update", variable] == 1:
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
            self.uses["store", Chain("local", i.argval, ())] -= 1  # the handler of an exception restores the hidden variable once more
            stack.append(None)
        elif variables := _variables(op):
            for (verb, kind), name in zip(variables, i.argval if isinstance(i.argval, tuple) else (i.argval,)):
                self.variable(verb, kind, name, i.offset)
        elif op in ("LOAD_CONST", "LOAD_SMALL_INT"):
            stack.append(_Constant(i.argval))
        elif op in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"):
            self.step(op, Step("attr", i.argval))
        elif op in ("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR"):
            key = stack.pop()
            self.step(op, Step("item", key.value) if isinstance(key, _Constant) and _is_key(key.value) else None)
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
        elif op.startswith(("INPLACE", "BINARY")) and op != "BINARY_SLICE":
            left = stack[-2]
            if op.startswith("INPLACE") and isinstance(left, Chain) and not left.steps:
                self.uses["load", left] -= 1  # it reads a variable only in order to assign to it
            stack[-2:] = [None]
        elif op == "MAKE_CELL":
            self.cells.add(self.root(i.argval).name)
        elif op in ("BUILD_LIST", "BUILD_SET", "BUILD_MAP") and not i.arg:  # between GET_ITER and FOR_ITER of a comprehension
            stack.append(None)
        elif op == "FOR_ITER":
            for _, unique in self.scopes:
                self.ends.setdefault(unique, i.argval)
            iterable = stack[-1]
            stack[-1:] = [None, iterable.then(_EACH) if isinstance(iterable, Chain) else None]
        elif op == "UNPACK_SEQUENCE":
            x = stack.pop()
            stack += [x.then(Step("unpack", k)) if isinstance(x, Chain) else None for k in reversed(range(i.arg or 0))]
        elif op == "MAKE_FUNCTION":
            code = next((x.value for x in stack[-2:] if isinstance(x, _Constant) and isinstance(x.value, CodeType)), self.code)
            roots = {name: self.root(name) for name in code.co_freevars}
            stack[:] = [_Function(code, roots)]
            # The body of a class runs at once, and annotations run when somebody asks for them.
            if code.co_flags & inspect.CO_OPTIMIZED and code.co_name != "__annotate__":
                self.functions += [x for x in stack if isinstance(x, _Function)]
        elif op in ("CALL", "CALL_FUNCTION", "CALL_METHOD"):
            self.call(i.arg or 0)
        else:
            stack.clear()

    def call(self, count: int) -> None:
        """Follows a call. Of a comprehension it notes the argument, and of zip and enumerate the result."""
        function, x = self.stack[-2:]
        if isinstance(function, _Function) and isinstance(x, Chain) and function.code.co_varnames[:1] == (".0",):
            function.iterable, count = x, 1
        self.stack[:0] = [None] * (count + 1 - len(self.stack))
        called, *arguments = [x if isinstance(x, Chain) else None for x in self.stack[-1 - count :]]
        if called == Chain("global", "enumerate", ()):
            arguments = [None, *arguments]
        elif called != Chain("global", "zip", ()):
            arguments = []
        self.stack[-1 - count :] = [Chain("zip", "", (Step("zipped", tuple(arguments)),)) if arguments else None]

    def push(self, x: Chain | _Constant | _Function | None) -> None:
        """Pushes a value. A chain counts as read unless it goes on."""
        self.stack.append(x)
        if isinstance(x, Chain):
            self.uses["load", x] += 1

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
            self.push(None if name in ("__class__", "__classdict__") or (kind == "FAST" and root.name in self.cells) else root)
        elif verb == "DELETE":
            self.uses["store", root] += root.root in ("global", "free")
        elif kind == "FAST" and self.ends.get(root.name, offset + 1) <= offset:  # the hidden variable gets its value back
            self.stack.pop()
            self.scopes.remove((name, root.name))
        else:
            x = self.stack.pop()
            self.uses["update" if self.before.startswith("INPLACE") else "store", root] += 1
            if isinstance(x, Chain):
                self.aliases[root.name] = x

    def step(self, op: str, step: Step | None) -> None:
        """Follows the load, the store or the deletion of an attribute or item."""
        x = self.stack.pop()
        chain = x.then(step) if isinstance(x, Chain) and step else None
        if op.startswith(("STORE", "DELETE")):
            verb, target = ("update", self.target) if self.before in ("SWAP", "ROT_TWO", "ROT_THREE") else ("store", chain)
            self.uses.update([(verb, target)] if target else [])
            self.stack.pop()
            return
        if isinstance(x, Chain) and chain:
            self.uses["load", x] -= 1
        if self.before == "COPY" or self.before in _COPIES:  # an update begins, whose own read counts as none
            self.target = chain
            self.stack.append(None)
        else:
            self.push(chain)
