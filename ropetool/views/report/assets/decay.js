// Score by distance: of a q and a k that are alike, and how the bound on any falls.

const DECAY = { height: 280 };

function buildDecay() {
  drawnBy(drawDecay);
}

function drawDecay() {
  const plot = canvasOf(document.querySelector("#decay svg"), DECAY.height);
  const { way } = chosen();
  const plain = unscaled();
  const { distances, trained } = layers();
  const length = Math.min(shownLength(), distances[distances.length - 1]);
  const shown = distances.map((distance, at) => at).filter((at) => distances[at] >= 1 && distances[at] <= length);
  const x = logarithmic(1, Math.max(length, 10), MARGIN.left, plot.width - MARGIN.right);
  const lowest = Math.min(-0.2, ...shown.map((at) => Math.min(way.score[at], plain.score[at])));
  const highest = Math.max(1, way.score[0], way.bound[0]);
  const y = linear(lowest, highest * 1.05, DECAY.height - MARGIN.bottom, MARGIN.top + 4);
  axisY(plot, y, "score", MARGIN.top);
  const line = (values, kind) => plot.svg.append(shape("path", {
    class: `${kind} line`, d: path(shown.map((at) => [x(distances[at]), y(values[at])])),
  }));
  line(way.bound, "other thin dashed");
  line(plain.score, "ghost thin");
  line(way.score, "own");
  if (trained) markTrained(plot, x(trained), trained);
  if (layers().window) markWindow(plot, x(layers().window), layers().window);
  axisX(plot, x, DECAY.height - MARGIN.bottom, "distance in tokens");
  tellDecay(shown, way, plain);
}

function tellDecay(shown, way, plain) {
  const { distances } = layers();
  const { name } = chosen();
  const some = spread(shown.length, 16).map((at) => shown[at]);
  fillTable(byId("decay-table"), `Score by distance, ${name}`, ["distance", "score", NAMES.none, "shape of the bound"],
    [0, ...some].map((at) => {
      return [grouped(distances[at]), ...[way.score, plain.score, way.bound].map((of) => fixed(of[at], 3))];
    }));
  const last = some[some.length - 1];
  const [near, far, bound] = [way.score[0], way.score[last], way.bound[last]].map((value) => fixed(value, 2));
  byId("decay-desc").textContent =
    `${name}: from ${near} at distance 0 to ${far} at ${grouped(distances[last])} tokens; ` +
    `the shape of the bound is at ${bound} there.`;
  fillLegend(byId("decay-legend"),
    [["own", name], ["ghost", `score ${NAMES.none}`], ["other", "shape of RoFormer's bound"]]);
}
