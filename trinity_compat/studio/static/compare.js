"use strict";
// The curves of two sides, linked by one cursor.
addEventListener("DOMContentLoaded", async () => {
  const at = id => document.getElementById(id);
  const box = at("charts"), shown = new Set();
  const draw = async names => {
    const query = new URLSearchParams(names.map(name => ["name", name]));
    const found = await (await fetch(`/curves?${box.dataset.address}&${query}`)).json();
    for (const name of names) {
      if (!found[name] || shown.has(name)) continue;
      shown.add(name);
      Charts.pair(box, found[name], { group: "sides", onClose: () => shown.delete(name) });
    }
  };
  await draw(JSON.parse(box.dataset.curves));
  at("add").addEventListener("change", event => { const name = event.target.value; event.target.value = ""; draw([name]); });
  at("smooth").addEventListener("input", event => Charts.set({ smooth: +event.target.value }));
  at("log").addEventListener("change", event => Charts.set({ log: event.target.checked }));
  at("tools").addEventListener("submit", event => event.preventDefault());
  box.dataset.ready = "1";
});
