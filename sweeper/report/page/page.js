// Draws the figures when they come into view, and fills the tables. All texts are put in as text, never as HTML.
"use strict";
(() => {
  const data = (id) => JSON.parse(document.getElementById(id).textContent);
  const drawings = data("figure-data");
  const listings = data("table-data");
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const CHUNK = 200; // rows of a table that are put in at once
  const WIDE = { flags: "long", message: "wide", reason: "wide" }; // columns that hold sentences
  const NARROW = 600; // pixels; figures get smaller letters below
  const PALE = 0.5; // of a colour in the colour itself, since a legend shows no opacity of a bar
  const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  }

  // Colours: those of page.css, as the browser resolves them for the scheme in force.
  const probe = make("span", { hidden: true });
  document.body.append(probe);
  function palette() {
    const found = {};
    for (const name of ["ink", "muted", "line", "page", "raised", ..."01234567"]) {
      probe.style.color = `var(--${/\d/.test(name) ? "c" : ""}${name})`;
      found[`@${name}`] = getComputedStyle(probe).color;
      found[`@${name} pale`] = found[`@${name}`].replace(/^rgb\((.*)\)$/, `rgba($1, ${PALE})`);
    }
    return found;
  }

  function coloured(value, colours, key = "") {
    if (Array.isArray(value)) return value.map((item) => coloured(item, colours, key));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, coloured(item, colours, name)]));
    }
    return key === "color" && colours[value] ? colours[value] : value;
  }

  // Figures
  const figures = new Map();

  // A legend that does not fit into one row is set in columns as wide as its widest entry.
  function legendRows(traces, width, letter) {
    const widths = traces.map((trace) => (trace.name || "").length * letter * 0.56 + 46);
    if (widths.reduce((sum, item) => sum + item, 0) <= width) return 1;
    return Math.ceil(traces.length / Math.max(1, Math.floor(width / Math.max(...widths))));
  }

  // Upright bars that are too slim for their figures go without.
  function withoutCrowd(traces, width) {
    const bars = traces.filter((trace) => trace.type === "bar" && trace.orientation !== "h");
    const groups = Math.max(1, ...bars.map((trace) => trace.x.length));
    const pixels = (0.75 * (width - 70)) / (groups * bars.length);
    const text = pixels < 22 ? { textposition: "none" } : { textfont: { size: pixels < 32 ? 9.5 : 12 } };
    return traces.map((trace) => (bars.includes(trace) ? { ...trace, ...text } : trace));
  }

  const titled = (axis, standoff = 10) => ({ ...axis, title: { ...(axis || {}).title, standoff } });

  function dressed(choice, width) {
    const colours = palette();
    const letter = width < NARROW ? 10.5 : 12;
    const layout = coloured(choice.layout, colours);
    const onTop = layout.xaxis && layout.xaxis.side === "top";
    const top = 14 + 20 * legendRows(choice.traces, width, letter) + (onTop ? 46 : 0);
    const axis = { gridcolor: colours["@line"], zeroline: false, linecolor: colours["@line"], ticks: "", fixedrange: width < NARROW };
    const hover = { bgcolor: colours["@raised"], bordercolor: colours["@line"], font: { color: colours["@ink"], size: 12 }, align: "left" };
    return {
      traces: coloured(withoutCrowd(choice.traces, width), colours),
      layout: {
        ...layout,
        height: layout.height + top - 34,
        margin: { l: 54, r: 14, t: top, b: onTop ? 12 : 58 },
        font: { family: getComputedStyle(document.body).fontFamily, size: letter, color: colours["@ink"] },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        xaxis: { ...axis, ...titled(layout.xaxis, onTop ? 22 : 10) },
        yaxis: { ...axis, ...titled(layout.yaxis), tickfont: { size: width < NARROW ? 9 : letter } },
        showlegend: true,
        legend: { orientation: "h", x: 0, xref: "container", y: 1, yref: "container", yanchor: "top", bgcolor: "rgba(0,0,0,0)" },
        hovermode: "closest",
        hoverlabel: hover,
        dragmode: width < NARROW ? false : "zoom",
      },
    };
  }

  // Reading plotly.js takes a second, so that waits until the page has been painted. The policy knows this script.
  function loadPlotly() {
    if (window.Plotly) return;
    const script = make("script");
    script.textContent = document.getElementById("plotly").textContent;
    document.head.append(script);
  }

  async function draw(figure) {
    loadPlotly();
    const { traces, layout } = dressed(figure.choices[figure.chosen], figure.plot.clientWidth);
    await Plotly.react(figure.plot, traces, layout, CONFIG);
    figure.section.dataset.drawn = "true";
  }

  function setUpFigure(section, seen) {
    const found = drawings.find((item) => item.id === section.dataset.figure);
    const figure = { section, plot: section.querySelector(".plot"), choices: found.choices, chosen: 0 };
    figure.plot.style.minHeight = `${found.choices[0].layout.height}px`;
    if (found.choices.length > 1) {
      const select = make("select", { onchange: () => { figure.chosen = select.selectedIndex; figure.plot.style.minHeight = ""; draw(figure); } });
      select.append(...found.choices.map((choice) => make("option", {}, choice.name)));
      section.querySelector(".choose").append(make("label", {}, "show", select));
    }
    figures.set(section, figure);
    seen.observe(section);
  }

  const drawn = () => [...figures.values()].filter((figure) => figure.section.dataset.drawn);
  const redraw = () => Promise.all(drawn().map(draw));

  function setUpFigures() {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries.filter((item) => item.isIntersecting)) {
        seen.unobserve(entry.target);
        requestAnimationFrame(() => setTimeout(draw, 0, figures.get(entry.target)));
      }
    }, { rootMargin: "300px" });
    document.querySelectorAll("section.figure").forEach((section) => setUpFigure(section, seen));
  }

  // Light and dark
  const button = document.getElementById("theme");
  const isDark = () => (root.style.colorScheme ? root.style.colorScheme === "dark" : dark.matches);
  function themed() {
    button.textContent = isDark() ? "Light" : "Dark";
    return redraw();
  }
  button.addEventListener("click", () => { root.style.colorScheme = isDark() ? "light" : "dark"; themed(); });
  dark.addEventListener("change", themed);

  // Tables
  const tables = [];

  function compare(one, other, column, down) {
    const number = column.number;
    const a = number ? one.numbers[column.index] : one.cells[column.index];
    const b = number ? other.numbers[column.index] : other.cells[column.index];
    const missing = (value) => value === null || value === "";
    if (missing(a) || missing(b)) return missing(a) - missing(b); // missing last, in either direction
    const order = number ? a - b : a.localeCompare(b, "en", { numeric: true });
    return down ? -order : order;
  }

  function found(table) {
    const words = table.text.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = table.rows.filter((row) =>
      table.wanted.every((value, index) => value === null || row.filters[index] === value) &&
      words.every((word) => searchable(row).includes(word)));
    return table.by ? rows.sort((one, other) => compare(one, other, table.by, table.down)) : rows;
  }

  function searchable(row) {
    row.text ??= [...row.cells, ...(row.details || []).flat()].join("\n").toLowerCase();
    return row.text;
  }

  function details(row, width) {
    const list = make("dl");
    for (const [name, value] of row.details) list.append(make("dt", {}, name), make("dd", {}, value));
    if (row.links.length) {
      list.append(make("dt", {}, "files"), make("dd", {}, ...row.links.map(([name, href]) => make("a", { href }, name))));
    }
    return make("tr", { class: "details" }, make("td", { colspan: width }, list));
  }

  function toggle(opener, row, line, width) {
    const open = opener.getAttribute("aria-expanded") === "true";
    if (open) line.nextSibling.remove();
    else line.after(details(row, width));
    opener.setAttribute("aria-expanded", String(!open));
  }

  function lineOf(table, row) {
    const line = make("tr", { class: "row" });
    row.cells.forEach((cell, index) => {
      const column = table.columns[index];
      const bad = column.title === "status" && cell !== "ok";
      const content = index === 0 && row.details
        ? make("button", { type: "button", class: "open", "aria-expanded": "false" }, cell || "(no name)")
        : cell;
      line.append(make("td", { class: column.number ? "number" : bad ? "not-ok" : WIDE[column.title] || null }, content));
    });
    if (table.linked) line.append(make("td", {}, ...row.links.slice(0, 1).map(([, href]) => make("a", { href }, "files"))));
    const opener = line.querySelector(".open");
    if (opener) opener.addEventListener("click", () => toggle(opener, row, line, line.children.length));
    return line;
  }

  function more(table, count = CHUNK) {
    const next = table.shown.slice(table.put, table.put + count);
    table.body.append(...next.map((row) => lineOf(table, row)));
    table.put += next.length;
    const left = table.shown.length - table.put;
    table.more.hidden = left === 0;
    table.more.textContent = `${left.toLocaleString("en")} more rows`;
  }

  function fill(table) {
    table.shown = found(table);
    table.put = 0;
    table.body.replaceChildren();
    table.count.textContent = `${table.shown.length.toLocaleString("en")} of ${table.rows.length.toLocaleString("en")}`;
    more(table);
  }

  function sortBy(table, column, head) {
    table.down = table.by === column ? !table.down : column.number;
    table.by = column;
    head.parentNode.querySelectorAll("th").forEach((item) => item.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", table.down ? "descending" : "ascending");
    fill(table);
  }

  function toolbar(table) {
    const box = make("input", { type: "search", placeholder: "filter", "aria-label": `filter ${table.id}`,
      oninput: () => { table.text = box.value; fill(table); } });
    const bar = make("div", { class: "toolbar" }, box);
    table.filters.forEach((name, index) => {
      const values = [...new Set(table.rows.map((row) => row.filters[index]))].sort();
      if (values.length < 2) return;
      const select = make("select", { "data-filter": name, onchange: () => {
        table.wanted[index] = select.selectedIndex ? values[select.selectedIndex - 1] : null;
        fill(table);
      } }, make("option", {}, "all"), ...values.map((value) => make("option", {}, value)));
      bar.append(make("label", {}, name, select));
    });
    bar.append(table.count);
    return bar;
  }

  function setUpTable(section) {
    const id = section.dataset.table;
    const given = listings[id];
    const table = {
      ...given, id, text: "", wanted: given.filters.map(() => null), by: null, down: false, put: 0, shown: [],
      linked: given.rows.some((row) => row.links && row.links.length),
      columns: given.columns.map((column, index) => ({ ...column, index })),
      body: make("tbody"), count: make("span", { class: "count", role: "status" }),
      more: make("button", { type: "button", class: "more", onclick: () => more(table) }),
    };
    const heads = make("tr");
    for (const column of table.columns) {
      const head = make("th", { scope: "col", class: column.number ? "number" : null });
      head.append(make("button", { type: "button", onclick: () => sortBy(table, column, head) }, column.title));
      heads.append(head);
    }
    if (table.linked) heads.append(make("th", { scope: "col", "aria-label": "files" }));
    const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": id },
      make("table", {}, make("thead", {}, heads), table.body));
    section.append(toolbar(table), scroll, table.more);
    new IntersectionObserver((entries) => { if (entries.some((item) => item.isIntersecting)) more(table); }, { rootMargin: "400px" })
      .observe(table.more);
    tables.push(table);
    fill(table);
  }

  // On paper everything is there, in light colours.
  let before = "";
  addEventListener("beforeprint", () => {
    before = root.style.colorScheme;
    root.style.colorScheme = "light";
    figures.forEach(draw);
    tables.forEach((table) => more(table, table.shown.length));
  });
  addEventListener("afterprint", () => { root.style.colorScheme = before; redraw(); });

  document.querySelectorAll("section.table").forEach(setUpTable);
  setUpFigures();
  themed();
})();
