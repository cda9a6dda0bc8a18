// Draws the figures when they come into view, and fills the tables. All texts are put in as text, never as HTML.
"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const CHUNK = 200; // rows of a table that are put in at once
  const WIDE = { flags: "long", message: "wide", reason: "wide" }; // columns that hold sentences
  const NARROW = 600; // pixels; figures get smaller letters below
  const PALE = 0.5; // of a colour in the colour itself, since a legend shows no opacity of a bar
  const CLEAR = "rgba(0,0,0,0)";
  const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null) node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }

  function makeSelect(title, names, choose, attributes = {}) {
    const options = names.map((name) => make("option", {}, name));
    const select = make("select", { ...attributes, onchange: () => choose(select.selectedIndex) }, ...options);
    return make("label", {}, title, select);
  }

  // Calls `act` each time the node comes near the window.
  function whenNear(node, margin, act) {
    const callback = (entries) => { if (entries.some((entry) => entry.isIntersecting)) act(); };
    new IntersectionObserver(callback, { rootMargin: `${margin}px` }).observe(node);
  }

  // Colours: those of page.css, as the browser resolves them for the scheme in force.
  const probe = make("span", { hidden: "" });
  document.body.append(probe);
  function readPalette() {
    const palette = {};
    for (const name of ["ink", "muted", "line", "raised", ..."01234567"]) {
      probe.style.color = `var(--${/\d/.test(name) ? "c" : ""}${name})`;
      const color = getComputedStyle(probe).color;
      palette[`@${name}`] = color;
      palette[`@${name} pale`] = color.replace(/^rgb\((.*)\)$/, `rgba($1, ${PALE})`);
    }
    return palette;
  }

  function paint(value, palette, key = "") {
    if (Array.isArray(value)) return value.map((item) => paint(item, palette, key));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, paint(item, palette, name)]));
    }
    return key.endsWith("color") && palette[value] ? palette[value] : value;
  }

  // Figures
  const figures = [];

  // A legend that does not fit into one row is set in columns as wide as its widest entry.
  function countLegendRows(traces, width, letter) {
    const widths = traces.map((trace) => (trace.name || "").length * letter * 0.56 + 46);
    if (widths.reduce((sum, item) => sum + item, 0) <= width) return 1;
    return Math.ceil(traces.length / Math.max(1, Math.floor(width / Math.max(...widths))));
  }

  // Numbers on upright bars that are too slim for them get smaller, or are left out.
  function fitBarTexts(traces, width) {
    const bars = traces.filter((trace) => trace.type === "bar" && trace.orientation !== "h");
    const groups = Math.max(1, ...bars.map((trace) => trace.x.length));
    const pixels = (0.75 * (width - 70)) / (groups * bars.length);
    const text = pixels < 22 ? { textposition: "none" } : { textfont: { size: pixels < 32 ? 9.5 : 12 } };
    return traces.map((trace) => (bars.includes(trace) ? { ...trace, ...text } : trace));
  }

  // What all figures share: https://plotly.com/javascript/reference/layout/#layout-template
  function makeTemplate(narrow, letter, onTop, top) {
    const axis = { gridcolor: "@line", linecolor: "@line", showline: true, showgrid: true, zeroline: false, fixedrange: narrow };
    const whiskers = { thickness: 1.4, width: 3 };
    return {
      data: { bar: [{ error_y: { ...whiskers, thickness: 1, color: "@ink" } }], scatter: [{ error_x: whiskers, error_y: whiskers }] },
      layout: {
        margin: { l: 54, r: 14, t: top, b: onTop ? 12 : 58 },
        font: { family: getComputedStyle(document.body).fontFamily, size: letter, color: "@ink" },
        paper_bgcolor: CLEAR, plot_bgcolor: CLEAR, showlegend: true, hovermode: "closest", dragmode: narrow ? false : "zoom",
        xaxis: { ...axis, title: { standoff: onTop ? 22 : 10 } },
        yaxis: { ...axis, title: { standoff: 10 }, tickfont: { size: narrow ? 9 : letter } },
        legend: { orientation: "h", x: 0, xref: "container", y: 1, yref: "container", yanchor: "top", bgcolor: CLEAR },
        hoverlabel: { bgcolor: "@raised", bordercolor: "@line", font: { color: "@ink", size: 12 }, align: "left" },
      },
    };
  }

  function measure(figure) {
    const { traces, layout } = figure.choices[figure.chosen];
    const width = figure.plot.clientWidth;
    const letter = width < NARROW ? 10.5 : 12;
    const onTop = layout.xaxis.side === "top";
    const top = 14 + 20 * countLegendRows(traces, width, letter) + (onTop ? 46 : 0);
    return { width, letter, onTop, top, height: layout.height + top - 34 };
  }

  async function draw(figure) {
    // Reading plotly.js takes a second, so that waits until the page has been painted. The policy knows this script.
    if (!window.Plotly) document.head.append(make("script", {}, document.getElementById("plotly").textContent));
    const { traces, layout } = figure.choices[figure.chosen];
    const { width, letter, onTop, top, height } = measure(figure);
    const whole = { ...layout, template: makeTemplate(width < NARROW, letter, onTop, top), height };
    const palette = readPalette();
    await Plotly.react(figure.plot, paint(fitBarTexts(traces, width), palette), paint(whole, palette), CONFIG);
    figure.section.dataset.drawn = "true";
  }

  function setUpFigure(section, { choices }) {
    const figure = { section, choices, plot: section.querySelector(".plot"), chosen: 0 };
    figure.plot.style.minHeight = `${measure(figure).height}px`; // so that nothing moves when it is drawn
    if (choices.length > 1) {
      const choose = (chosen) => { figure.chosen = chosen; figure.plot.style.minHeight = ""; draw(figure); };
      section.querySelector(".choose").append(makeSelect("show", choices.map((choice) => choice.name), choose));
    }
    figures.push(figure);
    whenNear(section, 300, () => {
      if (!section.dataset.drawn) requestAnimationFrame(() => setTimeout(draw, 0, figure));
    });
  }

  const redraw = () => figures.filter((figure) => figure.section.dataset.drawn).forEach(draw);

  // Light and dark
  const button = document.getElementById("theme");
  const isDark = () => (root.style.colorScheme ? root.style.colorScheme === "dark" : dark.matches);
  const applyTheme = () => { button.textContent = isDark() ? "Light" : "Dark"; redraw(); };
  button.addEventListener("click", () => { root.style.colorScheme = isDark() ? "light" : "dark"; applyTheme(); });
  dark.addEventListener("change", applyTheme);

  // The address: #SECTION&TABLE.sort=-speedup&TABLE.q=words&TABLE.FILTER=value&TABLE.open=ID,ID
  let [anchor, ...settings] = location.hash.slice(1).split("&");
  const asked = new URLSearchParams(settings.join("&"));

  function saveState() {
    const state = new URLSearchParams();
    for (const table of tables) {
      const set = (name, value) => { if (value) state.set(`${table.id}.${name}`, value); };
      set("sort", table.by && `${table.down ? "-" : ""}${table.by.title}`);
      set("q", table.text);
      table.filters.forEach((name, index) => set(name, table.wanted[index]));
      set("open", [...table.open].join(","));
    }
    history.replaceState(null, "", `#${[anchor, state.toString()].filter((part, at) => part || !at).join("&")}`);
  }

  // An address that was typed or followed: a section alone keeps the state of the tables.
  addEventListener("hashchange", () => {
    if (location.hash.includes("&")) return location.reload();
    anchor = location.hash.slice(1);
    saveState();
  });

  // Names of flags, statuses and causes say what they mean, and lead to the legend.
  const terms = new Map([...document.querySelectorAll("[data-term]")].map((item) => [item.dataset.term, item]));
  const linkTerm = (name, shown = name) => {
    const term = terms.get(name);
    return term ? make("a", { href: `#term-${name}`, class: `term ${term.className}`, title: term.dataset.says }, shown) : shown;
  };
  const linkTerms = (text) => (terms.size ? text.split(/([A-Za-z_]+)/).map((part) => linkTerm(part)) : [text]);
  const PHRASES = { "one process": "single_process", "a single process": "single_process", "not verified": "accuracy_unverified" };
  document.querySelectorAll(".verdict").forEach(({ firstChild }) => {
    const parts = firstChild.data.split(new RegExp(`(${Object.keys(PHRASES).join("|")})`));
    firstChild.replaceWith(...parts.flatMap((part) => (PHRASES[part] ? linkTerm(PHRASES[part], part) : linkTerms(part))));
  });
  document.addEventListener("click", (event) => { // the housekeeping flags of the legend are folded
    const target = document.getElementById((event.target.hash || "#").slice(1));
    target?.closest("details")?.setAttribute("open", "");
  });

  // Tables
  const tables = [];
  const EXPLAINED = new Set(["flags", "status", "reason", "cause", "ruled out", "speedup"]); // columns with such names

  function compare(one, other, { index, number }, down) {
    const [a, b] = [one, other].map((row) => (number ? row.numbers : row.cells)[index]);
    const missing = (value) => value === null || value === "";
    if (missing(a) || missing(b)) return missing(a) - missing(b); // missing last, in either direction
    return (down ? -1 : 1) * (number ? a - b : a.localeCompare(b, "en", { numeric: true }));
  }

  function hasWords(row, words) {
    row.text ??= [...row.cells, ...(row.details || []).flat()].join("\n").toLowerCase();
    return words.every((word) => row.text.includes(word));
  }

  function makeDetails(row, width) {
    const files = row.links.map(([name, href]) => make("a", { href }, name));
    const pairs = files.length ? [...row.details, ["files", ...files]] : row.details;
    const list = pairs.flatMap(([name, ...values]) => {
      const shown = name === "flags" ? linkTerms(values[0]) : values;
      return [make("dt", {}, name), make("dd", { class: name === "end of the log" ? "log" : null }, ...shown)];
    });
    return make("tr", { class: "details" }, make("td", { colspan: width }, make("dl", {}, ...list)));
  }

  // What stands below the name of a row where there is no room for the columns of it.
  function describeAside(table, row) {
    const parts = table.columns.map(({ title, aside }, index) => {
      const cell = row.cells[index];
      return aside && cell && !(title === "status" && cell === "ok") ? (title === "batch" ? `batch ${cell}` : cell) : "";
    });
    return make("span", { class: "aside-of" }, ...linkTerms(parts.filter(Boolean).join(" · ")));
  }

  function makeLine(table, row) {
    const line = make("tr", { class: "row" });
    row.cells.forEach((cell, index) => {
      const { title, number, aside } = table.columns[index];
      const bad = title === "status" && cell !== "ok";
      const names = [number ? "number" : bad ? "not-ok" : WIDE[title] || "", aside ? "aside" : ""];
      const shown = EXPLAINED.has(title) ? linkTerms(cell) : [cell];
      line.append(make("td", { class: names.join(" ").trim() || null }, ...shown));
    });
    const about = describeAside(table, row);
    if (table.linked) line.append(make("td", {}, ...row.links.slice(0, 1).map(([, href]) => make("a", { href }, "files"))));
    if (!row.details) {
      line.firstChild.append(about);
      return [line];
    }
    const opener = make("button", { type: "button", class: "open", "aria-expanded": "false", onclick: () => {
      const open = opener.getAttribute("aria-expanded") === "true";
      if (open) line.nextSibling.remove();
      else line.after(makeDetails(row, line.children.length));
      opener.setAttribute("aria-expanded", !open);
      table.open[open ? "delete" : "add"](row.id);
      saveState();
    } }, row.cells[0] || "(no name)");
    line.firstChild.replaceChildren(opener, about);
    if (!table.open.has(row.id)) return [line];
    opener.setAttribute("aria-expanded", "true");
    return [line, makeDetails(row, line.children.length)];
  }

  function showMore(table, count = CHUNK) {
    const next = table.found.slice(table.shown, table.shown + count);
    table.body.append(...next.flatMap((row) => makeLine(table, row)));
    table.shown += next.length;
    const left = table.found.length - table.shown;
    table.more.hidden = left === 0;
    table.more.textContent = `${left.toLocaleString("en")} more rows`;
  }

  function fill(table) {
    const words = table.text.toLowerCase().split(/\s+/).filter(Boolean);
    table.found = table.rows.filter((row) =>
      table.wanted.every((value, index) => value === null || row.filters[index] === value) && hasWords(row, words));
    if (table.by) table.found.sort((one, other) => compare(one, other, table.by, table.down));
    table.shown = 0;
    table.body.replaceChildren();
    table.count.textContent = `${table.found.length.toLocaleString("en")} of ${table.rows.length.toLocaleString("en")}`;
    showMore(table, Math.max(CHUNK, 1 + table.found.findLastIndex((row) => table.open.has(row.id))));
  }

  function makeHead(table, column) {
    const names = [column.number ? "number" : "", column.aside ? "aside" : ""];
    const head = make("th", { scope: "col", class: names.join(" ").trim() || null });
    const mark = () => {
      head.parentNode?.querySelectorAll("th").forEach((item) => item.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", table.down ? "descending" : "ascending");
    };
    const sort = () => {
      table.down = table.by === column ? !table.down : column.number;
      table.by = column;
      mark();
      fill(table);
      saveState();
    };
    if (table.by === column) mark();
    head.append(make("button", { type: "button", onclick: sort, title: column.hint || null }, column.title));
    return head;
  }

  function makeToolbar(table, id) {
    const search = () => { table.text = box.value; fill(table); saveState(); };
    const box = make("input", { type: "search", placeholder: "filter", "aria-label": `filter ${id}`, oninput: search });
    box.value = table.text;
    const bar = make("div", { class: "toolbar" }, box);
    table.filters.forEach((name, index) => {
      const values = [...new Set(table.rows.map((row) => row.filters[index]))].sort();
      const choose = (chosen) => { table.wanted[index] = chosen ? values[chosen - 1] : null; fill(table); saveState(); };
      if (!values.includes(table.wanted[index])) table.wanted[index] = null;
      if (values.length < 2) return;
      bar.append(makeSelect(name, ["all", ...values], choose, { "data-filter": name }));
      bar.querySelector(`[data-filter="${name}"]`).selectedIndex = values.indexOf(table.wanted[index]) + 1;
    });
    bar.append(table.count);
    return bar;
  }

  function setUpTable(section, { columns, filters, rows }) {
    const read = (name) => asked.get(`${section.id}.${name}`);
    const table = {
      id: section.id, rows, filters, text: read("q") || "", wanted: filters.map(read), by: null, down: false,
      open: new Set((read("open") || "").split(",").filter(Boolean)),
      columns: columns.map((column, index) => ({ ...column, index })),
      linked: rows.some((row) => row.links && row.links.length),
      body: make("tbody"), count: make("span", { class: "count", role: "status" }),
      more: make("button", { type: "button", class: "more", onclick: () => showMore(table) }),
    };
    const sort = read("sort") || "";
    table.down = sort.startsWith("-");
    table.by = table.columns.find((column) => column.title === sort.replace(/^-/, "")) || null;
    const heads = make("tr", {}, ...table.columns.map((column) => makeHead(table, column)));
    if (table.linked) heads.append(make("th", { scope: "col", "aria-label": "files" }));
    const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": section.id },
      make("table", {}, make("thead", {}, heads), table.body));
    section.append(makeToolbar(table, section.id), scroll, table.more);
    whenNear(table.more, 400, () => showMore(table));
    tables.push(table);
    fill(table);
  }

  // On paper everything is there, in light colours.
  let before = "";
  addEventListener("beforeprint", () => {
    before = root.style.colorScheme;
    root.style.colorScheme = "light";
    document.querySelectorAll("details").forEach((item) => item.setAttribute("open", ""));
    figures.forEach(draw);
    tables.forEach((table) => showMore(table, table.found.length));
  });
  addEventListener("afterprint", () => { root.style.colorScheme = before; redraw(); });

  const [drawings, listings] = [read("figure-data"), read("table-data")];
  document.querySelectorAll("section.table").forEach((section) => setUpTable(section, listings[section.id]));
  document.querySelectorAll("section.figure").forEach((section) =>
    setUpFigure(section, drawings.find((item) => item.id === section.dataset.figure)));
  applyTheme();
  if (asked.size) document.getElementById(anchor)?.scrollIntoView();
})();
