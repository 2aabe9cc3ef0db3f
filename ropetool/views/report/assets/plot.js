// Axes: an SVG is drawn at the width that it has, so that its texts have the same size on a phone.

const MARGIN = { left: 52, right: 14, top: 14, bottom: 40 };

// Clears the picture and gives it a size; its title and its description stay.
function canvasOf(svg, height, most = Infinity) {
  const width = Math.min(roomIn(svg.parentElement), most);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  for (const node of [...svg.children]) {
    if (node.tagName !== "title" && node.tagName !== "desc") node.remove();
  }
  return { svg, width, height };
}

function roomIn(node) {
  const style = getComputedStyle(node);
  return Math.max(node.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight), 200);
}

function linear(from, to, start, stop) {
  const scale = (value) => start + ((value - from) / (to - from || 1)) * (stop - start);
  scale.back = (at) => from + ((at - start) / (stop - start || 1)) * (to - from);
  scale.ticks = linearTicks(from, to);
  scale.label = (value) => short(value);
  return scale;
}

function logarithmic(from, to, start, stop) {
  const inner = linear(Math.log10(from), Math.log10(to), start, stop);
  const scale = (value) => inner(Math.log10(Math.max(value, from)));
  scale.back = (at) => 10 ** inner.back(at);
  scale.ticks = [];
  const first = Math.ceil(Math.log10(from) - 1e-9);
  const last = Math.floor(Math.log10(to) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / 8));
  for (let power = first; power <= last; power += step) scale.ticks.push(10 ** power);
  scale.label = powerOfTen;
  return scale;
}

const RAISED = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹";

function powerOfTen(value) {
  const power = Math.round(Math.log10(value));
  const raised = [...String(power)].map((digit) => RAISED["-0123456789".indexOf(digit)]).join("");
  return power >= -2 && power <= 3 ? value.toLocaleString("en-US") : `10${raised}`;
}

function linearTicks(from, to) {
  const rough = (to - from) / 5;
  if (!(rough > 0)) return [from];
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * unit).find((size) => size >= rough);
  const ticks = [];
  for (let at = Math.ceil(from / step - 1e-9); at * step <= to + step * 1e-9; at += 1) ticks.push(at * step);
  return ticks;
}

function axisX(plot, x, y, label, ticks = x.ticks) {
  const [start, stop] = [MARGIN.left, plot.width - MARGIN.right];
  plot.svg.append(shape("path", { class: "axis", d: `M${start} ${y}H${stop}` }));
  const room = Math.max(1, Math.floor((stop - start) / 64));
  const every = Math.ceil(ticks.length / room);
  ticks.forEach((tick, at) => {
    if (at % every) return;
    plot.svg.append(
      shape("path", { class: "axis", d: `M${x(tick)} ${y}v5` }),
      shape("text", { x: x(tick), y: y + 18, "text-anchor": "middle" }, x.label(tick)),
    );
  });
  plot.svg.append(shape("text", { x: (start + stop) / 2, y: y + 34, "text-anchor": "middle" }, label));
}

function axisY(plot, y, label, top, ticks = y.ticks) {
  const stop = plot.width - MARGIN.right;
  for (const tick of ticks) {
    plot.svg.append(
      shape("path", { class: "axis", d: `M${MARGIN.left} ${y(tick)}H${stop}` }),
      shape("text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, y.label(tick)),
    );
  }
  plot.svg.append(shape("text", { x: 2, y: top - 4, class: "halo" }, label));
}

// A line down the picture at the trained length, with its name.
function markTrained(plot, x, trained) {
  const [place, anchor] = x > plot.width - 150 ? [x - 5, "end"] : [x + 5, "start"];
  plot.svg.append(
    shape("path", { class: "trained line dashed", d: `M${x} ${MARGIN.top}V${plot.height - MARGIN.bottom}` }),
    shape("text", { class: "trained halo", x: place, y: MARGIN.top + 11, "text-anchor": anchor },
      `trained: ${grouped(trained)}`),
  );
}

// Likewise where layers look back no further; lower, as the two may be near.
function markWindow(plot, x, window) {
  const [place, anchor] = x > plot.width - 150 ? [x - 5, "end"] : [x + 5, "start"];
  plot.svg.append(
    shape("path", { class: "other line dashed", d: `M${x} ${MARGIN.top}V${plot.height - MARGIN.bottom}` }),
    shape("text", { class: "other halo", x: place, y: MARGIN.top + 27, "text-anchor": anchor },
      `looks back: ${grouped(window)}`),
  );
}

function markY(plot, y, kind, text, below = false) {
  plot.svg.append(
    shape("path", { class: `${kind} line dashed`, d: `M${MARGIN.left} ${y}H${plot.width - MARGIN.right}` }),
    shape("text", { class: `${kind} halo`, x: MARGIN.left + 6, y: y + (below ? 14 : -5) }, text),
  );
}

function path(points) {
  return points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

// Calls `at` with the place of the pointer, in units of the picture, while it is pressed (or, with a mouse, over it).
function onPointer(svg, at) {
  const tell = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    at((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
  };
  svg.addEventListener("pointerdown", tell);
  svg.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse" || event.buttons) tell(event);
  });
}
