"""Layers of attention with several heads."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from ..errors import DTypeError, PullbackError, ShapeError
from ..ops._shapes import flag, probability
from ..ops.elementwise import logical_and, logical_not, where
from ..ops.linear import linear
from ..ops.operands import as_tensors, with_whole
from ..ops.reduce import mean
from ..ops.shape import expand_dims, permute_dims, reshape, split, squeeze, swapaxes
from ..tensors import dtypes
from ..tensors.creation import empty, zeros
from ..tensors.operand import as_tensor
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike
from . import init
from .attention import attend, base_of, mask_for, turn
from .layers import Linear, positive_lengths
from .module import Module
from .norms import RMSNorm
from .results import AttentionResult


def _heads(x: Tensor, heads: int) -> Tensor:
    """Returns x (batch, T, heads · d) as (batch, heads, T, d), a view."""
    batch, length, features = x.shape
    return permute_dims(reshape(x, (batch, length, heads, features // heads)), (0, 2, 1, 3))


def _merged(y: Tensor) -> Tensor:
    """Returns y (batch, heads, T, d) as (batch, T, heads · d)."""
    batch, heads, length, width = y.shape
    return reshape(permute_dims(y, (0, 2, 1, 3)), (batch, length, heads * width))


class _Projected(Module):
    """The projections that both layers share."""

    in_proj_weight: Parameter | None
    in_proj_bias: Parameter | None

    def _make_weight(self, rows: int, embed: int, dtype: Any, device: Any) -> None:
        self.in_proj_weight = init.xavier_uniform(Parameter(empty((rows, embed), dtype=dtype, device=device)))

    def _make_others(self, rows: int, inner: int, embed: int, bias: bool, dtype: Any, device: Any) -> None:
        """Makes the bias of the projections, and the last layer."""
        self.in_proj_bias = Parameter(zeros((rows,), dtype=dtype, device=device)) if bias else None
        self.out_proj = Linear(inner, embed, bias, dtype=dtype, device=device)
        if self.out_proj.bias is not None:
            init.zeros(self.out_proj.bias)


class MultiheadAttention(_Projected):
    """torch.nn.MultiheadAttention: attention of queries to keys and values, in several heads.

    Args:
        embed_dim: the number of features of the query and of the result. num_heads: divides embed_dim.
        dropout: the probability with which weights are set to zero in training. It forms all weights.
        bias: False leaves out the biases.
        kdim, vdim: the numbers of features of key and value, if they differ from embed_dim.
        batch_first: the axes are (batch, T, features) instead of (T, batch, features).

    Weights have the names, the layout and the initial values of PyTorch: in_proj_weight (or q_proj_weight, k_proj_weight and
    v_proj_weight with kdim or vdim), in_proj_bias, out_proj.weight and out_proj.bias. add_bias_kv and add_zero_attn are not
    supported. `nn.MultiHeadAttention` is the layer for new networks.

    >>> x = pb.ones((6, 2, 8))
    >>> y, weights = nn.MultiheadAttention(8, num_heads=2)(x, x, x)
    >>> y.shape, weights.shape
    ((6, 2, 8), (2, 6, 6))
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False, *,
        dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        name = "MultiheadAttention"
        self.embed_dim, self.num_heads = positive_lengths(name, embed_dim=embed_dim, num_heads=num_heads)
        if self.embed_dim % self.num_heads:
            raise ShapeError(f"{name}: num_heads={num_heads} does not divide embed_dim={embed_dim}.")
        for option, given in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            if flag(name, option, given):
                raise PullbackError(
                    f"{name}: {option}=True is not supported. PyTorch appends one more key and value after the projections. "
                    f"Project with nn.Linear, append them with pb.concat, and call nn.functional.scaled_dot_product_attention."
                )
        sizes = {"kdim": embed_dim if kdim is None else kdim, "vdim": embed_dim if vdim is None else vdim}
        self.kdim, self.vdim = positive_lengths(name, **sizes)
        self.dropout, self.batch_first = float(probability(name, "dropout", dropout)), flag(name, "batch_first", batch_first)
        embed, self.in_proj_weight = self.embed_dim, None
        biased = flag(name, "bias", bias)
        if (self.kdim, self.vdim) == (embed, embed):
            self._make_weight(3 * embed, embed, dtype, device)
        else:
            for letter, features in zip("qkv", (embed, self.kdim, self.vdim)):
                p = Parameter(empty((embed, features), dtype=dtype, device=device))
                setattr(self, f"{letter}_proj_weight", init.xavier_uniform(p))
        self._make_others(3 * embed, embed, embed, biased, dtype, device)

    def forward(
        self, query: ArrayLike, key: ArrayLike, value: ArrayLike, key_padding_mask: ArrayLike | None = None,
        need_weights: bool = True, attn_mask: ArrayLike | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> AttentionResult:
        """Returns the result, and the weights if `need_weights`, which forms them all: pass need_weights=False if you can.

        Args:
            query: (L, batch, embed_dim). key: (S, batch, kdim). value: (S, batch, vdim). (batch, T, features) if batch_first;
                without a batch (T, features).
            key_padding_mask: (batch, S), or (S,) without a batch. True marks a key that no query sees; floats are added to scores.
            attn_mask: (L, S) or (batch · num_heads, L, S). True marks a pair that is left out; floats are added to the scores.
                (In nn.functional.scaled_dot_product_attention, as in PyTorch, True has the opposite meaning.)
            average_attn_weights: the weights are the mean over the heads. In training they are the weights after dropout.
            is_causal: query i sees keys 0 to i only. Unlike in PyTorch it needs no attn_mask.

        Returns: the shape of the query; weights (batch, L, S), or (batch, num_heads, L, S) unless averaged, or None.
        Raises: ShapeError, DTypeError.
        """
        name = "MultiheadAttention"
        causal, weighted = flag(name, "is_causal", is_causal), flag(name, "need_weights", need_weights)
        averaged, same = flag(name, "average_attn_weights", average_attn_weights), query is key and key is value
        xs = as_tensors(name, *((query,) if same else (query, key, value)), self.out_proj.weight)[:-1]
        xs, alone = self._batched(xs)
        q, k, v = [_heads(x, self.num_heads) for x in self._projections(xs)]
        mask = self._mask(key_padding_mask, attn_mask, q, k, alone)
        y, weights = attend(q, k, v, mask, self.dropout if self.training else 0.0, causal, weighted=weighted)
        y = self.out_proj(_merged(y))
        y = squeeze(y, axis=0) if alone else y if self.batch_first else swapaxes(y, 0, 1)
        if not weighted or weights is None:
            return AttentionResult(y, None)
        weights = mean(weights, axis=1) if averaged else weights
        return AttentionResult(y, squeeze(weights, axis=0) if alone else weights)

    def _batched(self, xs: list[Tensor]) -> tuple[list[Tensor], bool]:
        """Returns the inputs as (batch, T, features), and True if they had no batch. Raises ShapeError."""
        shapes = [x.shape for x in xs]
        words = "(batch, T, features)" if self.batch_first else "(T, batch, features)"
        ranks = {len(shape) for shape in shapes}
        if len(ranks) != 1 or not ranks <= {2, 3}:
            raise ShapeError(f"MultiheadAttention: inputs {shapes} must all be {words}, or (T, features) without a batch.")
        alone = ranks == {2}
        xs = [expand_dims(x) if alone else x if self.batch_first else swapaxes(x, 0, 1) for x in xs]
        for which, x, features in zip(("query", "key", "value"), xs * 3, (self.embed_dim, self.kdim, self.vdim)):
            if x.shape[-1] != features:
                raise ShapeError(f"MultiheadAttention: {which} has {x.shape[-1]} features, but the layer takes {features}.")
        if len({x.shape[0] for x in xs}) > 1 or len({x.shape[1] for x in xs[1:]}) > 1:
            raise ShapeError(f"MultiheadAttention: inputs {shapes} must have the same batch, and key and value the same length.")
        return xs, alone

    def _projections(self, xs: list[Tensor]) -> list[Tensor]:
        embed, weight, bias = self.embed_dim, self.in_proj_weight, self.in_proj_bias
        if weight is not None and len(xs) == 1:
            y = linear(xs[0], weight, bias)
            return [y[..., i * embed : (i + 1) * embed] for i in range(3)]
        parts = []
        for i, (letter, x) in enumerate(zip("qkv", xs * 3)):
            rows = slice(i * embed, (i + 1) * embed)
            w = vars(self)[f"{letter}_proj_weight"] if weight is None else weight[rows]
            parts.append(linear(x, w, None if bias is None else bias[rows]))
        return parts

    def _mask(self, padding: Any, pairs: Any, q: Tensor, k: Tensor, alone: bool) -> Tensor | None:
        """Returns both masks as one, in the sense of scaled_dot_product_attention. Raises ShapeError, DTypeError."""
        batch, heads, length = q.shape[:3]
        keys, found = k.shape[2], []
        if padding is not None:
            m = _checked("key_padding_mask", padding, q, [(keys,)] if alone else [(batch, keys)])
            found.append(reshape(m, (batch, 1, 1, keys)))
        if pairs is not None:
            m = _checked("attn_mask", pairs, q, [(length, keys), (batch * heads, length, keys)])
            found.append(reshape(m, (1, 1, length, keys) if m.ndim == 2 else (batch, heads, length, keys)))
        found = [logical_not(m) if m.dtype == dtypes.bool_ else m for m in found]
        if len(found) < 2:
            return found[0] if found else None
        if all([m.dtype == dtypes.bool_ for m in found]):
            return logical_and(*found)
        a, b = [where(m, 0.0, -math.inf) if m.dtype == dtypes.bool_ else m for m in found]
        return a + b

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}" + (", batch_first=True" if self.batch_first else "")


def _checked(name: str, mask: Any, q: Tensor, shapes: list[tuple[int, ...]]) -> Tensor:
    if isinstance(mask, str):
        raise DTypeError(
            f"MultiheadAttention: {name}={mask!r} is a str. Give a tensor of bools, True where to leave out, or of floats to add. "
            f"A causal mask is is_causal=True."
        )
    _, m = with_whole("MultiheadAttention", q, mask)
    if m.shape not in shapes:
        raise ShapeError(f"MultiheadAttention: {name} has shape {m.shape}; it must be {' or '.join(map(str, shapes))}.")
    if m.dtype != dtypes.bool_ and not dtypes.is_float(m.dtype):
        raise DTypeError(f"MultiheadAttention: {name} has dtype {m.dtype}. Give bools, True where to leave out, or floats to add.")
    return m


_ONE: Final = "The layer takes one x, which is query, key and value; nn.MultiheadAttention takes three."


def _base(name: str, rotary: Any) -> float | None:
    """Returns the base of the angles of rotary positions, or None for none. Raises DTypeError, PullbackError."""
    if isinstance(rotary, (bool, np.bool_)):
        return 10000.0 if rotary else None
    if rotary is None or isinstance(rotary, str):
        raise DTypeError(
            f"{name}: rotary={rotary!r} must be True, False for no rotary positions, or a number, the base of the angles."
        )
    return base_of(name, "rotary", rotary)


class MultiHeadAttention(_Projected):
    """Self-attention of sequences (batch, T, embed_dim), in one launch between the projections.

    Args:
        embed_dim: the number of features of x and of the result.
        num_heads: the number of heads of queries.
        num_kv_heads: the number of heads of keys and values, which divides num_heads; heads that follow one another share them.
            It is num_heads if it is left out.
        head_dim: the features of a head; embed_dim / num_heads if it is left out.
        bias: False leaves out the biases.
        dropout: the probability with which weights are set to zero in training. It forms all weights.
        causal: position i sees positions 0 to i only.
        rotary: turns queries and keys by their positions (`nn.functional.rotary`); the base of the angles, or True for 10000.
        interleaved: which features rotary positions pair.
        qk_norm: normalizes queries and keys of each head by an RMSNorm with a weight, before they are turned.

    Without the options after `dropout`, the weights and the result are those of torch.nn.MultiheadAttention for a query that is
    also the key and the value: in_proj_weight (q, k and v one below the other), in_proj_bias, out_proj.weight, out_proj.bias.

    >>> nn.MultiHeadAttention(8, num_heads=2, causal=True)(pb.ones((2, 6, 8))).shape
    (2, 6, 8)
    """

    def __init__(
        self, embed_dim: int, num_heads: int, num_kv_heads: int | None = None, head_dim: int | None = None, bias: bool = True,
        dropout: float = 0.0, causal: bool = False, rotary: bool | float = False, interleaved: bool = False, qk_norm: bool = False,
        *, dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        name = "MultiHeadAttention"
        self.embed_dim, self.num_heads = positive_lengths(name, embed_dim=embed_dim, num_heads=num_heads)
        if head_dim is None and self.embed_dim % self.num_heads:
            raise ShapeError(f"{name}: num_heads={num_heads} does not divide embed_dim={embed_dim}. Pass head_dim.")
        shared = self.num_heads if num_kv_heads is None else num_kv_heads
        width = self.embed_dim // self.num_heads if head_dim is None else head_dim
        self.num_kv_heads, self.head_dim = positive_lengths(name, num_kv_heads=shared, head_dim=width)
        if self.num_heads % self.num_kv_heads:
            raise ShapeError(f"{name}: num_kv_heads={num_kv_heads} does not divide num_heads={num_heads}.")
        self.dropout, self.causal = float(probability(name, "dropout", dropout)), flag(name, "causal", causal)
        self.rotary = _base(name, rotary)
        self.interleaved = flag(name, "interleaved", interleaved)
        if self.rotary is not None and self.head_dim % 2:
            raise ShapeError(f"{name}: rotary positions turn pairs of features. head_dim={self.head_dim} must be even.")
        inner, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self._make_weight(inner + 2 * keys, self.embed_dim, dtype, device)
        self._make_others(inner + 2 * keys, inner, self.embed_dim, flag(name, "bias", bias), dtype, device)
        normed = flag(name, "qk_norm", qk_norm)
        self.q_norm = RMSNorm(self.head_dim, dtype=dtype, device=device) if normed else None
        self.k_norm = RMSNorm(self.head_dim, dtype=dtype, device=device) if normed else None

    def forward(self, x: ArrayLike, mask: ArrayLike | None = None, positions: ArrayLike | None = None) -> Tensor:
        """Returns the attention of x to itself.

        Args:
            x: (batch, T, embed_dim), or (T, embed_dim) for one sequence.
            mask: as attn_mask of nn.functional.scaled_dot_product_attention; broadcasts to (batch, num_heads, T, T).
            positions: of rotary positions, the same for all heads: (T,) for all sequences, or (batch, T), which may also be written
                (batch, 1, T), for each of them; 0 to T - 1 if it is left out.

        Returns: the shape of x. Raises: ShapeError, DTypeError.
        """
        if mask is x and mask is not None:
            raise PullbackError(f"MultiHeadAttention: x was given as the mask, too. {_ONE}")
        x = as_tensors("MultiHeadAttention", x, self.in_proj_weight)[0]
        three = f" {_ONE}" if getattr(mask, "shape", None) == x.shape else ""  # called like nn.MultiheadAttention
        if x.ndim not in (2, 3) or x.shape[-1] != self.embed_dim:
            raise ShapeError(
                f"MultiHeadAttention: x has shape {x.shape}; it must be (batch, T, {self.embed_dim}) or (T, {self.embed_dim})."
            )
        alone = x.ndim == 2
        y = linear(expand_dims(x) if alone else x, self.in_proj_weight, self.in_proj_bias)  # type: ignore[arg-type]
        first, second = self.num_heads, self.num_heads + self.num_kv_heads  # heads of keys and of values begin here
        q, k, v = split(_heads(y, second + self.num_kv_heads), (first, second), axis=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary is not None:
            places = None if positions is None else self._positions(positions, x)
            q, k = [turn("MultiHeadAttention", "x", t, places, self.rotary, self.interleaved) for t in (q, k)]
        elif positions is not None:
            raise PullbackError(f"MultiHeadAttention: positions are for rotary positions. Make the layer with rotary=True.{three}")
        seen = None if mask is None else mask_for("MultiHeadAttention", "mask", mask, q, k, three)
        z, _ = attend(q, k, v, seen, self.dropout if self.training else 0.0, self.causal)
        z = self.out_proj(_merged(z))
        return squeeze(z, axis=0) if alone else z

    def _positions(self, positions: Any, x: Tensor) -> Tensor:
        """Returns given positions, which broadcast to (batch, heads, T). Raises ShapeError."""
        given, batch, steps = as_tensor(positions), 1 if x.ndim == 2 else x.shape[0], x.shape[-2]
        rows = expand_dims(given, axis=1) if given.ndim == 2 else given
        fits = 1 <= rows.ndim <= 3 and all([n in (1, m) for n, m in zip(rows.shape[::-1], (steps, 1, batch))])
        if not fits:
            raise ShapeError(
                f"MultiHeadAttention: positions {given.shape} do not fit x {x.shape}. All heads have the same positions: give "
                f"{(steps,)} for all sequences, or {(batch, steps)} for each of them."
            )
        return rows

    def extra_repr(self) -> str:
        shown = [f"{self.embed_dim}, {self.num_heads}"]
        shown += [f"num_kv_heads={self.num_kv_heads}"] if self.num_kv_heads != self.num_heads else []
        shown += ["causal=True"] if self.causal else []
        return ", ".join(shown + ([f"rotary={self.rotary:g}"] if self.rotary is not None else []))
