"""Writes what benchmarks/results says about GPUs into README.md and docs/gpu_speed.md.

    python3 benchmarks/gpu/table.py             writes both
    python3 benchmarks/gpu/table.py FILE...     first merges these results files into those in benchmarks/results

A figure that no file holds becomes "not measured".
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import singles

import workloads
from results import load, merged, replace
from workloads import CAPTURED, EAGER, SEVERAL, STEPS

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "benchmarks" / "results"
README, PAGE = ROOT / "README.md", ROOT / "docs" / "gpu_speed.md"
BEGIN, END = "<!-- GPU figures: written by benchmarks/gpu/table.py -->", "<!-- end of the GPU figures -->"
NOTHING = "not measured"
EQUAL = 0.03  # two times whose ratio differs from 1 by less are called equal
OURS, TORCH, JAX = "pullback", "torch", "jax"
COMPILED = "torch.compile"

Row = Mapping[str, Any]


# ---- reading


def newest_first(folder: Path) -> list[dict[str, Any]]:
    """Returns the files of real GPUs, the newest first. Figures of two files are never combined: rivals and sources change."""
    found = [data for path in folder.glob("*.json") if not (data := load(path))["simulated"]]
    return sorted(found, key=lambda data: data["date"], reverse=True)


def rows_of(data: Mapping[str, Any], *commands: str) -> list[Row]:
    """Returns the rows of these commands, ordered by stage."""
    return [
        row for name in commands for stage in data["commands"].get(name, {"stages": {}})["stages"].values() for row in stage["rows"]
    ]


class Times:
    """The measured rows of one GPU. If two commands measured the same, the row of `figures` counts."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.rows = [row for row in rows_of(data, "rest", "figures") if "us" in row and "side" in row]
        key = lambda row: (row["side"], row["name"], *[row.get(part, "") for part in ("precision", "way", "variant")])
        self._found = {key(row): row for row in self.rows}

    def get(self, side: str, name: str, precision: str, way: str = "", variant: str = "") -> Row | None:
        return self._found.get((side, name, precision, way, variant))

    def best(self, *key: str) -> Row | None:
        """Returns the fastest of a rival's forms of the same work."""
        forms = [row for known, row in self._found.items() if known[:-1] == key]
        return min(forms, key=lambda row: row["us"]["median"], default=None)

    def rounds_tf32(self, name: str) -> bool:
        """False if pullback's rows in tf32 have the float32 rows' result to the last bit: then the float32 kernels ran."""
        rows = [self.get(OURS, name, precision, CAPTURED) for precision in ("float32", "tf32")]
        results = [tuple([row.get(key) for key in ("error", "loss_first")]) for row in rows if row]
        return len({*results}) != 1 or len(results) < 2 or results[0] == (None, None)


# ---- words


def duration(us: float) -> str:
    for limit, scale, unit in ((1e3, 1.0, "µs"), (1e6, 1e-3, "ms")):
        if us < limit:
            return f"{us * scale:.3g} {unit}"
    return f"{us * 1e-6:.3g} s"


def cell(row: Row | None) -> str:
    return short(row) + (f" ({row['variant']})" if row and row.get("variant") else "")


def short(row: Row | None) -> str:
    return duration(row["us"]["median"]) if row else NOTHING


def quotient(ours: Row | None, theirs: Row | None) -> float | None:
    """Returns pullback's time over the rival's: the median of the rounds if they were timed in turns."""
    if ours is None or theirs is None:
        return None
    return theirs["ratio"]["median"] if "ratio" in theirs else ours["us"]["median"] / theirs["us"]["median"]


def ratio(ours: Row | None, theirs: Row | None) -> str:
    found = quotient(ours, theirs)
    if found is None or theirs is None:
        return ""
    spread = f" ({theirs['ratio']['q1']:.2f}–{theirs['ratio']['q3']:.2f})" if "ratio" in theirs else ""
    return f"{found:.2f}{spread}"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(["|" + "|".join([f" {cell} " if cell else " " for cell in line]) + "|" for line in lines])


# ---- training steps


class Step:
    """The training step of a network in one precision: pullback's rows, and the rivals' rows of the same ways."""

    def __init__(self, times: Times, net: Any, precision: str) -> None:
        get = lambda side, way, variant="": times.get(side, net.name, precision, way, variant)
        self.net, self.precision = net.name, precision
        self.eager, self.one, self.several = [get(OURS, way) for way in (EAGER, CAPTURED, SEVERAL)]
        self.torch_eager, self.torch_one, self.torch_several = [get(TORCH, way) for way in (EAGER, CAPTURED, SEVERAL)]
        self.jax_one, self.jax_several = [times.best(JAX, net.name, precision, way) for way in (CAPTURED, SEVERAL)]
        self.compiled_one, self.compiled_several = [get(TORCH, way, COMPILED) for way in (CAPTURED, SEVERAL)]
        if precision == "tf32" and not times.rounds_tf32(net.name):
            self.precision = "tf32 (pullback: float32)"


def steps_of(times: Times, simulated: bool = False) -> list[Step]:
    return [Step(times, net, precision) for net in workloads.workloads(simulated) for precision in net.precisions]


def steps(times: Times, simulated: bool = False) -> str:
    """Returns the table of training steps: each way beside the same way of the rivals."""
    head = ("Adam step", "products in", "eager", "torch", "one step a call", "torch, one CUDA graph", "`jax.jit`",
            f"{STEPS} steps a call, each", f"torch, one graph of {STEPS}", "JAX `lax.scan`, its best", "pullback / torch",
            "pullback / JAX")
    out = []
    for s in steps_of(times, simulated):
        cells = [s.eager, s.torch_eager, s.one, s.torch_one, s.jax_one, s.several, s.torch_several, s.jax_several]
        ratios = [ratio(s.several, s.torch_several), ratio(s.several, s.jax_several)]
        out.append((s.net, s.precision, *map(cell, cells), *ratios))
    return grid(head, out)


def short_steps(times: Times) -> str:
    """Returns the measured rows of that table without eager steps."""
    head = ("Adam step, products in", "one step a call", "torch", "JAX", f"{STEPS} steps a call, each", "torch", "JAX",
            "pullback / torch", "pullback / JAX")
    out = []
    for s in steps_of(times):
        cells = [s.one, s.torch_one, s.jax_one, s.several, s.torch_several, s.jax_several]
        if any(cells):
            ratios = [ratio(s.several, s.torch_several), ratio(s.several, s.jax_several)]
            out.append((f"{s.net}, {s.precision}", *map(cell, cells), *ratios))
    return grid(head, out) if out else f"Training steps: {NOTHING}."


def verdict(pairs: Sequence[tuple[Row | None, Row | None]], words: str) -> str:
    """Returns a sentence that says in how many rows a rival is slower, and in how many it is faster."""
    found = [one for ours, theirs in pairs if (one := quotient(ours, theirs)) is not None]
    if not found:
        return f"Against {words}: {NOTHING}."
    faster, slower = len([x for x in found if x < 1 - EQUAL]), len([x for x in found if x > 1 + EQUAL])
    equal = f"equal within {100 * EQUAL:.0f} % in {len(found) - faster - slower}"
    span = f"{min(found):.2f} to {max(found):.2f} of its time (median {statistics.median(found):.2f})"
    return f"Against {words} pullback takes {span}: it is faster in {faster} of {len(found)} rows, slower in {slower} and {equal}."


def verdicts(data: Mapping[str, Any], times: Times) -> str:
    """Returns what the table says, like for like, with the rivals' versions."""
    found, machine = steps_of(times), data["commands"].get("figures", {}).get("machine") or {}
    named = lambda name, package: f"{name} {machine.get('packages', {}).get(package) or ''}".strip()
    forms = sorted({row.get("variant", "as it is") for row in times.rows if row["side"] == JAX})
    torch = verdict([(s.several, s.torch_several) for s in found], f"{named('torch', 'torch')}, one graph of {STEPS} steps,")
    jax = verdict([(s.several, s.jax_several) for s in found], f"{named('JAX', 'jax')}, `lax.scan` of {STEPS} steps,")
    return f"{torch} {jax} Forms of JAX that were timed: {', '.join(forms) or 'none'}."


def compiled(times: Times) -> str:
    """Returns the table of steps whose loss and gradient torch.compile has fused, or a sentence."""
    head = ("Adam step, products in", f"{COMPILED}, one step a call", "pullback / it", f"{COMPILED}, {STEPS} steps a call, each",
            "pullback / it")
    out = []
    for s in steps_of(times):
        if s.compiled_one or s.compiled_several:
            cells = [(s.one, s.compiled_one), (s.several, s.compiled_several)]
            out.append((f"{s.net}, {s.precision}", *[text for ours, row in cells for text in (short(row), ratio(ours, row))]))
    return grid(head, out) if out else f"{COMPILED}: {NOTHING}."


# ---- single kernels


def best_rate(times: Times) -> float:
    """Returns the highest GB/s that any kernel of any library moved, which shares are relative to."""
    return max([row["gb_per_s"] for row in times.rows if "gb_per_s" in row], default=0.0)


def single_kernels(times: Times, simulated: bool = False) -> str:
    """Returns the table of single kernels, or a sentence if none was measured."""
    chosen = singles.singles(simulated)
    if not any([times.get(OURS, single.name, single.precision) for single in chosen]):
        return f"Single kernels: {NOTHING}."
    most = best_rate(times)
    out = []
    for single in chosen:
        ours, torch = [times.get(side, single.name, single.precision) for side in (OURS, TORCH)]
        out.append((single.name, single.precision, cell(ours), rate(ours, most), cell(torch), ratio(ours, torch)))
    head = ("kernel", "precision", "pullback", "of the best rate, or TFLOP/s", "torch", "pullback / torch")
    words = f"The best rate, of all kernels and copies of both libraries, is {most:,.0f} GB/s, read and written."
    return "\n\n".join([grid(head, out), words])


def rate(row: Row | None, most: float) -> str:
    if row and "gb_per_s" in row:
        return f"{100 * row['gb_per_s'] / most:.0f} %"
    return f"{row['tflop_per_s']:.3g}" if row and "tflop_per_s" in row else ""


# ---- checks, and conditions


def first_line(text: str) -> str:
    return text.partition("\n")[0][:300]


def checks(data: Mapping[str, Any]) -> str:
    """Returns the outcomes of the checks as a list in Markdown."""
    lines = [f"- tests: {tests(data)}"]
    stages = {**stages_of(data, "tests"), **stages_of(data, "figures")}
    for name in ("smoke", "memcheck", "racecheck", "soak", "verify"):
        lines.append(f"- {name}: {first_line(stages[name]['outcome']) if name in stages else NOTHING}")
    equal = [row for row in rows_of(data, "figures") if row.get("name") == "weights are equal"]
    words = (("the same" if equal[-1]["equal"] else "different") + " bits on " + ", ".join(equal[-1]["on"])) if equal else NOTHING
    rows = [row for row in rows_of(data, "figures") if row.get("precision") == "everywhere" and "machine_us" in row]
    ratios = "; ".join([f"{row['name']}: {row['ratio']['median']:.2f}" for row in rows]) or NOTHING
    lines += [f'- weights after 200 steps under "everywhere": {words}', f'- captured steps, "everywhere" / "machine": {ratios}']
    return "\n".join(lines)


def stages_of(data: Mapping[str, Any], command: str) -> Mapping[str, Any]:
    return data["commands"].get(command, {"stages": {}})["stages"]


def tests(data: Mapping[str, Any]) -> str:
    """Returns a sentence about the tests: how many passed, and whether all of them ran."""
    runs = [stages_of(data, command).get(stage) for command, stage in (("tests", "tests"), ("rest", "missing tests"))]
    stage = max([run for run in runs if run], key=lambda run: run.get("begun", ""), default=None)
    row = next((row for row in (stage or {"rows": []})["rows"] if row.get("name") == "tests" and "passed" in row), None)
    if stage is None or row is None:
        return NOTHING if stage is None else first_line(stage["outcome"])
    words = f"{row['passed']:,} passed, {row['failed']:,} failed and {row['skipped']:,} were skipped"
    if row.get("not_reached"):
        return f"{words}. {row['not_reached']:,} were not reached in the time of the run"
    return f"{words}, until the run was interrupted at its limit" if stage["outcome"].startswith("interrupted") else words


def conditions(data: Mapping[str, Any]) -> str:
    """Returns a list in Markdown of what the figures depend on, and of what a reader should know before comparing them."""
    lines = []
    for name, command in data["commands"].items():
        machine = command.get("machine") or {}
        gpu = machine.get("gpu") or {}
        packages = {key: version for key, version in (machine.get("packages") or {}).items() if version}
        lines.append(
            f"- `{name}`, {command.get('begun', '')}: {machine.get('processor') or 'the processor was not recorded'}, "
            f"{machine.get('processors')} of its cores; driver for {gpu.get('driver')}, nvidia-smi: {machine.get('nvidia_smi')}; "
            f"nvcc {machine.get('nvcc')}; Python {machine.get('python')}; "
            + ", ".join([f"{key} {version}" for key, version in packages.items()])
        )
        trees = {stage.get("on", {}).get("sources") or command.get("sources") or "unknown" for stage in command["stages"].values()}
        short = ", ".join(sorted([tree[:12] for tree in trees]))
        lines.append(f"- `{name}` measured the sources {short} (hashes of what the package is built from)")
        lines += [f"- {remark}." for remark in command.get("remarks", [])]
    flags = {row["flags"] for row in rows_of(data, "figures") if row.get("flags")}
    lines += [f"- XLA_FLAGS of a variant of JAX: `{flag}`" for flag in sorted(flags)]
    failed = [row for row in rows_of(data, "figures", "rest") if "failed" in row]
    keys = ("side", "name", "precision", "way", "variant")
    lines += [f"- Failed: {', '.join([row[key] for key in keys if row.get(key)])}: {first_line(row['failed'])}" for row in failed]
    overfit = {row["name"] for row in Times(data).rows if (row.get("loss_after") or 1) < 1e-3}
    if overfit:
        names = "; ".join(sorted(overfit))
        lines.append(f"- Trained until the loss was below 0.001, so that gradients were nearly zeros: {names}")
    return "\n".join(lines)


# ---- the texts


def section(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns the text that belongs between README's two marks: the GPU that was measured last, like for like."""
    if not found:
        return "No GPU has been measured yet. `benchmarks/gpu/run.sh` measures one."
    times, data = Times(found[0]), found[0]
    absent = [net.name for net in workloads.workloads(False) if not any([row["name"] == net.name for row in times.rows])]
    remarks = [f"{remark}." for remark in data["commands"].get("figures", {}).get("remarks", [])]
    left = [f"{NOTHING.capitalize()} yet: {'; '.join(absent)}."] if absent else []
    return "\n\n".join([f"{data['gpu']}, {data['date']}. {verdicts(data, times)}", short_steps(times), " ".join([*remarks, *left])])


HEAD = f"""# Speed on a GPU

Written by `benchmarks/gpu/table.py` from the files in `benchmarks/results`, which `benchmarks/gpu/run.sh` makes. Rows in which
pullback is slower are here, too.

A step is forward, backward and Adam's update of one batch. Compare like with like: *one step a call* includes the host's part of a
call, which is large in JAX; *{STEPS} steps a call* hides it. torch's captured step is one `torch.cuda.graph` with
`Adam(fused=True, capturable=True)`. JAX's step is `jax.jit` with donated state, and its several steps are `lax.scan`. The fastest
form of JAX that was timed counts; if it is not the plain one, it is in brackets. tf32 and bfloat16 round the factors of products
(`pb.amp.autocast`), while weights and the optimizer stay in float32. torch's bfloat16 rows use its `autocast`. If a network's
result in tf32 has the bits of its float32 result, pullback ran float32 kernels, and the row says so. A ratio with a spread
(quartiles) is of rounds in turns.
"""


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns the whole page of figures."""
    parts = [HEAD.strip()]
    for data in found:
        times = Times(data)
        parts += [
            f"## {data['gpu']}, {data['date']}", "### Training steps", verdicts(data, times), steps(times), "### torch.compile",
            compiled(times), "### Single kernels", single_kernels(times), "### Checks", checks(data), "### Conditions",
            conditions(data),
        ]
    return "\n\n".join(parts if found else [*parts, "No GPU has been measured yet."]) + "\n"


def summary(data: Mapping[str, Any], command: str, names: Sequence[str]) -> str:
    """Returns the results of a command for the screen: the tables of its times, then the outcomes of these stages."""
    stages = {name: stage for name, stage in data["commands"][command]["stages"].items() if name in names}
    word = {True: "ok    ", False: "FAILED"}
    lines = [f"   {word[x['ok']]} {x['seconds']} s  {name}: {first_line(x['outcome'])}" for name, x in stages.items()]
    times = Times(data)
    if command == "tests" or not times.rows:
        return "\n".join(lines)
    return "\n".join([steps(times, data["simulated"]), single_kernels(times, data["simulated"]), *lines])


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
        found = newest_first(FOLDER)
        replace(README, with_section(README.read_text(encoding="utf-8"), section(found)))
        replace(PAGE, page(found))
    except (OSError, ValueError) as error:
        sys.exit(f"table.py: {error}")


if __name__ == "__main__":
    main()
