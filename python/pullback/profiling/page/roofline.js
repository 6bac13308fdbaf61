// The roofline chart: the rates of the kernels below the peaks of the device.

const MARKS = { compute: "circle", memory: "square", launch: "triangle" };
const TOP = 12;  // kernels in the table next to the chart

function roofline() {
  const { roofline: reached, peaks } = record;
  if (!reached || !reached.length) return null;
  const drawn = reached.filter((row) => row.intensity > 0 && row.flops_per_second > 0);
  const missing = reached.length - drawn.length;
  const symbols = ul({ class: "legend" }, ...Object.keys(MARKS).map((bound) => li({}, create("svg",
    { viewBox: "-7 -7 14 14", width: 14, height: 14, "aria-hidden": "true" }, [mark(bound, 0, 0, 5)]), `bound by ${bound}`)));
  const picture = drawn.length ? plot("roofline", (width) => drawRoof(width, drawn, peaks)) : null;
  return section({ class: "card" }, h2({}, "Roofline"), div({ class: "pair" },
    picture ? div({}, symbols, picture, p({ class: "note" }, roofWords(drawn, peaks, missing))) : null,
    div({ class: "scroll" }, roofTable(reached))));
}

/** Returns the caption: the device, and the rate of each line. */
function roofWords(drawn, peaks, missing) {
  const device = [peaks.device, peaks.kernels, peaks.threads ? `${peaks.threads} threads` : null].filter(Boolean).join(", ");
  const roofs = ceilings(drawn, peaks).map(([rate, words]) => `${words} ${perSecond(rate, "FLOP")}`);
  const rest = missing ? ` ${missing} without FLOPs ${missing === 1 ? "is" : "are"} in the table only.` : "";
  return `${device}: memory ${perSecond(peaks.bytes_per_second, "B")}, ${roofs.join(", ")}.${rest}`;
}

function mark(bound, x, y, r, ...inside) {
  const kind = MARKS[bound] ?? "circle";
  if (kind === "circle") return circle({ cx: x, cy: y, r, class: "mark" }, ...inside);
  if (kind === "square") return rect({ x: x - r, y: y - r, width: 2 * r, height: 2 * r, class: "mark" }, ...inside);
  return path({ d: `M${x} ${y - r * 1.2}l${r * 1.15} ${r * 2}h${-2.3 * r}z`, class: "mark" }, ...inside);
}

/** Returns the compute roofs of these kernels: [FLOP/s, words], the highest first. */
function ceilings(drawn, peaks) {
  const dtypes = Object.entries(peaks.products).filter(([dtype]) => drawn.some((row) => row.dtype === dtype));
  const found = dtypes.map(([dtype, rate]) => [rate, `${dtype} products`]);
  found.push([peaks.elementwise, "other arithmetic"]);
  return found.sort((a, b) => b[0] - a[0]);
}

/** Returns the scales of intensity (x) and FLOP/s (y), both logarithmic, and their axes: {x, y, axes}. */
function plane(width, height, drawn, peaks, roofs) {
  const [left, right, bottom, top] = [58, 10, 40, 26];
  const along = (value, [from, to]) => Math.log(value / from) / Math.log(to / from);
  const spread = [roofs[0][0] / peaks.bytes_per_second, ...drawn.map((row) => row.intensity)];
  const reach = [Math.min(...spread) / 4, Math.max(...spread) * 8];
  const reached = [...drawn.map((row) => row.flops_per_second), ...roofs.map(([rate]) => rate)];
  const high = [Math.min(...reached, reach[0] * peaks.bytes_per_second) / 2, Math.max(...reached) * 3];
  const x = (intensity) => left + along(intensity, reach) * (width - left - right);
  const y = (rate) => top + (1 - along(rate, high)) * (height - top - bottom);
  const axes = [
    ...powers(reach).map((v) => g({ class: "axis" }, line({ x1: x(v), x2: x(v), y1: top, y2: height - bottom, class: "grid" }),
      text({ x: x(v), y: height - bottom + 16, "text-anchor": "middle" }, v >= 1 ? tick(v, "flops") : String(+v.toPrecision(1))))),
    ...powers(high).map((v) => g({ class: "axis" }, line({ x1: left, x2: width - right, y1: y(v), y2: y(v), class: "grid" }),
      text({ x: left - 6, y: y(v) + 4, "text-anchor": "end" }, tick(v, "flops")))),
    text({ x: (left + width) / 2, y: height - 6, "text-anchor": "middle", class: "lane" }, "FLOP per byte"),
    text({ x: 0, y: 12, class: "lane" }, "FLOP/s"),
  ];
  return { x, y, axes, reach };
}

function powers([from, to]) {
  const found = [];
  for (let k = Math.ceil(Math.log10(from)); k <= Math.log10(to); k++) found.push(10 ** k);
  return found;
}

function drawRoof(width, drawn, peaks) {
  const height = Math.round(Math.min(380, Math.max(260, width * 0.55)));
  const roofs = ceilings(drawn, peaks);
  const { x, y, axes, reach } = plane(width, height, drawn, peaks, roofs);
  const slope = peaks.bytes_per_second;
  const end = width - 10;
  const lines = roofs.map(([rate], i) => path({ d: `M${x(rate / slope)} ${y(rate)}H${end}`, class: i ? "roof lower" : "roof" }));
  const memory = path({ d: `M${x(reach[0])} ${y(reach[0] * slope)}L${x(roofs[0][0] / slope)} ${y(roofs[0][0])}`, class: "roof" });
  const named = width < 420 ? roofs.slice(0, 1) : roofs;
  const names = named.map(([rate, words]) => text({ x: end, y: y(rate) - 6, "text-anchor": "end", class: "roofname" },
    title({}, words), perSecond(rate, "FLOP")));
  const marks = points(drawn, x, y, width);
  return svg(width, height, "Roofline: FLOP per second over FLOP per byte", ...axes, memory, ...lines, ...names, ...marks);
}

/** Draws a mark for each kernel, larger if the kernel takes more time, and names where there is room for them. */
function points(drawn, x, y, width) {
  const spent = drawn.reduce((all, row) => all + row.seconds, 0) || 1;
  const marks = [...drawn].sort((a, b) => b.seconds - a.seconds).map((row) => (
    { row, cx: x(row.intensity), cy: y(row.flops_per_second), r: 4 + 8 * Math.sqrt(row.seconds / spent) }));
  const taken = marks.map(({ cx, cy, r }) => [cx - r, cx + r, cy]);
  return marks.map(({ row, cx, cy, r }) => {
    const words = fitted(row.kernel, 170);
    const end = cx > width * 0.6;
    const from = end ? cx - r - 6 - wide(words) : cx + r + 4;
    const box = [from, from + wide(words) + 2, cy];
    const free = taken.every((other) => box[1] < other[0] || box[0] > other[1] || Math.abs(cy - other[2]) > 13);
    if (free) taken.push(box);
    const reached = `${perSecond(row.flops_per_second, "FLOP")} at ${threeDigits(row.intensity)} FLOP per byte`;
    const about = title({}, `${row.kernel}, ${row.dtype}: ${reached}, bound by ${row.bound}`);
    const at = { x: cx + (end ? -r - 5 : r + 5), y: cy + 4, "text-anchor": end ? "end" : "start", class: "kernel" };
    return g({ "data-kernel": row.kernel }, mark(row.bound, cx, cy, r, about), free ? text(at, words) : null);
  });
}

function roofTable(reached) {
  const heads = ["Kernel", "dtype", "Time", "FLOP/B", "FLOP/s", "B/s", "Of the roof", "Bound by"];
  const rows = [...reached].sort((a, b) => b.seconds - a.seconds).slice(0, TOP);
  const left = reached.length - rows.length;
  const head = thead({}, tr({}, ...heads.map((name) => th({ scope: "col" }, name))));
  return [table({ class: "roofs" }, head, tbody({}, ...rows.map(roofRow))), left ? p({ class: "note" }, `and ${left} more`) : ""];
}

function roofRow(row) {
  const intensity = row.intensity === null ? "–" : threeDigits(row.intensity);
  return tr({ "data-name": row.kernel },
    th({ scope: "row", class: "name", title: row.kernel }, span({}, row.kernel)), td({}, row.dtype),
    td({ title: exact(row.seconds, "seconds") }, ...number(row.seconds, "seconds")), td({}, row.flops ? intensity : ""),
    td({}, row.flops ? perSecond(row.flops_per_second, "") : ""), td({}, perSecond(row.bytes_per_second, "")),
    td({}, percent(row.share)), td({}, row.bound));
}
