// Build what the page has, then draw it: again whenever its width or its colours change.

if (byId("controls")) {
  buildControls();
  buildBands();
  buildClocks();
  buildPairing();
  buildDrag();
  buildEncoding();
  buildDecay();
}
buildMeasured();
buildSearch();
let width = 0;
new ResizeObserver(([entry]) => {
  if (entry.contentRect.width === width) return;
  width = entry.contentRect.width;
  redraw();
}).observe(document.querySelector("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
redraw();
