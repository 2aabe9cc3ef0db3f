// q and k at positions of their own: each pair is turned by position times frequency, then the dot product is taken.

const DRAG = { height: 96, y: 44, plane: 230 };
const HANDLES = [
  { name: "q", says: "position of q", move: (by) => ({ q: state.q + by }) },
  { name: "k", says: "position of k", move: (by) => ({ k: state.k + by }) },
  { name: "both", says: "q and k together", move: (by) => ({ q: state.q + by, k: state.k + by }) },
];
// Where both began to move together, and the dot product there.
let together = null;

function buildDrag() {
  for (const name of ["q", "k"]) {
    const field = byId(`${name}-number`);
    field.addEventListener("input", () => moveBy(name, Math.floor(Number(field.value) || 0) - state[name]));
    field.addEventListener("change", () => { field.value = state[name]; });
  }
  const svg = document.querySelector("#drag svg");
  svg.append(...HANDLES.map(handleOf));
  drawnBy(drawDrag, "pair", "q", "k");
}

// The handles are made once, and only moved: so they keep the keyboard, and the pointer that drags them.
function handleOf({ name, says }) {
  const grip = name === "both" ? shape("rect", { class: "grip soft", height: 24, y: DRAG.y + 18, rx: 12 })
    : shape("circle", { class: `grip ${name === "q" ? "own" : "other"}`, r: 15, cy: DRAG.y });
  const group = shape("g", {
    id: `handle-${name}`, class: "handle", role: "slider", tabindex: 0, "aria-label": says, "aria-valuemin": 0,
  }, grip, shape("text", { "text-anchor": "middle", y: name === "both" ? DRAG.y + 34 : DRAG.y + 4 }, name));
  group.addEventListener("keydown", (event) => onKey(event, name));
  group.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    group.focus();
    group.setPointerCapture(event.pointerId);
    group.dataset.from = JSON.stringify([event.clientX, state.q, state.k]);
  });
  group.addEventListener("pointermove", (event) => onDrag(event, name, group));
  for (const end of ["pointerup", "pointercancel"]) group.addEventListener(end, () => delete group.dataset.from);
  return group;
}

function onDrag(event, name, group) {
  if (!group.dataset.from) return;
  const [from, q, k] = JSON.parse(group.dataset.from);
  const svg = group.ownerSVGElement;
  const scale = svg.viewBox.baseVal.width / svg.getBoundingClientRect().width;
  const tokens = Math.round(((event.clientX - from) * scale * shownLength()) / (svg.viewBox.baseVal.width - 48));
  const start = name === "k" ? k : q;
  moveBy(name, start + tokens - (name === "k" ? state.k : state.q));
}

function onKey(event, name) {
  const page = Math.max(1, Math.round(shownLength() / 10));
  const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: page, PageDown: -page,
    Home: -shownLength(), End: shownLength() };
  if (!(event.key in steps)) return;
  event.preventDefault();
  moveBy(name, steps[event.key]);
}

// Moves one of them, or both as far as both can go: their distance is kept.
function moveBy(name, by) {
  const moving = name === "both" ? [state.q, state.k] : [state[name]];
  const step = clamp(by, -Math.min(...moving), shownLength() - Math.max(...moving));
  if (name !== "both") together = null;
  else together ??= { q: state.q, dot: dotProduct().whole };
  look(HANDLES.find((handle) => handle.name === name).move(step));
}

function turned([x, y], position, frequency, factor) {
  const [cos, sin] = [Math.cos(position * frequency) * factor, Math.sin(position * frequency) * factor];
  return [x * cos - y * sin, x * sin + y * cos];
}

// The whole head's dot product, and each pair's share: from absolute positions, as attention computes it.
function dotProduct() {
  const { inv_freq: frequencies, attention_factor: factor } = chosen().way;
  const { q, k } = layers().example;
  const shares = frequencies.map((frequency, pair) => {
    const [one, other] = [turned(q[pair], state.q, frequency, factor), turned(k[pair], state.k, frequency, factor)];
    return one[0] * other[0] + one[1] * other[1];
  });
  return { whole: shares.reduce((sum, share) => sum + share, 0), shares };
}

function drawDrag() {
  const svg = document.querySelector("#drag svg");
  const length = shownLength();
  [state.q, state.k] = [clamp(state.q, 0, length), clamp(state.k, 0, length)];
  const handles = HANDLES.map(({ name }) => byId(`handle-${name}`));
  const width = roomIn(svg.parentElement);
  svg.setAttribute("viewBox", `0 0 ${width} ${DRAG.height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", DRAG.height);
  svg.querySelector("#drag-axis")?.remove();
  const x = linear(0, length, 24, width - 24);
  svg.insertBefore(trackOf(x, width), handles[0]);
  placeHandles(handles, x);
  const { whole, shares } = dotProduct();
  tellDrag(whole, shares);
  drawPlane(shares);
}

function trackOf(x, width) {
  const group = shape("g", { id: "drag-axis", "aria-hidden": "true" },
    shape("path", { class: "axis", "stroke-width": 6, "stroke-linecap": "round", d: `M24 ${DRAG.y}H${width - 24}` }));
  const ticks = x.ticks.filter((tick, at) => at % (width < 480 ? 2 : 1) === 0);
  for (const tick of ticks) {
    group.append(shape("text", { x: x(tick), y: 16, "text-anchor": "middle" }, x.label(tick)));
  }
  if (layers().trained && layers().trained < shownLength()) {
    const at = x(layers().trained);
    group.append(shape("path", { class: "trained line dashed", d: `M${at} 22V${DRAG.height}` }));
  }
  return group;
}

function placeHandles([q, k, both], x) {
  const at = { q: x(state.q), k: x(state.k) };
  const values = { q: state.q, k: state.k, both: Math.min(state.q, state.k) };
  for (const [handle, name] of [[q, "q"], [k, "k"]]) {
    handle.querySelector("circle").setAttribute("cx", at[name]);
    handle.querySelector("text").setAttribute("x", at[name]);
  }
  const [left, wide] = [Math.min(at.q, at.k), Math.max(Math.abs(at.q - at.k), 44)];
  const start = clamp((at.q + at.k) / 2 - wide / 2, 2, Math.max(2, x(shownLength()) + 22 - wide));
  const bar = both.querySelector("rect");
  bar.setAttribute("x", Math.abs(at.q - at.k) < 44 ? start : left);
  bar.setAttribute("width", wide);
  both.querySelector("text").setAttribute("x", (Math.abs(at.q - at.k) < 44 ? start : left) + wide / 2);
  for (const [handle, name] of [[q, "q"], [k, "k"], [both, "both"]]) {
    handle.setAttribute("aria-valuemax", shownLength());
    handle.setAttribute("aria-valuenow", values[name]);
    const said = name === "both" ? `q at ${state.q}, k at ${state.k}` : `token ${values[name]}`;
    handle.setAttribute("aria-valuetext", said);
  }
}

function tellDrag(whole, shares) {
  byId("distance").value = grouped(state.q - state.k);
  byId("dot").value = fixed(whole, 6);
  for (const name of ["q", "k"]) {
    const field = byId(`${name}-number`);
    field.max = shownLength();
    if (document.activeElement !== field) field.value = state[name];
  }
  const moved = together ? state.q - together.q : 0;
  byId("drag-readout").textContent = moved
    ? `Both moved ${grouped(moved)} tokens: q·k was ${fixed(together.dot, 6)} and is ${fixed(whole, 6)}.`
    : `q is at token ${grouped(state.q)} and k at ${grouped(state.k)}.`;
  const { q, k } = layers().example;
  fillTable(byId("drag-table"), "q and k before they are turned, and each pair's share of q·k",
    ["pair", "q", "k", "share"],
    shares.map((share, pair) => {
      return [pair, ...[q, k].map((of) => of[pair].map((part) => fixed(part, 3)).join(", ")), fixed(share, 5)];
    }));
}

// The chosen pair as two arrows; beside them, or below where there is no room, what each pair adds to q·k.
function drawPlane(shares) {
  const svg = byId("plane");
  const wide = roomIn(svg.parentElement) >= 560;
  const plot = canvasOf(svg, wide ? DRAG.plane : DRAG.plane + 170);
  drawArrows(plot, wide ? 130 : plot.width / 2);
  const x = linear(-0.5, shares.length - 0.5, wide ? 300 : MARGIN.left, plot.width - MARGIN.right);
  const most = Math.max(...shares.map(Math.abs), 1e-9);
  const [top, bottom] = wide ? [24, DRAG.plane - 24] : [DRAG.plane + 20, DRAG.plane + 150];
  const y = linear(-most, most, bottom, top);
  plot.svg.append(
    shape("text", { x: x(-0.5), y: top - 8 }, "share of q·k by pair, fast to slow"),
    shape("path", { class: "axis", d: `M${x(-0.5)} ${y(0)}H${x(shares.length - 0.5)}` }),
    ...shares.map((share, pair) => shape("rect", {
      class: `${pair === state.pair ? "other" : "own"} bar`, "stroke-width": 0,
      x: x(pair - 0.35), width: Math.max(x(0.35) - x(-0.35), 1),
      y: Math.min(y(share), y(0)), height: Math.max(Math.abs(y(share) - y(0)), 0.5),
    })),
  );
}

function drawArrows(plot, x) {
  const { way } = chosen();
  const { q, k } = layers().example;
  const y = DRAG.plane / 2;
  const most = Math.max(Math.hypot(...q[state.pair]), Math.hypot(...k[state.pair])) * way.attention_factor;
  const reach = DRAG.plane / 2 - 28;
  plot.svg.append(
    shape("circle", { class: "axis", cx: x, cy: y, r: reach }),
    shape("path", { class: "axis", d: `M${x - reach} ${y}h${2 * reach}M${x} ${y - reach}v${2 * reach}` }),
  );
  const ends = [["q", q, state.q, "own"], ["k", k, state.k, "other"]].map(([name, of, position, kind]) => {
    const [a, b] = turned(of[state.pair], position, way.inv_freq[state.pair], way.attention_factor);
    const tip = [x + (a / most) * reach, y - (b / most) * reach];
    plot.svg.append(
      shape("path", { class: kind, "stroke-width": 3, d: path([[x, y], tip]) }),
      shape("circle", { class: kind, cx: tip[0], cy: tip[1], r: 4 }),
      shape("text", {
        class: `${kind} strong halo`, x: tip[0] + (a < 0 ? -14 : 8), y: tip[1] + (b < 0 ? 14 : -6),
      }, name),
    );
    return [a, b];
  });
  const degrees = ends.map(([a, b]) => Math.round((Math.atan2(b, a) * 180) / Math.PI));
  byId("plane-desc").textContent = `Pair ${state.pair}: q at ${degrees[0]} degrees, k at ${degrees[1]} degrees. ` +
    "Each pair's share of q·k is in the numbers below.";
  plot.svg.append(shape("text", { x: 4, y: 14 }, `pair ${state.pair}`));
}
