"""What objects say about themselves: `repr`, and the HTML that a notebook shows."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from pullback import nn, optim

SCHEDULE = optim.schedules.Cosine(0.1, steps=10)
RULES = {
    "Adam(lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0": lambda p: optim.Adam(p),
    "AdamW(lr=0.02, betas=(0.9, 0.999), eps=1e-06, weight_decay=0.01": lambda p: optim.AdamW(p, 0.02, eps=1e-6),
    "Lion(lr=0.0001, betas=(0.9, 0.99), weight_decay=0.5, clip_value=2.0": lambda p: optim.Lion(p, weight_decay=0.5, clip_value=2),
    "SGD(lr=0.001, momentum=0.9, dampening=0.0, nesterov=True, weight_decay=0.0, clip_norm=1.0": lambda p: optim.SGD(
        p, momentum=0.9, nesterov=True, clip_norm=1
    ),
    f"SGD(lr=0.1 by {SCHEDULE}, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0": lambda p: optim.SGD(p, SCHEDULE),
}


@pytest.mark.parametrize("wanted", RULES)
def test_an_optimizer_shows_its_rule_its_hyper_parameters_and_its_steps(wanted: str) -> None:
    w, b = pb.Parameter([1.0, 2.0]), pb.Parameter(0.0)
    opt = RULES[wanted]([w, b])
    assert repr(opt) == f"{wanted}; 2 parameters of 3 numbers, 0 steps)"
    opt.step([pb.ones(2), None])
    rate = f"{opt.lr:.3g}" if "by" in wanted else wanted.partition("=")[2].partition(",")[0]
    assert repr(opt).startswith(f"{type(opt).__name__}(lr={rate}")
    assert repr(opt).endswith("; 2 parameters of 3 numbers, 1 step)")


def test_a_rule_of_a_user_shows_what_it_names() -> None:
    class Plain(optim.Optimizer):
        def formula(self, p: Any, g: Any, slots: Any, h: Any) -> Any:
            return -h.lr * g, ()

    assert repr(Plain([pb.Parameter(1.0)], lr=0.1)) == "Plain(lr=0.1; 1 parameter of 1 numbers, 0 steps)"


def test_a_tape_shows_its_record_and_its_state() -> None:
    w = pb.Parameter([1.0, 2.0])
    tape = pb.GradientTape()
    assert repr(tape) == "GradientTape(0 ops, 0 watched, not started)"
    with tape:
        loss = pb.sum(w * w)
        assert repr(tape) == "GradientTape(2 ops, 1 watched, recording)"
        with tape.stop_recording():
            assert repr(tape) == "GradientTape(2 ops, 1 watched, stopped)"
    assert repr(tape) == "GradientTape(2 ops, 1 watched, stopped)"
    tape.gradient(loss, [w])
    assert repr(tape) == "GradientTape(0 ops, 1 watched, used up)"
    assert repr(pb.GradientTape(persistent=True)) == "GradientTape(0 ops, 0 watched, not started, persistent)"


@needs_kernels
def test_a_captured_function_counts_its_recordings_and_replays() -> None:
    @pb.capture(fusion="fast")
    def double(x: Any) -> Any:
        return x * 2

    name = "test_a_captured_function_counts_its_recordings_and_replays.<locals>.double"
    assert repr(double) == f"capture({name}, fusion='fast'; 0 recordings, 0 replays)"
    for size in (2, 2, 2, 3):
        double(pb.ones(size))
    assert repr(double) == f"capture({name}, fusion='fast'; 2 recordings, 2 replays)"
    again = pb.capture(double, steps=4)
    assert repr(again) == f"capture({name}, fusion='exact', steps=4; 0 recordings, 0 replays)"
    assert again(pb.ones((4, 2))).shape == (4, 2)
    assert (again.stats().captures, double.stats().captures) == (1, 2)


def test_a_memo_of_a_memo_remembers_by_itself() -> None:
    inner = pb.memo(pb.sin, size=4)
    outer = pb.memo(inner, size=2)
    x = pb.ones(2)
    for _ in range(3):
        outer(x)
    assert (outer.stats.hits, inner.stats.hits, inner.stats.misses) == (2, 0, 1)
    assert "size=2" in repr(outer)


@needs_kernels
def test_a_function_captured_over_a_loader_counts_too() -> None:
    step = pb.capture(lambda x: pb.sum(x))
    loader = pb.data.Loader(pb.ones((8, 2)), 4)
    for _ in range(3):
        step(loader)
    assert repr(step).endswith("; 1 recording, 2 replays)")


def test_generators_and_functions_with_a_memory_count_their_calls() -> None:
    generator = pb.random.Generator(3, device="cpu")
    generator.normal((2,))
    assert repr(generator) == 'Generator(seed=3, device="cpu"; 1 draws)'
    remembered = pb.memo(pb.sin, size=4)
    x = pb.ones(2)
    assert remembered(x) is remembered(x)
    assert repr(remembered) == "memo(sin, size=4; 1 results, 1 hits, 1 misses)"
    outside = pb.black_box(lambda z: 2 * z, gradient="spsa")
    outside(x)
    assert repr(outside) == "black_box(<lambda>, gradient=spsa; 1 evaluations)"


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (2, 0, 3), (0, 0)], ids=str)
def test_an_empty_tensor_shows_its_shape_where_numpy_does(shape: tuple[int, ...], dtype: str) -> None:
    numpys = repr(np.empty(shape, dtype)).replace(", dtype=float32", "")
    with pb.use_device("cpu"):
        assert repr(pb.zeros(shape, dtype=dtype)) == numpys.replace("array", "tensor")
        assert repr(pb.Parameter(pb.zeros(shape, dtype=dtype), trainable=False)) == numpys.replace("array", "Parameter")


class Cells(HTMLParser):
    """Collects the rows of the tables of a page, and all tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")
        elif tag == "br" and self.rows:
            self.rows[-1][-1] += "\n"

    def handle_data(self, data: str) -> None:
        if self.rows and "table" in self.tags and data.strip():
            self.rows[-1][-1] += data


TAGS = {"table", "tr", "th", "td", "br", "p", "ul", "li"}


def recorded() -> tuple[Any, Any, Any]:
    net = nn.Linear(2, 3)
    w = pb.Parameter([[1.0, 2.0]], name="<script>alert(1)</script> & co")
    unused = pb.Parameter([1.0], name="<img src=x>")
    with pb.GradientTape(persistent=True) as tape:
        loss = pb.sum(pb.tanh(net(w)))
    return tape, loss, [w, unused]


def test_a_notebook_shows_an_explanation_as_a_table() -> None:
    tape, loss, _ = recorded()
    found = tape.explain(loss)
    cells = Cells(found._repr_html_())
    assert {*cells.tags} <= TAGS
    assert [len(row) for row in cells.rows] == [8] * (1 + len(found.rows))
    assert [row[0] for row in cells.rows[1:]] == [row.op for row in found.rows]
    assert [row[2] for row in cells.rows[1:]] == [str(row.shape) for row in found.rows]
    assert f"{found.bytes:,} bytes" in found._repr_html_()


def test_a_notebook_shows_a_diagnosis_as_a_table_and_names_of_users_as_text() -> None:
    tape, loss, sources = recorded()
    found = tape.diagnose(loss, sources)
    page = found._repr_html_()
    cells = Cells(page)
    assert {*cells.tags} <= TAGS
    assert [row[0] for row in cells.rows[1:]] == [row.tag for row in found.rows]
    assert any(["<script>alert(1)</script> & co" in row[0] for row in cells.rows])
    assert "<script" not in page
    assert "<img" not in page
    assert cells.tags.count("li") == len(found.findings) > 0


@needs_kernels
def test_a_notebook_shows_a_plan_as_a_table() -> None:
    @pb.capture
    def step(x: Any) -> Any:
        return pb.sum(pb.tanh(x) * 2) @ pb.ones((1, 1)) if x.ndim > 9 else pb.sum(pb.tanh(x) * 2)

    step(pb.ones(5))
    plan = step.explain()
    cells = Cells(plan._repr_html_())
    assert {*cells.tags} <= TAGS
    assert [row[1] for row in cells.rows[1:]] == [kernel.phase for kernel in plan.kernels]
    assert [row[2] for row in cells.rows[1:]] == [kernel.result for kernel in plan.kernels]
