"""Calls of transforms as users of other libraries write them: each works, or the error says what to write."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close

X = pb.tensor([1.0, 2.0, 3.0])


def cubes(x: Any) -> Any:
    return pb.sum(x**3)


TRANSFORMS = ("grad", "value_and_grad", "jacobian", "hessian", "per_example_grad", "per_example_norm")


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("argument", [X, np.ones(3), 1.5, (X,), {"a": X}], ids=["tensor", "array", "number", "tuple", "dict"])
def test_arguments_beside_the_function_are_explained(name: str, argument: Any) -> None:
    with pytest.raises(pb.TapeError, match=rf"^{name}: argnums is a .*pb.{name}\(f\) returns a function: .* pb.{name}\(f\)\(x\)"):
        getattr(pb, name)(cubes, argument)
    with pytest.raises(pb.TapeError, match=r"^weighted_grad: argnums"):
        pb.weighted_grad(cubes, pb.ones(3), argument)


@pytest.mark.parametrize("argument", [X, np.ones((3, 2)), (X, X), {"a": X}], ids=["tensor", "array", "tuple", "dict"])
def test_arguments_beside_the_function_of_vmap_are_explained(argument: Any) -> None:
    with pytest.raises(pb.ShapeError, match=r"^vmap: in_axes is a .*pb.vmap\(f\)\(x\)"):
        pb.vmap(cubes, argument)
    with pytest.raises(pb.ShapeError, match=r"^vmap: out_axes is a "):
        pb.vmap(cubes, 0, argument)


def test_positions_and_axes_in_every_form() -> None:
    for argnums in ((0, 1), [0, 1], range(2), (np.int64(0), np.int64(1))):
        assert len(pb.grad(lambda a, b: pb.sum(a * b), argnums)(X, X)) == 2
    for in_axes in (0, np.int64(0), (0, 0), ({"a": 0}, 0), [{"a": np.int64(0)}, 0]):
        argument = X if in_axes in (0, (0, 0)) else {"a": X}
        close(pb.vmap(lambda a, b: 2 * b, in_axes)(argument, X), 2 * X.numpy())
    assert pb.vmap(lambda a: X, 0, None)(X) is X


@pytest.mark.parametrize("argnums", [(0, 0), [1, 0, 1], (0, -2), (np.int64(1), -1)], ids=str)
def test_repeated_positions_are_refused(argnums: Any) -> None:
    """The derivative of one argument cannot stand in two places: the first would be zero."""
    product = lambda a, b: pb.sum(a * b)
    for transform in (*[getattr(pb, name) for name in TRANSFORMS], lambda f, argnums: pb.weighted_grad(f, pb.ones(3), argnums)):
        with pytest.raises(pb.TapeError, match=r": argnums=.* names argument \d more than once. Name each argument once"):
            transform(product, argnums)(X, X)


def with_length(x: Any) -> Any:
    return x * x, len(x)


def test_has_aux_passes_on_the_second_value() -> None:
    out, pull, aux = pb.vjp(with_length, X, has_aux=True)
    close(out, [1.0, 4.0, 9.0])
    close(pull(pb.ones(3))[0], [2.0, 4.0, 6.0])
    out, tangent, of_jvp = pb.jvp(with_length, (X,), (pb.ones(3),), has_aux=True)
    close(tangent, [2.0, 4.0, 6.0])
    for mode in ("auto", "forward", "reverse"):
        jacobian, of_jacobian = pb.jacobian(with_length, mode=mode, has_aux=True)(X)
        close(jacobian, np.diag([2.0, 4.0, 6.0]))
        assert of_jacobian == 3
    hessian, of_hessian = pb.hessian(lambda x: (cubes(x), {"x": x}), has_aux=True)(X)
    close(hessian, np.diag([6.0, 12.0, 18.0]))
    close(of_hessian["x"], X)
    assert (aux, of_jvp) == (3, 3)


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("vjp", lambda: pb.vjp(cubes, X, has_aux=True)),
        ("jvp", lambda: pb.jvp(cubes, (X,), (X,), has_aux=True)),
        ("jacobian", lambda: pb.jacobian(cubes, has_aux=True)(X)),
        ("jacobian", lambda: pb.jacobian(cubes, mode="forward", has_aux=True)(X)),
        ("hessian", lambda: pb.hessian(cubes, has_aux=True)(X)),
    ],
)
def test_has_aux_without_a_second_value_is_named(name: str, run: Callable[[], Any]) -> None:
    with pytest.raises(pb.TapeError, match=rf"^{name}: cubes returned a Tensor; with has_aux=True it must return two things"):
        run()


def test_hvp_takes_and_explains_tuples_and_lists() -> None:
    wanted = 6 * X.numpy()
    close(pb.hvp(cubes, X, pb.ones(3)), wanted)
    (of_tuple,) = pb.hvp(cubes, (X,), (pb.ones(3),))
    close(of_tuple, wanted)
    ((of_list,),) = pb.hvp(lambda parameters: cubes(parameters[0]), ([X],), ([pb.ones(3)],))
    close(of_list, wanted)
    with pytest.raises(
        pb.TapeError, match=r"hvp: the primals are a list of 2, so that cubes is called with 2 arguments.*\(parameters,\)"
    ):
        pb.hvp(cubes, [X, X], [X, X])
    with pytest.raises(pb.TapeError, match=r"hvp: the primals are a tuple of 1, and the tangents are a Tensor"):
        pb.hvp(cubes, (X,), X)
    with pytest.raises(pb.TapeError, match=r"hvp: the primals are a tuple of 1, and the tangents are 2"):
        pb.hvp(cubes, (X,), (X, X))
    with pytest.raises(TypeError, match="as an integer"):  # an error of f itself stays as it is
        pb.hvp(lambda x: cubes(x) + range("3"), (X,), (X,))


def test_a_function_among_numbers_is_to_be_called() -> None:
    for choice in (lambda: X, cubes, X.sum):
        with pytest.raises(pb.DTypeError, match="a function is not made of numbers, but what it returns may be, so call it"):
            pb.where(X > 1, choice, X)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_an_error_in_a_black_box_tells_of_the_axis_of_inputs() -> None:
    def single(x: Any) -> Any:
        return x[0] * x[2]  # of one input with three elements

    with pytest.raises(IndexError) as caught:
        pb.black_box(single)(X)
    (note,) = caught.value.__notes__
    assert (
        "with batch=True single receives 1 inputs along the first axis of its arrays, here of shape (1, 3). Pass batch=False"
        in note
    )
    close(pb.grad(pb.black_box(lambda x: single(x), batch=False))(X.astype(pb.float64)), [3.0, 0.0, 1.0], rtol=1e-4)


def test_calls_of_scan_checkpoint_and_vmap_are_explained() -> None:
    with pytest.raises(pb.ShapeError, match=r"A list is a tree of tensors: pb.tensor\(xs\) has one number per step"):
        pb.scan(lambda c, x: (c * x, c), 1.0, [0.1, 0.2])
    with pytest.raises(TypeError, match=r"scan\(\) got an unexpected keyword argument 'unroll': the loop is always unrolled"):
        pb.scan(lambda c, x: (c, x), X, X, unroll=2)
    with pytest.raises(pb.TapeError, match=r"checkpoint: takes the function alone .* pb.checkpoint\(f\)\(x\)"):
        pb.checkpoint(cubes, X)
    with pytest.raises(pb.TapeError, match=r"checkpoint: takes a function, and was given a Tensor"):
        pb.checkpoint(cubes(X))
    with pytest.raises(TypeError, match=r"'use_reentrant': there is one kind of checkpoint"):
        pb.checkpoint(cubes, use_reentrant=False)
    generators = [pb.random.Generator(i) for i in range(3)]
    with pytest.raises(pb.VmapError, match=r"a list of Generators.*Pass one Generator: every example draws different numbers"):
        pb.vmap(lambda x, g: x + g.normal(()))(X, generators)
    drawn = pb.vmap(lambda x, g: x + g.normal(()))(pb.zeros(3), generators[0])
    assert len(set(drawn.tolist())) == 3


@pytest.mark.parametrize("keyword", ["static_argnums", "static_argnames", "donate_argnums", "input_signature", "jit_compile"])
def test_keywords_of_other_captures_are_answered(keyword: str) -> None:
    with pytest.raises(TypeError, match=rf"capture\(\) got an unexpected keyword argument '{keyword}': "):
        pb.capture(cubes, **{keyword: None})


def test_the_hint_for_jit_says_outermost() -> None:
    with pytest.raises(AttributeError, match=r"pb.capture\(f\) here, and goes outermost: around pb.grad, pb.vmap and tapes"):
        _ = pb.jit


# ---- what is differentiated by


PAIR = lambda a, b: pb.sum(a * b)


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
def test_no_argument_has_no_derivative(mode: Any) -> None:
    """The structure is that of the value with the empty structure of the arguments in place of each tensor."""
    assert pb.grad(PAIR, ())(X, X) == ()
    value, nothing = pb.value_and_grad(PAIR, ())(X, X)
    assert (float(value), nothing) == (14.0, ())
    assert pb.jacobian(PAIR, (), mode)(X, X) == ()
    assert pb.jacobian(lambda a, b: {"p": a * b, "q": a}, [], mode)(X, X) == {"p": (), "q": ()}
    assert pb.jacobian(lambda a: (a, "more"), (), mode, has_aux=True)(X) == ((), "more")
    assert pb.jacobian(lambda a, b: b * b, 0, mode)([], X) == []
    assert pb.hessian(PAIR, ())(X, X) == ()
    assert pb.hessian(lambda a: (cubes(a), "more"), (), has_aux=True)(X) == ((), "more")
    assert pb.capture(pb.jacobian(PAIR, (), mode))(X, X) == ()


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint32])
def test_positions_are_numpys_integers_too(kind: Any) -> None:
    a, b = X, X + 1
    close(pb.grad(PAIR, kind(1))(a, b), X.numpy())
    close(pb.value_and_grad(PAIR, kind(0))(a, b)[1], X.numpy() + 1)
    for mode in ("auto", "forward", "reverse"):
        close(pb.jacobian(lambda a, b: a * b, kind(1), mode)(a, b), np.diag(X.numpy()))
    close(pb.hessian(lambda a, b: pb.sum(a * b**2), kind(1))(a, b), np.diag(2 * X.numpy()))
    close(pb.per_example_grad(lambda w, x: w * x, kind(0))(pb.tensor(2.0), X), X.numpy())
    close(pb.per_example_norm(lambda w, x: w * x, kind(0))(pb.tensor(2.0), X), X.numpy() ** 2)
    close(pb.weighted_grad(lambda w, x: w * x, X, kind(0))(pb.tensor(2.0), X), 14.0)
    for other in (np.array(1), pb.tensor(1), np.float64(1)):
        with pytest.raises(pb.TapeError, match=r"^grad: argnums is a .* must be the position of an argument"):
            pb.grad(PAIR, other)


CONSTANTS: dict[str, Any] = {
    "jvp": lambda c: pb.jvp(lambda x, c: x, (X, c), (X, None)), "vjp": lambda c: pb.vjp(lambda x, c: x, X, c),
    "linearize": lambda c: pb.linearize(lambda x, c: x, X, c), "hvp": lambda c: pb.hvp(lambda x, c: cubes(x), (X, c), (X, None)),
}


@pytest.mark.parametrize("constant", [2, "mean", pb.tensor([1])], ids=["int", "str", "tensor"])
@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_of_transforms_without_argnums_are_explained(name: str, constant: Any) -> None:
    words = rf"^{name}: argument 1 .*make it a constant c .*pb\.{name}\(lambda"
    with pytest.raises((pb.TapeError, pb.DTypeError), match=words) as found:
        CONSTANTS[name](constant)
    assert "argnums" not in str(found.value)
    call = str(found.value).partition("arguments: ")[2].removesuffix(".")
    eval(call, {"pb": pb, "f": lambda x, c: cubes(x), "c": constant, "x": X, "v": X})
    with pytest.raises((pb.TapeError, pb.DTypeError), match="leave it out of argnums"):
        pb.grad(lambda x, c: cubes(x), (0, 1))(X, constant)


def test_cotangents_by_position_are_explained() -> None:
    pullback = pb.vjp(lambda a: (a * a, a), X)[1]
    with pytest.raises(TypeError, match=r"^pullback\(\) takes cotangents by position, and 2 .*one argument.*pullback\(\(v, w\)\)"):
        pullback(X, X)
    close(pullback((X, X))[0], 2 * X.numpy() ** 2 + X.numpy())


@pytest.mark.parametrize("axes", [({"z": 0},), ([0],), ({"a": 0, "z": 0},)], ids=str)
def test_axes_of_another_structure_are_explained_without_the_numbers(axes: Any) -> None:
    array = np.full((3, 100), 7.25)
    for given in (array, pb.tensor(array)):
        with pytest.raises(pb.ShapeError, match=r"^vmap: in_axes=.* does not have the structure .*\{'a': \*\}") as found:
            pb.vmap(lambda d: d["a"], axes)({"a": given})
        assert len(str(found.value)) < 150
