// The treemap: modules as areas inside the modules that hold them, each divided among its phases.

const STRIP = 20;  // height in pixels of a module's name above its areas
const area = { measure: extents[0] };

/** Returns the modules as a tree by their dotted paths: {name, path, own: group or null, children}. */
function moduleTree() {
  const root = { name: "", path: "", own: null, children: new Map() };
  for (const group of grouped("module")) {
    let node = root;
    for (const name of group.name === "" ? [""] : group.name.split(".")) {
      const path = node.path ? `${node.path}.${name}` : name;
      if (!node.children.has(name)) node.children.set(name, { name, path, own: null, children: new Map() });
      node = node.children.get(name);
    }
    node.own = group;
  }
  return root;
}

function sized(node) {
  const children = [...node.children.values()].map(sized).filter((child) => child.value > 0);
  const own = node.own ? valueOf(node.own.total, area.measure) : 0;
  if (!node.own && children.length === 1 && node.path) {
    return { ...children[0], name: `${node.name}.${children[0].name}` };
  }
  if (own > 0 && children.length) children.push({ name: "itself", path: node.path, own: node.own, children: [], value: own });
  children.sort((a, b) => b.value - a.value);
  return { ...node, children, value: children.length ? children.reduce((all, child) => all + child.value, 0) : own };
}

/** Divides a rectangle into nearly square ones whose areas are proportional to the values, largest first: [x, y, width, height]. */
function squarified(values, x, y, width, height) {
  const all = values.reduce((a, b) => a + b, 0);
  const found = [];
  let left = values.map((value) => (value * width * height) / all);
  while (left.length) {
    const side = Math.min(width, height);
    let count = 1;
    while (count < left.length && worst(left.slice(0, count + 1), side) <= worst(left.slice(0, count), side)) count++;
    const row = left.slice(0, count);
    const depth = side > 0 ? row.reduce((a, b) => a + b, 0) / side : 0;
    let at = 0;
    for (const size of row) {
      const long = depth > 0 ? size / depth : 0;
      found.push(width >= height ? [x, y + at, depth, long] : [x + at, y, long, depth]);
      at += long;
    }
    if (width >= height) [x, width] = [x + depth, width - depth];
    else [y, height] = [y + depth, height - depth];
    left = left.slice(count);
  }
  return found;
}

/** Returns the largest aspect ratio among the rectangles of a row along this side. */
function worst(row, side) {
  const all = row.reduce((a, b) => a + b, 0);
  return Math.max((side * side * row[0]) / (all * all), (all * all) / (side * side * row[row.length - 1]));
}

function drawNode(node, x, y, width, height) {
  if (width < 1 || height < 1) return [];
  if (!node.children.length) return drawLeaf(node, x, y, width, height);
  const strip = node.path && height > 3 * STRIP && width > 50 ? STRIP : 0;
  const frame = node.path ? 3 : 0;
  const above = strip || frame;
  const values = node.children.map((child) => child.value);
  const inside = squarified(values, x + frame, y + above, width - 2 * frame, height - above - frame);
  const name = strip ? text({ x: x + 6, y: y + 14, class: "group" }, fitted(node.name, width - 12)) : null;
  const about = title({}, `${node.path}: ${exact(node.value, area.measure)}`);
  return [node.path ? rect({ x, y, width, height, class: "frame" }, about) : null, name,
    ...node.children.flatMap((child, i) => drawNode(child, ...inside[i]))];
}

function drawLeaf(node, x, y, width, height) {
  const gap = Math.min(2, width / 4, height / 4);
  [x, y, width, height] = [x + gap / 2, y + gap / 2, width - gap, height - gap];
  const strip = height > 2 * STRIP && width > 28 ? STRIP : 0;
  const full = node.path || "outside of modules";
  const value = brief(node.value, area.measure);
  const name = fitted(node.path ? node.name : full, width - 8);
  const both = wide(name) + wide(value) + 20 < width;
  const labels = strip ? [text({ x: x + 4, y: y + 14, class: "name" }, name),
    both ? text({ x: x + width - 4, y: y + 14, class: "value", "text-anchor": "end" }, value) : null] : [];
  const about = title({}, `${full}: ${exact(node.value, area.measure)}`);
  return [g({ "data-module": node.path, "data-value": node.value }, rect({ x, y, width, height, class: "leaf" }, about), ...labels,
    ...drawPhases(node, full, x, y + strip, width, height - strip))];
}

function drawPhases(node, full, x, y, width, height) {
  const parts = phases.map((phase) => [phase, valueOf(node.own.phases[phase], area.measure)]).filter(([, value]) => value > 0);
  const across = width >= height;
  let at = 0;
  return parts.map(([phase, value]) => {
    const share = value / node.value;
    const box = across ? [x + at * width, y, share * width, height] : [x, y + at * height, width, share * height];
    at += share;
    return g({ class: phase }, rect({ x: box[0], y: box[1], width: box[2], height: box[3], class: "area" },
      title({}, `${full}, ${phase}: ${exact(value, area.measure)} (${percent(share)})`)), areaValue(value, ...box));
  });
}

function areaValue(value, x, y, width, height) {
  const words = brief(value, area.measure);
  if (height < 18 || width < wide(words) + 10) return null;
  return text({ x: x + 5, y: y + 14, class: "on" }, words);
}

function treemap() {
  const box = plot("treemap", (width) => {
    const height = Math.round(Math.min(320, Math.max(240, width * 0.5)));
    const root = sized(moduleTree());
    const drawn = root.value ? drawNode(root, 0, 0, width, height) : [];
    return svg(width, height, `Modules by ${MEASURES[area.measure].name}, forward and backward`, ...drawn.filter(Boolean));
  });
  const change = (measure) => {
    area.measure = measure;
    draw();
  };
  return section({ class: "card" }, h2({}, "Modules"),
    div({ class: "controls" }, legend(phases), choice("Area", extents, area.measure, change)), box);
}
