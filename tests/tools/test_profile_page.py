"""The page of a profile: a browser shows the figures that were measured, in the light and in the dark theme."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import browser
import pullback as pb
from made_profile import trained
from pullback.launch import door
from pullback.profiling import Profile, record as recording
from pullback.profiling.page import page
from pullback.profiling.peaks import Peaks
from pullback.profiling.record import record
from pullback.profiling.roofline import roofline

REASON = browser.why_not()
in_browser = pytest.mark.skipif(REASON is not None, reason=str(REASON))
DEVICE = Peaks("a device", "0", "v4", 2, {"float32": 1e11, "float64": 5e10}, 2e10, 1e10, 1e-6)
NASTY = '</script ><!--<script></script><img src=x onerror=alert(1)>&quot;"naïve"\u2028\\'


@pytest.fixture(scope="module", autouse=True)
def _known_peaks() -> Iterator[None]:
    """Sets fixed peaks, so that no test has to measure them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Profile, "roofline", lambda self: roofline(self, best=DEVICE))
        yield


@pytest.fixture(scope="module")
def prof() -> Any:
    return trained(steps=1, detail="phase")


@pytest.fixture(scope="module")
def file(prof: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    prof.to_html(path)
    return path


# ---- the page in a browser

OVERVIEW = ("seconds", "flops", "bytes")
MEASURES = (
    "flops", "matmul_flops", "executed_flops", "special_ops", "integer_ops", "bytes", "bytes_read", "bytes_written", "launches",
)
CELL = "({ dataset, textContent }) => [dataset.measure, dataset.phase, dataset.value, textContent]"
PHASES = f'[...document.querySelectorAll(".phases td")].map({CELL})'
READ = f"""[...document.querySelectorAll("#figures tbody tr, #figures tfoot tr")].map((row) => [row.dataset.name,
  [...row.querySelectorAll("td:not(.extent):not(:empty)")].map({CELL})])"""
PREFIXES = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}


def value(figures: Any, measure: str) -> float:
    return 0 if figures is None else getattr(figures, measure)


def assert_reads(text: str, wanted: float) -> None:
    """Asserts that the text is this number to three digits, with any prefix."""
    digits, prefix = re.fullmatch(r"([\d.,]+)\s*([TGMkmµn]?)(?:B|s|×)?", text).groups()  # type: ignore[union-attr]
    number = float(digits.replace(",", "")) * PREFIXES[prefix]
    assert number == pytest.approx(wanted, rel=0.0051), text


def show(axis: str, measure: str = "overview") -> str:
    """Returns the script of a browser step that shows the table of this axis and measure, and reads it."""
    choose = 'document.querySelector(".choice select")'
    return f"""(document.getElementById("by-{axis}").click(), {choose}.value = "{measure}",
      {choose}.dispatchEvent(new Event("change")), {READ})"""


def assert_table(rows: Any, groups: Any, wanted: dict[tuple[str, str], Any]) -> None:
    """Asserts that each row has exactly the wanted figures of its group, and that its text shows these numbers."""
    by_name = {group.name: group for group in groups}
    assert {name for name, _ in rows[:-1]} == set(by_name)
    for name, cells in rows[:-1]:
        expected = {key: figure(by_name[name]) for key, figure in wanted.items()}
        found = {(measure, phase): float(number) for measure, phase, number, _ in cells}
        assert found == pytest.approx({key: number for key, number in expected.items() if number is not None}, rel=1e-9), name
        for measure, phase, _, text in cells:
            assert_reads(text, expected[measure, phase])


def ratio(group: Any, measure: str) -> float | None:
    forward, backward = group.phases.get("forward"), group.phases.get("backward")
    return value(backward, measure) / value(forward, measure) if backward and value(forward, measure) else None


def overview(timed: bool) -> dict[tuple[str, str], Any]:
    """Returns the columns of the overview, for a profile whose third phase is the optimizer's."""
    wanted: dict[tuple[str, str], Any] = {}
    for measure, phase in itertools.product(OVERVIEW if timed else OVERVIEW[1:], ("forward", "backward", "optimizer")):
        wanted[measure, phase] = lambda g, m=measure, p=phase: value(g.phases[p], m) if p in g.phases else None
    wanted["flops", "ratio"] = lambda g: ratio(g, "flops")
    wanted["launches", "total"] = lambda g: g.total.launches
    return wanted


@in_browser
def test_the_browser_tells_of_errors_and_requests(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text('<img src="missing.png"><script>console.warn("hm"); undefinedFunction()</script>', "utf-8")
    seen = browser.visit(path, ["1 + 1"])
    assert seen.answers == [2]
    assert any("hm" in line for line in seen.console)
    assert any("undefinedFunction" in line for line in seen.console)
    assert any(address.endswith("missing.png") for address in seen.requests)


@in_browser
def test_the_page_shows_the_figures_of_the_profile(prof: Any, file: Path) -> None:
    axes = ("op", "module", "line", "kernel", "order", "dtype")
    tiles = '[...document.querySelectorAll("[data-tile]")].map((x) => [x.dataset.tile, x.querySelector(".figure").textContent])'
    seen = browser.visit(file, [PHASES, tiles, *[show(axis) for axis in axes]])
    assert (seen.console, seen.requests) == ([], [file.as_uri()])
    phases, tiles, *tables = seen.answers
    shown = {"forward", "backward", "optimizer", "total"}
    assert {(phase, measure) for measure, phase, *_ in phases} == set(itertools.product(shown, (*OVERVIEW, "launches")))
    for measure, phase, number, text in phases:
        assert float(number) == pytest.approx(value(getattr(prof, phase), measure), rel=1e-9)
        assert_reads(text, value(getattr(prof, phase), measure))
    tile = {name: text.replace("\u00a0", " ") for name, text in tiles}
    assert_reads(tile["FLOPs"], prof.total.flops)
    assert_reads(tile["Backward ÷ forward"], prof.backward.flops / prof.forward.flops)
    assert_reads(tile["Time"], prof.seconds)
    assert tile["Coverage"] == "100 %"
    timed = prof.kernel_seconds > 0
    if timed:
        outside = float(tile["Outside kernels"].strip("<> %")) / 100
        assert outside == pytest.approx(max(0, 1 - prof.kernel_seconds / prof.seconds), abs=0.0051)
    else:
        assert tile["Outside kernels"] == "–"
    for axis, rows in zip(axes, tables):
        assert_table(rows, prof.by(axis), overview(timed))


@in_browser
def test_every_measure_has_a_table_of_all_phases(prof: Any, file: Path) -> None:
    some = [measure for measure in MEASURES if value(prof.total, measure)]
    listed = '[...document.querySelector(".choice select").options].map((x) => x.value)'
    seen = browser.visit(file, [listed, *[show("kernel", measure) for measure in some]])
    options, *tables = seen.answers
    assert set(options) - {"overview", "seconds"} == set(some)
    for measure, rows in zip(some, tables):
        wanted: dict[tuple[str, str], Any] = {
            (measure, phase): lambda g, p=phase, m=measure: value(g.phases[p], m) if p in g.phases else None
            for phase in ("forward", "backward", "optimizer")
        }
        wanted[measure, "ratio"] = lambda g, m=measure: ratio(g, m)
        wanted[measure, "total"] = lambda g, m=measure: value(g.total, m)
        assert_table(rows, prof.by("kernel"), wanted)
        total = {phase: float(number) for _, phase, number, _ in rows[-1][1]}
        assert total["total"] == value(prof.total, measure)


@in_browser
def test_columns_sort_both_ways_by_click_and_by_key(prof: Any, file: Path) -> None:
    head = """document.querySelector('#figures th[data-key="flops forward"]')"""
    column = '#figures tbody td[data-measure="flops"][data-phase="forward"]'
    state = f"""[{head}.getAttribute("aria-sort"), document.querySelectorAll('[aria-sort]:not([aria-sort="none"])').length,
      [...document.querySelectorAll('{column}')].map((x) => x.dataset.value)]"""
    names = '[...document.querySelectorAll("#figures tbody th")].map((x) => x.textContent)'
    seen = browser.visit(
        file,
        [
            f'({head}.querySelector("button").click(), {state})',
            {"key": "Return"},
            {"until": f'{head}.getAttribute("aria-sort") === "ascending"'},
            state,
            f"""(document.querySelector('#figures th[data-key="name"] button').click(), {names})""",
            '(document.getElementById("by-op").focus(), 0)',
            {"key": "Right"},
            {"until": 'document.activeElement.id === "by-module"'},
            '[...document.querySelectorAll("[role=tab][aria-selected=true]")].map((x) => x.id)',
        ],
    )
    (down, one, falling), (up, _, rising), by_name, _, tabs = seen.answers
    numbers = sorted([group.phases["forward"].flops for group in prof.by("op") if "forward" in group.phases])
    assert (down, up, one) == ("descending", "ascending", 1)
    assert [int(x) for x in rising if x] == numbers
    assert [int(x) for x in falling if x] == numbers[::-1]
    assert by_name == sorted([group.name for group in prof.by("op")])
    assert tabs == ["by-module"]
    assert seen.console == []


@in_browser
def test_the_drawings_are_of_the_same_figures(prof: Any, file: Path) -> None:
    data = record(prof)
    steps = [
        '[...document.querySelectorAll("rect.span")].map(({ dataset: x }) => [Number(x.begin), Number(x.end)])',
        """(() => { const chosen = [...document.querySelectorAll(".choice select")].at(-1);
          chosen.value = "flops"; chosen.dispatchEvent(new Event("change"));
          return [...document.querySelectorAll("[data-module]")].map(({ dataset: x }) => [x.module, Number(x.value)]); })()""",
        '[...document.querySelectorAll("g[data-kernel]")].map((x) => x.dataset.kernel)',
        'Number(document.querySelector("[data-peak]").dataset.peak)',
    ]
    spans, modules, kernels, peak = browser.visit(file, steps).answers
    assert spans == [[span.begin, span.end] for span in prof.spans]
    assert dict(modules) == {group.name: group.total.flops for group in prof.by("module") if group.total.flops}
    assert sorted(kernels) == sorted([row["kernel"] for row in data["roofline"] or [] if row["flops"] and row["seconds"]])
    assert peak == prof.memory.peak


# ---- colours

TEXTS = """(() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const shown = (colour) => colour && colour !== "none" && !/, 0\\)$/.test(colour);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || element.closest("script, style, noscript, title, option")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) continue;
    const style = getComputedStyle(element);
    const drawn = element instanceof SVGElement;
    const under = document.elementsFromPoint(box.x + Math.min(4, box.width / 2), box.y + box.height / 2)
      .filter((x) => x !== element && x.tagName !== "svg")
      .map((x) => getComputedStyle(x)[x instanceof SVGElement ? "fill" : "backgroundColor"]);
    const halo = drawn && style.stroke !== "none" ? style.stroke : null;
    found.push([node.textContent.trim(), drawn ? style.fill : style.color, halo ?? under.find(shown)]);
  }
  return found;
})()"""
NAMES = json.dumps(["--card", *[f"--{phase}" for phase in door.PHASES]])
COLOURS = f"""[{NAMES}.map((name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()),
  matchMedia("(prefers-color-scheme: dark)").matches, getComputedStyle(document.body).backgroundColor]"""
# Linear RGB as seen with each kind of colour blindness: Machado, Oliveira & Fernandes 2009, severity 1.
SIGHTS = {
    "all": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> Any:
    """Returns the linear RGB of "#rrggbb" or "rgb(r, g, b)"."""
    hexadecimal = re.fullmatch(r"#(..)(..)(..)", colour)
    parts = [int(x, 16) for x in hexadecimal.groups()] if hexadecimal else [float(x) for x in re.findall(r"[\d.]+", colour)[:3]]
    c = np.array(parts) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Returns the contrast ratio of WCAG 2."""
    low, high = sorted([float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other)])
    return (high + 0.05) / (low + 0.05)


def lab(rgb: Any) -> Any:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(rgb, 0, 1)
    xyz /= [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@in_browser
@pytest.mark.parametrize("dark", [False, True], ids=["day", "dark"])
def test_text_and_phases_stand_out(file: Path, dark: bool) -> None:
    seen = browser.visit(file, [TEXTS, COLOURS], dark=dark)
    texts, ((card, *phases), is_dark, behind) = seen.answers
    assert is_dark is dark
    assert (contrast(behind, "#000000") < 2) is dark
    assert len(texts) > 100
    weak = {words: contrast(colour, under) for words, colour, under in texts if contrast(colour, under) < 4.5}
    assert weak == {}
    assert min(contrast(card, phase) for phase in phases) >= 3
    for sight, matrix in SIGHTS.items():
        seen_as = [lab(np.array(matrix) @ linear(phase)) for phase in phases]
        closest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen_as, 2))
        assert closest > 15, sight  # at a distance of about 2, neighbouring colours can just be told apart


# ---- other pages


@in_browser
def test_the_page_fits_a_telephone(file: Path) -> None:
    seen = browser.visit(file, ["[innerWidth, document.documentElement.scrollWidth]"], width=400)
    [(width, needed)] = seen.answers
    assert needed <= width == 400


@in_browser
def test_names_may_be_anything(prof: Any, tmp_path: Path) -> None:
    data = record(prof)
    data["rows"][0] |= {"module": NASTY, "line": NASTY, "kernel": NASTY, "op": NASTY, "known": False}
    data |= {"unknown": {NASTY: 1}, "coverage": 0.9}
    path = tmp_path / "page.html"
    path.write_text(page(data), "utf-8")
    name = '[...document.querySelectorAll("#figures tbody tr")].map((x) => x.dataset.name)'
    steps = [f'(document.getElementById("by-{axis}").click(), {name})' for axis in ("op", "module", "line", "kernel")]
    seen = browser.visit(path, [*steps, "document.images.length", """document.querySelector(".tile.warning .note").textContent"""])
    *names, images, warning = seen.answers
    assert all(NASTY in found for found in names)
    assert NASTY in warning
    assert (images, seen.console) == (0, [])


@in_browser
def test_a_profile_of_counts_alone_has_a_page(tmp_path: Path) -> None:
    with pb.profile(detail="count") as prof:
        for _ in range(3):
            pb.exp(pb.ones(3))
    prof.to_html(tmp_path / "page.html")
    seen = browser.visit(tmp_path / "page.html", [PHASES, "document.querySelectorAll('.memory').length"])
    shown = {measure: float(number) for measure, phase, number, _ in seen.answers[0] if phase == "forward"}
    assert shown == {measure: value(prof.forward, measure) for measure in (*OVERVIEW, "launches")}
    assert seen.answers[1] > 0
    assert seen.console == []


@in_browser
def test_a_long_profile_is_drawn_whole(tmp_path: Path) -> None:
    x = pb.ones(2)
    with pb.profile() as prof:
        for _ in range(recording.MOST_LAUNCHES + 1):
            x + x
    prof.to_html(tmp_path / "page.html")
    seen = browser.visit(tmp_path / "page.html", ["document.querySelectorAll('.launch').length", "document.body.textContent"])
    assert seen.answers[0] <= 1  # one shape holds all launches of a phase
    assert "Of 5,001 launches the last 5,000 are drawn." in seen.answers[1]
    assert seen.console == []


@in_browser
def test_a_profile_of_nothing_says_so(tmp_path: Path) -> None:
    with pb.profile() as prof:
        pass
    prof.to_html(tmp_path / "page.html")
    steps = ["document.querySelector('main').textContent", "document.querySelectorAll('table').length"]
    seen = browser.visit(tmp_path / "page.html", steps)
    assert "Nothing ran in this profile" in seen.answers[0]
    assert seen.answers[1] == 0
    assert seen.console == []
