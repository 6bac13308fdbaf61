// Creates elements of HTML and SVG. Text is inserted as text nodes, never as markup.

const SVG = new Set(["svg", "g", "rect", "path", "line", "circle", "text", "title"]);

function create(tag, attributes, children) {
  const element = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Returns a function that creates elements of this tag from ({attributes}, ...children). */
const tag = (name) => (attributes = {}, ...children) => create(name, attributes, children);
const [section, header, div, span, p, h1, h2, ul, li] = ["section", "header", "div", "span", "p", "h1", "h2", "ul", "li"].map(tag);
const [table, thead, tbody, tfoot, tr, th, td] = ["table", "thead", "tbody", "tfoot", "tr", "th", "td"].map(tag);
const [caption, button, label, select, option] = ["caption", "button", "label", "select", "option"].map(tag);
const [g, rect, path, line, circle, text, title] = ["g", "rect", "path", "line", "circle", "text", "title"].map(tag);

const drawings = [];  // functions that redraw a plot when the width of the window changes

/** Returns a box that `draw(width)` fills with an SVG of the box's width. */
function plot(name, draw) {
  const box = div({ class: `plot ${name}` });
  const again = () => box.replaceChildren(draw(Math.max(240, Math.floor(box.clientWidth))));
  drawings.push(again);
  return box;
}

function svg(width, height, name, ...children) {
  return create("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": name }, children);
}

const WIDE = 0.57;  // the width of an average letter divided by the font size, for sans-serif fonts
const wide = (words, size = 12) => words.length * size * WIDE;

/** Returns `words`, cut to about `width` pixels of text of this size; "" if fewer than two letters would fit. */
function fitted(words, width, size = 12) {
  const room = Math.floor(width / (size * WIDE));
  if (words.length <= room) return words;
  return room < 3 ? "" : `${words.slice(0, room - 1)}…`;
}

/** Returns a number and its unit in two elements, so that digits align in a column. */
function number(x, measure) {
  if (measure === "launches") return [span({ class: "digits" }, whole(x))];
  const [digits, unit] = short(x, measure);
  return [span({ class: "digits" }, digits), span({ class: "unit" }, unit)];
}

/** Returns a bar with one part per phase. `of` is the value of the measure that fills the whole width. */
function stacked(figures, measure, of) {
  const parts = phases.filter((phase) => valueOf(figures[phase], measure) > 0);
  return div({ class: "stacked", "aria-hidden": "true" }, ...parts.map((phase) => {
    const value = valueOf(figures[phase], measure);
    return span({ class: phase, style: `width:${(100 * value) / of}%`, title: `${phase}: ${exact(value, measure)}` });
  }));
}

function legend(names) {
  return ul({ class: "legend" }, ...names.map((name) => li({ class: name }, name)));
}

/** Returns a menu of measures, by name. */
function choice(words, measures, chosen, change) {
  return label({ class: "choice" }, `${words} `, select({ onchange: (event) => change(event.target.value) },
    ...measures.map((measure) => option({ value: measure, selected: measure === chosen }, MEASURES[measure]?.name ?? measure))));
}
