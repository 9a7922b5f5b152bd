"use strict";
// The curves of two sides, linked by one cursor.
addEventListener("DOMContentLoaded", async () => {
  const at = id => document.getElementById(id);
  const box = at("charts"), shown = new Set();
  Charts.settings.unit = box.dataset.axis;
  const choices = Charts.choices(at("tools"), "view:compare");
  // Another axis is another page, with the same choices but the zoom.
  for (const kind of ["click", "auxclick"]) document.querySelector(".axes").addEventListener(kind, event => {
    const link = event.target.closest("a"), found = new URLSearchParams(location.search);
    if (!link) return;
    found.set("axis", new URLSearchParams(link.search).get("axis"));
    found.delete("zoom");
    link.search = found;
  });
  const remember = () => { choices.metrics = [...shown]; choices.save(); };
  const draw = async names => {
    const query = new URLSearchParams(names.map(name => ["name", name]));
    const found = await (await fetch(`${BASE}/curves?${box.dataset.address}&${query}`)).json();
    for (const name of names) {
      if (!found[name] || shown.has(name)) continue;
      shown.add(name);
      Charts.pair(box, found[name], { group: "sides", onClose: () => { shown.delete(name); remember(); } });
    }
  };
  choices.apply();
  await draw(choices.metrics || JSON.parse(box.dataset.curves));
  at("add").addEventListener("change", async event => { await draw(Charts.matching(event.target, at("names"))); remember(); });
  box.dataset.ready = "1";
});
