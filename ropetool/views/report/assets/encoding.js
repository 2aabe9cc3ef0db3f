// The encoding of each position: a heat map of cos and sin of all pairs, or the curves of one.

const ENCODING = { most: 384, height: 250 };

function buildEncoding() {
  byId("views").addEventListener("change", (event) => look({ view: event.target.value }));
  byId("span").addEventListener("input", () => look({ span: Number(byId("span").value) }));
  drawnBy(drawEncoding, "pair", "view", "span");
}

// The slider counts doublings, so that it reaches from a few tokens to all of them.
function shownPositions() {
  const slider = byId("span");
  const most = Math.ceil(Math.log2(Math.max(shownLength(), 32)));
  slider.max = most;
  if (!state.span) state.span = Math.min(7, most);
  state.span = clamp(state.span, 4, most);
  slider.value = state.span;
  const count = Math.min(2 ** state.span, Math.max(shownLength(), 32));
  slider.setAttribute("aria-valuetext", `${count} positions`);
  byId("span-shown").value = `0 to ${grouped(count)}`;
  return count;
}

function drawEncoding() {
  const count = shownPositions();
  const heat = state.view === "heat";
  byId("heat").toggleAttribute("hidden", !heat);
  byId("curves").toggleAttribute("hidden", heat);
  if (heat) drawHeat(count);
  else drawCurves(count);
  tellEncoding(count, heat);
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function rgb(name) {
  const text = colour(name);
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

function drawHeat(count) {
  const canvas = byId("heat");
  const { inv_freq: frequencies } = chosen().way;
  const columns = Math.min(count, ENCODING.most);
  const pairs = frequencies.length;
  const rows = 2 * pairs;
  [canvas.width, canvas.height] = [columns, rows];
  canvas.style.height = `${clamp(rows * 3, 120, 320)}px`;
  const [low, zero, high] = ["--low", "--zero", "--high"].map(rgb);
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let column = 0; column < columns; column += 1) {
    const position = Math.floor((column * count) / columns);
    frequencies.forEach((frequency, pair) => {
      const angle = position * frequency;
      [Math.cos(angle), Math.sin(angle)].forEach((value, half) => {
        const end = value < 0 ? low : high;
        const at = 4 * ((half * pairs + pair) * columns + column);
        for (let part = 0; part < 3; part += 1) {
          image.data[at + part] = zero[part] + (end[part] - zero[part]) * Math.abs(value);
        }
        image.data[at + 3] = 255;
      });
    });
  }
  context.putImageData(image, 0, 0);
}

function drawCurves(count) {
  const plot = canvasOf(byId("curves"), ENCODING.height);
  const { way } = chosen();
  const x = linear(0, count, MARGIN.left, plot.width - MARGIN.right);
  const y = linear(-1.1, 1.1, ENCODING.height - MARGIN.bottom, MARGIN.top);
  axisY(plot, y, "", MARGIN.top, [-1, 0, 1]);
  const samples = Array.from({ length: 601 }, (_, at) => (at * count) / 600);
  const line = (of, frequency, kind) => plot.svg.append(shape("path", {
    class: `${kind} line`, d: path(samples.map((position) => [x(position), y(of(position * frequency))])),
  }));
  line(Math.cos, unscaled().inv_freq[state.pair], "ghost thin");
  line(Math.cos, way.inv_freq[state.pair], "own");
  line(Math.sin, way.inv_freq[state.pair], "other");
  const { trained } = layers();
  if (trained && trained <= count) markTrained(plot, x(trained), trained);
  axisX(plot, x, ENCODING.height - MARGIN.bottom, "position");
}

function tellEncoding(count, heat) {
  const { way, name } = chosen();
  const pairs = spread(pairCount(), 6);
  const positions = spread(count, 17);
  fillTable(byId("encoding-table"), `cos and sin by position, ${name}`,
    ["position", ...pairs.flatMap((pair) => [`cos, pair ${pair}`, `sin, pair ${pair}`])],
    positions.map((position) => [position, ...pairs.flatMap((pair) =>
      [Math.cos, Math.sin].map((of) => fixed(of(position * way.inv_freq[pair]), 3)))]));
  const where = `at positions 0 to ${grouped(count)}`;
  byId("encoding-desc").textContent = heat
    ? `${name}: cos and sin of ${pairCount()} pairs ${where}, from -1 to 1.`
    : `${name}: cos and sin of pair ${state.pair} ${where}; a turn takes ${short(way.wavelength[state.pair])} tokens.`;
  const scaled = way.attention_factor === 1 ? "" : `; the model takes them times ${short(way.attention_factor)}`;
  const halves = `upper half: cos, lower half: sin, fast pairs on top of each${scaled}`;
  fillLegend(byId("encoding-legend"), heat
    ? [["low", "−1"], ["zero", "0"], ["high", "1"], ["", halves]]
    : [["own", `cos of pair ${state.pair}`], ["other", `sin of pair ${state.pair}`], ["ghost", `cos ${NAMES.none}`]]);
}
