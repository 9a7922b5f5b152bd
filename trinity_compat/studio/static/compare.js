"use strict";
// The verdict on two sides, made again as their runs go on, and their curves, linked by one cursor.
addEventListener("DOMContentLoaded", async () => {
  const at = id => document.getElementById(id);
  const box = at("charts"), told = at("told"), heard = at("heard"), shown = new Map();
  let state = heard.dataset.state;

  // What a reader has opened, scrolled or chosen stays so.
  const replace = html => {
    const open = [...told.querySelectorAll("details[open]")].map(one => one.dataset.group);
    const places = [...told.querySelectorAll("[aria-label]")].map(one => [one.ariaLabel, one.scrollLeft]);
    const all = () => [...told.querySelectorAll("a, summary, [tabindex]")];
    const focus = all().indexOf(document.activeElement);
    told.replaceChildren(...Charts.parsed(html));
    for (const one of told.querySelectorAll("details")) one.open = open.includes(one.dataset.group);
    for (const [label, left] of places) for (const one of told.querySelectorAll("[aria-label]")) if (one.ariaLabel === label) one.scrollLeft = left;
    all()[focus]?.focus({ preventScroll: true });
  };
  const problem = text => {
    if (at("problem").textContent !== text) at("problem").textContent = text;
    at("problem").hidden = !text;
  };
  const look = async () => {
    let wait_s = 5;
    if (!document.hidden) try {
      const query = `${heard.dataset.address}&state=${state}`;
      const found = await (await fetch(`${BASE}/verdict?${query}`)).json();
      wait_s = found.wait_s;
      problem(found.problem || "");
      if (found.html && !told) return location.reload();
      if (found.html) {
        state = found.state;
        const first = told.querySelector(".first").textContent;
        replace(found.html);
        if (first !== found.first) heard.textContent = found.first;
        at("names").replaceChildren(...found.names.map(name => new Option(name, name)));
        await draw([...shown.keys()]);
      }
    } catch { /* connection.js says so */ }
    setTimeout(look, wait_s * 1000);
  };
  // A metric's chart; a chart that is there already makes way for the newer one.
  const chart = metric => {
    const { name } = metric, old = shown.get(name)?.chart;
    const made = Charts.pair(box, metric, { group: "sides", onClose: () => { shown.delete(name); remember(); } });
    if (old) {
      const focused = old.box.contains(document.activeElement), open = old.box.querySelector("details")?.open;
      old.box.replaceWith(made.box);
      old.end();
      if (open) made.box.querySelector("details").open = true;
      if (focused) made.box.querySelector("button").focus({ preventScroll: true });
    }
    shown.set(name, { chart: made, metric });
  };
  const draw = async names => {
    const query = new URLSearchParams(names.map(name => ["name", name]));
    const found = await (await fetch(`${BASE}/curves?${box.dataset.address}&${query}`)).json();
    for (const name of names) if (found[name]) chart(found[name]);
  };
  if (!told) return look();
  Charts.settings.unit = box.dataset.axis;
  let seeds;
  const choices = Charts.choices(at("tools"), "view:compare", () => {
    if (seeds !== Charts.settings.seeds) for (const { metric } of [...shown.values()]) chart(metric);
    seeds = Charts.settings.seeds;
  });
  // Another axis is another page, with the same choices but the zoom.
  for (const kind of ["click", "auxclick"]) document.querySelector(".axes").addEventListener(kind, event => {
    const link = event.target.closest("a"), found = new URLSearchParams(location.search);
    if (!link) return;
    found.set("axis", new URLSearchParams(link.search).get("axis"));
    found.delete("zoom");
    link.search = found;
  });
  const remember = () => { choices.metrics = [...shown.keys()]; choices.save(); };
  choices.apply();
  await draw(choices.metrics || JSON.parse(box.dataset.curves));
  at("add").addEventListener("change", async event => { await draw(Charts.named(event.target, at("names")).filter(name => !shown.has(name))); remember(); });
  box.dataset.ready = "1";
  look();
});
