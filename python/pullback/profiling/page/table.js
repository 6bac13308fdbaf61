// Forward against backward: the figures of each op, module, line, kernel, order or dtype, sorted by any column.

const OVERVIEW = "overview";
const chosen = { axis: "op", measure: OVERVIEW, sort: "extent", down: true, all: false };
const FIRST = 30;  // rows that are shown until the reader opens the whole table

/** Returns the columns after the name: {key, group, name, measure, phase, value(group) -> number or null}. */
function columns() {
  const found = [extent()];
  if (chosen.measure !== OVERVIEW) {
    const { measure } = chosen;
    return [...found, ...phases.map((phase) => one(measure, phase)), ratio(measure), together(measure, "total")];
  }
  const others = phases.filter((phase) => phase !== "forward" && phase !== "backward");
  for (const measure of ["seconds", "flops", "bytes"]) {
    if (measure === "seconds" && !timed) continue;
    found.push(one(measure, "forward"), one(measure, "backward"));
    if (measure === "flops") found.push(ratio(measure));
    if (others.length) found.push(rest(measure, others));
  }
  return [...found, together("launches", "all")];
}

/** Returns the measure of the bars: the chosen one, or the first extent in the overview. */
const barred = () => (chosen.measure === OVERVIEW ? extents[0] : chosen.measure);

function extent() {
  const measure = barred();
  return { ...together(measure, `${MEASURES[measure].name} by phase`), key: "extent", group: "" };
}

function column(measure, name, phase, value) {
  return { key: `${measure} ${phase}`, group: MEASURES[measure].name, name, measure, phase, value };
}

function one(measure, phase) {
  return column(measure, phase, phase, (x) => (x.phases[phase] ? valueOf(x.phases[phase], measure) : null));
}

function rest(measure, others) {
  if (others.length === 1) return one(measure, others[0]);
  return column(measure, "others", "others", (x) => {
    const parts = others.map((phase) => x.phases[phase]).filter(Boolean);
    return parts.length ? valueOf(sum(parts), measure) : null;
  });
}

function ratio(measure) {
  return { ...column(measure, "ratio", "ratio", (x) => {
    const [forward, backward] = ["forward", "backward"].map((phase) => valueOf(x.phases[phase], measure));
    return forward && x.phases.backward ? backward / forward : null;
  }), hint: "backward ÷ forward" };
}

function together(measure, name) {
  return column(measure, name, "total", (x) => valueOf(x.total, measure));
}

function sorted(groups, column) {
  const by = column ? column.value : null;
  const compare = by ? (a, b) => (by(b) ?? -1) - (by(a) ?? -1)
    : (a, b) => spoken(chosen.axis, b.name).localeCompare(spoken(chosen.axis, a.name), "en", { numeric: true });
  const found = [...groups].sort(compare);
  return chosen.down ? found : found.reverse();
}

// ---- cells

function cell(column, group, most) {
  const value = column.value(group);
  const data = { "data-measure": column.measure, "data-phase": column.phase, "data-value": value ?? "" };
  if (value === null) return td({ class: "none", ...data });
  if (column.phase === "ratio") {
    return td({ ...data, title: column.hint }, span({ class: "digits" }, threeDigits(value)), span({ class: "unit" }, "×"));
  }
  const about = { ...data, title: exact(value, column.measure) };
  if (column.key !== "extent") return td(about, ...number(value, column.measure));
  return td({ class: "extent", ...about }, div({ class: "share" }, stacked(group.phases, column.measure, most.one),
    span({ class: "digits" }, percent(value / most.all))));
}

/** Returns the class of a column: "starts" for the first one of a group, which has space before it. */
const starts = (shown, i) => (i === 0 || shown[i].group !== shown[i - 1].group ? "starts" : "");

function headCell(key, name, attributes, hint) {
  const order = chosen.sort === key ? (chosen.down ? "descending" : "ascending") : "none";
  const press = () => {
    chosen.down = chosen.sort === key ? !chosen.down : key !== "name";
    chosen.sort = key;
    showTable();
    document.querySelector(`#figures th[data-key="${key}"] button`).focus();
  };
  return th({ scope: "col", "data-key": key, "aria-sort": order, ...attributes },
    button({ type: "button", onclick: press, title: hint }, name));
}

function headRows(shown) {
  const groups = [];
  for (const { group } of shown) {
    if (groups.length && groups[groups.length - 1].name === group) groups[groups.length - 1].count++;
    else groups.push({ name: group, count: 1 });
  }
  const above = groups.map(({ name, count }) => (name ? th({ scope: "colgroup", colspan: count }, name) : td({})));
  const heads = shown.map(({ key, name, phase, hint }, i) => {
    const swatch = phases.includes(phase) ? `swatch ${phase}` : "";
    return headCell(key, name, { class: `${starts(shown, i)} ${swatch}`.trim() }, hint);
  });
  return thead({}, tr({ class: "groups" }, td({}), ...above), tr({}, headCell("name", chosen.axis, { class: "name" }), ...heads));
}

function bodyRow(group, shown, most, name = spoken(chosen.axis, group.name)) {
  const cells = shown.map((column, i) => {
    const made = cell(column, group, most);
    if (starts(shown, i)) made.classList.add("starts");
    return made;
  });
  const head = { scope: "row", class: group.name === "" ? "name nameless" : "name", title: group.name || name };
  return tr({ "data-name": group.name }, th(head, span({}, name)), ...cells);
}

// ---- the section

function showTable() {
  const groups = grouped(chosen.axis);
  const shown = columns();
  const known = chosen.sort === "name" || shown.some((column) => column.key === chosen.sort);
  if (!known) Object.assign(chosen, { sort: "extent", down: true });
  const rows = sorted(groups, shown.find((column) => column.key === chosen.sort));
  const visible = chosen.all ? rows : rows.slice(0, FIRST);
  const sums = phases.map((phase) => [phase, sum(groups.map((group) => group.phases[phase]))]);
  const all = { name: "total", phases: Object.fromEntries(sums), total: sum(groups.map((group) => group.total)) };
  const values = groups.map((group) => valueOf(group.total, barred()));
  const most = { one: Math.max(...values), all: valueOf(all.total, barred()) };
  document.getElementById("figures").replaceChildren(table({ class: "figures" },
    caption({ class: "unseen" }, `Figures by ${chosen.axis}, forward against backward`), headRows(shown),
    tbody({}, ...visible.map((group) => bodyRow(group, shown, most))),
    tfoot({}, bodyRow(all, shown, { one: most.all, all: most.all }, "total"))));
  const more = document.getElementById("more");
  more.hidden = visible.length === rows.length;
  more.textContent = `Show all ${whole(rows.length)}`;
}

function tabs() {
  const made = AXES.map((axis) => button({
    type: "button", role: "tab", id: `by-${axis}`, "aria-controls": "figures", "aria-selected": String(axis === chosen.axis),
    tabindex: axis === chosen.axis ? 0 : -1, onclick: () => choose(axis),
  }, axis));
  const choose = (axis) => {
    Object.assign(chosen, { axis, all: false });
    for (const [i, tab] of made.entries()) {
      tab.setAttribute("aria-selected", String(AXES[i] === axis));
      tab.tabIndex = AXES[i] === axis ? 0 : -1;
    }
    document.getElementById("figures").setAttribute("aria-labelledby", `by-${axis}`);
    showTable();
  };
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    const last = AXES.length - 1;
    const at = AXES.indexOf(chosen.axis) + step;
    const next = Math.abs(step) > 1 ? Math.min(last, Math.max(0, at)) : (at + AXES.length) % AXES.length;
    choose(AXES[next]);
    made[next].focus();
  };
  return div({ role: "tablist", "aria-label": "Figures by", onkeydown: move }, ...made);
}

function figuresTable() {
  const measures = [OVERVIEW, ...Object.keys(MEASURES).filter((m) => (m !== "seconds" || timed) && valueOf(record.total, m) > 0)];
  const change = (measure) => {
    chosen.measure = measure;
    showTable();
  };
  return section({ class: "card" }, h2({}, "Forward against backward"),
    div({ class: "controls" }, tabs(), choice("Show", measures, chosen.measure, change)),
    div({ class: "scroll", id: "figures", role: "tabpanel", "aria-labelledby": `by-${chosen.axis}`, tabindex: 0 }),
    button({ type: "button", class: "more", id: "more", onclick: () => { chosen.all = true; showTable(); } }));
}
