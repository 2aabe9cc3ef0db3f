// The bar above the figures: the way to turn, the factor, the kind of layers, the pair.

function buildControls() {
  layers(); // there is one at least, or these figures were not put into the page
  const select = byId("layers");
  data.rope.layers.forEach((kind, at) => select.append(element("option", { value: at }, kind.layers)));
  byId("kinds").hidden = data.rope.layers.length < 2;
  select.addEventListener("change", () => chooseLayers(Number(select.value)));
  byId("factor").addEventListener("change", () => look({ factor: Number(byId("factor").value) }));
  byId("pair").addEventListener("input", () => look({ pair: Number(byId("pair").value) }));
  byId("ways").addEventListener("change", (event) => look({ way: event.target.value }));
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  chooseLayers(0);
  drawnBy(drawControls, "pair");
}

function chooseLayers(at) {
  state.layers = at;
  const { factors, shown_factor: shown } = layers();
  const select = byId("factor");
  const kept = factors.includes(state.factor) ? state.factor : shown;
  select.replaceChildren(...factors.map((factor) =>
    element("option", { value: factor, selected: factor === kept ? "" : null }, `${short(factor)} times`)));
  byId("factors").hidden = factors.length === 0;
  const middle = Math.floor((pairCount() - 1) / 2);
  state.factor = factors.length ? kept : null;
  const longest = shownLength();
  Object.assign(state, {
    pair: clamp(state.pair ?? middle, 0, pairCount() - 1), q: Math.floor(longest / 2), k: Math.floor(longest / 4),
    position: Math.min(state.position, longest),
  });
  redraw();
}

function drawControls() {
  const now = chosen();
  if (now.key !== state.way) state.way = now.key;
  drawWays(now);
  const pair = byId("pair");
  pair.max = pairCount() - 1;
  pair.value = state.pair;
  const [first, second] = layers().head.pairs[layers().head.pairing][state.pair];
  byId("pair-shown").value = `${state.pair} of 0–${pairCount() - 1}`;
  pair.setAttribute("aria-valuetext", `pair ${state.pair}: rows ${first} and ${second}`);
  byId("way-note").textContent = noteOf(now);
}

// The pills are made anew only where they differ, so that the keyboard stays on the one that it is on.
function drawWays(now) {
  const fieldset = byId("ways");
  const found = choices();
  const sign = JSON.stringify(found.map((choice) => [choice.key, choice.name, Boolean(choice.way)]));
  if (fieldset.dataset.sign !== sign) {
    fieldset.dataset.sign = sign;
    for (const label of fieldset.querySelectorAll("label")) label.remove();
    for (const choice of found) {
      const disabled = choice.way ? null : "";
      const input = element("input", { type: "radio", name: "way", value: choice.key, disabled });
      fieldset.append(element("label", { title: choice.why || null }, input, element("span", {}, choice.name)));
    }
  }
  for (const input of fieldset.querySelectorAll("input")) {
    if (input.value === now.key && !input.checked) showPill(fieldset, input.parentElement);
    input.checked = input.value === now.key;
  }
}

// The pills scroll sideways where there is no room for all.
function showPill(fieldset, label) {
  const [room, place] = [fieldset.getBoundingClientRect(), label.getBoundingClientRect()];
  if (place.left < room.left) fieldset.scrollLeft -= room.left - place.left + 12;
  if (place.right > room.right) fieldset.scrollLeft += place.right - room.right + 12;
}

function noteOf(now) {
  const { way } = now;
  const parts = [`${now.name}: ${way.type === "default" ? "no scaling" : way.type}, base ${short(way.theta)}`];
  if (way.factor) parts.push(`factor ${short(way.factor)}`);
  if (way.length) parts.push(`looked at for ${grouped(way.length)} tokens`);
  parts.push(`cos and sin times ${short(way.attention_factor)}`);
  const note = way.note ? ` This class cannot take it by its config: ${way.note}.` : "";
  const window = layers().window ? ` These layers look back ${grouped(layers().window)} tokens and no further.` : "";
  const still = layers().factors.length ? "" : " An extension leaves these layers as they are.";
  return `${parts.join(", ")}.${note}${window}${still}`;
}
