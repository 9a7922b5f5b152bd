"use strict";
// The curves of two sides, linked by one cursor.
addEventListener("DOMContentLoaded", async () => {
  const at = id => document.getElementById(id);
  const box = at("charts"), drawn = new Set();
  const points = (xs, ys) => new Map(xs.map((x, index) => [x, ys[index]]));
  const draw = async names => {
    const query = names.map(name => `name=${encodeURIComponent(name)}`).join("&");
    const found = await (await fetch(`/curves?${box.dataset.address}&${query}`)).json();
    for (const name of names) {
      const one = found[name];
      if (!one || drawn.has(name)) continue;
      drawn.add(name);
      const series = [{ label: "A", colour: "--a", points: points(one.x, one.a) }, { label: "B", colour: "--b", points: points(one.x, one.b) }];
      new Charts.Curve(box, name, series, { group: "sides", tag: one.verdict, onClose: () => drawn.delete(name) });
    }
  };
  await draw(JSON.parse(box.dataset.curves));
  at("add").addEventListener("change", event => { const name = event.target.value; event.target.value = ""; draw([name]); });
  at("smooth").addEventListener("input", event => Charts.set({ smooth: +event.target.value }));
  at("log").addEventListener("change", event => Charts.set({ log: event.target.checked }));
  at("tools").addEventListener("submit", event => event.preventDefault());
  box.dataset.ready = "1";
});
