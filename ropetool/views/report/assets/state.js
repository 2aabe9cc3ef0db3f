// What is looked at, and who draws it.

const data = JSON.parse(byId("data").textContent);
const state = { layers: 0, way: "own:0", factor: null, pair: null, position: 100, q: 0, k: 0, view: "heat", span: 0 };
const drawers = [];
// What every figure follows; each may name more.
const ALWAYS = ["layers", "way", "factor"];

const NAMES = { ntk: "NTK", yarn: "YaRN", none: "without scaling" };

const layers = () => data.rope.layers[state.layers];
const pairCount = () => layers().head.rotary_dim / 2;
const unscaled = () => layers().ways.find((way) => way.method === "none");

// The other checkpoint's turning of the same kind of layers, where its pairs are as many.
function otherWays() {
  const rope = data.against && data.against.rope;
  const same = rope ? rope.layers.find((other) => other.layers === layers().layers) : null;
  if (!same || same.head.rotary_dim !== layers().head.rotary_dim) return [];
  return same.ways.filter((way) => way.method === "own");
}

const sameTurning = (one, other) =>
  one.attention_factor === other.attention_factor && one.inv_freq.every((value, at) => value === other.inv_freq[at]);

// Every way that can be chosen: {key, name, way}; those without a way cannot be had, and say why.
function choices() {
  const found = [];
  const own = layers().ways.filter((way) => way.method === "own");
  const add = (kind, name, ways) => ways.forEach((way, at) => {
    const length = ways.length > 1 && way.length ? ` (${grouped(way.length)} tokens)` : "";
    found.push({ key: `${kind}:${at}`, name: name + length, way });
  });
  add("own", "as it is", own);
  add("other", "the other", otherWays());
  if (!own.some((way) => sameTurning(way, unscaled()))) add("none", NAMES.none, [unscaled()]);
  const methods = [...new Set([...layers().ways, ...layers().left].map((entry) => entry.method))];
  for (const method of methods.filter((name) => name !== "own" && name !== "none")) {
    const of = (entry) => entry.method === method && entry.factor === state.factor;
    const left = layers().left.find(of);
    const way = layers().ways.find(of);
    found.push({ key: `${method}:0`, name: NAMES[method] || method, way, why: left ? left.why : "" });
  }
  return found;
}

function chosen() {
  const found = choices();
  return found.find((choice) => choice.key === state.way && choice.way) || found[0];
}

// How long a text the figures go up to: the length of the chosen way, else the trained one.
const shownLength = () => chosen().way.length || layers().trained || 4096;

function drawnBy(draw, ...needs) {
  drawers.push({ draw, needs: [...ALWAYS, ...needs] });
}

// Draws what follows one of the changed parts of the state, on the next frame; all of it where none is named.
const changed = new Set();
function redraw(parts = Object.keys(state)) {
  const waiting = changed.size > 0;
  for (const part of parts) changed.add(part);
  if (waiting || !changed.size) return;
  requestAnimationFrame(() => {
    const due = drawers.filter(({ needs }) => needs.some((part) => changed.has(part)));
    changed.clear();
    for (const { draw } of due) draw();
  });
}

// Changes what is looked at; what a slider, a key or a drag does ends here.
function look(change) {
  const parts = Object.keys(change).filter((part) => state[part] !== change[part]);
  Object.assign(state, change);
  redraw(parts);
}
