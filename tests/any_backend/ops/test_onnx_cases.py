"""ONNX's tests of the operators Attention and RotaryEmbedding (tests/onnx_cases.py)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from onnx_cases import BASE, TABLE, inputs_of, shown
from pullback.nn.functional import rotary, scaled_dot_product_attention as attend

CASES: dict[str, dict[str, Any]] = json.loads(TABLE.read_text())


def heads(x: Any, count: int) -> Any:
    """Returns x (batch, T, heads · features) as (batch, heads, T, features)."""
    batch, length, features = x.shape
    return x.reshape(batch, length, count, features // count).transpose(0, 2, 1, 3)


def merged(y: Any) -> Any:
    batch, _, length, _ = y.shape
    return y.transpose(0, 2, 1, 3).reshape(batch, length, -1)


def attention(case: dict[str, Any], q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    flat = q.ndim == 3
    if flat:
        q, k, v = heads(q, case["q_num_heads"]), heads(k, case["kv_num_heads"]), heads(v, case["kv_num_heads"])
    y = attend(q, k, v, mask, is_causal=case.get("is_causal") == 1, scale=case.get("scale"), enable_gqa=True).numpy()
    return merged(y) if flat else y


def rotary_embedding(case: dict[str, Any], x: Any, cosine: Any, sine: Any, positions: Any = None) -> Any:
    """The angles are computed, and not read from the caches, which hold the same ones."""
    flat = x.ndim == 3
    z = heads(x, case["num_heads"]) if flat else x
    at = None if positions is None else positions[:, None]
    y = rotary(z, at, base=BASE, interleaved=case.get("interleaved") == 1, dims=case.get("rotary_embedding_dim")).numpy()
    return merged(y) if flat else y


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_onnx(name: str) -> None:
    case = CASES[name]
    run = {"Attention": attention, "RotaryEmbedding": rotary_embedding}[case["op"]]
    y = run(case, *inputs_of(case).values())
    half = y.dtype == np.float16  # in which ONNX's reference computes every step, and pullback rounds once
    assert [*y.shape] == case["shape"]
    np.testing.assert_allclose(shown(y), case["expected"], atol=4e-3 if half else 1e-6)


def test_the_table_has_every_kind_of_case() -> None:
    assert len(CASES) == 43
    assert {case["op"] for case in CASES.values()} == {"Attention", "RotaryEmbedding"}
    assert {case["inputs"]["Q"][1] for case in CASES.values() if "Q" in case["inputs"]} == {"float16", "float32"}
