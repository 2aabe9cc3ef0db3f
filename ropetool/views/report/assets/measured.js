// What verify and evaluate measured: differences and losses by position.

const MEASURED = { height: 260 };

function buildMeasured() {
  if (byId("stretches")) drawnBy(drawStretches);
  if (byId("loss")) drawnBy(drawLoss);
}

function drawStretches() {
  const plot = canvasOf(document.querySelector("#stretches svg"), MEASURED.height);
  const { by_position: all, tolerance, control } = data.verify;
  const found = all.filter((entry) => entry.difference !== null);
  const sizes = [...found.map((entry) => entry.difference), tolerance, control].filter((size) => size > 0);
  const x = linear(0, Math.max(...found.map((entry) => entry.stop), 1), MARGIN.left, plot.width - MARGIN.right);
  const [low, high] = [Math.min(...sizes, 1) / 3, Math.max(...sizes, 1e-9) * 3];
  const y = logarithmic(low, high, MEASURED.height - MARGIN.bottom, MARGIN.top + 10);
  axisY(plot, y, "difference", MARGIN.top);
  for (const entry of found.filter((one) => one.difference > 0)) {
    const width = Math.max(x(entry.stop) - x(entry.start) - 1, 1);
    const top = y(entry.difference);
    plot.svg.append(shape("rect", { class: "own bar", x: x(entry.start), y: top, width,
      height: MEASURED.height - MARGIN.bottom - top, "stroke-width": 0 }));
  }
  if (tolerance) markY(plot, y(tolerance), "trained", `allowed: ${short(tolerance)}`);
  if (control) markY(plot, y(control), "other", `the wrong layout: ${short(control)}`, true);
  axisX(plot, x, MEASURED.height - MARGIN.bottom, "position");
  const most = Math.max(...found.map((entry) => entry.difference), 0);
  const allowed = tolerance ? `; ${short(tolerance)} is allowed` : "";
  const wrong = control ? `; the wrong layout is ${short(control)} away` : "";
  const said = `The largest difference is ${short(most)}${allowed}${wrong}.`;
  byId("stretches-desc").textContent = said;
  byId("stretches-readout").textContent = said;
}

function drawLoss() {
  const plot = canvasOf(document.querySelector("#loss svg"), MEASURED.height);
  const { lengths, trained_length: trained, against } = data.evaluate;
  const keys = against ? ["against_loss", "loss"] : ["loss"];
  const values = lengths.flatMap((bin) => keys.map((key) => bin[key])).filter((value) => value !== null);
  if (!values.length) return;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = Math.max((high - low) * 0.1, 0.05);
  const x = linear(0, Math.max(...lengths.map((bin) => bin.stop)), MARGIN.left, plot.width - MARGIN.right);
  const y = linear(low - room, high + room, MEASURED.height - MARGIN.bottom, MARGIN.top + 4);
  axisY(plot, y, "nats a token", MARGIN.top);
  for (const key of keys) {
    const kind = key === "loss" ? "own" : "other dashed";
    const steps = lengths.filter((bin) => bin[key] !== null)
      .flatMap((bin) => [[x(bin.start), y(bin[key])], [x(bin.stop), y(bin[key])]]);
    plot.svg.append(shape("path", { class: `${kind} line`, "stroke-width": 2.5, d: path(steps) }));
  }
  if (trained) markTrained(plot, x(trained), trained);
  axisX(plot, x, MEASURED.height - MARGIN.bottom, "position");
  tellLoss(lengths, against);
}

function tellLoss(lengths, against) {
  const last = lengths[lengths.length - 1];
  const { checkpoint } = data.evaluate;
  const beside = against ? `, and of ${against} ${fixed(last.against_loss, 3)}` : "";
  byId("loss-desc").textContent = `At positions ${grouped(last.start)} to ${grouped(last.stop)} the loss of ` +
    `${checkpoint} is ${fixed(last.loss, 3)}${beside} nats a token.`;
  fillLegend(byId("loss-legend"), [["own", checkpoint], ...(against ? [["other", against]] : [])]);
}
