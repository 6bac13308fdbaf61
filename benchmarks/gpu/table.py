"""Makes README's tables of a GPU from the files in benchmarks/results.

    python3 benchmarks/gpu/table.py             writes the tables into README.md
    python3 benchmarks/gpu/table.py FILE...     first merges these results files into those in benchmarks/results

A figure that no file holds becomes "not measured".
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import workloads
from results import load, merged, replace
from workloads import PRECISIONS, WAYS

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
BEGIN, END = "<!-- GPU figures: written by benchmarks/gpu/table.py -->", "<!-- end of the GPU figures -->"
NOTHING = "not measured"

Key = tuple[str, str, str, str]
Row = Mapping[str, Any]


# ---- reading


def newest(folder: Path) -> dict[str, Any]:
    """Returns the results of the GPU that was measured last, each stage from its latest day. Empty if there are no results."""
    found = sorted([load(path) for path in folder.glob("*.json")], key=lambda data: data["date"])
    found = [data for data in found if not data["simulated"]]
    if not found:
        return {"gpu": "", "date": "", "simulated": False, "commands": {}}
    out = found[0]
    for data in [data for data in found if data["gpu"] == found[-1]["gpu"]]:
        out = {**merged(out, data), "gpu": data["gpu"], "date": data["date"]} if out["gpu"] == data["gpu"] else data
    return out


def rows_of(data: Mapping[str, Any], *commands: str) -> list[Row]:
    """Returns the rows of these commands, ordered by stage."""
    return [
        row for name in commands for stage in data["commands"].get(name, {"stages": {}})["stages"].values() for row in stage["rows"]
    ]


def times(data: Mapping[str, Any]) -> dict[Key, Row]:
    """Returns the measured rows by side, name, precision and way. Rows of `figures` take precedence over rows of `rivals`."""
    keyed = lambda row: (row["side"], row["name"], row.get("precision", ""), row.get("way", ""))
    return {keyed(row): row for row in rows_of(data, "rivals", "figures") if "us" in row}


# ---- words


def duration(us: float) -> str:
    for limit, scale, unit in ((1e3, 1.0, "µs"), (1e6, 1e-3, "ms")):
        if us < limit:
            return f"{us * scale:.3g} {unit}"
    return f"{us * 1e-6:.3g} s"


def cell(row: Row | None) -> str:
    return duration(row["us"]["median"]) if row else NOTHING


def ratio(ours: Row | None, theirs: Row | None) -> str:
    return f"{ours['us']['median'] / theirs['us']['median']:.2f}" if ours and theirs else ""


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(["|" + "|".join([f" {cell} " if cell else " " for cell in line]) + "|" for line in lines])


# ---- the tables


def steps(found: Mapping[Key, Row], simulated: bool = False) -> str:
    """Returns the table of training steps: one row for each network and precision."""
    head = ("Adam step", "products in", "eager", "captured", f"{workloads.STEPS} steps a call, each", "torch, one CUDA graph",
            "`jax.jit`", "captured / torch", "captured / JAX")  # fmt: skip
    out = []
    for net in [*workloads.nets(simulated), *workloads.decoders(simulated)]:
        for precision in PRECISIONS:
            get = lambda side, way, net=net, precision=precision: found.get((side, net.name, precision, way))
            ours, torch, jax = [get(side, WAYS[1]) for side in ("pullback", "torch", "jax")]
            eager, several = get("pullback", WAYS[0]), get("pullback", WAYS[2])
            cells = [cell(row) for row in (eager, ours, several, torch, jax)]
            out.append((net.name, precision, *cells, ratio(ours, torch), ratio(ours, jax)))
    return grid(head, out)


def singles(found: Mapping[Key, Row], simulated: bool = False) -> str:
    """Returns the table of single kernels, or a sentence if none was measured."""
    if not any([single.name == key[1] for key in found for single in workloads.singles(simulated)]):
        return f"Single kernels: {NOTHING}."
    out = []
    for single in workloads.singles(simulated):
        ours, torch = [found.get((side, single.name, single.precision, "")) for side in ("pullback", "torch")]
        out.append((single.name, single.precision, cell(ours), rate(ours), cell(torch), ratio(ours, torch)))
    return grid(("kernel", "precision", "pullback", "of a copy, or TFLOP/s", "torch", "pullback / torch"), out)


def rate(row: Row | None) -> str:
    if row and "share" in row:
        return f"{100 * row['share']:.0f} %"
    return f"{row['tflop_per_s']:.3g}" if row and "tflop_per_s" in row else ""


def checks(data: Mapping[str, Any]) -> str:
    """Returns the outcomes of the checks as a list in Markdown."""
    stages = data["commands"].get("tests", {"stages": {}})["stages"]
    lines = []
    for name in ("tests", "memcheck", "racecheck", "soak", "verify"):
        stage = stages.get(name)
        lines.append(f"- {name}: {NOTHING if stage is None else first_line(stage['outcome'])}")
    equal = [row for row in rows_of(data, "figures") if row.get("name") == "weights are equal"]
    words = (("the same" if equal[-1]["equal"] else "different") + " bits on " + ", ".join(equal[-1]["on"])) if equal else NOTHING
    rows = [row for row in rows_of(data, "figures") if row.get("precision") == "everywhere" and "ratio" in row]
    ratios = "; ".join([f"{row['name']}: {row['ratio']['median']:.2f}" for row in rows]) or NOTHING
    lines += [f'- weights after 200 steps under "everywhere": {words}', f'- captured steps, "everywhere" / "machine": {ratios}']
    return "\n".join(["Checks on the GPU:", "", *lines])


def first_line(text: str) -> str:
    return text.partition("\n")[0][:160]


def copies(found: Mapping[Key, Row]) -> str:
    """Returns a line with the bandwidth of each way to copy."""
    rates = {key[1]: row["gb_per_s"] for key, row in found.items() if row.get("group") == "copy"}
    if not rates:
        return f"Bandwidth of a copy on the device, bytes read and written: {NOTHING}."
    return "Bandwidth on the device, bytes read and written: " + "; ".join([f"{k}: {v:,.0f} GB/s" for k, v in rates.items()]) + "."


def section(data: Mapping[str, Any]) -> str:
    """Returns the text that belongs between README's two marks."""
    found = times(data)
    when = f"{data['gpu']}, {data['date']}." if data["gpu"] else "No GPU has been measured yet."
    head = f"{when} `benchmarks/gpu/run.sh figures` and `run.sh tests` on a machine with a GPU fill this in."
    if data["gpu"]:
        head = f"{when} Medians of nine rounds, each library in a separate process (`benchmarks/gpu/run.sh figures`)."
    return "\n\n".join([head, steps(found), singles(found), copies(found), checks(data)])


def summary(data: Mapping[str, Any], command: str, names: Sequence[str]) -> str:
    """Returns the results of a command for the screen: the tables of its times, then the outcomes of these stages."""
    stages = {name: stage for name, stage in data["commands"][command]["stages"].items() if name in names}
    word = {True: "ok    ", False: "FAILED"}
    lines = [f"   {word[x['ok']]} {x['seconds']} s  {name}: {first_line(x['outcome'])}" for name, x in stages.items()]
    found = times(data)
    tables = [steps(found, data["simulated"]), singles(found, data["simulated"])] if command != "tests" and found else []
    return "\n".join([*tables, *lines])


def with_section(text: str, words: str) -> str:
    """Returns the README with these words between its marks. Raises ValueError if the pair of marks does not occur exactly once."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"README.md needs one place between {BEGIN} and {END}.")
    return pattern.sub(lambda _: f"{BEGIN}\n{words}\n{END}", text)


def take_in(path: Path, folder: Path) -> Path:
    """Merges a results file into the file of the same name in the folder.

    Raises ValueError if the results are from a simulated run.
    """
    data = load(path)
    if data["simulated"]:
        raise ValueError(f"{path} is of a simulated run: its numbers mean nothing, and do not belong into {folder}.")
    to = folder / path.name
    if to.exists():
        data = merged(load(to), data)
    replace(to, json.dumps(data, indent=1) + "\n")
    return to


def main() -> None:
    try:
        for name in sys.argv[1:]:
            print(take_in(Path(name), FOLDER))
        replace(README, with_section(README.read_text(encoding="utf-8"), section(newest(FOLDER))))
    except (OSError, ValueError) as error:
        sys.exit(f"table.py: {error}")


if __name__ == "__main__":
    main()
