// The timeline: phases as a strip, kernels below it, and the live bytes below both.

const MOST_TITLED = 600;  // up to this many shapes each have a tooltip; more are drawn as one path per phase

const clocked = record.launches.filter((launch) => launch.begin !== null);
const onClock = record.memory.samples.every((sample) => sample.seconds !== null);

function timeline() {
  const { spans, launches, memory } = record;
  const drawn = spans.length || clocked.length;
  const unclocked = memory.samples.length && !onClock;
  const all = record.total.launches;
  const notes = [];
  if (record.replayed) notes.push(`${whole(record.replayed)} of ${whole(all)} launches ran in captured functions, each of which runs as one `
    + `piece: they are counted, and neither they nor their memory are drawn; ${KERNEL}.`);
  else if (launches.length < all) notes.push(`Of ${whole(all)} launches the last ${whole(launches.length)} are drawn.`);
  if (unclocked) notes.push("Launches were not timed: memory is drawn launch by launch, at equal distances.");
  return section({ class: "card" }, h2({}, "Over time"), div({ class: "controls" }, legend(phases)),
    drawn ? plot("timeline", drawTime) : null, unclocked ? plot("timeline", drawSteps) : null,
    notes.length ? p({ class: "note" }, notes.join(" ")) : null);
}

const gutter = (width) => (width < 500 ? 62 : 78);

function drawTime(width) {
  const left = gutter(width);
  const end = record.spans.length ? record.spans[record.spans.length - 1].end : record.seconds;
  const x = (seconds) => left + (Math.max(0, seconds) / end) * (width - left - 8);
  const lanes = [];
  let y = 4;
  if (record.spans.length) {
    lanes.push(lane("phases", y, 26), ...strip(record.spans.map((s) => [s.phase, s.begin, s.end, s.phase]), x, y, 26, "span"));
    y += 34;
  }
  if (clocked.length) {
    const words = (launch) => (launch.module ? `${launch.kernel} in ${launch.module}` : launch.kernel);
    const boxes = clocked.map((l) => [l.phase, l.begin, l.begin + l.seconds, words(l)]);
    lanes.push(lane("kernels", y, 16), ...strip(boxes, x, y, 16, "launch"));
    y += 26;
  }
  const { samples } = record.memory;
  const memory = onClock && samples.length ? drawMemory(samples.map((sample) => x(sample.seconds)), x(end), y, left, width) : [];
  y += memory.length ? 166 : 0;
  const axis = ticks(0, end, (width - left) / 110).map((t) => g({ class: "axis" },
    line({ x1: x(t), x2: x(t), y1: 4, y2: y, class: "grid" }),
    text({ x: x(t), y: y + 15, "text-anchor": t > end * 0.96 ? "end" : "middle" }, tick(t, "seconds"))));
  return svg(width, y + 22, "Phases, kernels and memory over time", ...axis, ...lanes, ...memory);
}

/** Draws memory launch by launch, for launches without times. */
function drawSteps(width) {
  const left = gutter(width);
  const { samples } = record.memory;
  const step = (width - left - 8) / samples.length;
  const places = samples.map((_, i) => left + i * step);
  return svg(width, 166, "Memory, launch by launch", ...drawMemory(places, width - 8, 4, left, width));
}

const lane = (name, y, height) => text({ x: 0, y: y + height / 2 + 4, class: "lane" }, name);

/** Draws boxes [phase, begin, end, words] on a lane. */
function strip(boxes, x, y, height, kind) {
  if (boxes.length <= MOST_TITLED) {
    return boxes.map(([phase, begin, end, words]) => rect({
      x: x(begin), y, width: Math.max(0.6, x(end) - x(begin)), height, class: `${kind} ${phase}`, "data-begin": begin,
      "data-end": end,
    }, title({}, `${words}: ${brief(end - begin, "seconds")}, from ${brief(begin, "seconds")}`)));
  }
  return phases.map((phase) => {
    const own = boxes.filter((box) => box[0] === phase);
    const shape = own.map(([, begin, end]) => {
      const from = x(begin).toFixed(2);
      return `M${from} ${y}h${Math.max(0.2, x(end) - x(begin)).toFixed(2)}v${height}H${from}z`;
    });
    const spent = own.reduce((all, [, begin, end]) => all + end - begin, 0);
    return path({ d: shape.join(""), class: `${kind} ${phase}` },
      title({}, `${phase}: ${own.length} times, ${brief(spent, "seconds")} together`));
  });
}

/** Draws the samples at these x positions, their scale on the left, and the peak. */
function drawMemory(places, right, top, left, width) {
  const { samples, peak } = record.memory;
  const height = 150;
  const least = Math.min(...samples.map((sample) => sample.bytes));
  // The scale does not start at 0 if the curve would then be a flat line at the top.
  const from = least > peak / 2 ? Math.max(0, least - (peak - least) * 0.15) : 0;
  const to = peak + (peak - from || 1) * 0.2;
  const y = (bytes) => top + 8 + (1 - (bytes - from) / (to - from)) * (height - 8);
  const scale = ticks(from, to, 5).map((bytes) => g({ class: "axis" },
    line({ x1: left, x2: width - 8, y1: y(bytes), y2: y(bytes), class: "grid" }),
    text({ x: left - 6, y: y(bytes) + 4, "text-anchor": "end" }, tick(bytes, "bytes"))));
  const at = samples.findIndex((sample) => sample.bytes === peak);
  if (at < 0) return [...scale, ...steps(places, right, y)];
  const end = places[at] > (left + width) / 2;
  const mark = g({ class: `peak ${samples[at].phase}`, "data-peak": peak },
    circle({ cx: places[at], cy: y(peak), r: 4 }, title({}, exact(peak, "bytes"))),
    text({ x: places[at] + (end ? -9 : 9), y: y(peak) - 7, "text-anchor": end ? "end" : "start" },
      `peak ${brief(peak, "bytes")}, ${samples[at].phase}`));
  return [...scale, ...steps(places, right, y), mark];
}

/** Draws memory as steps: one path per interval of one phase. */
function steps(places, right, y) {
  const found = [];
  let phase = null;
  for (const [i, sample] of record.memory.samples.entries()) {
    if (sample.phase !== phase) found.push([sample.phase, `M${places[i].toFixed(2)} ${y(sample.bytes).toFixed(2)}`]);
    phase = sample.phase;
    const next = record.memory.samples[i + 1];
    found[found.length - 1][1] += next ? `H${places[i + 1].toFixed(2)}V${y(next.bytes).toFixed(2)}` : `H${right.toFixed(2)}`;
  }
  return found.map(([name, d]) => path({ d, class: `memory ${name}` }));
}
