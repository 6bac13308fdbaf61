"""Names: the chains of attributes and constant items, such as `self.gamma` or `d["w"][0]`, that a code object reads and stores.

One pass over the instructions follows the top of the evaluation stack as far as it is known. An instruction that is not listed here
empties it, and so does the target of a jump, where two stacks meet. What is unknown ends a chain, but no load is lost by it.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections import Counter
from collections.abc import Hashable
from functools import cache, lru_cache
from types import CodeType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary


class ChainStep(NamedTuple):
    """A step of a chain: ("attr", name), ("item", constant), or ("each", None) for every item that the code iterates over."""

    kind: str  # within this module also "zipped", with the chains that zip got, and "unpack", with an index
    key: Any


class Chain(NamedTuple):
    """A chain is a variable, or a module that the code imports, and the steps from it.

    Its root is "global", "free", "argument" (a parameter of the code) or "import".
    """

    root: str  # within this module also "local", and "zip" for what zip or enumerate returns
    name: str
    steps: tuple[ChainStep, ...]

    def then(self, *steps: ChainStep) -> Chain:
        return Chain(self.root, self.name, self.steps + steps)

    def last(self) -> Any:
        """Returns the key of the last step, or the name of a chain without steps."""
        return self.steps[-1].key if self.steps else self.name

    def attributes(self) -> list[str]:
        """Returns the names of the attributes among the steps."""
        return [step.key for step in self.steps if step.kind == "attr"]


class Names(NamedTuple):
    """The chains that a code object reads, and those that it assigns to or deletes.

    A counter is a chain that the code reads only in order to assign to it: `self.calls += 1`. It is in no other set.
    """

    loads: frozenset[Chain]
    stores: frozenset[Chain]
    counters: frozenset[Chain]
    attributes: frozenset[str]  # names of the attributes that it reads of objects which no chain tells
    asked: frozenset[str]  # the names that it gives to getattr or hasattr
    is_constant: (
        bool  # True if each run reads the same chains, because none begins at an argument or a variable of another function
    )


def names_in(code: CodeType) -> Names:
    """Returns the names in a code object and, through its free names, in the functions that it makes."""
    names = _NAMES.get(code)
    if names is None:
        sets: dict[str, set[Chain]] = {"load": set(), "store": set(), "update": set()}
        reader = _Reader(code)
        for verb, chain in reader.read():
            # The argument ".0" of a comprehension is an iterator, which runs only once. The items of a pair have no step.
            if chain.name != ".0" and all([step.kind != "unpack" for step in chain.steps]):
                sets[verb].add(chain)
            else:
                reader.attributes.update(chain.attributes())
        loads, stores, updates = sets.values()
        counters = {c for c in updates - stores if not any([_begins(c, load) for load in loads])}
        updates -= counters
        names = _NAMES[code] = Names(
            frozenset(loads | updates),
            frozenset(stores | updates),
            frozenset(counters),
            frozenset(reader.attributes),
            frozenset(reader.asked),
            all([c.root in ("global", "import") for c in loads | stores | updates | counters]),
        )
    return names


@lru_cache(4096)
def mentions(code: CodeType, names: frozenset[str]) -> bool:
    """True if a function, or one that it makes, loads one of these names."""
    inner = [x for x in code.co_consts if isinstance(x, CodeType)]
    return not names.isdisjoint(code.co_names) or any([mentions(x, names) for x in inner])


def _begins(a: Chain, b: Chain) -> bool:
    """True if chain b begins with chain a."""
    return a[:2] == b[:2] and a.steps == b.steps[: len(a.steps)]


_NAMES: WeakKeyDictionary[CodeType, Names] = WeakKeyDictionary()
# What reads, and what may set attributes under names that it computes.
GUESSING = frozenset(["getattr", "hasattr", "deepcopy", "asdict", "astuple", "attrgetter"])
SUPER = frozenset(["super"])
SETTING = frozenset(["setattr", "delattr", "vars", "__dict__"])
_EACH, _UNKNOWN = ChainStep("each", None), Chain("local", "", ())
_GLOBAL = ("GLOBAL", "NAME", "FROM_DICT_OR_GLOBALS")
_VARIABLE = re.compile("(LOAD|STORE|DELETE)_(FAST|DEREF|CLASSDEREF|FROM_DICT_OR_DEREF|" + "|".join(_GLOBAL) + ")")
_variables = cache(_VARIABLE.findall)  # the verb and the kind of each variable of an instruction: STORE_FAST_LOAD_FAST has two
_COPIES = {"DUP_TOP": (1,), "DUP_TOP_TWO": (2, 2)}
_ATTRIBUTES = (Chain("global", "getattr", ()), Chain("global", "hasattr", ()))
_SETTERS = (
    *[Chain("global", name, ()) for name in ("setattr", "delattr")],
    *[Chain("global", "object", (ChainStep("attr", name),)) for name in ("__setattr__", "__delattr__")],
)
_ITERABLES = tuple([Chain("global", name, ()) for name in ("iter", "list", "reversed", "tuple")])  # with the same items
_DICT = ChainStep("attr", "__dict__")
_OF_DICTS = (ChainStep("attr", "items"), ChainStep("attr", "values"))
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_CALLS = ("CALL", "CALL_FUNCTION", "CALL_METHOD")
_WITHOUT_EFFECT = ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "SET_FUNCTION_ATTRIBUTE")


def _is_key(x: Any) -> bool:
    """True if a constant, as a subscript, names an item, which a slice does not."""
    if isinstance(x, tuple):
        return all(map(_is_key, cast("tuple[Any]", x)))
    return not isinstance(x, slice) and isinstance(x, Hashable)


class _Reader:
    """Reads one code object."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        self.parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
        self.uses = Counter[tuple[str, Chain]]()  # a chain's number of each verb: "load", "store" (and del), "update" (`+=`)
        self.stack: list[Any] = []  # of chains, of constants as steps, of functions as their roots, and of None for what is unknown
        self.before = ""  # the instruction before this one
        self.target: Chain | None = None  # attribute or item that the update which has begun will assign to
        self.aliases: dict[str, Chain] = {}
        self.functions: list[tuple[CodeType, dict[str, Chain]]] = []  # each with its roots: what its names are in this code
        self.cells: set[str] = set()
        self.attributes: set[str] = set()
        self.asked: set[str] = set()
        # CPython 3.12 and later run a comprehension as a loop in the code itself, where its variables hide others of the same name.
        self.scopes: list[tuple[str, str]] = []  # (name, name without a double) of the variables of the comprehensions around
        self.ends: dict[str, int] = {}  # offset of the end of the loop, for each of the names without a double

    def read(self) -> Counter[tuple[str, Chain]]:
        """Returns the uses of all chains that begin at a global name, a free name or a parameter."""
        instructions, meets = list(dis.get_instructions(self.code)), False
        labels = {i.argval for i in instructions if i.opcode in _JUMPS}
        for i in instructions:
            op, meets = i.opname, meets or i.offset in labels
            if op in _WITHOUT_EFFECT:
                continue
            if op == "BINARY_OP":  # as CPython 3.10 calls it
                op = "BINARY_SUBSCR" if i.argrepr == "[]" else "INPLACE" if i.argrepr.endswith("=") else "BINARY"
            if meets and op != "FOR_ITER":  # a jump back to FOR_ITER brings the same iterator
                self.stack.clear()
            takes = 3 + (i.arg or 0 if op in ("COPY", "SWAP", *_CALLS) else 0)
            self.stack[:0] = [None] * (takes - len(self.stack))
            self.follow(i, op)
            self.before, meets = op, False
        for code, roots in self.functions:
            for (verb, chain), n in _Reader(code).read().items():
                if chain.root not in ("global", "import") and chain.name in roots:
                    self.uses[verb, roots[chain.name].then(*chain.steps)] += n
        result = Counter[tuple[str, Chain]]()
        for (verb, chain), n in self.uses.items():
            lasts = verb == "load" or chain.steps or chain.root in ("global", "free")  # a local variable ends with the call
            if n > 0 and lasts and (whole := self.resolved(chain)):
                result[verb, whole] += n
                variable = chain._replace(steps=())
                if (
                    chain.root == "argument" and self.uses["store", variable] + self.uses["update", variable]
                ):  # it may be another object
                    self.attributes.update(chain.attributes())
            elif n > 0:
                self.attributes.update(chain.attributes())
        return result

    def resolved(self, chain: Chain) -> Chain | None:
        """Returns a chain with its aliases expanded. Returns None if it begins at another local variable."""
        passed: set[str] = set()
        while chain.root in ("local", "zip"):
            variable = chain._replace(steps=())
            match chain.steps:
                case (ChainStep("zipped", chains), _, ChainStep("unpack", k), *rest) if k < len(chains):
                    chain = chains[k].then(_EACH, *rest)
                case steps if chain.name in self.aliases.keys() - passed:
                    if self.uses["store", variable] + self.uses["update", variable] != 1:
                        return None
                    passed.add(chain.name)
                    chain = self.aliases[chain.name].then(*steps)
                case _:
                    return None
        return chain

    def follow(self, i: dis.Instruction, op: str) -> None:
        """Follows one instruction."""
        stack = self.stack
        if op == "LOAD_FAST_AND_CLEAR":
            self.scopes.append((i.argval, f"{i.argval}@{i.offset}"))
            self.uses["store", Chain("local", i.argval, ())] -= 1  # an exception's handler restores the hidden variable, too
            stack.append(None)
        elif variables := _variables(op):
            for (verb, kind), name in zip(variables, i.argval if isinstance(i.argval, tuple) else (i.argval,)):
                self.variable(verb, kind, name, i.offset)
        elif op in ("LOAD_CONST", "LOAD_SMALL_INT"):
            stack.append(ChainStep("item", i.argval) if _is_key(i.argval) else None)
        elif op in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"):
            self.step(op, stack.pop(), ChainStep("attr", i.argval))
        elif op in ("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR"):
            key, x = stack.pop(), stack.pop()
            self.step(op, x, key if isinstance(key, ChainStep) else None)
        elif op == "COPY" or op in _COPIES:
            for depth in _COPIES.get(op, (i.arg or 1,)):
                self.push(stack[-depth])
        elif op == "SWAP":
            depth = i.arg or 2
            stack[-1], stack[-depth] = stack[-depth], stack[-1]
        elif op in ("ROT_TWO", "ROT_THREE"):
            stack.insert(-1 if op == "ROT_TWO" else -2, stack.pop())
        else:
            self.follow_more(i, op)

    def follow_more(self, i: dis.Instruction, op: str) -> None:
        """Follows an instruction that `follow` does not know."""
        stack = self.stack
        if op.startswith(("INPLACE", "BINARY")) and op != "BINARY_SLICE":
            if op.startswith("INPLACE") and isinstance(stack[-2], Chain):  # the read of a variable that it assigns to
                self.uses["load", stack[-2]] -= 1
            stack[-2:] = [None]
        elif op == "MAKE_CELL":
            self.cells.add(self.root(i.argval).name)
        elif op in ("BUILD_LIST", "BUILD_SET", "BUILD_MAP") and not i.arg:  # between GET_ITER and FOR_ITER of a comprehension
            stack.append(None)
        elif op in ("FOR_ITER", "END_ASYNC_FOR"):
            for _, unique in self.scopes:
                self.ends.setdefault(unique, i.argval if op == "FOR_ITER" else i.offset)
            stack[-1:] = [None, stack[-1].then(_EACH) if isinstance(stack[-1], Chain) else None]
        elif op == "IMPORT_NAME":  # a relative import is not followed
            level, names = stack[-2:]
            absolute = level == ChainStep("item", 0)
            module = i.argval if names != ChainStep("item", None) else i.argval.partition(".")[0]  # `import a.b` gives a
            stack[-2:] = [Chain("import", module, ()) if absolute else None]
        elif op == "IMPORT_FROM":
            stack.append(stack[-1].then(ChainStep("attr", i.argval)) if isinstance(stack[-1], Chain) else None)
        elif op == "UNPACK_SEQUENCE":
            x = stack.pop()
            stack += [x.then(ChainStep("unpack", k)) if isinstance(x, Chain) else None for k in reversed(range(i.arg or 0))]
        elif op == "MAKE_FUNCTION":
            codes = [x.key for x in stack[-2:] if isinstance(x, ChainStep) and isinstance(x.key, CodeType)]
            # The body of a class is skipped, and so are annotations, which run only if somebody asks for them.
            codes = [code for code in codes if code.co_flags & inspect.CO_OPTIMIZED and code.co_name != "__annotate__"]
            stack[:] = [{name: self.root(name) for name in code.co_freevars} for code in codes]
            self.functions += zip(codes, stack)
        elif op in _CALLS:
            self.call(i.arg or 0)
        elif op != "GET_ITER":  # an iterator is followed as its iterable
            if op == "MATCH_CLASS":
                self.attributes.update(("__match_args__",), stack[-1].key if isinstance(stack[-1], ChainStep) else ())
            elif op.startswith("LOAD_SUPER"):
                self.attributes.add(i.argval)
            stack.clear()

    def call(self, count: int) -> None:
        """Follows a call. Notes the argument of a comprehension, and what is known of the result."""
        roots, x = self.stack[-2:]
        if self.before == "GET_ITER":
            count = 1  # CPython 3.11 and later count no argument here
            if isinstance(roots, dict) and isinstance(x, Chain):
                roots[".0"] = x
        function, owner, name = self.stack[-1 - count], self.stack[-max(count, 1)], self.stack[1 - max(count, 2)]
        if count > 1 and function in _ATTRIBUTES and isinstance(name, ChainStep):
            self.asked.add(name.key)
        if count > 1 and function in _ATTRIBUTES and isinstance(owner, Chain) and isinstance(name, ChainStep):
            self.uses["load", owner] -= 1
            self.stack[-1 - count :] = []
            self.push(owner.then(ChainStep("attr", name.key)))
            return
        if count > 1 and function in _SETTERS and isinstance(owner, Chain) and isinstance(name, ChainStep):
            self.uses["store", owner.then(ChainStep("attr", name.key))] += 1
        by_name = function in (*_ATTRIBUTES, *_SETTERS) and not isinstance(owner, Chain)
        if by_name or (isinstance(function, Chain) and function.last() == "attrgetter"):
            names = [x.key for x in self.stack if isinstance(x, ChainStep) and isinstance(x.key, str)]
            self.attributes.update([part for path in names for part in path.split(".")])
        if count == 0 and isinstance(function, Chain) and function.steps and function.steps[-1] in _OF_DICTS:
            owner = function._replace(steps=function.steps[:-1])
            items = Chain("zip", "", (ChainStep("zipped", (_UNKNOWN, owner)),))
            self.stack[-1:] = [owner if function.steps[-1].key == "values" else items]
            return
        if count == 1 and function in _ITERABLES and isinstance(owner, Chain):
            self.stack[-2:] = [owner]
            return
        called, *chains = [x if isinstance(x, Chain) else _UNKNOWN for x in self.stack[-1 - count :]]
        if called.name == "enumerate":
            chains.insert(0, _UNKNOWN)
        zipped = called in (Chain("global", "zip", ()), Chain("global", "enumerate", ()))
        self.stack[-1 - count :] = [Chain("zip", "", (ChainStep("zipped", tuple(chains)),)) if zipped else None]

    def push(self, x: object) -> None:
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
            self.uses["update" if self.before.startswith("INPLACE") else "store", root] += 1
            if isinstance(x := self.stack.pop(), Chain):
                self.aliases[root.name] = x

    def step(self, op: str, x: object, step: ChainStep | None) -> None:
        """Follows the load, the store or the deletion of an attribute or item."""
        chain = x.then(step) if isinstance(x, Chain) and step else None
        if op.startswith(("STORE", "DELETE")):
            verb, chain = ("update", self.target) if self.before in ("SWAP", "ROT_TWO", "ROT_THREE") else ("store", chain)
            self.uses.update([(verb, chain)] if chain else [])
            if not chain and step and step.kind == "attr":
                self.attributes.add(step.key)
            if chain and chain.steps[-1].kind == "item":  # to write one item is no use of the whole container
                self.uses["load", chain._replace(steps=chain.steps[:-1])] -= 1
            self.stack.pop()
            return
        if isinstance(x, Chain) and step == _DICT:  # as vars(x)
            chain = None
        elif isinstance(x, Chain) and chain:
            self.uses["load", x] -= 1
        elif step and step.kind == "attr" and self.before != "COPY" and self.before not in _COPIES:
            self.attributes.add(step.key)
        if self.before == "COPY" or self.before in _COPIES:  # an update begins, whose own read does not count
            self.target, chain = chain, None
        self.push(chain)
