// Formats numbers: with three digits and a prefix, or exactly.

const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const CLOCK = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];

function threeDigits(x) {
  const size = Math.abs(x);
  return x.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

/** Returns [digits, unit]: ["13.0", "M"], ["640", ""], ["1.25", "ms"]; the digits are a dash if x was not measured. */
function short(x, measure) {
  if (x === null) return ["–", ""];
  const unit = measure.startsWith("bytes") ? "B" : "";
  if (x === 0) return ["0", unit];
  const steps = measure === "seconds" ? CLOCK : PREFIXES;
  const [factor, prefix] = steps.find(([least]) => Math.abs(x) >= least * 0.9995) ?? steps[steps.length - 1];
  const digits = factor === 1 && measure !== "seconds" && Number.isInteger(x) ? String(x) : threeDigits(x / factor);
  return [digits, prefix + unit];
}

function brief(x, measure) {
  const [digits, unit] = short(x, measure);
  return unit ? `${digits}\u00a0${unit}` : digits;
}

/** Formats a round number for an axis: 20 ms, 1.5 MB. */
function tick(x, measure) {
  const [digits, unit] = short(x, measure);
  return x === 0 ? "0" : `${Number(digits)}${unit && "\u00a0"}${unit}`;
}

function exact(x, measure) {
  if (x === null) return "not measured";
  if (measure === "seconds") return `${(x * 1e6).toLocaleString("en-US", { maximumFractionDigits: 3 })} µs`;
  return `${whole(x)} ${MEASURES[measure].unit}`;
}

/** Formats an integer with commas between thousands. */
const whole = (x) => x.toLocaleString("en-US");

/** Formats a rate: "35.1 GFLOP/s", "1.82 GB/s"; "35.1 G" without a unit. */
function perSecond(x, unit) {
  const [digits, prefix] = short(x, "flops");
  return `${digits}\u00a0${prefix}${unit && `${unit}/s`}`;
}

/** Formats a share: "42 %", "1.3 %", "99.9 %". 0 % and 100 % are never rounded values. */
function percent(x) {
  if (x > 0 && x < 0.001) return "<0.1\u00a0%";
  const digits = x > 0.995 && x < 1 ? (Math.floor(1000 * x) / 10).toFixed(1) : (100 * x).toFixed(x > 0 && x < 0.0995 ? 1 : 0);
  return `${digits}\u00a0%`;
}

const times = (x) => (Number.isFinite(x) ? `${threeDigits(x)}\u00a0×` : "–");

/** Returns about `count` round numbers between `from` and `to`. */
function ticks(from, to, count) {
  const rough = (to - from) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((k) => k * power >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to * (1 + 1e-9); k++) found.push(k * step);
  return found;
}
