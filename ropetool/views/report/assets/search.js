// What a search found: loss by position and the factor of each pair, of the best and of the default.

const SEARCHED = [["best", "own line"], ["default", "other dashed line"], ["none", "trained line"]];

function buildSearch() {
  if (byId("search-loss")) drawnBy(drawSearchLoss);
  if (byId("search-pairs")) drawnBy(drawSearchPairs);
}

function searchedNames() {
  return [["own", `best: ${data.search.best}`], ["other", `default: ${data.search.default}`]];
}

function drawSearchLoss() {
  const plot = canvasOf(document.querySelector("#search-loss svg"), MEASURED.height);
  const { bins, original_length: trained, length } = data.search;
  const within = bins.filter((bin) => bin.stop <= trained).map((bin) => bin.none);
  const values = [...bins.flatMap((bin) => [bin.best, bin.default]), ...within].filter((value) => value !== null);
  if (!values.length) return;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = Math.max((high - low) * 0.1, 0.01);
  const x = linear(0, length, MARGIN.left, plot.width - MARGIN.right);
  const y = linear(low - room, high + room, MEASURED.height - MARGIN.bottom, MARGIN.top + 4);
  const at = (loss) => y(Math.min(loss, high + room)); // no extension may be lost beyond the trained length
  axisY(plot, y, "nats a token", MARGIN.top);
  for (const [key, kind] of SEARCHED) {
    const steps = bins.filter((bin) => bin[key] !== null)
      .flatMap((bin) => [[x(bin.start), at(bin[key])], [x(bin.stop), at(bin[key])]]);
    if (steps.length) plot.svg.append(shape("path", { class: kind, "stroke-width": 2.5, d: path(steps) }));
  }
  markTrained(plot, x(trained), trained);
  axisX(plot, x, MEASURED.height - MARGIN.bottom, "position");
  const last = bins[bins.length - 1];
  byId("search-loss-desc").textContent = `At positions ${grouped(last.start)} to ${grouped(last.stop)} the loss of ` +
    `the best is ${fixed(last.best, 4)}, and of the default ${fixed(last.default, 4)} nats a token.`;
  fillLegend(byId("search-loss-legend"), [...searchedNames(), ["trained", "no extension (along the top: above it)"]]);
}

function drawSearchPairs() {
  const plot = canvasOf(document.querySelector("#search-pairs svg"), MEASURED.height);
  const { pairs } = data.search;
  const values = pairs.flatMap((pair) => [pair.best, pair.default]).filter((value) => value !== null && value > 0);
  if (!values.length) return;
  const x = linear(0, Math.max(pairs.length - 1, 1), MARGIN.left, plot.width - MARGIN.right);
  const most = Math.max(...values);
  const y = linear(Math.min(1, ...values) * 0.95, most * 1.05, MEASURED.height - MARGIN.bottom, MARGIN.top + 4);
  axisY(plot, y, "times slower", MARGIN.top);
  for (const [key, kind] of SEARCHED.slice(0, 2)) {
    const points = pairs.filter((pair) => pair[key] !== null).map((pair) => [x(pair.index), y(pair[key])]);
    plot.svg.append(shape("path", { class: kind, "stroke-width": 2.5, d: path(points) }));
  }
  axisX(plot, x, MEASURED.height - MARGIN.bottom, "pair");
  byId("search-pairs-desc").textContent = `The slowest pair turns ${fixed(pairs[pairs.length - 1].best, 3)} times ` +
    `slower at best, and ${fixed(pairs[pairs.length - 1].default, 3)} by default.`;
  fillLegend(byId("search-pairs-legend"), searchedNames());
}
