"""What a captured function cannot notice, each in a test that holds the table in docs/capture.md to its word."""

from __future__ import annotations

import array
import os
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from footguns import Settings, X, follows, unseen

pytestmark = needs_kernels


def test_time_cannot_be_seen() -> None:
    unseen(lambda x: x + time.perf_counter_ns() % 10_007)


def test_an_environment_variable_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAIN", "2.0")
    unseen(lambda x: x * float(os.environ["GAIN"]), lambda: monkeypatch.setenv("GAIN", "3.0"))


def test_a_number_that_numpy_computes_cannot_be_seen() -> None:
    array = np.ones(3000, "float32")
    unseen(lambda x: x * float(np.sum(array)), lambda: array.__setitem__(0, 5.0))


def test_an_attribute_that_is_computed_from_elsewhere_cannot_be_seen(tmp_path: Path) -> None:
    class Model:
        def __getattr__(self, name: str) -> float:
            return float((tmp_path / name).read_text())

    (tmp_path / "gain").write_text("2.0")
    model = Model()
    unseen(lambda x: x * model.gain, lambda: (tmp_path / "gain").write_text("3.0"))


def test_an_attribute_of_what_c_code_returns_cannot_be_seen() -> None:
    settings = Settings(2.0)
    reference = weakref.ref(settings)
    unseen(lambda x: x * reference().p, lambda: setattr(settings, "p", 3.0))


def test_an_attribute_of_what_a_python_function_returns_is_seen() -> None:
    settings = Settings(2.0)

    def present() -> Settings:
        return settings

    follows(lambda x: x * present().p, lambda: setattr(settings, "p", 3.0))


def test_state_in_c_code_cannot_be_seen() -> None:
    limit = sys.getswitchinterval()
    try:
        unseen(lambda x: x * sys.getswitchinterval(), lambda: sys.setswitchinterval(2 * limit))
    finally:
        sys.setswitchinterval(limit)


def test_contents_of_a_large_list_cannot_be_seen() -> None:
    gains = [float(k) for k in range(1000)]
    unseen(lambda x: x * sum(gains), lambda: gains.__setitem__(500, 2.0))


def test_items_of_arrays_of_bytes_cannot_be_seen() -> None:
    numbers, raw = array.array("d", [2.0]), bytearray([2])
    unseen(lambda x: x * numbers[0], lambda: numbers.__setitem__(0, 3.0))
    unseen(lambda x: x * raw[0], lambda: raw.__setitem__(0, 3))


def test_a_special_method_that_a_class_gets_cannot_be_seen() -> None:
    settings = Settings(2.0)
    unseen(lambda x: x * (2 if settings else 3), lambda: setattr(Settings, "__bool__", lambda self: False))
    del Settings.__bool__


def test_a_new_global_that_hides_a_builtin_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    hiding = {"float": lambda _: 3.0}
    unseen(lambda x: x * float(2), lambda: monkeypatch.setitem(globals(), "float", hiding["float"]))


def test_a_global_that_is_set_by_its_dict_cannot_be_seen() -> None:
    def f(x: Any) -> Any:
        globals()["SET"] = 7.0
        return x * 2

    captured = pb.capture(f)
    captured(X)
    globals()["SET"] = 1.0
    captured(X)
    assert globals()["SET"] == 1.0


def test_prints_cannot_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    f = pb.capture(lambda x: [print("called"), x * 2][1])
    for _ in range(3):
        same(f(X), X * 2)
    assert capsys.readouterr().out == "called\n"
