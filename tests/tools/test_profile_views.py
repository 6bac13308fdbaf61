"""The views of a profile: its tables, TensorBoard's scalars, and the comparison of two profiles."""

from __future__ import annotations

import html
import io
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import pullback as pb
from made_profile import SPANS, STEP, made, mlp, row, trained
from pullback import nn
from pullback.launch import door
from pullback.profiling import Profile
from pullback.profiling.compare import Change, compare
from pullback.profiling.session import Span
from pullback.profiling.table import COLUMNS, as_text, phase_rows, phase_table, renderable
from pullback.profiling.tensorboard import to_tensorboard
from pullback.profiling.units import duration, quantity


def cells(text: str, name: str) -> list[str]:
    """Returns the numbers, with their units, of the only line with this name."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return re.findall(r"[\d.,]+(?: [a-zA-Z]+)?", line[len(name) :])


# ---- numbers as text

UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


@pytest.mark.parametrize("seed", range(5))
def test_a_quantity_is_right_to_three_digits(seed: int) -> None:
    for exponent in np.random.default_rng(seed).uniform(0, 20, 200):
        number = int(10**exponent)
        digits, _, prefix = quantity(number).partition(" ")
        assert float(digits) * UNITS[prefix] == pytest.approx(number, rel=0.00501)
        assert len(digits.replace(".", "")) == min(3, len(str(number)))


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (7, "7"), (999, "999"), (1000, "1.00 k"), (9994, "9.99 k"), (9996, "10.0 k"), (999_400, "999 k"),
     (999_600, "1.00 M"), (12_345_678, "12.3 M"), (0.5, "0.50"), (999.7, "1.00 k")],
)
def test_a_quantity_never_has_an_exponent(number: float, shown: str) -> None:
    assert quantity(number) == shown


def test_durations_change_their_unit_at_a_thousand() -> None:
    seconds = (0.0, 0.4e-6, 999.4e-6, 999.7e-6, 12.34e-3, 0.9999, 59.96, 4321.0)
    assert [duration(x) for x in seconds] == ["0", "0.40 us", "999 us", "1.00 ms", "12.3 ms", "1.00 s", "60.0 s", "4321 s"]


# ---- the table


def test_forward_and_backward_of_an_op_are_side_by_side() -> None:
    text = phase_table(made())
    forward, backward = 12_853_248 + 164_480, 328_320 + 12_853_248
    assert (quantity(forward), quantity(backward), round(backward / forward, 2)) == ("13.0 M", "13.2 M", 1.01)
    assert cells(text, "linear") == ["13.0 M", "13.2 M", "1.01", "320 us", "440 us", "2", "7"]
    assert cells(text, "cross_entropy") == ["2.56 k", "1.28 k", "0.50", "9.00 us", "1.00 us", "1", "2"]
    assert cells(text, "add_n") == ["8.19 k", "4.00 us", "2"]  # no forward columns, and no ratio
    assert cells(text, "0") == ["12.9 M", "12.9 M", "1.00", "300 us", "400 us", "1", "3"]
    assert cells(text, "outside") == ["2.56 k", "9.47 k", "3.70", "9.00 us", "5.00 us", "1", "4"]
    assert cells(text, "optimizer") == ["1.02 M", "0", "0", "300 B", "100 B", "200 us", "1"]


def test_ops_and_modules_add_up_to_their_phases() -> None:
    totals = [line for line in phase_table(made()).splitlines() if line.startswith("total")]
    assert len(totals) == 3
    assert totals[1] == totals[2]
    assert cells(totals[1], "total") == ["13.0 M", "13.2 M", "1.01", "329 us", "445 us", "3", "11"]
    assert cells(totals[0], "total")[-1] == str(2 + 3 + 11 + 1)


def test_the_share_outside_kernels_and_unknown_kernels_are_told() -> None:
    lines = phase_table(made(*STEP, row("mystery", "", "other", 0, 0.0, 3, known=False))).splitlines()
    assert lines[-2] == "50.0% of the time is outside kernels (launch gaps)"  # 900 of 1800 us
    assert lines[-1] == f"cost known for {17 / 20:.1%} of launches; not known: mystery_kernel (3)"


def test_what_is_done_beyond_the_textbook_is_told() -> None:
    padded = STEP[1]._replace(figures=replace(STEP[1].figures, executed_flops=2 * STEP[1].figures.flops))
    text = phase_table(made(padded, *STEP[2:]))
    assert "kernels executed 40.1 M FLOPs for these 27.2 M" in text
    assert "executed: what kernels really compute, with padding and repeated work" in " ".join(text.split())
    assert "execute" not in phase_table(made())


def test_without_modules_there_is_no_table_of_them_and_without_times_none_of_these() -> None:
    text = phase_table(made(*[r._replace(module="") for r in STEP], timed=False, spans=None))
    assert "by op" in text
    assert not re.search("by module|time| us|gaps", text)
    assert cells(text, "linear") == ["13.0 M", "13.2 M", "1.01", "2", "7"]


def test_what_ran_in_neither_pass_is_in_the_phases_only() -> None:
    text = phase_table(made(STEP[0], STEP[-1]))
    assert "by op" not in text
    assert cells(text, "data")[-1] == "2"


def test_many_ops_are_summed_up_past_the_costliest() -> None:
    rows = [row(f"op{k}", "", "forward", 1000, float(k % 30 + 1)) for k in range(30)]
    text = phase_table(made(*rows))
    shown = re.findall(r"^op(\d+)", text, re.MULTILINE)
    assert shown == [str(k) for k in range(29, 18, -1)]  # the slowest ops
    assert cells(text, "19 more ops") == ["19.0 k", f"{sum(range(1, 20))} us", "19"]


def test_many_modules_are_told_by_the_beginnings_of_their_names() -> None:
    names = [f"encoder.{k}.{part}" for k in range(5) for part in ("norm", "expand", "contract")]
    text = phase_table(made(*[row("linear", name, "forward", 1000, 2.0) for name in ["", *names, "head"]]))
    shown = re.findall(r"^(\S+)  ", text[text.index("by module") :], re.MULTILINE)
    assert shown == [*[f"encoder.{k}.*" for k in range(5)], "head", "outside", "total"]
    assert cells(text, "encoder.3.*") == ["3.00 k", "6.00 us", "3"]


def test_a_profile_of_nothing_says_so() -> None:
    with pb.profile() as prof:
        pass
    assert phase_table(prof) == "nothing ran in this profile"


def test_rows_of_phases_are_what_the_command_line_shows() -> None:
    rows = phase_rows(made())
    assert [r[0] for r in rows] == ["forward", "backward", "optimizer", "data", "total"]
    assert {len(r) for r in rows} == {len(COLUMNS)}


def test_phases_in_which_only_time_passed_are_told_where_it_is_much() -> None:
    names = lambda rows: [cells[0] for cells in phase_rows(made(*rows))]
    assert names(STEP[:-1]) == ["forward", "backward", "optimizer", "data", "total"]  # 200 of 1800 us have no launch
    assert names(STEP[:1]) == ["forward", "backward", "optimizer", "data", "total"]
    short = made(*STEP[1:], spans=[*SPANS, Span("other", 1.8e-3, 1.801e-3)])
    assert "other" not in phase_table(short)


LONG = "encoder.layers.11.self_attention.output_projection"


def wide() -> Any:
    """Returns a profile with the longest possible numbers and with long names."""
    return made(*[row(LONG, LONG, phase, 999 * 10**9 + 400, 888_000.0, 123_456) for phase in door.PHASES])


def test_eighty_columns_are_enough_and_no_number_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = phase_table(wide())
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("999 G") == len(door.PHASES) + 2 * 2 + 2 * 2
    assert len(re.findall(r"\b888 ms", text)) == 2 * 4  # with the totals
    assert len(re.findall(r"\b123456\b", text)) == len(door.PHASES) + 2 * 4
    names = "".join([line[:21].strip() for line in text[text.index("encoder") :].splitlines()])
    assert names.startswith(LONG)  # wrapped, not truncated


def test_a_wider_terminal_shows_long_names_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert len(re.findall(rf"^{re.escape(LONG)} ", phase_table(wide()), re.MULTILINE)) == 2


def test_numbers_are_flush_right() -> None:
    lines = phase_table(made()).splitlines()
    for header in [k for k, line in enumerate(lines) if line.startswith(("   ", "by "))][-1:]:
        rows = [line for line in lines[header + 2 : lines.index("", header)] if not line.startswith("-")]
        assert len({len(line) for line in rows}) == 1


def test_text_has_no_colours_and_no_trailing_blanks_and_a_terminal_has_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = phase_table(made())
    assert "\x1b" not in text
    assert not re.search(r"[ \t]$", text, re.MULTILINE)
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    with terminal.capture() as captured:
        terminal.print(renderable(made()))
    assert "\x1b[1m" in captured.get()
    assert re.sub(r"\x1b\[[\d;]*m| +$", "", captured.get(), flags=re.MULTILINE).rstrip() == text


def test_a_real_step_fits_a_screen() -> None:
    text = phase_table(trained())
    assert len(text.splitlines()) <= 40
    assert cells(text, "forward")[0] == quantity(trained().forward.flops)
    linear = next(group for group in trained().by("op") if group.name == "linear")
    forward, backward = linear.phases["forward"].flops, linear.phases["backward"].flops
    assert cells(text, "linear")[:3] == [quantity(forward), quantity(backward), f"{backward / forward:.2f}"]


# ---- TensorBoard


def scalars(directory: Path) -> dict[tuple[str, int], float]:
    """Returns what TensorBoard reads from the folder: a map from (tag, step) to the value."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(directory)).Reload()
    return {(tag, event.step): event.value for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}


def test_tensorboard_gets_phases_and_modules(tmp_path: Path) -> None:
    to_tensorboard(made(), tmp_path, step=3)
    found = scalars(tmp_path)
    assert found["flops/forward", 3] == 12_853_248 + 164_480 + 2_560
    assert found["seconds/backward", 3] == pytest.approx(6e-4)
    assert found["bytes/total", 3] == 400 * 17
    assert found["module_flops/2/backward", 3] == 328_320
    assert found["module_seconds/0/forward", 3] == pytest.approx(3e-4)
    assert found["module_flops/outside/optimizer", 3] == 1_017_700
    assert not [tag for tag, _ in found if "recompute" in tag or "other" in tag]
    phases, modules = 5, 2 + 2 + 4  # phases with the total; two modules with two passes each, and four phases outside modules
    assert len(found) == 4 * (phases + modules)


def test_tensorboard_gets_no_seconds_where_none_were_measured(tmp_path: Path) -> None:
    to_tensorboard(made(timed=False, spans=None), tmp_path)
    assert not [tag for tag, _ in scalars(tmp_path) if "seconds" in tag]


def test_without_tensorboardx_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(pb.PullbackError, match=r"pip install 'pullback\[tensorboard\]'"):
        to_tensorboard(made(), tmp_path)


def test_tensorboard_gets_a_real_step(tmp_path: Path) -> None:
    to_tensorboard(trained(), tmp_path)
    found = scalars(tmp_path)
    assert found["matmul_flops/total", 0] == 2 * (13_008_896 + 13_172_736)
    assert found["module_matmul_flops/0/forward", 0] == 2 * 2 * 64 * 784 * 128


# ---- comparison of two profiles


def test_only_what_changed_is_told() -> None:
    after = [*STEP[:1], row("linear", "0", "forward", 25_706_496, 310.0), *STEP[2:]]
    found = compare(made(), made(*after))
    assert found.rows == [
        Change("phase", "forward", "flops", 13_020_288, 25_873_536),
        Change("phase", "total", "flops", 27_229_028, 40_082_276),
        Change("op", "linear", "flops", 26_199_296, 39_052_544),
        Change("module", "0", "flops", 25_706_496, 38_559_744),
    ]
    assert found.rows[-1].ratio == 1.5
    assert cells(str(found), "linear")[-3:] == ["26,199,296", "39,052,544", "1.49"]
    assert str(found).splitlines()[-1] == "times within 10% count as equal"


def test_times_count_beyond_the_noise() -> None:
    slower = made(*STEP[:1], STEP[1]._replace(figures=row("", "", "", 12_853_248, 600.0).figures), *STEP[2:])
    changes = compare(made(), slower).rows
    assert [(c.axis, c.name, c.figure) for c in changes] == [("op", "linear", "seconds"), ("module", "0", "seconds")]
    assert changes[0].ratio == pytest.approx(1060 / 760)
    assert compare(made(), slower, noise=0.5).rows == []


def test_what_ran_in_one_of_the_two_is_told_as_such() -> None:
    before, after = made(*STEP, row("tanh", "1", "forward", 64, 3.0)), made(*STEP, row("relu", "1", "forward", 64, 3.0))
    changes = [c for c in compare(before, after).rows if c.axis == "op"]
    assert {(c.name, c.figure, c.before, c.after) for c in changes if c.figure != "seconds"} == {
        ("tanh", "flops", 64, None), ("tanh", "bytes", 400, None), ("tanh", "launches", 1, None),
        ("relu", "flops", None, 64), ("relu", "bytes", None, 400), ("relu", "launches", None, 1),
    }
    assert all([math.isnan(c.ratio) for c in changes])
    text = str(compare(before, after))
    assert len(re.findall("only before", text)) == len(re.findall("only after", text)) == 4
    assert max(map(len, text.splitlines())) <= 80


def test_a_ratio_that_is_almost_one_has_the_digits_that_tell() -> None:
    after = made(*STEP[:-1], row("adam", "", "optimizer", 1_017_701, 86.0))
    assert float(cells(str(compare(made(), after)), "adam")[-1]) == pytest.approx(1_017_701 / 1_017_700, abs=1e-7)


def test_a_profile_against_itself_has_not_changed() -> None:
    for prof in (made(), trained()):
        found = compare(prof, prof)
        assert found.rows == []
        assert str(found).startswith("nothing changed")
    assert "not compared" in str(compare(made(), made(timed=False, spans=None)))


def test_two_real_steps_differ_in_what_was_left_out() -> None:
    net = mlp()
    x, labels = pb.ones((8, 784)), pb.tensor(np.arange(8) % 10)
    profiles: list[Any] = []
    for backward in (True, False):
        with Profile(detail="count") as prof, pb.GradientTape() as tape:
            loss = nn.cross_entropy(net(x), labels)
            if backward:
                tape.gradient(loss, net.parameters())
        profiles.append(prof)
    found = compare(*profiles)
    assert {c.name for c in found.rows if c.axis == "phase"} == {"backward", "total"}
    flops = next(c for c in found.rows if (c.name, c.figure) == ("backward", "flops"))
    assert (flops.before, flops.after) == (profiles[0].backward.flops, None)


def test_a_comparison_shows_in_colours_too() -> None:
    found = compare(made(), made(*STEP[:-1]))
    assert as_text(found.__rich__()) == str(found)
    assert repr(found) == f"Comparison({len(found.rows)} changes)"


def test_the_method_compares_as_the_function_does() -> None:
    prof = trained()
    assert (prof.compare(prof).noise, prof.compare(prof, noise=0.5).noise) == (0.1, 0.5)
    rows, slow = prof.rows, max(prof.rows, key=lambda row: row.figures.seconds)
    slower = slow._replace(figures=replace(slow.figures, seconds=1.5 * slow.figures.seconds))
    after = made(*[slower if row is slow else row for row in rows])
    assert prof.compare(after).rows == compare(prof, after).rows
    assert prof.compare(after, noise=0.9).rows == compare(prof, after, noise=0.9).rows
    assert prof.compare(after, noise=0.9).rows != prof.compare(after).rows


def test_a_figure_that_was_zero_has_no_ratio() -> None:
    before, after = made(*STEP, row("copy", "1", "forward", 0, 3.0)), made(*STEP, row("copy", "1", "forward", 64, 3.0))
    change = next(c for c in compare(before, after).rows if (c.axis, c.name, c.figure) == ("op", "copy", "flops"))
    assert (change.before, change.after) == (0, 64)
    assert cells(str(compare(before, after)), "copy")[-2:] == ["0", "64"]


def test_words_of_the_tables_are_explained_below_them_and_notebooks_show_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    with pb.profile() as prof:
        nn.Linear(2, 2)(pb.ones((1, 2)))
    told = " ".join(str(prof).split())
    assert "special: exp, log, tanh, sqrt, divisions, counted apart; outside: of no module" in told
    assert prof._repr_html_() == f"<pre>{html.escape(str(prof))}</pre>"
