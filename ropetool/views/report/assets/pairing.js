// The two layouts: the rows of one head above and below, lines from each row to its place in the other layout.

const PAIRING = { height: 250, strip: 26, top: 40, bottom: 180 };
const LAYOUTS = ["half", "interleaved"];

function buildPairing() {
  const svg = document.querySelector("#pairing svg");
  onPointer(svg, (x, y) => {
    const { head } = layers();
    const row = clamp(Math.floor(((x - 8) / (svg.viewBox.baseVal.width - 16)) * head.head_dim), 0, head.head_dim - 1);
    const layout = LAYOUTS[y < (PAIRING.top + PAIRING.bottom + PAIRING.strip) / 2 ? 0 : 1];
    const pair = head.pairs[layout].findIndex((rows) => rows.includes(row));
    if (pair >= 0 && pair !== state.pair) look({ pair });
  });
  drawnBy(drawPairing, "pair");
}

const hue = (pair, count) => `hsl(${Math.round((300 * pair) / Math.max(count - 1, 1))} 62% 52%)`;

function drawPairing() {
  const plot = canvasOf(document.querySelector("#pairing svg"), PAIRING.height);
  const { head } = layers();
  const x = (row) => 8 + (row / head.head_dim) * (plot.width - 16);
  drawLines(plot, head, x);
  LAYOUTS.forEach((layout, at) => drawStrip(plot, head, x, layout, at ? PAIRING.bottom : PAIRING.top));
  drawPair(plot, head, x);
  tellPairing(head);
}

function drawStrip(plot, head, x, layout, y) {
  const width = x(1) - x(0);
  const pairOf = new Map(head.pairs[layout].flatMap((rows, pair) => rows.map((row) => [row, pair])));
  for (let row = 0; row < head.head_dim; row += 1) {
    const pair = pairOf.get(row);
    const look = pair === undefined ? { class: "still" } : { fill: hue(pair, head.pairs[layout].length) };
    plot.svg.append(shape("rect", { ...look, x: x(row), y, width: Math.max(width - 0.6, 0.6), height: PAIRING.strip }));
  }
  const above = layout === "half";
  const name = `${layout}${layout === head.pairing ? " (this checkpoint)" : ""}`;
  plot.svg.append(
    shape("text", { class: "strong", x: 8, y: above ? y - 18 : y + PAIRING.strip + 32 }, name),
    ...spread(head.head_dim, plot.width < 480 ? 5 : 9).map((row) => shape("text", {
      x: clamp(x(row + 0.5), 12, plot.width - 12), y: above ? y - 5 : y + PAIRING.strip + 14, "text-anchor": "middle",
    }, String(row))),
  );
}

// From a row of `half` to its place in `interleaved`: new[r] = old[moves[r]].
function drawLines(plot, head, x) {
  const [from, to] = [PAIRING.top + PAIRING.strip, PAIRING.bottom];
  head.moves.interleaved.forEach((old, row) => {
    if (old === row) return;
    const pair = head.pairs.interleaved.findIndex((rows) => rows.includes(row));
    plot.svg.append(shape("path", {
      fill: "none", stroke: hue(pair, head.pairs.half.length), "stroke-width": 1, "stroke-opacity": 0.55,
      d: `M${x(old + 0.5)} ${from}C${x(old + 0.5)} ${from + 60} ${x(row + 0.5)} ${to - 60} ${x(row + 0.5)} ${to}`,
    }));
  });
}

function drawPair(plot, head, x) {
  LAYOUTS.forEach((layout, at) => {
    for (const row of head.pairs[layout][state.pair]) {
      const y = at ? PAIRING.bottom : PAIRING.top;
      const width = Math.max(x(1) - x(0), 3);
      plot.svg.append(shape("rect", {
        class: "picked", fill: "none", stroke: "currentColor", "stroke-width": 2,
        x: x(row) - 1, y: y - 2, width: width + 1, height: PAIRING.strip + 4,
      }));
    }
  });
}

function tellPairing(head) {
  const moved = head.moves.interleaved.filter((old, row) => old !== row).length;
  const still = head.head_dim - head.rotary_dim;
  byId("pairing-desc").textContent = `A head of ${head.head_dim} rows, ${head.rotary_dim} of which turn` +
    `${still ? `, and ${still} do not` : ""}. This checkpoint is ${head.pairing}. ` +
    `From half to interleaved, ${moved} rows move.`;
  const [half, interleaved] = LAYOUTS.map((layout) => head.pairs[layout][state.pair].join(" and "));
  byId("pairing-readout").textContent = `Pair ${state.pair}: rows ${half} in half, ${interleaved} in interleaved; ` +
    `${moved} of ${head.head_dim} rows move.`;
  fillTable(byId("pairing-table"), "Rows of each pair", ["pair", "rows in half", "rows in interleaved"],
    head.pairs.half.map((rows, pair) => [pair, rows.join(" and "), head.pairs.interleaved[pair].join(" and ")]));
}
