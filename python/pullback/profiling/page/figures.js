"use strict";
// Reads the record, and sums its rows.

const record = JSON.parse(document.getElementById("record").textContent);
const timed = record.kernel_seconds !== null;  // true if launches were timed, so that sums over launches have times

const MEASURES = {
  seconds: { name: "Kernel time", unit: "s" },
  flops: { name: "FLOPs", unit: "FLOPs" },
  matmul_flops: { name: "FLOPs in products", unit: "FLOPs" },
  executed_flops: { name: "executed FLOPs", unit: "FLOPs" },
  special_ops: { name: "special ops", unit: "special ops" },
  integer_ops: { name: "integer ops", unit: "integer ops" },
  bytes: { name: "Bytes", unit: "B" },
  bytes_read: { name: "bytes read", unit: "B" },
  bytes_written: { name: "bytes written", unit: "B" },
  launches: { name: "Launches", unit: "launches" },
};
const AXES = ["op", "module", "line", "kernel", "order", "dtype"];

/** Returns one figure of a phase, a row or a sum; null if it was not measured. */
function valueOf(figures, measure) {
  if (!figures) return 0;
  return measure === "bytes" ? figures.bytes_read + figures.bytes_written : figures[measure];
}

/** The names of the phases that have launches or took time, in the order of the record. */
const phases = Object.keys(record.phases).filter((name) => record.phases[name].launches || record.phases[name].seconds);

function sum(list) {
  const total = Object.fromEntries(Object.keys(MEASURES).map((measure) => [measure, 0]));
  for (const figures of list) {
    for (const measure of Object.keys(MEASURES)) if (figures) total[measure] += figures[measure] ?? valueOf(figures, measure);
  }
  if (!timed) total.seconds = null;
  return total;
}

/** Groups the rows by an axis: [{name, phases: {phase: figures}, total}], in the order in which the groups first ran. */
function grouped(axis) {
  const found = new Map();
  for (const row of record.rows) {
    const name = String(row[axis]);
    if (!found.has(name)) found.set(name, {});
    (found.get(name)[row.phase] ??= []).push(row);
  }
  return [...found].map(([name, of]) => {
    const sums = Object.fromEntries(Object.entries(of).map(([phase, rows]) => [phase, sum(rows)]));
    return { name, phases: sums, total: sum(Object.values(sums)) };
  });
}

/** The measures that bars and areas may be proportional to, the preferred one first: those that were measured and are not all 0. */
const extents = ["seconds", "flops", "bytes", "launches"].filter((measure) => record.rows.some((row) => valueOf(row, measure) > 0)
  && (measure !== "seconds" || timed));

/** Returns a row's name as the page shows it. */
function spoken(axis, name) {
  if (axis === "module" && name === "") return "outside of modules";
  if (axis === "line") return spokenLine(name);
  if (axis === "order") return ["0, what was computed", "1, its gradient", "2, the gradient of that"][name] ?? `${name}, of that`;
  return name;
}

function spokenLine(name) {
  const parts = /^"(.*)", line (\d+), in (.*)$/s.exec(name);
  return parts ? `${parts[1].split(/[\\/]/).pop()}:${parts[2]} in ${parts[3]}` : name || "not known";
}
