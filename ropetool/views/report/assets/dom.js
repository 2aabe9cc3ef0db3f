// Elements, and numbers as people read them. Texts are set as texts: nothing here is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

// A table of numbers: its columns are texts, and each row begins with what it is about.
function fillTable(table, caption, columns, rows) {
  const head = columns.map((column) => element("th", { scope: "col" }, column));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((cell, at) => element(at ? "td" : "th", at ? {} : { scope: "row" }, String(cell)))));
  table.replaceChildren(
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body),
  );
}

// A legend: what each kind of mark is. An entry is [class of the mark, text]; without a class it is a text alone.
function fillLegend(node, entries) {
  const mark = (kind) => shape("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" },
    shape("path", { d: "M1 6H25", class: kind, "stroke-width": 3 }));
  node.replaceChildren(...entries.map(([kind, text]) => element("span", {}, ...(kind ? [mark(kind)] : []), text)));
}

function grouped(value) {
  return Math.round(value).toLocaleString("en-US");
}

// Four significant digits; whole numbers from 1,000 on.
function short(value) {
  if (value === null || value === undefined) return "never";
  const size = Math.abs(value);
  if (size >= 1000) return size < 1e9 ? grouped(value) : value.toExponential(2);
  if (size !== 0 && size < 0.001) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function fixed(value, digits) {
  return value === null || value === undefined ? "–" : value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1");
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// About `most` whole numbers from 0 to count - 1, the first and the last among them.
function spread(count, most) {
  const taken = Math.min(count, most);
  return Array.from({ length: taken }, (_, at) => (taken === 1 ? 0 : Math.round((at * (count - 1)) / (taken - 1))));
}
