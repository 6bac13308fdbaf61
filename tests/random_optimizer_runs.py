"""Trainings with random configurations of optimizers.

Several runs of one configuration take the same steps in different ways: eagerly, captured, on another device, or one member alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import pullback as pb
from conftest import dtype_of, host
from pullback import optim
from pullback.optim.sets import LEAST, MOST
from random_optimizers import LAYOUTS, Configuration, given


class Run:
    """An optimizer that was made from a configuration, and its Parameters. member: the only one of several that it trains."""

    def __init__(self, config: Configuration, member: int | None = None) -> None:
        self.config, self.member = config, member
        self.refused: list[tuple[int, str]] = []  # the step before which a change was refused, and the name of the error
        self.parameters = [
            pb.Parameter(self.part(x).astype(dtype_of(dtype)), name=name, constraint=limit)
            for x, dtype, name, limit in zip(config.start, config.dtypes, config.names, config.constraints)
        ]
        options, params = given(config.options, member), self.parameters
        groups = [(pattern, given(own, member)) for pattern, own in config.groups or ()]
        if config.listed is not None:
            ends = np.cumsum(config.listed).tolist()
            params = [{"params": params[b - n : b], **own} for b, n, (_, own) in zip(ends, config.listed, groups)]
        elif groups:
            options["groups"] = dict(groups)
        self.opt: Any = config.cls(params, **options)
        if config.pruning is not None:
            sparsity, chosen, scope = config.pruning
            optim.Pruning(self.opt, sparsity, [self.parameters[i] for i in chosen], scope=scope)
        self.acc: Any = optim.Accumulator(self.parameters, len(config.micro), config.reduce) if config.micro else None
        self.captured: dict[Any, Callable[..., Any]] = {}

    def part(self, value: Any) -> Any:
        """Returns what this run has of an array of all members."""
        return value if self.member is None else value[self.member]

    def adopt(self, opt: Any) -> None:
        """Goes on with a copy of the optimizer."""
        self.opt, self.parameters = opt, opt.parameters
        self.captured = {}
        if self.acc is not None:
            self.acc = optim.Accumulator(self.parameters, len(self.config.micro), self.config.reduce)

    # ---- between steps

    def before(self, k: int) -> None:
        """Does what happens before step k. A change that is refused is noted, and has to change nothing."""
        for event in self.config.events[k]:
            whole = self.state()
            try:
                self._happen(*given(event, self.member))
            except pb.PullbackError as error:
                self.refused.append((k, type(error).__name__))
                assert_equal(self.state(), whole, f"{event} was refused with: {error}")

    def _happen(self, kind: str, *about: Any) -> None:
        opt = self.opt
        if kind == "set":
            setattr(opt, *about)
        elif kind == "group":
            setattr(opt.groups[about[0] % len(opt.groups)], *about[1:])
        elif kind == "auxiliary" and opt.auxiliary is not None:
            setattr(opt.auxiliary, *about)
        elif kind == "observe" and opt._table.program.observes:
            opt.observe(*about)
        elif kind == "assign":
            p = self.parameters[about[0]]
            p.assign(self.part(about[1]).astype(p.dtype))
        elif kind == "constraint":
            self.parameters[about[0]].constraint = about[1]
        elif kind == "mode" and hasattr(opt, "eval"):
            points = [host(p).copy() for p in self.parameters]
            opt.eval()
            opt.train()
            for p, x in zip(self.parameters, points):
                assert bits(p) == bits(x), "eval() and train() have changed weights"
        elif kind == "remove" and opt.pruning is not None:
            opt.pruning.remove()

    # ---- steps

    def tensors(self, k: int) -> list[list[Any]]:
        """Returns the gradients of each batch of step k."""
        found = []
        for grads in self.config.gradients(k):
            arrays = [None if g is None else self.part(g).astype(p.dtype) for p, g in zip(self.parameters, grads)]
            found.append([None if g is None else self.laid_out(np.asarray(g)) for g in arrays])
        return found

    def laid_out(self, g: Any) -> Any:
        """Returns a gradient as a tensor or an array in the layout of the configuration."""
        layout = "dense" if g.ndim == 1 and self.config.layout == "broadcast" and self.config.members else self.config.layout
        return LAYOUTS[layout](g)

    def joined(self, batches: list[list[Any]]) -> list[Any]:
        """Returns the gradients of a step from those of its batches."""
        if self.acc is None:
            return batches[0]
        for count, grads in zip(self.config.micro, batches):
            self.acc.add(grads, count=count)
        return self.acc.take()

    def body(self, k: int) -> Callable[..., Any]:
        """Returns a function of the gradients that there are, which does a step like step k, after a preview if there is one."""
        missing, wanted, preview = self.config.missing[k], self.config.wanted[k], self.config.previews[k]

        def step(*grads: Any) -> Any:
            rest = iter(grads)
            given = self.joined([[None if none else next(rest) for none in absent] for absent in missing])
            shown = self.opt.preview(given) if preview else []
            return shown, self.opt.step(given, return_delta=wanted) or []

        return step

    def step(self, k: int, capture: bool = False) -> Any:
        """Does step k, and returns (what a preview has told, what was added), each empty if not asked for."""
        function = self.body(k)
        if capture:
            key = self.config.missing[k], self.config.wanted[k], self.config.previews[k]
            function = self.captured.setdefault(key, pb.capture(function, fusion=self.config.fusion))
        return function(*[g for grads in self.tensors(k) for g in grads if g is not None])

    def run(self, capture: bool = False) -> list[dict[str, Any]]:
        """Does all steps, and returns the state after each."""
        found = []
        for k in range(self.config.steps):
            self.before(k)
            shown, deltas = self.step(k, capture)
            if shown and deltas:
                assert [bits(x) for x in shown] == [bits(x) for x in deltas], f"{self.config}\npreview of step {k}"
            found.append(self.state())
        return found

    # ---- the state

    def state(self) -> dict[str, Any]:
        """Returns all that a step changes, by name, as NumPy arrays."""
        opt = self.opt
        sets, program = np.split(host(opt._table.array).copy(), [opt._table.count])
        sets[:, LEAST : MOST + 1] = 0.0  # They follow the constraints of the Parameters, in previews, too.
        state: dict[str, Any] = {"steps": np.array(opt.steps), "sets": sets, "program": program}
        for i, p in enumerate(self.parameters):
            state[f"{i}.weight"] = host(p).copy()
            state |= {f"{i}.{name}": host(x) for name, x in opt.slots(p).items()}
            if opt._memory.masks is not None and opt._memory.masks[i] is not None:
                state[f"{i}.mask"] = host(opt._memory.masks[i]).copy()
        return state

    def arrays(self) -> Iterator[tuple[str, Any]]:
        """Yields the memory of all that a step changes, by the names in the state."""
        opt = self.opt
        yield "sets", opt._table.array
        for i, p in enumerate(self.parameters):
            yield f"{i}.weight", p.array
            for name, slot in opt._memory.kept().items():
                if slot[i] is not None:
                    yield f"{i}.{name}", slot[i]
            if opt._memory.masks is not None and opt._memory.masks[i] is not None:
                yield f"{i}.mask", opt._memory.masks[i]


def bits(x: Any) -> bytes:
    """Returns dtype, shape and bits of an array, in which all NaNs are equal."""
    x = np.array(host(x), order="C")
    if x.dtype.kind in "fV":
        x[np.isnan(x)] = np.nan
    return f"{x.dtype} {x.shape} ".encode() + x.tobytes()


def assert_equal(got: dict[str, Any], wanted: dict[str, Any], what: str) -> None:
    """Asserts that two states have the same names and bits."""
    assert got.keys() == wanted.keys(), what
    for name, x in wanted.items():
        if bits(got[name]) != bits(x):
            raise AssertionError(f"{what}: {name} differs {np.shape(x)}\n{got[name]!r}\n{x!r}")
