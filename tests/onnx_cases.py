"""ONNX's node tests of Attention and RotaryEmbedding, as a table of expected values: tests/onnx_cases.json.

    pip install onnx==1.23.2 && python tests/onnx_cases.py

evaluates the nodes of these tests (ONNX, Apache-2.0, tag v1.23.2) by onnx.reference, and writes the table. The inputs are not those
of ONNX, which draws them at random, but numbers by a formula, so that the table need not hold them; masks of bools are kept. The
tests themselves do not need onnx.

What has no counterpart is left out: softcap; past and present keys and values, nonpad_kv_seqlen and masks shorter than the keys
(a cache, which a program concatenates or masks itself); qk_matmul_output (the scores); windows; softmax_precision; and the
"expanded" tests, whose nodes are the definition of Attention in other ops.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

TABLE = Path(__file__).with_suffix(".json")
ATTRIBUTES = {"is_causal", "scale", "q_num_heads", "kv_num_heads", "interleaved", "rotary_embedding_dim", "num_heads"}
INPUTS = {"Q", "K", "V", "attn_mask", "input", "cos_cache", "sin_cache", "position_ids"}
BASE = 100.0  # of the angles in the caches
SHOWN = 12  # the number of elements of a result that the table holds


def numbers(shape: list[int], seed: int) -> Any:
    """Returns numbers from -1.5 to 1.5 in float64."""
    return 1.5 * np.sin(1.7 * np.arange(1, math.prod(shape) + 1) * (1 + 0.1 * seed) + seed).reshape(shape)


def shown(y: Any) -> list[float]:
    """Returns elements that are spread evenly over a result, and the mean of all."""
    flat = np.asarray(y, np.float64).ravel()
    return [*flat[np.linspace(0, flat.size - 1, SHOWN).astype(int)].tolist(), float(flat.mean())]


def inputs_of(case: dict[str, Any]) -> dict[str, Any]:
    """Returns the inputs of a case by their names. Caches hold the cosines and sines of the positions' angles."""
    found: dict[str, Any] = {}
    for seed, (name, (shape, dtype)) in enumerate(case["inputs"].items()):
        if name == "position_ids":
            found[name] = (np.arange(math.prod(shape)).reshape(shape) * 3 % 7).astype(np.int64)
        elif name.endswith("_cache"):
            turned, rows = 2 * shape[-1], shape[-2]
            angles = np.arange(rows)[:, None] * BASE ** (-2 * np.arange(shape[-1]) / turned)
            found[name] = np.broadcast_to((np.cos if name == "cos_cache" else np.sin)(angles), shape).astype(dtype)
        elif dtype == "bool":
            found[name] = np.array([*case["mask"]], int).reshape(shape) == 1
        else:
            found[name] = numbers(shape, seed).astype(np.float16 if dtype == "float16" else np.float32)
    return found


def _case(test: Any) -> dict[str, Any] | None:
    """Returns a test's row of the table, or None if it is not supported."""
    from onnx.helper import get_attribute_value  # type: ignore[import-not-found]
    from onnx.reference import ReferenceEvaluator  # type: ignore[import-not-found]

    (node,) = test.model.graph.node if len(test.model.graph.node) == 1 else (None,)
    if node is None or node.op_type not in ("Attention", "RotaryEmbedding") or [*filter(None, node.output)] != [node.output[0]]:
        return None
    options = {a.name: get_attribute_value(a) for a in node.attribute}
    names, arrays = [*filter(None, node.input)], test.data_sets[0][0]
    if options.keys() - ATTRIBUTES or {*names} - INPUTS or any(str(x.dtype) == "bfloat16" for x in arrays):
        return None
    case = {"op": node.op_type, **options, "inputs": {n: [[*x.shape], str(x.dtype)] for n, x in zip(names, arrays)}}
    for x in arrays:
        if x.dtype == bool:
            case["mask"] = "".join(map(str, x.astype(int).ravel().tolist()))
    (y,) = ReferenceEvaluator(test.model).run(None, inputs_of(case))
    return {**case, "shape": [*y.shape], "expected": [float(f"{number:.8g}") for number in shown(y)]}


def main() -> None:
    from onnx.backend.test.case.node import collect_testcases  # type: ignore[import-not-found]

    tests = {test.name: test for test in collect_testcases() if test.name.startswith(("test_attention_", "test_rotary_"))}
    cases = {name.removeprefix("test_"): case for name, test in tests.items() if (case := _case(test)) is not None}
    TABLE.write_text("{\n" + ",\n".join(f'"{name}": {json.dumps(case)}' for name, case in cases.items()) + "\n}\n")
    print(f"{len(cases)} of {len(tests)} tests")


if __name__ == "__main__":
    main()
