// The head of the page: the facts of the run, the most important figures, and the phases next to each other.

const KERNEL = "detail=\"kernel\" runs them launch by launch";

function head() {
  const { pullback, device, detail, python, date } = record.facts;
  const day = date.replace("T", " ").replace(/(:\d\d)?(\+00:00|Z)$/, " UTC");
  const facts = { pullback, device, detail, Python: python, date: day };
  return header({}, h1({}, "pullback profile"), ul({ class: "facts" }, ...Object.entries(facts).map(([name, fact]) =>
    li({ "data-fact": name.toLowerCase() }, name === "date" ? "" : `${name} `, span({}, fact)))));
}

function tile(name, value, title, note, { warning = false, bar = null } = {}) {
  const [digits, unit] = [].concat(value);
  return div({ class: warning ? "tile warning" : "tile", "data-tile": name }, h2({}, name),
    p({ class: "figure", title }, digits, unit ? span({ class: "unit" }, `\u00a0${unit}`) : null), bar, p({ class: "note" }, note));
}

/** Returns a bar that is filled to this share. */
function filled(share) {
  return div({ class: "stacked", "aria-hidden": "true" }, span({ class: "filled", style: `width:${100 * share}%` }));
}

function tiles() {
  return section({ class: "tiles", "aria-label": "Headline figures" }, timeTile(), outsideTile(), flopsTile(), ratioTile(),
    memoryTile(), coverageTile());
}

function timeTile() {
  const spent = phases.filter((phase) => record.phases[phase].seconds > 0);
  const note = spent.slice().sort((a, b) => record.phases[b].seconds - record.phases[a].seconds).slice(0, 2)
    .map((phase) => `${brief(record.phases[phase].seconds, "seconds")} ${phase}`).join(", ");
  return tile("Time", short(record.seconds, "seconds"), exact(record.seconds, "seconds"), note || "phases were not timed",
    { bar: spent.length ? stacked(record.phases, "seconds", record.total.seconds) : null });
}

/** Shows the share of the time outside kernels: Python, and the gaps between launches. */
function outsideTile() {
  if (!timed) return tile("Outside kernels", "–", "not measured", "launches were not timed; detail=\"kernel\" times them");
  const share = record.seconds ? Math.max(0, 1 - record.kernel_seconds / record.seconds) : 0;
  const gap = (share * record.seconds) / record.total.launches;
  const note = `${brief(record.kernel_seconds, "seconds")} in kernels, ${brief(gap, "seconds")} between launches`;
  const full = `${exact(share * record.seconds, "seconds")} of ${exact(record.seconds, "seconds")}`;
  return tile("Outside kernels", percent(share).split("\u00a0"), full, note, { bar: filled(share) });
}

function flopsTile() {
  const { flops, matmul_flops: products } = record.total;
  return tile("FLOPs", short(flops, "flops"), exact(flops, "flops"),
    flops ? `${percent(products / flops)} of them in products` : "nothing was computed",
    { bar: flops ? stacked(record.phases, "flops", flops) : null });
}

/** Shows the ratio of all FLOPs, as print(prof) does, and that of the FLOPs in products. */
function ratioTile() {
  const [forward, backward] = ["forward", "backward"].map((name) => record.phases[name]);
  const any = forward.matmul_flops || backward.matmul_flops;
  const products = any ? `in products ${times(backward.matmul_flops / forward.matmul_flops)}: ${brief(backward.matmul_flops, "flops")} `
    + `against ${brief(forward.matmul_flops, "flops")}` : "no products ran";
  const reason = (record.ratio || "").split(": ")[1];
  const note = reason ? `${products}; ${reason}` : products;
  return tile("Backward ÷ forward", times(backward.flops / forward.flops).split("\u00a0"),
    `all FLOPs: ${exact(backward.flops, "flops")} against ${exact(forward.flops, "flops")}`, note,
    { bar: forward.flops || backward.flops ? stacked(record.phases, "flops", record.total.flops) : null });
}

function memoryTile() {
  const { peak, live, peaks } = record.memory;
  const at = Object.keys(peaks).find((phase) => peaks[phase] === peak);
  if (!at) return tile("Peak memory", "–", "not measured", record.replayed ? `captured functions run as one piece; ${KERNEL}` : "nothing ran");
  return tile("Peak memory", short(peak, "bytes"), exact(peak, "bytes"), `in ${at}; ${brief(live, "bytes")} at the end`,
    { bar: filled(live / peak) });
}

function coverageTile() {
  const unknown = Object.entries(record.unknown);
  const words = unknown.map(([kernel, count]) => (count > 1 ? `${kernel} (${count} times)` : kernel)).join(", ");
  const all = `the cost of all ${whole(record.total.launches)} launches is known`;
  const others = record.elsewhere ? `; ${whole(record.elsewhere)} launches of other threads are not in this profile` : "";
  const note = (unknown.length ? `Cost not known, counted as 0: ${words}` : all) + others;
  return tile("Coverage", percent(record.coverage).split("\u00a0"), `${record.coverage} of launches`, note,
    { warning: unknown.length > 0, bar: filled(record.coverage) });
}

const SIDE_BY_SIDE = ["seconds", "flops", "bytes", "launches"];

function phaseBars() {
  const most = Object.fromEntries(SIDE_BY_SIDE.map((m) => [m, Math.max(...phases.map((name) => valueOf(record.phases[name], m)))]));
  const cell = (name, measure) => {
    const value = valueOf(record.phases[name], measure);
    const width = most[measure] ? (100 * value) / most[measure] : 0;
    const fill = width ? span({ class: name, style: `width:${width}%` }) : null;
    return td({ "data-phase": name, "data-measure": measure, "data-value": value, title: exact(value, measure) },
      div({ class: "bar", "aria-hidden": "true" }, fill), ...number(value, measure));
  };
  const heads = SIDE_BY_SIDE.map((m) => th({ scope: "col" }, m === "seconds" ? "Time" : MEASURES[m].name));
  return section({ class: "card" }, h2({}, "Phases"), div({ class: "scroll" }, table({ class: "phases" },
    thead({}, tr({}, th({ scope: "col" }, "Phase"), ...heads)),
    tbody({}, ...phases.map((name) => tr({ "data-name": name }, th({ scope: "row", class: `swatch ${name}` }, name),
      ...SIDE_BY_SIDE.map((m) => cell(name, m))))),
    tfoot({}, tr({}, th({ scope: "row" }, "total"), ...SIDE_BY_SIDE.map((m) => totalCell(m)))))));
}

function totalCell(measure) {
  const value = valueOf(record.total, measure);
  const data = { "data-phase": "total", "data-measure": measure, "data-value": value };
  return td({ ...data, title: exact(value, measure) }, ...number(value, measure));
}
