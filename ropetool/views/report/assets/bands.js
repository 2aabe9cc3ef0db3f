// Frequency bands: the wavelength of each pair, and how many times slower the chosen way turns it.

const BANDS = { height: 380, split: 250, below: 290 };

function buildBands() {
  const svg = document.querySelector("#bands svg");
  onPointer(svg, (x) => {
    const count = pairCount();
    const place = (x - MARGIN.left) / (svg.viewBox.baseVal.width - MARGIN.left - MARGIN.right);
    const pair = clamp(Math.floor(place * count), 0, count - 1);
    if (pair !== state.pair) look({ pair });
  });
  drawnBy(drawBands, "pair");
}

function drawBands() {
  const plot = canvasOf(document.querySelector("#bands svg"), BANDS.height);
  const { way, name } = chosen();
  const plain = unscaled();
  const count = pairCount();
  const x = linear(-0.5, count - 0.5, MARGIN.left, plot.width - MARGIN.right);
  x.ticks = x.ticks.filter((tick) => Number.isInteger(tick) && tick >= 0);
  const y = bandScale(way, plain);
  const never = drawNever(plot, y);
  axisY(plot, y, "tokens for one turn", MARGIN.top);
  plot.svg.append(...never);
  if (layers().trained) markY(plot, y(layers().trained), "trained", `trained: ${grouped(layers().trained)}`);
  if (layers().window) markY(plot, y(layers().window), "other", `looks back: ${grouped(layers().window)}`, true);
  if (way.length && way.length !== layers().trained) markY(plot, y(way.length), "new", `new: ${grouped(way.length)}`);
  drawDots(plot, x, y, way, plain);
  drawSlower(plot, x, way);
  const at = x(state.pair);
  plot.svg.append(shape("path", { class: "cursor", d: `M${at} ${MARGIN.top}V${BANDS.height - MARGIN.bottom}` }));
  axisX(plot, x, BANDS.height - MARGIN.bottom, "pair, fast to slow");
  tellBands(way, plain, name);
}

function bandScale(way, plain) {
  const all = [...way.wavelength, ...plain.wavelength, layers().trained, way.length].filter((value) => value);
  const top = Math.max(...all, 10) * 3;
  return logarithmic(Math.min(...all, 6) / 1.3, top, BANDS.split, MARGIN.top);
}

// The part above the trained length; its name is to be drawn over what follows.
function drawNever(plot, y) {
  const height = layers().trained ? y(layers().trained) - MARGIN.top : 0;
  if (height < 24) return [];
  const width = plot.width - MARGIN.left - MARGIN.right;
  plot.svg.append(shape("rect", { class: "never", x: MARGIN.left, y: MARGIN.top, width, height }));
  return [shape("text", { class: "on-never", x: MARGIN.left + 6, y: MARGIN.top + 15 }, "no full turn in training")];
}

function drawDots(plot, x, y, way, plain) {
  const size = clamp((plot.width - 66) / pairCount() / 2.6, 1.6, 5);
  const dots = [];
  way.wavelength.forEach((length, pair) => {
    const before = plain.wavelength[pair];
    if (before && length && before !== length) {
      dots.push(shape("path", { class: "ghost thin", d: `M${x(pair)} ${y(before)}V${y(length)}` }));
    }
    if (before) dots.push(shape("circle", { class: "ghost hollow", cx: x(pair), cy: y(before), r: size }));
    if (length) dots.push(shape("circle", { class: "own dot", cx: x(pair), cy: y(length), r: size }));
  });
  plot.svg.append(...dots);
}

function drawSlower(plot, x, way) {
  const most = Math.max(2, ...way.slower.map((times) => times || 0));
  const y = linear(0, most, BANDS.height - MARGIN.bottom, BANDS.below);
  axisY(plot, y, "times slower", BANDS.below - 6, [1, ...(most > 2 ? [most] : [2])]);
  const width = Math.max(1, (x(1) - x(0)) * 0.7);
  way.slower.forEach((times, pair) => {
    if (!times) return;
    const height = Math.max(y(0) - y(times), 0.5);
    const place = { x: x(pair) - width / 2, y: y(times), width, height };
    plot.svg.append(shape("rect", { class: "own bar", "stroke-width": 0, ...place }));
  });
}

function tellBands(way, plain, name) {
  const { trained, head } = layers();
  const rows = way.wavelength.map((length, pair) => [
    pair, head.pairs[head.pairing][pair].join(" and "), short(plain.wavelength[pair]), short(length),
    plain.turns ? short(plain.turns[pair]) : "–", way.turns ? short(way.turns[pair]) : "–",
    way.slower[pair] ? `× ${short(way.slower[pair])}` : "–",
  ]);
  fillTable(byId("bands-table"), `Pairs, ${name}`,
    ["pair", "rows", "tokens a turn, without scaling", "tokens a turn", "turns in training",
      `turns in ${way.length ? `${grouped(way.length)} tokens` : "all"}`, "slower"], rows);
  const never = plain.turns ? plain.turns.filter((times) => times < 1).length : null;
  const turning = way.wavelength.filter((length) => length);
  const said = `${name}: ${turning.length} of ${way.wavelength.length} pairs turn, with wavelengths from ` +
    `${short(turning[0])} to ${short(turning[turning.length - 1])} tokens.` +
    (never === null ? "" : ` Without scaling, ${never} pairs complete no turn in ${grouped(trained)} trained tokens.`);
  byId("bands-desc").textContent = said;
  fillLegend(byId("bands-legend"), [["own", name], ["ghost", NAMES.none]]);
  byId("bands-readout").textContent = saidOfPair(rows[state.pair], way, trained);
}

function saidOfPair([pair, rows, before, after, inTraining, inAll, slower], way, trained) {
  const parts = [`a turn takes ${after} tokens${before === after ? "" : `, without scaling ${before}`}`];
  const further = way.length && way.length !== trained ? `, ${inAll} in ${grouped(way.length)}` : "";
  parts.push(`${inTraining} turns in training${further}`);
  parts.push(slower === "× 1" ? "not slowed" : `${slower} slower`);
  return `Pair ${pair} (rows ${rows}): ${parts.join("; ")}.`;
}
