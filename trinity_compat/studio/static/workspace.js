"use strict";
// Several runs in the same charts, live, beside the list that they are chosen from; and what two sides differ in.
addEventListener("DOMContentLoaded", async () => {
  const at = id => document.getElementById(id), box = at("charts"), form = at("choose"), heard = at("heard");
  const VIEW = ["metric", "smooth", "log", "x", "zoom", "seeds"];
  const view = () => [...new URLSearchParams(location.search)].filter(([name]) => VIEW.includes(name));
  const get = async address => (await fetch(`${BASE}/${address}`, { signal: AbortSignal.timeout(60000) })).json();
  const { Curve, amounts, el, number, placing } = Charts;
  // An address of before names the axis otherwise.
  const query = new URLSearchParams(location.search), runs = box ? JSON.parse(box.dataset.runs) : [];
  if (query.has("axis")) {
    query.set("x", query.get("axis"));
    query.delete("axis");
    history.replaceState(null, "", `?${query}${location.hash}`);
  }

  // ---- the list: an eye hides and shows at once, another run and another side are another page with the same view ----
  form?.addEventListener("formdata", ({ formData }) => {
    for (const [name, value] of [...formData]) if (!value) formData.delete(name);
    view().forEach(([name, value]) => formData.append(name, value));
  });
  form?.addEventListener("change", ({ target }) => {
    if (target.name !== "run") return;
    const own = runs.filter(run => run.name === target.value);
    if (!own.length) { form.requestSubmit(); return; }
    for (const run of own) run.hidden = !target.checked;
    const found = new URLSearchParams(location.search);
    found.delete("run");
    new FormData(form).getAll("run").forEach(name => found.append("run", name));
    history.replaceState(null, "", `?${found}`);
    place();
  });

  // ---- two sides ----
  let state = heard?.dataset.state, extras = {}, timer;
  // What a reader has opened, scrolled or chosen stays so.
  const replace = (told, html) => {
    const open = [...told.querySelectorAll("details[open]")].map(one => one.dataset.group);
    const places = [...told.querySelectorAll("[aria-label]")].map(one => [one.ariaLabel, one.scrollLeft]);
    const all = () => [...told.querySelectorAll("a, summary, [tabindex]")];
    const focus = all().indexOf(document.activeElement);
    told.replaceChildren(...Charts.parsed(html));
    for (const one of told.querySelectorAll("details")) one.open = open.includes(one.dataset.group);
    for (const [label, left] of places) for (const one of told.querySelectorAll("[aria-label]")) if (one.ariaLabel === label) one.scrollLeft = left;
    all()[focus]?.focus({ preventScroll: true });
  };
  const address = () => `${heard.dataset.sides}&x=${Charts.settings.axis}`;
  const compare = async () => {
    clearTimeout(timer);
    let wait_s = 5;
    if (!document.hidden) try {
      const found = await get(`verdict?${address()}&state=${state}`);
      wait_s = found.wait_s;
      const text = found.problem || "";
      if (at("problem").textContent !== text) at("problem").textContent = text;
      at("problem").hidden = !text;
      if (found.html && !at("verdict")) return location.reload();
      if (found.html) {
        state = found.state;
        const first = at("verdict").querySelector(".first").textContent;
        for (const part in found.html) replace(at(part), found.html[part]);
        if (first !== found.first) heard.textContent = found.first;
        if (box) { await part([...drawn.keys()], true); place(true); }
      }
    } catch { /* connection.js says so */ }
    timer = setTimeout(compare, wait_s * 1000);
  };
  // Where the sides' curves part, for charts of these metrics.
  const part = async (names, again) => {
    const wanted = names.filter(name => again || !(name in extras));
    if (at("verdict") && wanted.length) Object.assign(extras, await get(`curves?${address()}&${new URLSearchParams(wanted.map(name => ["name", name]))}`));
  };
  if (!box) { if (heard) compare(); return; }

  // ---- points ----
  const sets = [...new Set(runs.map(run => run.set))].map(set => runs.filter(run => run.set === set)), drawn = new Map();
  for (const run of runs) Object.assign(run, { path: run.name.split("/").map(encodeURIComponent).join("/"), points: new Map() });
  const of = (run, name) => run.points.get(name) || run.points.set(name, new Map()).get(name);
  const fill = (run, series) => {
    for (const name in series) series[name][0].forEach((step, k) => of(run, name).set(step, number(series[name][1][k])));
  };
  const load = async names => Promise.all(runs.map(async run => {
    const query = new URLSearchParams(names.filter(name => !run.points.has(name)).map(name => ["name", name]));
    if (run.seed !== null) query.append("of", run.name), query.append("seed", run.seed);
    const found = await get(`${run.seed === null ? `metrics/${run.path}` : "baseline"}?${query}`);
    if (run.seed === null) run.query ||= new URLSearchParams([["history", found.history], ...Object.entries(found.last).map(([role, [step, figures]]) => ["last", `${role}:${step}:${figures}`])]);
    else run.state ??= found.state; // of the first load: what comes later may be newer, and is then asked for again
    for (const name of names) of(run, name);
    fill(run, found.series);
  }));

  // ---- charts ----
  // Each run has its own steps per update, times and tokens: charts get points that are placed already.
  const placed = (run, name) => {
    const place = placing(Charts.settings.axis, run, kind => of(run, kind));
    return new Map([...of(run, name)].map(([step, value]) => [place(step), value]).filter(([x]) => x !== undefined));
  };
  const shown = () => sets.map(set => set.filter(run => !run.hidden)).filter(set => set.length);
  const lines = name => shown().flatMap(of => {
    const [one] = of, more = of.length > 1 ? ` and ${of.length - 1} more` : "";
    const many = of.map(run => ({ label: run.label, colour: `--c${run.colour}`, points: placed(run, name), run }));
    return Curve.seeds(one.side && more ? one.side.toUpperCase() : one.label + more, `--c${one.colour}`, many);
  });
  const sections = new Map();
  const offered = [...at("names").options];
  const group = name => offered.find(option => option.value === name)?.dataset.group || "other";
  for (const name of JSON.parse(box.dataset.groups)) {
    const names = offered.filter(option => option.dataset.group === name).map(option => option.value);
    if (!names.length) continue;
    const fold = el("details", undefined, "section"), title = el("summary"), charts = el("div", undefined, "charts");
    const all = Curve.button(`Show all ${names.length}`, () => show(names));
    title.append(el("b", name), " ", el("small"));
    fold.append(title, charts, all);
    box.append(fold);
    sections.set(name, { fold, charts, names, all, count: title.lastChild });
    fold.addEventListener("toggle", () => { if (fold.open && !charts.children.length) show(names.slice(0, 12)); });
  }
  const count = () => sections.forEach(({ fold, charts, names, all, count }) => {
    fold.style.setProperty("--n", charts.children.length); // its share of a row
    count.textContent = `${charts.children.length} of ${names.length}`;
    all.hidden = charts.children.length === names.length;
  });
  const make = name => {
    const own = extras[name] && Charts.settings.axis !== "time" ? Charts.extras(extras[name]) : {};
    return new Curve(sections.get(group(name)).charts, name, lines(name), { ...own, onClose: () => { drawn.delete(name); remember(); } });
  };
  const draw = names => {
    for (const name of names) if (!drawn.has(name) && sections.has(group(name))) {
      drawn.set(name, make(name));
      sections.get(group(name)).fold.open = true;
    }
    count();
  };
  const show = async names => { await Promise.all([load(names), part(names)]); draw(names); remember(); };
  // The points, the axis, the choice of lines and bands or the shown runs have changed.
  let seeds, axis;
  const place = again => {
    Charts.settings.unit = Charts.settings.axis;
    for (const [name, chart] of drawn) {
      const series = lines(name);
      if (!again && series.length === chart.series.length && seeds === Charts.settings.seeds && axis === Charts.settings.axis) {
        series.forEach((one, k) => Object.assign(chart.series[k], one));
        chart.update();
        continue;
      }
      const made = make(name), focused = chart.box.contains(document.activeElement);
      chart.box.replaceWith(made.box);
      chart.end();
      drawn.set(name, made);
      if (focused) made.large.focus({ preventScroll: true });
    }
    seeds = Charts.settings.seeds;
    if (axis && axis !== Charts.settings.axis && heard) compare();
    axis = Charts.settings.axis;
    for (const one of document.querySelectorAll("[data-run]")) {
      const run = runs[one.dataset.run], first = seeds === "lines" ? run : runs.find(other => other.set === run.set);
      one.className = `k${first.colour}`;
    }
  };
  const choices = Charts.choices(at("tools"), "view:workspace", () => place());
  const remember = () => { choices.metrics = [...drawn.keys()]; choices.save(); count(); };
  const wanted = choices.metrics || JSON.parse(box.dataset.curves);
  choices.apply();
  await Promise.all([load([...wanted, ...Object.values(amounts)]), part(wanted)]);
  draw(wanted);
  const has = (run, axis) => axis === "samples" ? run.samples !== null : !(axis in amounts) || of(run, amounts[axis]).size > 0;
  for (const option of at("tools").elements.x.options) option.disabled = !runs.some(run => has(run, option.value));
  at("add").addEventListener("change", event => show(Charts.named(event.target, at("names"))));

  // A click leads to the groups of the step, of the run whose line is nearest; a band over seeds is of several runs.
  box.addEventListener("step", ({ detail: { step: x, title, series: { run } } }) => {
    if (!run || run.seed !== null) return;
    const place = placing(Charts.settings.axis, run, kind => of(run, kind)), step = [...of(run, title).keys()].find(step => place(step) === x);
    if (step !== undefined) location.assign(`${BASE}/groups/${run.path}?${title.startsWith("val-") ? "kind=eval&" : ""}step=${step}`);
  });

  // The form that saves a layout sends the metrics that are drawn, and how.
  at("save")?.addEventListener("formdata", ({ formData }) => {
    for (const name of drawn.keys()) formData.append("metric", name);
    formData.append("view", new URLSearchParams(view().filter(([name]) => !["metric", "zoom"].includes(name))));
  });

  // ---- what happens ----
  // What a job has logged since the last look; true where that is something.
  const follow = async run => {
    const found = await get(`look/${run.path}?rows=1&${run.query}`);
    run.query = found.next;
    run.wait_s = Math.min(5, found.wait_s * 2);
    let news = false;
    for (const [kind, data] of found.events) {
      if (kind === "again") location.reload();
      for (const [step, row] of data.rows || []) for (const name in row) if (run.points.has(name)) of(run, name).set(step, number(row[name]));
      news ||= Boolean(data.rows);
    }
    return news;
  };
  // The points of a baseline whose files have changed: all of them, since a file may have been written anew.
  const reread = async run => {
    const names = [...run.points.keys()].map(name => ["name", name]);
    const found = await get(`baseline?${new URLSearchParams([["of", run.name], ["seed", run.seed], ["state", run.state || ""], ...names])}`);
    run.state = found.state;
    run.wait_s = found.wait_s;
    if (!found.series) return false;
    run.points.forEach(points => points.clear());
    fill(run, found.series);
    return true;
  };
  const look = async () => {
    if (!document.hidden) for (const run of runs.filter(run => !(performance.now() < run.due))) {
      run.wait_s = 5;
      try { if (await (run.seed === null ? follow : reread)(run)) place(); } catch { /* connection.js says so, or the file is being written */ }
      run.due = performance.now() + run.wait_s * 1000;
    }
    setTimeout(look, 1000 * Math.min(5, ...runs.map(run => run.wait_s || 5)));
  };
  look();
  if (heard) compare();
  box.dataset.ready = "1";
});
