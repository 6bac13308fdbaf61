"""checkpoint: saves memory by computing the inside of a function again in the backward pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from ..autodiff.batching import Batch, whole
from ..autodiff.kept import Kept
from ..autodiff.listeners import listeners
from ..autodiff.node import Edge, dependents
from ..autodiff.request import open_calls
from ..autodiff.tape import Tape
from ..backends import modes
from ..backends.autocast import autocast
from ..errors import TapeError
from ..function_wrapper import FunctionWrapper
from ..launch import capturing, door
from ..launch.scopes import recomputing
from ..ops.conversion import alias
from ..ops.random import States, drawn
from ..tensors import devices
from ..tensors.operand import steady
from ..tensors.tensor import Tensor
from ..tree import flatten, unflatten
from ..typing import P, R
from .calls import Call, Reads, call_recorders, called, entered, levels, lowered, tell, with_listeners
from .passage import Passage
from .vjp import check_function

if TYPE_CHECKING:
    from ..autodiff.backward import Sums
    from ..autodiff.node import Recorded


def checkpoint(f: Callable[P, R], *args: NoReturn) -> Callable[P, R]:
    """Returns a function with the value and the derivatives of `f`. Tapes keep nothing of its inside.

    Args:
        f: takes and returns nested lists, tuples, dicts. Tapes keep its arguments, and the Parameters and watched tensors that
            it uses. The rest is computed again when the backward pass reaches it, with the same random numbers, precision and
            default device, and with each Module that `f` calls in the mode, training or evaluation, that it had.

    The gradients are bit for bit those of `f`, because the backward pass visits the same ops in the same order. The second
    computation counts as the phase `recompute` in a profile. Checkpoints nest. `f` runs twice, so it must compute the same values
    again: it must not depend on anything else that changes in between. Its side effects take place twice, except that norms in
    training mode update their running values and count a batch only the first time. A Buffer that `f` itself assigns is assigned
    twice. For a derivative of second order, the second tape keeps the recomputed inside, and may sum in another order than for `f`.
    The gradient by a value that `f` returns is that of what follows the call: uses inside of `f` are not part of it.

    Raises, in the backward pass: StaleValueError if a Parameter or Buffer that `f` read was changed in place (other than the
    running values of norms in training mode, which do not affect the result); TapeError if `f` returns a different number of
    values the second time, values of other shapes, or on a CPU other numbers, of which 32 elements of each value are compared.
    Source: Griewank & Walther 2000 (Algorithm 799); Chen et al. 2016.
    """
    if args:
        raise TapeError("checkpoint: takes the function alone and returns one: pass the arguments to it, pb.checkpoint(f)(x).")
    check_function("checkpoint", f)
    return Checkpointed(f)


class Checkpointed(FunctionWrapper[P, R]):
    """The function that `checkpoint` returns."""

    _title = "checkpoint"

    def __call__(self, *args: P.args, **options: P.kwargs) -> R:
        f = self._function
        tapes, others = call_recorders()
        if not tapes:
            return f(*args, **options)
        given, form = flatten((args, options))
        args, options = unflatten(form, [steady(x) for x in given])

        def run() -> Any:
            return f(*args, **options)

        reads, states, modes = Reads(), States(), door.Modes()
        with Noted(states, modes):
            leaves, spec = flatten(with_listeners((*others, reads), run))
        # A tensor that f returns twice is one output, and one that f has not made is returned as it is: then the tapes add up its
        # cotangents as they do without the checkpoint.
        positions = list({id(y): position for position, y in enumerate(leaves) if reads.made(y)}.values())
        inputs, made_inside = reads.inputs, [leaves[position] for position in positions]
        outputs = with_listeners(others, lambda: [alias(y) for y in made_inside])
        for level in levels([*inputs, *made_inside, *reads.members.values()]):
            receivers = [tape for tape in tapes if tape in level.listeners]
            if receivers:
                lowered = level.lowered(outputs)
                recompute = _recomputation(called(f), run, (dict(states), modes), len(leaves), positions, lowered, level.above)
                node = Call(
                    f"checkpoint of {called(f)}",
                    inputs,
                    lowered,
                    _pull(recompute, inputs),
                    keeps=True,
                    dead=reads.dead,
                    call=Recomputed(recompute),
                    closed=not (states and [b for b in _running() if b not in level.above and not b.directions]),
                )
                tell(receivers, node, inputs, lowered)
        output_of = {id(y): output for y, output in zip(made_inside, outputs)}
        return unflatten(spec, [output_of.get(id(y), y) for y in leaves])


# A function of the inputs' serials (0 for an input that is not watched) and the inputs. It returns a tape with the ops inside, and
# the outputs.
Recompute = Callable[[Sequence[int], Sequence[Tensor]], tuple[Tape, list[Any]]]


class Recomputed(Passage):
    """The passage through a checkpointed call, which did not record the ops inside it."""

    def __init__(self, recompute: Recompute) -> None:
        self.recompute = recompute

    def pull(self, tape: Tape, edges: Sequence[Any], g: Any, reach: set[int], sums: Sums) -> Sequence[Recorded]:
        """Returns the ops inside, which are computed again, to be walked in place of the call.

        The contributions to every gradient therefore arrive in the same order as without the checkpoint.
        """
        edge = Edge._make(edges[0])
        inner, outputs = self.recompute(edge.x, edge.kept)
        if sums.aggregation != "accumulate":
            open_calls(inner)
        reach |= dependents(inner, [x for x in edge.x if x in reach])
        tape.scopes.update(inner.scopes)
        tape.precisions.update(inner.precisions)
        for position, gy in g.of.items():
            if outputs[position].serial in reach:
                sums.add(outputs[position].serial, gy)
        return inner.nodes

    def copied(self, of: Callable[[Any], Any]) -> Recomputed:
        return Recomputed(of(self.recompute))


def _pull(recompute: Recompute, inputs: Sequence[Tensor]) -> Callable[[list[Any]], list[Any]]:
    def pull(cotangents: list[Any]) -> list[Any]:
        """The pullbacks of its ops, which are computed again"""
        tape, values = recompute([x.serial for x in inputs], inputs)
        positions = [i for i, g in enumerate(cotangents) if g is not None]
        return tape.gradient([values[i] for i in positions], list(inputs), [cotangents[i] for i in positions], unconnected="none")

    return pull


def _recomputation(
    name: str, run: Callable[[], Any], noted: tuple[dict[Any, Any], door.Modes], count: int, positions: Sequence[int],
    outputs: Sequence[Tensor], above: Sequence[Batch],
) -> Recompute:
    """Returns the `recompute` function of a Call, for listeners outside of the batches `above`.

    count: the number of values that run() returns. positions: those of the outputs of the Call among them.
    """
    precision, device, batches = modes.precision(), devices.default_device(), _running()
    facts = [_facts(y) for y in outputs]

    def recompute(serials: Sequence[int], inputs: Sequence[Tensor]) -> tuple[Tape, list[Any]]:
        tape = Tape(watch_parameters=False)
        tape.watch([x for x, serial in zip(inputs, serials) if serial])
        with (
            door.charged_to(door.RECOMPUTE), autocast(precision), devices.use_device(device), Rewound(*noted, batches),
            entered(above, tape),
        ):
            door.leave_scope(recomputing(door.scope_now()))
            values = lowered(flatten(run())[0], above)
        if len(values) != count:
            raise TapeError(
                f"checkpoint: {name} returned {count} values in the forward pass, and {len(values)} when it was computed again. "
                f"It must do the same each time."
            )
        again = [values[position] for position in positions]
        if not all([_alike(fact, _facts(y)) for fact, y in zip(facts, again)]):
            raise TapeError(
                f"checkpoint: {name} returned other values when it was computed again in the backward pass, so its gradients would "
                f"be wrong. It must compute the same each time: draw random numbers from pb.random, which is rewound, and not from "
                f"NumPy or Python, or pass them as arguments, and change no array and no number that it reads."
            )
        return tape, again

    return recompute


SAMPLES: Final = 32  # elements of a value, spread over it, that are compared with those of the second computation


def _facts(y: Tensor) -> tuple[Any, Any]:
    """Returns the shape and dtype of a value, and some of its elements as bytes where the host has them, otherwise None."""
    x = whole(y)
    if type(x.array) is not np.ndarray or capturing.thread.recording is not None:
        return (y.shape, y.dtype), None
    return (y.shape, y.dtype), x.array.flat[:: max(1, x.array.size // SAMPLES)].astype(np.float64).tobytes()


def _alike(a: tuple[Any, Any], b: tuple[Any, Any]) -> bool:
    """True unless two computations differ by more than rounding could explain, as far as their facts tell."""
    if a[0] != b[0] or a[1] is None or b[1] is None:
        return a[0] == b[0]
    if a[1] == b[1]:
        return True
    x, y = np.frombuffer(a[1]), np.frombuffer(b[1])
    size = np.abs(x).max(where=np.isfinite(x), initial=0.0)
    return bool(np.allclose(x, y, rtol=0.0, atol=1e-3 * size, equal_nan=True))


def _running() -> list[Batch]:
    return [listener for listener in listeners.stack if isinstance(listener, Batch)]


class Noted(Kept):
    """Notes the state of each random generator before the first draw from it, and the mode of each Module before its first call."""

    def __init__(self, states: dict[Any, Any], modes: door.Modes) -> None:
        self._inside = (*drawn.before, states), (*door.state.modes, modes)
        self._outside = drawn.before, door.state.modes

    def _begin(self) -> None:
        drawn.before = self._inside[0]
        door.note_modes(self._inside[1])

    def _end(self) -> None:
        drawn.before = self._outside[0]
        door.note_modes(self._outside[1])


class Rewound(Kept):
    """While entered, generators and Modules have these states and modes in this thread, and in no other.

    The draws differ from example to example only in `batches`, which ran the first time, and in batches that begin inside.
    """

    def __init__(self, states: dict[Any, Any], modes: door.Modes, batches: Sequence[Batch]) -> None:
        self._states, self._modes, self._batches = states, modes, batches
        self._outside = drawn.before, drawn.alike, drawn.memories, drawn.again
        self._replaced, self._again = door.state.replaced, thread.again

    def _begin(self) -> None:
        drawn.before, drawn.alike = (), tuple([batch for batch in _running() if batch not in self._batches])
        drawn.memories = {}
        thread.again = True
        drawn.again = {**drawn.again, **{generator: generator.repeated(state) for generator, state in self._states.items()}}
        door.state.replaced = {**door.state.replaced, **self._modes}

    def _end(self) -> None:
        drawn.before, drawn.alike, drawn.memories, drawn.again = self._outside
        thread.again = self._again
        door.state.replaced = self._replaced


# ---- updates that do not affect the result


class _Thread(threading.local):
    again: bool = False  # True while a function is computed again


thread: Final = _Thread()


class Repeated(Kept):
    """While entered, a function runs again on the arguments that it had: what `only_once` decorates is left out."""

    def __init__(self) -> None:
        self._before = thread.again

    def _begin(self) -> None:
        thread.again = True

    def _end(self) -> None:
        thread.again = self._before


def only_once(update: Callable[P, R]) -> Callable[P, R | None]:
    """Decorates a function that updates statistics in place, which the result of the computation around it does not depend on.

    When a checkpoint computes its function again, and in the block of a `Repeated`, the call is left out and returns None. What it
    reads may change in between.
    """

    @wraps(update)
    def call(*args: P.args, **options: P.kwargs) -> R | None:
        if thread.again:
            return None
        others = [listener for listener in listeners.stack if not isinstance(listener, Reads)]
        if len(others) == len(listeners.stack):
            return update(*args, **options)
        return with_listeners(others, lambda: update(*args, **options))

    return call
