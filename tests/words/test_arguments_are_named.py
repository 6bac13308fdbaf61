"""Errors name the function or the layer that was called, and the argument, wherever inside the fault is found."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn
from pullback.interop.hints import hints, sections
from refused import refusal

F: Any = nn.functional
NN: Any = nn
PB: Any = pb
X, STEPS, HEADS = pb.ones((2, 3)), pb.ones((4, 2, 3)), pb.ones((2, 4, 8))
COMPLEX = np.ones((2, 4, 8), np.complex64)
SDPA = F.scaled_dot_product_attention
ATTENTION, TORCHS = NN.MultiHeadAttention(8, 2), NN.MultiheadAttention(8, 2)
STATE = pb.zeros((1, 2, 5))
INTS = pb.tensor([1, 2])
WEIGHTS = [pb.Parameter([1.0, 2.0])]


class Net(nn.Module):
    """A user's module, whose frames are not those of pullback."""

    def __init__(self) -> None:
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        wrong: Any = None
        return self.layer(wrong) + x


# What the message begins with. The argument is None, a string, a function, or complex.
NAMED: dict[str, Callable[[], Any]] = {
    "softmax: axis=a Tensor of shape (2,) is not an integer": lambda: pb.softmax(X, PB.tensor([0, 1])),
    "log_softmax: axis=a Tensor of shape (2,) is not an integer": lambda: pb.log_softmax(X, PB.tensor([0, 1])),
    "layer_norm: axis=a Tensor of shape (2,) is not an integer": lambda: F.layer_norm(X, axis=pb.tensor([0, 1])),
    "rms_norm: axis=a Tensor of shape (2,) is not an integer": lambda: F.rms_norm(X, axis=pb.tensor([0, 1])),
    "cumulative_sum: axis=a Tensor of shape (2,) is not an integer": lambda: PB.ones(3).cumsum(axis=pb.tensor([0, 1])),
    "cumulative_prod: axis=a Tensor of shape (2,) is not an integer": lambda: PB.ones(3).cumprod(axis=pb.tensor([0, 1])),
    "normalize: axis 7 ": lambda: F.normalize(X, axis=7),
    "normalize: p='a' ": lambda: F.normalize(X, p="a"),
    "cosine_similarity: axis 7 ": lambda: F.cosine_similarity(X, X, axis=7),
    "cosine_similarity: shapes (2, 3) and (2, 2) ": lambda: F.cosine_similarity(X, X[:, :2]),
    "pairwise_distance: p=nan ": lambda: F.pairwise_distance(X, X, p=math.nan),
    "pairwise_distance: axis -1 ": lambda: F.pairwise_distance(1.0, 2.0),
    "pairwise_distance: shapes (2, 3) and (2, 2) ": lambda: F.pairwise_distance(X, X[:, :2]),
    "scaled_dot_product_attention: key: None ": lambda: SDPA(HEADS, None, HEADS),
    "scaled_dot_product_attention: query: dtype complex64 ": lambda: SDPA(COMPLEX, HEADS, HEADS),
    "scaled_dot_product_attention: attn_mask='causal' is a str": lambda: SDPA(HEADS, HEADS, HEADS, attn_mask="causal"),
    "rotary: positions: a str ": lambda: F.rotary(HEADS, "a"),
    "MultiHeadAttention: x: None ": lambda: ATTENTION(None),
    "MultiHeadAttention: mask='causal' is a str": lambda: ATTENTION(HEADS, "causal"),
    "MultiheadAttention: key: None ": lambda: TORCHS(HEADS, None, HEADS),
    "MultiheadAttention: attn_mask='causal' is a str": lambda: TORCHS(HEADS, HEADS, HEADS, attn_mask="causal"),
    "GRU: x: None ": lambda: NN.GRU(3, 5)(None),
    "GRU: hx: a str ": lambda: NN.GRU(3, 5)(STEPS, "a"),
    "GRU: the state hx is a list": lambda: NN.GRU(3, 5)(STEPS, [STATE]),
    "LSTM: hx: a str ": lambda: NN.LSTM(3, 5)(STEPS, ("a", STATE)),
    "LSTM: hx: None ": lambda: NN.LSTM(3, 5)(STEPS, (STATE, None)),
    "LSTMCell: x: a str ": lambda: NN.LSTMCell(3, 5)("a"),
    "MinGRU: h: a str ": lambda: NN.MinGRU(3, 5)(STEPS, "a"),
    "LRU: h: a str ": lambda: NN.LRU(3, 5)(STEPS, ("a", "b")),
    "Sequential: x: a function ": lambda: NN.Sequential(NN.GRU(3, 5))(lambda: STEPS),
    "Linear: x: None ": lambda: Net()(X),
    "linear_recurrence: a: None ": lambda: PB.linear_recurrence(None, STEPS),
    "linear_recurrence: b: a str ": lambda: PB.linear_recurrence(STEPS, "a"),
    "linear_recurrence: initial: a str ": lambda: PB.linear_recurrence(STEPS, STEPS, initial="a"),
    "linear_recurrence: initial has shape (4,); ": lambda: pb.linear_recurrence(STEPS, STEPS, initial=pb.ones(4)),
    "associative_scan: xs: a str ": lambda: PB.associative_scan(pb.add, {"x": "a"}),
    "scan: xs: a str ": lambda: pb.scan(lambda c, x: (c, x), X, ["a"]),
    "jvp: tangents: a str ": lambda: pb.jvp(pb.sin, (X,), ("a",)),
    "linearize: a tangent: a str ": lambda: pb.linearize(pb.sin, X)[1]("a"),
    "linearize: a tangent has shape (3,), its primal (2, 3)": lambda: pb.linearize(pb.sin, X)[1](pb.ones(3)),
    "GRU: x: the nested lists do not have equal lengths": lambda: NN.GRU(3, 5)([X, [1, 2]]),
    "vmap: argument k has shape (), and no axis 0 for the examples. The axis of a keyword argument is always the first.": (
        lambda: pb.vmap(lambda x, k: x * k)(X, k=pb.tensor(2.0))
    ),
    'vmap: argument 1["u"] has shape (), and no axis 0 for the examples. Pass in_axes=None': (
        lambda: pb.vmap(lambda x, y: x * y["u"])(X, {"u": pb.tensor(2.0)})
    ),
    "vmap: the arguments have different numbers of examples: argument 0 has 2, argument k has 4.": (
        lambda: pb.vmap(lambda x, k: x)(X, k=STEPS)
    ),
    "vmap: out_axes: axis 5 of a tensor with 2 axes ": lambda: pb.vmap(pb.sin, out_axes=5)(X),
    "vmap: out_axes=(0, 1) does not have the structure ": lambda: pb.vmap(pb.sin, out_axes=(0, 1))(X),
    "vmap: the result of the function: a str ": lambda: PB.vmap(lambda x: "a")(X),
    "vmap: argument 0: dtype complex64 ": lambda: pb.vmap(pb.sin)(COMPLEX),
    "vjp: a cotangent has shape (2,), its value (2, 3).": lambda: pb.vjp(pb.sin, X)[1](pb.ones(2)),
    "vjp: the cotangent is None, and the value has shape (2, 3).": lambda: pb.vjp(pb.sin, X)[1](None),
    "vjp: a cotangent: a str ": lambda: pb.vjp(lambda x: (x, x), X)[1]((X, "a")),
    "vjp: <lambda> returned None, and only tensors have cotangents.": lambda: pb.vjp(lambda x: None, X)[1](1.0),
    "linearize: takes a function, and was given a int. Pass the function itself, not its value: pb.linearize(f, x).": (
        lambda: PB.linearize(3, X)
    ),
    "linearize: argument 0 has dtype int64": lambda: pb.linearize(pb.sin, INTS),
    "linearize: <lambda> returned a float, and only tensors": lambda: pb.linearize(lambda x: 3.0, X),
    "hessian: argument 0 has dtype int64": lambda: pb.hessian(pb.sum)(INTS),
    "hessian: <lambda> returned shape (2, 3); only a scalar": lambda: pb.hessian(lambda x: x)(X),
    "hessian: <lambda> returned None, and no scalar": lambda: pb.hessian(lambda x: None)(X),
    "hessian: the result of <lambda>: a str ": lambda: pb.hessian(lambda x: "a")(X),
    "hessian: sum returned a Tensor; with has_aux=True": lambda: pb.hessian(pb.sum, has_aux=True)(X),
    "hessian: argnums=3, but": lambda: pb.hessian(pb.sum, 3)(X),
    "hessian: chunk=0; it must be the number of rows or columns": lambda: pb.hessian(pb.sum, chunk=0),
    "jacobian: chunk=True; it must be the number": lambda: pb.jacobian(pb.sum, chunk=True),
    "batch_jacobian: chunk='a'; it must be": lambda: PB.GradientTape().batch_jacobian(X, X, "a"),
    "jacobian: <lambda> returned a int, and only tensors": lambda: pb.jacobian(lambda x: 3, mode="forward")(X),
    "hvp: a tangent has shape (2,), its primal (2, 3).": lambda: pb.hvp(pb.sum, X, pb.ones(2)),
    "hvp: argument 0 has dtype int64": lambda: pb.hvp(pb.sum, INTS, INTS),
    "hvp: sin returned shape (2, 3); only a scalar": lambda: pb.hvp(pb.sin, X, X),
    "hvp: tangents: a str ": lambda: pb.hvp(pb.sum, X, "a"),
    "value_and_grad: sin returned shape (2, 3); only a scalar": lambda: pb.value_and_grad(pb.sin)(X),
    "value_and_grad: takes a function, and was given a int": lambda: PB.value_and_grad(3),
    "grad: the result of <lambda>: a str ": lambda: pb.grad(lambda x: "a")(X),
    "per_example_grad: argument 1 has shape (), and no axis 0 for the examples. What is the same": (
        lambda: pb.per_example_grad(lambda w, x: pb.sum(w * x))(X, pb.tensor(1.0))
    ),
    "per_example_grad: <lambda> returned shape (3,); only a scalar": lambda: pb.per_example_grad(lambda w, x: x)(X, X),
    "per_example_norm: <lambda> returned shape (3,) for one example": lambda: pb.per_example_norm(lambda w, x: x)(X, X),
    "weighted_grad: argument 0 has dtype int64": lambda: pb.weighted_grad(lambda w, x: x, X)(INTS, X),
    "Adam: lr=-1.0; it must be a finite number of 0 or more, or a schedule.": lambda: pb.optim.Adam(WEIGHTS, lr=-1),
    "Adam: lr=nan; it must be a finite number of 0 or more": lambda: pb.optim.Adam(WEIGHTS, lr=math.nan),
    "SGD: lr=-0.5; it must be a finite number of 0 or more": lambda: pb.optim.SGD(WEIGHTS, lr=[0.1, -0.5]),
    "Adam: lr is a str; it must be a number or one of optim.schedules": lambda: PB.optim.Adam(WEIGHTS, lr="a"),
    "SGD: lr=-2.0; it must be ": lambda: setattr(pb.optim.SGD(WEIGHTS), "lr", -2),
    "Cosine: base=-1; a learning rate must be 0 or more": lambda: pb.optim.schedules.Cosine(-1, 10),
    "Product: schedule is a str; it must be a number": lambda: PB.optim.schedules.Product("a"),
    "Adam: betas=(-0.1, 0.9); each number must be in [0, 1), such as 0.9.": lambda: pb.optim.Adam(WEIGHTS, betas=(-0.1, 0.9)),
    "Adam: betas=(0.9, 'a'); each number must be in [0, 1), such as 0.9.": lambda: PB.optim.Adam(WEIGHTS, betas=(0.9, "a")),
    "Adam: eps=-1; it must be a finite number of 0 or more, or one for each member.": lambda: pb.optim.Adam(WEIGHTS, eps=-1),
    "clip: min: a str ": lambda: PB.clip(X, "a", 3),
    "minimize: params is a str. Give tensors, Parameters, arrays or numbers: a str ": (
        lambda: PB.solve.minimize(lambda p: p, "a").result()
    ),
    "softmax: x: a str ": lambda: F.softmax("a"),
    "at[...].set: values: a str ": lambda: PB.ones(3).at[0].set("a"),
    "sin: x: a str ": lambda: PB.sin("a"),
    "add: b: None ": lambda: PB.add(X, None),
    "concat: arrays: a str ": lambda: PB.concat([X, "a"]),
    "einsum: operands: a str ": lambda: PB.einsum("ij->i", "a"),
    "Parameter: obj: a str ": lambda: PB.Parameter("a"),
    "assign: value: a str ": lambda: PB.Parameter(X).assign("a"),
    "functional_call: parameters: None ": lambda: NN.functional_call(nn.Linear(3, 2), {"weight": None}, X),
    "step: grads: a str ": lambda: PB.optim.SGD([pb.Parameter(X)], lr=0.1).step(["a"]),
    "Linear: in_features: a tensor of dtype float32 ": lambda: NN.Linear(pb.ones(()), 3),
    "sum: keepdims=a Tensor of shape (3,) must be True or False.": lambda: PB.sum(X, keepdims=pb.ones(3)),
    "LayerNorm: normalized_shape=tensor(1.) must be": lambda: NN.LayerNorm(pb.ones(())),
}


@pytest.mark.parametrize("words", NAMED)
def test_the_function_and_the_argument_are_named(words: str) -> None:
    text = refusal(NAMED[words])
    assert text.startswith(words)
    assert text.count("not made of numbers") <= 1


def test_an_error_in_the_users_own_function_does_not_name_the_function_around_it() -> None:
    wrong: Any = None
    assert refusal(lambda: pb.grad(lambda x: pb.sum(x * pb.sin(wrong)))(X)).startswith("sin: x: None ")
    assert refusal(lambda: pb.ones(3).__bool__()).startswith("bool(): ")


def test_a_function_of_elements_has_its_name_in_tracebacks() -> None:
    assert pb.sin.__code__.co_name == "sin"
    assert pb.add.__code__.co_name == "add"
    assert pickle.loads(pickle.dumps(pb.sin)) is pb.sin


# ---- calls that do not fit

CALLS: dict[str, Callable[[], Any]] = {
    "GRU(...)() takes x and hx by position, and 3 arguments": lambda: NN.GRU(3, 5)(STEPS, STATE, STATE),
    "LSTM(...)() takes x and hx by position, and 3 arguments": lambda: NN.LSTM(3, 5)(STEPS, STATE, STATE),
    "RNNCell(...)() missing 1 required positional argument: 'x'": lambda: NN.RNNCell(3, 5)(),
    "LSTMCell(...)() got an unexpected keyword argument 'hidden': the state before the first step is the second argument": (
        lambda: NN.LSTMCell(3, 5)(X, hidden=X)
    ),
    "GRU needs hidden_size, too: GRU(input_size, hidden_size).": lambda: NN.GRU(3),
    "LSTMCell() takes input_size and hidden_size and bias by position, and 4 arguments": lambda: NN.LSTMCell(3, 5, True, 7),
    "GRU() got an unexpected keyword argument 'layers'. Did you mean: 'num_layers'?": lambda: NN.GRU(3, 5, layers=3),
    "GRU() got an unexpected keyword argument 'units': it is hidden_size= here.": lambda: NN.GRU(units=5),
    "GRU() got an unexpected keyword argument 'return_sequences': a layer returns h at every step": (
        lambda: NN.GRU(3, 5, return_sequences=True)
    ),
    "BatchNorm1d() missing 1 required positional argument: 'num_features'": lambda: NN.BatchNorm1d(),
    "MaxPool2d() missing 1 required positional argument: 'kernel_size'": lambda: NN.MaxPool2d(),
    "MultiHeadAttention(...)() got an unexpected keyword argument 'query': the layer takes one x": (
        lambda: ATTENTION(query=HEADS, key=HEADS, value=HEADS)
    ),
    "MultiHeadAttention(...)() got an unexpected keyword argument 'is_causal': make the layer with causal=True.": (
        lambda: ATTENTION(HEADS, is_causal=True)
    ),
    "MultiHeadAttention: x was given as the mask, too. The layer takes one x": lambda: ATTENTION(HEADS, HEADS),
    "MultiHeadAttention: x has shape (2, 3); it must be (batch, T, 8) or (T, 8).": lambda: ATTENTION(X),
    "MultiHeadAttention: rotary=None must be True, False for no rotary positions, or a number": (
        lambda: NN.MultiHeadAttention(8, 2, rotary=None)
    ),
    "GRU.forward() missing 1 required positional argument: 'x'": lambda: NN.GRU(3, 5).forward(),
    "LSTMCell.forward() got an unexpected keyword argument 'h'": lambda: NN.LSTMCell(3, 5).forward(X, h=X),
    "ReLU.forward() takes 2 positional arguments but 3 were given": lambda: NN.ReLU().forward(X, X),
    "BatchNorm1d.forward() missing 1 ": lambda: NN.BatchNorm1d(3).forward(),
    "Linear.forward() missing 1 ": lambda: NN.Linear(3, 5).forward(),
    "matmul: shapes (2, 3) and (2, 3) do not fit: the last axis of a has length 3, axis -2 of b has 2.": lambda: X @ X,
    "MultiHeadAttention: mask has shape (2, 4, 8)": lambda: ATTENTION(HEADS, pb.ones((2, 4, 8))),
    "MultiHeadAttention() got an unexpected keyword argument 'kdim': the layer takes one x": (
        lambda: NN.MultiHeadAttention(8, 2, kdim=8)
    ),
    "MultiheadAttention(...)() missing 2 required positional arguments: 'key' and 'value'. The attention of x to itself": (
        lambda: TORCHS(HEADS)
    ),
    "scaled_dot_product_attention() got an unexpected keyword argument 'mask': it is attn_mask= here": (
        lambda: SDPA(HEADS, HEADS, HEADS, mask=None)
    ),
    "linear_recurrence() takes a and b by position, without a name: linear_recurrence(a, b).": (
        lambda: PB.linear_recurrence(a=STEPS, b=STEPS)
    ),
    "linear_recurrence() got an unexpected keyword argument 'h0': the y before the first step is initial= here.": (
        lambda: PB.linear_recurrence(STEPS, STEPS, h0=X)
    ),
    "associative_scan() got an unexpected keyword argument 'fn': it is combine= here.": (
        lambda: PB.associative_scan(fn=pb.add, elems=STEPS)
    ),
    "associative_scan() got an unexpected keyword argument 'elems': it is xs= here.": (
        lambda: PB.associative_scan(pb.add, elems=STEPS)
    ),
    "associative_scan: takes a function, and was given a Tensor.": lambda: PB.associative_scan(STEPS, pb.add),
    "associative_scan: takes a function, and was given a str.": lambda: PB.associative_scan("add", STEPS),
    "associative_scan: xs=None has no tensors.": lambda: PB.associative_scan(pb.add, None),
    "associative_scan: xs=[] has no tensors.": lambda: PB.associative_scan(pb.add, []),
    "associative_scan: xs has the shapes [(), ()]": lambda: PB.associative_scan(pb.add, [1.0, 2.0]),
    "associative_scan: <lambda> returned the shape () for two of shape (2, 2, 3)": (
        lambda: PB.associative_scan(lambda a, b: 1.0, STEPS)
    ),
    "associative_scan: <lambda> returned what is no tensor: a str ": lambda: PB.associative_scan(lambda a, b: "a", STEPS),
    "associative_scan: <lambda> returned None, with 0 tensor(s), for arguments like *, with 1": (
        lambda: PB.associative_scan(lambda a, b: None, STEPS)
    ),
    "associative_scan: <lambda> returned (*, *, *), with 3 tensor(s), for arguments like (*, *), with 2": (
        lambda: PB.associative_scan(lambda a, b: (*a, b[0]), (STEPS, STEPS))
    ),
    "associative_scan() got an unexpected keyword argument 'combine_mode': every function of tensors can combine": (
        lambda: PB.associative_scan(pb.add, STEPS, combine_mode="generic")
    ),
    "hessian() got an unexpected keyword argument 'vectorize': all rows or columns are computed in one": (
        lambda: PB.hessian(pb.sum, vectorize=True)
    ),
    "hessian() got an unexpected keyword argument 'outer_jacobian_strategy': it is always the Jacobian of the gradient": (
        lambda: PB.hessian(pb.sum, outer_jacobian_strategy="forward-mode")
    ),
    "jacobian() got an unexpected keyword argument 'strategy': it is mode= here": lambda: PB.jacobian(pb.sin, strategy="a"),
    "jacobian() got an unexpected keyword argument 'chunk_size': it is chunk= here.": lambda: PB.jacobian(pb.sin, chunk_size=2),
    "vjp() got an unexpected keyword argument 'v': pb.vjp(f, x) returns the value and a function": lambda: PB.vjp(pb.sin, X, v=X),
    "hvp() got an unexpected keyword argument 'v': the direction is tangents= here.": lambda: PB.hvp(pb.sum, X, v=X),
    "jvp() got an unexpected keyword argument 'strict': an argument that": lambda: PB.jvp(pb.sin, (X,), (X,), strict=True),
    "MultiheadAttention() got an unexpected keyword argument 'key_dim': a head has embed_dim / num_heads features": (
        lambda: NN.MultiheadAttention(8, 2, key_dim=4)
    ),
    "GRU() got an unexpected keyword argument 'reset_after': the reset gate acts after the matrix product": (
        lambda: NN.GRU(3, 5, reset_after=True)
    ),
    "LSTM() got an unexpected keyword argument 'stateful': give the last state to the next call": (
        lambda: NN.LSTM(3, 5, stateful=True)
    ),
    "scan() got an unexpected keyword argument 'axis': the steps are along the first axis; move another one there": (
        lambda: PB.scan(lambda c, x: (c, x), X, STEPS, axis=1)
    ),
    "scan: takes a function, and was given a Tensor.": lambda: PB.scan(STEPS, lambda c, x: (c, x), X),
    "scan: the carry went from a tensor to 'a' in step 0.": lambda: PB.scan(lambda c, x: ("a", x), X, STEPS),
    "scan: <lambda> returned a str in y.": lambda: PB.scan(lambda c, x: (c, "a"), X, STEPS),
}


@pytest.mark.parametrize("words", CALLS)
def test_a_call_that_does_not_fit_is_told_as_the_user_wrote_it(words: str) -> None:
    assert refusal(CALLS[words]).startswith(words)


def test_that_a_layer_takes_one_x_is_said_only_if_three_were_given() -> None:
    one = "The layer takes one x, which is query, key and value; nn.MultiheadAttention takes three."
    key, value, wrong = pb.ones((2, 4, 8)), pb.ones((2, 4, 8)), pb.ones((3, 3))
    assert one in refusal(lambda: ATTENTION(HEADS, key, value))
    assert one in refusal(lambda: ATTENTION(HEADS, mask=key))
    assert one not in refusal(lambda: ATTENTION(HEADS, mask=wrong))
    text = refusal(lambda: ATTENTION(HEADS, positions=[0, 1, 2, 3]))
    assert one not in text
    assert "Make the layer with rotary=True." in text


def test_torchs_names_of_recurrent_layers_and_attention_are_answered() -> None:
    gru = NN.GRU(3, 5)
    for call, words in (
        (lambda: F.multi_head_attention_forward, "nn.MultiheadAttention is the layer"),
        (lambda: NN.RNNBase, "the layers are nn.RNN, nn.LSTM and nn.GRU"),
        (lambda: gru.flatten_parameters(), "need no such call"),
        (lambda: gru.all_weights, "it is net.parameters() here."),
        (lambda: gru.reset_parameters(), "make the layer again"),
    ):
        with pytest.raises(AttributeError, match=re.escape(words)):
            call()


def test_a_module_of_the_user_is_named_when_its_call_does_not_fit() -> None:
    net: Any = Net()
    assert refusal(lambda: net(X, X)).startswith("Net(...)() takes x by position, and 2 arguments")


def test_a_combining_function_may_return_an_array() -> None:
    y = pb.associative_scan(lambda a, b: host(a) + host(b), STEPS)
    assert host(y)[:, 0, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("title", [title.removeprefix("keywords of ") for title in sections() if title.startswith("keywords of")])
def test_the_hints_for_one_function_are_for_a_function_that_lacks_the_keywords(title: str) -> None:
    name, called, _ = title.partition("(...)")
    owner, _, name = name.rpartition(".")
    spaces: tuple[Any, ...] = (type(pb.ones(1).at),) if owner == "At" else (pb.linalg, pb, nn, nn.functional, pb.solve)
    function = next(getattr(space, name) for space in spaces if name in dir(space))
    code = (function.forward if called else function.__init__ if isinstance(function, type) else function).__code__
    code = getattr(getattr(function, "__wrapped__", None), "__code__", code)
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for keyword, sentence in hints(f"keywords of {title}").items():
        assert keyword not in known
        assert sentence.endswith(".")
