// Clocks: the hands of some pairs at one position, which a slider, a field or Play moves.

const CLOCKS = { most: 12, radius: 32, width: 96, height: 112 };
let playing = 0;

function buildClocks() {
  const [slider, field, play] = [byId("position"), byId("position-number"), byId("play")];
  slider.addEventListener("input", () => look({ position: Number(slider.value) }));
  field.addEventListener("input", () => {
    look({ position: clamp(Math.floor(Number(field.value)) || 0, 0, shownLength()) });
  });
  field.addEventListener("change", () => { field.value = state.position; });
  play.addEventListener("click", () => (playing ? stop() : start()));
  drawnBy(drawClocks, "position");
}

function start() {
  playing = setInterval(() => {
    if (state.position >= shownLength()) stop();
    else look({ position: state.position + 1 });
  }, 80);
  tellPlaying();
}

function stop() {
  clearInterval(playing);
  playing = 0;
  tellPlaying();
}

function tellPlaying() {
  byId("play").textContent = playing ? "Pause" : "Play";
  byId("play").setAttribute("aria-pressed", String(Boolean(playing)));
}

function drawClocks() {
  const length = shownLength();
  state.position = clamp(state.position, 0, length);
  const [slider, field] = [byId("position"), byId("position-number")];
  slider.max = length;
  field.max = length;
  slider.value = state.position;
  if (document.activeElement !== field) field.value = state.position;
  const svg = document.querySelector("#clocks svg");
  const shown = spread(pairCount(), CLOCKS.most);
  const across = Math.max(1, Math.floor(roomIn(svg.parentElement) / CLOCKS.width));
  const columns = Math.ceil(shown.length / Math.ceil(shown.length / across));
  const plot = canvasOf(svg, Math.ceil(shown.length / columns) * CLOCKS.height);
  const step = plot.width / columns;
  shown.forEach((pair, at) => {
    const x = step * (at % columns) + step / 2;
    const y = Math.floor(at / columns) * CLOCKS.height + CLOCKS.radius + 6;
    plot.svg.append(clock(pair, x, y));
  });
  tellClocks(shown);
}

function clock(pair, x, y) {
  const { way } = chosen();
  const { radius } = CLOCKS;
  const trained = unscaled().turns;
  const slow = trained && trained[pair] < 1;
  const group = shape("g", { class: "clock" },
    shape("circle", { class: slow ? "never" : "hollow", cx: x, cy: y, r: radius }),
    shape("circle", { class: "axis", cx: x, cy: y, r: radius }),
    shape("path", { class: "axis", d: `M${x} ${y - radius}v6` }),
    hand(x, y, unscaled().inv_freq[pair], "ghost thin"),
    hand(x, y, way.inv_freq[pair], "own hand"),
    shape("text", { class: "strong", x, y: y + radius + 16, "text-anchor": "middle" }, `pair ${pair}`),
    shape("text", { x, y: y + radius + 31, "text-anchor": "middle" }, `${short(way.wavelength[pair])} a turn`));
  return group;
}

function hand(x, y, frequency, kind) {
  const angle = state.position * frequency;
  const reach = CLOCKS.radius - 5;
  const tip = [x + reach * Math.sin(angle), y - reach * Math.cos(angle)];
  return shape("path", { class: kind, "stroke-width": 3, "stroke-linecap": "round", d: path([[x, y], tip]) });
}

function tellClocks(shown) {
  const { way, name } = chosen();
  const rows = shown.map((pair) => {
    const turns = (state.position * way.inv_freq[pair]) / (2 * Math.PI);
    return [pair, short(way.wavelength[pair]), `${Math.round((turns % 1) * 360)}°`, short(turns)];
  });
  fillTable(byId("clocks-table"), `At position ${grouped(state.position)}, ${name}`,
    ["pair", "tokens a turn", "angle", "turns so far"], rows);
  byId("clocks-desc").textContent =
    `At position ${grouped(state.position)}: ${rows.map((row) => `pair ${row[0]} at ${row[2]}`).join(", ")}.`;
}
