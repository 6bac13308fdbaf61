"""Jacobians and Hessians: one backward or forward pass with a batch of directions instead of a loop over directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal, TypeVar, overload

import numpy as np

from ..autodiff.batching import Batch, Batched
from ..autodiff.error_text import silent_zeros
from ..autodiff.node import all_kept, named, needed_by
from ..autodiff.request import checked, checked_target
from ..autodiff.site import warn
from ..autodiff.tape import Tape
from ..errors import ArgumentError, ShapeError, TapeError, ZeroGradientWarning, an
from ..function_wrapper import FunctionWrapper
from ..interop.wrong_calls import flag
from ..ops.by_name import of_all
from ..ops.movement import concat
from ..ops.shape import broadcast_to, moveaxis, permute_dims, reshape
from ..tensors.creation import zeros
from ..tensors.ranges import eye
from ..tensors.tensor import Tensor
from ..tree import flatten, unflatten
from ..typing import Derivative, P
from .jvp import Forward, pushed
from .room import check_chunk, check_jacobian, check_memory
from .vjp import check_argnums, check_function, gradient_of, name_of, variables, with_aux

A = TypeVar("A")

BUDGET_BYTES = 256 * 2**20  # the most bytes that one batch of directions takes with chunk="auto"
FIRST_COLUMNS = 64  # size of the first chunk in forward mode, where the bytes per column are not known before it
Chunk = int | Literal["auto"]
Mode = Literal["auto", "forward", "reverse"]


@overload
def jacobian(
    f: Callable[P, Tensor], argnums: Literal[0] = 0, mode: Mode = "auto", chunk: Chunk = "auto", has_aux: Literal[False] = False
) -> Derivative[P]: ...
@overload
def jacobian(
    f: Callable[P, tuple[Any, A]], argnums: int | Sequence[int] = 0, mode: Mode = "auto", chunk: Chunk = "auto", *,
    has_aux: Literal[True],
) -> Callable[P, tuple[Any, A]]: ...
@overload
def jacobian(
    f: Callable[P, Any], argnums: int | Sequence[int] = 0, mode: Mode = "auto", chunk: Chunk = "auto", has_aux: bool = False
) -> Callable[P, Any]: ...
def jacobian(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, mode: Mode = "auto", chunk: Chunk = "auto", has_aux: bool = False
) -> Callable[..., Any]:
    """Returns a function that computes the Jacobian of f with respect to the argument or arguments `argnums`.

    Args:
        f: takes and returns tensors, alone or in nested lists, tuples, dicts.
        mode: "reverse" pulls all rows back in one batched pass, "forward" pushes all columns forward in one batched pass; "auto"
            uses reverse mode if f does not have more outputs than inputs, or calls a function with `custom_gradient`.
        chunk: the number of rows or columns per pass; "auto" keeps the values computed for them below 256 MiB.
        has_aux: f returns a pair of the value to differentiate and anything else, and the result is (Jacobian, anything else).

    Reverse mode calls f once. Forward mode calls it once for each argument and pass, and "auto" once more before it first chooses
    forward mode for arguments of these shapes. What f does besides, such as printing or counting, happens in each of these calls.
    The Jacobian has the structure of the value. In place of each of its tensors it has the structure of the argument, with tensors
    of shape value.shape + argument.shape. Raises TapeError if a value or an argument cannot be differentiated,
    OutOfMemoryError before it computes a result that the device cannot hold.
    """
    argnums = check_argnums("jacobian", argnums)
    return _jacobian_of("jacobian", f, argnums, mode, chunk, has_aux)


def _jacobian_of(
    title: str, f: Callable[..., Any], argnums: int | Sequence[int], mode: Any, chunk: Any, has_aux: bool
) -> Callable[..., Any]:
    """Returns what `jacobian` does. title: the function that the user called, for messages."""
    _check_options(title, f, mode, chunk)
    return JacobianFunction(f, title, argnums, mode, chunk, has_aux)


class JacobianFunction(FunctionWrapper[..., Any]):
    """The function that `jacobian` and `hessian` return. title: the function that the user called, for messages."""

    def __init__(
        self, f: Callable[..., Any], title: str, argnums: int | Sequence[int], mode: Any, chunk: Any, has_aux: bool
    ) -> None:
        super().__init__(f, title, argnums, mode, chunk, has_aux)
        self._title, self._argnums, self._mode, self._chunk = title, argnums, mode, chunk
        self._has_aux = flag(title, "has_aux", has_aux)
        self._tall: set[Any] = set()  # the shapes of arguments for which "auto" has chosen forward mode

    def __call__(self, *args: Any, **options: Any) -> Any:
        title, f, mode = self._title, self._function, self._mode
        tape = Tape(watch_parameters=False)
        inside, sources, spec = variables(args, self._argnums, tape, title)
        shapes = tuple([x.shape for x in sources])
        if sources and (mode == "forward" or (mode == "auto" and shapes in self._tall)):
            return self._forward(args, options, tape, sources, spec)
        with tape:
            out, aux = self._pair(inside, options)
        targets, form = _tensors(title, f, out)
        rows, columns = sum([y.size for y in targets]), sum([x.size for x in sources])
        if sources and mode == "auto" and columns < rows and not _has_formulas(tape):
            self._tall.add(shapes)
            return self._forward(args, options, tape, sources, spec)
        if len(targets) > 1:
            _warn_of(tape, _unreached(tape, targets, sources))
        blocks = pulled(tape, targets, sources, _rows_at_once(title, tape, targets, sources, self._chunk))
        return self._result(blocks, form, spec, aux)

    def _pair(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
        """Returns the value of f to differentiate, and what is passed on."""
        out = self._function(*args, **options)
        return with_aux(self._title, self._function, out) if self._has_aux else (out, None)

    def _forward(self, args: tuple[Any, ...], options: dict[str, Any], tape: Tape, sources: list[Tensor], spec: Any) -> Any:
        """Returns the Jacobian by forward mode."""

        if self._title == "hessian":
            check_jacobian("hessian", sources, sources, 2)

        @wraps(self._function)
        def of_leaves(*xs: Any) -> tuple[Any, Any]:
            return self._pair(_with(args, self._argnums, spec, xs), options)

        blocks, form, aux, unused = _pushed(self._title, of_leaves, sources, self._chunk)
        _warn_of(tape, unused)
        return self._result(blocks, form, spec, aux)

    def _result(self, blocks: Any, form: Any, spec: Any, aux: Any) -> Any:
        found = unflatten(form, [unflatten(spec, of_target) for of_target in blocks])
        return (found, aux) if self._has_aux else found


@overload
def hessian(
    f: Callable[P, Any], argnums: Literal[0] = 0, chunk: Chunk = "auto", has_aux: Literal[False] = False
) -> Derivative[P]: ...
@overload
def hessian(
    f: Callable[P, Any], argnums: int | Sequence[int] = 0, chunk: Chunk = "auto", has_aux: bool = False
) -> Callable[P, Any]: ...
def hessian(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, chunk: Chunk = "auto", has_aux: bool = False
) -> Callable[..., Any]:
    """Returns a function that computes the Hessian of a scalar function, as the forward-mode Jacobian of its gradient.

    The Hessian has the structure of the argument(s), nested twice: one tensor of shape first.shape + second.shape for each pair of
    tensors. With `has_aux` f returns a pair of the scalar and anything else, and the result is (Hessian, anything else). Raises
    TapeError if an argument cannot be differentiated, ShapeError if the value of f is not a scalar.
    """
    argnums = check_argnums("hessian", argnums)
    check_function("hessian", f)
    return _jacobian_of("hessian", gradient_of("hessian", f, argnums, has_aux), argnums, "forward", chunk, has_aux)


def _has_formulas(tape: Tape) -> bool:
    """True if a user wrote one of the pullbacks, which then need not be linear."""
    return any([getattr(node.op, "formula", False) for node in named(tape.nodes)])


def _unreached(tape: Tape, targets: list[Tensor], sources: list[Tensor]) -> list[Tensor]:
    """Returns the sources that no target depends on."""
    reached = needed_by(tape, targets, through_zero=True)
    return [x for x in sources if x.serial not in reached]


def _warn_of(tape: Tape, unused: list[Tensor]) -> None:
    """Warns of zeros that may not be meant. A single target need not depend on an argument, so its pass does not warn."""
    for text in silent_zeros(tape, unused):
        warn(text, ZeroGradientWarning)
    tape.journal.arguments = None


def _with(args: tuple[Any, ...], argnums: int | Sequence[int], spec: Any, leaves: Sequence[Tensor]) -> tuple[Any, ...]:
    replaced, value = list(args), unflatten(spec, list(leaves))
    for place, own in [(argnums, value)] if isinstance(argnums, int) else list(zip(argnums, value)):
        replaced[place] = own
    return tuple(replaced)


def _tensors(title: str, f: Any, out: Any) -> tuple[list[Tensor], Any]:
    targets, form = flatten(out)
    for y in targets:
        if not isinstance(y, Tensor):
            raise TapeError(f"{title}: {name_of(f)} returned a {type(y).__name__}, and only tensors have derivatives.")
    return targets, form


def _check_options(title: str, f: Any, mode: Any, chunk: Any) -> None:
    check_function(title, f)
    _check_chunk(title, chunk)
    if mode not in ("auto", "forward", "reverse"):
        raise TapeError(f'{title}: mode={mode!r}; use "auto", "forward" or "reverse".')


def _check_chunk(title: str, chunk: Any) -> None:
    if chunk != "auto" and (isinstance(chunk, bool) or not isinstance(chunk, (int, np.integer)) or chunk < 1):
        raise ArgumentError(
            f"{title}: chunk={chunk!r}; it must be the number of rows or columns to compute at once, an integer of 1 or more, or "
            f'"auto".'
        )


def _at_once(chunk: Chunk, count: int, bytes_each: int) -> int:
    return min(count, chunk if chunk != "auto" else BUDGET_BYTES // max(bytes_each, 1)) or 1


def _rows_at_once(title: str, tape: Tape, targets: list[Tensor], sources: list[Tensor], chunk: Chunk, each: int = 0) -> int:
    """Returns the number of rows to compute at once, of `each` rows (0: of all). Raises OutOfMemoryError if they have no room."""
    rows, bytes_each = each or sum([y.size for y in targets]), _bytes_of_row(tape, [*targets, *sources])
    at_once = _at_once(chunk, rows, bytes_each)
    if not each:
        check_jacobian(title, targets, sources, 1 if at_once >= rows else 2)
    if chunk != "auto" and sources:
        check_chunk(title, at_once, bytes_each, sources[0].device)
    return at_once


def _bytes_of_row(tape: Tape, ends: Sequence[Tensor]) -> int:
    """Returns the bytes of cotangents per row: about those of all values that the pullbacks keep, and of `ends`."""
    kept = {id(value): value for value in all_kept(tape.nodes) if isinstance(value, Tensor)}
    return sum([x.nbytes for x in (*kept.values(), *ends)])


def _parts(count: int, at_once: int) -> list[tuple[int, int]]:
    return [(start, min(start + at_once, count)) for start in range(0, count, at_once)]


# ---- reverse: rows


def pulled(tape: Tape, targets: list[Tensor], sources: list[Any], at_once: int, unconnected: str = "zero") -> Any:
    """Returns for each target and each source the Jacobian. The tape frees its record in the pass of the last chunk."""
    found: list[list[Tensor]] = []
    parts = [(y, part) for y in targets for part in _parts(y.size, at_once)]
    rows: dict[int, list[list[Tensor]]] = {id(y): [] for y in targets}
    for k, (y, (start, stop)) in enumerate(parts):
        seeds = reshape(eye(stop - start, y.size, k=start, dtype=y.dtype, device=y.device), (stop - start, *y.shape))
        rows[id(y)].append(batched_pull(tape, [y], [seeds], sources, unconnected, retain=k + 1 < len(parts)))
    for y in targets:
        chunks = rows[id(y)]
        columns = [_joined([c[i] for c in chunks], x) for i, x in enumerate(sources)]
        found.append([reshape(j, (*y.shape, *x.shape)) for j, x in zip(columns, sources)])
    return found


def _joined(chunks: list[Tensor], x: Tensor) -> Tensor:
    if not chunks:  # the target has no elements
        return zeros((0, *x.shape), dtype=x.dtype, device=x.device)
    return chunks[0] if len(chunks) == 1 else concat(chunks)


def batched_pull(
    tape: Tape, targets: list[Tensor], seeds: list[Tensor], sources: list[Any], unconnected: str, retain: bool = False
) -> list[Any]:
    """Runs one backward pass with a batch of n cotangents.

    The seeds have the shapes (n, *target.shape), the gradients (n, *source.shape).
    """
    with Batch(seeds[0].shape[0], directions=True) as batch:
        found = tape.pull(targets, lambda: [Batched(batch, seed) for seed in seeds], sources, unconnected, retain=retain)
    return [g if g is None else of_all(g, batch) for g in found]


# ---- forward: columns


def _pushed(
    title: str, f: Callable[..., tuple[Any, Any]], sources: list[Tensor], chunk: Chunk
) -> tuple[list[list[Tensor]], Any, Any, list[Tensor]]:
    """Returns for each target and each source the Jacobian, the structure of the targets, aux, and the sources that no op used.

    f returns the targets and aux, which is anything else.
    """
    columns: list[list[Tensor]] = []  # for each source and each target a tensor of shape (source.size, *target.shape)
    targets: list[Tensor] = []
    unused: list[Tensor] = []
    aux: Any = None

    @wraps(f)
    def value(*xs: Any) -> Any:
        nonlocal aux
        y, aux = f(*xs)
        return y

    form, at_once = None, FIRST_COLUMNS if chunk == "auto" else chunk
    for i, x in enumerate(sources):
        start, chunks = 0, []
        if chunk == "auto":
            at_once = min(at_once, BUDGET_BYTES // max(x.nbytes, 1) or 1)
        else:
            check_chunk(title, min(chunk, x.size), x.nbytes, x.device)
        while start < x.size or not (chunks or columns):
            stop = min(start + at_once, x.size)
            targets, form, tangents, listener = _push(title, value, sources, i, start, stop)
            if not (chunks or columns):
                check_jacobian(title, targets, sources, 2)
            chunks.append(tangents)
            at_once, start = _at_once(chunk, x.size, listener.bytes), stop
            if start == x.size and not listener.used:
                unused.append(x)
        columns.append([_joined([c[k] for c in chunks], y) for k, y in enumerate(targets)])
    return (
        [
            [reshape(permute_dims(of[k], (*range(1, y.ndim + 1), 0)), (*y.shape, *x.shape)) for of, x in zip(columns, sources)]
            for k, y in enumerate(targets)
        ],
        form,
        aux,
        unused,
    )


def _push(
    title: str, f: Callable[..., Any], sources: list[Tensor], i: int, start: int, stop: int
) -> tuple[list[Tensor], Any, list[Tensor], Forward]:
    """Pushes elements `start` to `stop` of source i forward.

    Returns the value of f, its structure, its derivatives in the directions of these elements, and the listener, whose bytes are
    those per direction.
    """
    x, n = sources[i], stop - start
    basis = reshape(eye(n, x.size, k=start, dtype=x.dtype, device=x.device), (n, *x.shape))
    with Batch(n, directions=True) as batch:
        directions = [Batched(batch, basis) if k == i else None for k in range(len(sources))]
        out, tangents, listener = pushed(f, sources, directions, title)
    targets, form = _tensors(title, f, out)
    return targets, form, [of_all(t, batch) for t in flatten(tangents)[0]], listener


# ---- methods of GradientTape


def tape_jacobian(tape: Tape, target: Any, source: Any, chunk: Chunk, unconnected: str) -> Any:
    """Implements tape.jacobian."""
    _check_chunk("jacobian", chunk)
    if not isinstance(target, Tensor):
        raise TapeError(f"jacobian: the target is {an(target)}; it must be one tensor.")
    leaves, spec = flatten(source)
    sources = checked(leaves, "jacobian")
    at_once = _rows_at_once("jacobian", tape, [target], sources, chunk)
    return unflatten(spec, pulled(tape, [target], sources, at_once, unconnected)[0])


def batch_jacobian(tape: Tape, target: Tensor, source: Tensor, chunk: Chunk, unconnected: str) -> Tensor:
    """Implements tape.batch_jacobian. One cotangent serves all rows, because each row of the target depends only on its own row."""
    _check_chunk("batch_jacobian", chunk)
    checked_target(target, "batch_jacobian")
    checked([source], "batch_jacobian")
    if not target.ndim or not source.ndim or target.shape[0] != source.shape[0]:
        raise ShapeError(
            f"batch_jacobian: target {target.shape} and source {source.shape} must have the same number of rows, one per example."
        )
    count, rows = target.size // max(target.shape[0], 1), []
    check_memory(
        "batch_jacobian", f"a result of {count:,} times {source.size:,} numbers", count * source.nbytes, source.device,
        "Differentiate fewer numbers, or give fewer examples at once.",
    )
    at_once = _rows_at_once("batch_jacobian", tape, [target], [source], chunk, count)
    parts = _parts(count, at_once)
    for k, (start, stop) in enumerate(parts):
        unit = reshape(eye(stop - start, count, k=start, dtype=target.dtype, device=target.device), (-1, 1, *target.shape[1:]))
        seeds = broadcast_to(unit, (stop - start, *target.shape))
        rows += batched_pull(tape, [target], [seeds], [source], unconnected, retain=k + 1 < len(parts))
    found = moveaxis(_joined(rows, source), 0, 1)
    return reshape(found, (*target.shape, *source.shape[1:]))
