"use strict";
// Several runs in the same charts, live.
addEventListener("DOMContentLoaded", async () => {
  const at = id => document.getElementById(id), box = at("charts");
  if (!box) return;
  const { Curve, amounts, number, placing } = Charts;
  const runs = JSON.parse(box.dataset.runs), drawn = new Map();
  let seeds;
  for (const run of runs) Object.assign(run, { path: run.name.split("/").map(encodeURIComponent).join("/"), points: new Map() });
  const sets = [...new Set(runs.map(run => run.set))].map(set => runs.filter(run => run.set === set));
  const of = (run, name) => run.points.get(name) || run.points.set(name, new Map()).get(name);

  const fill = (run, series) => {
    for (const name in series) series[name][0].forEach((step, k) => of(run, name).set(step, number(series[name][1][k])));
  };

  const load = async names => Promise.all(runs.map(async run => {
    const query = new URLSearchParams(names.filter(name => !run.points.has(name)).map(name => ["name", name]));
    if (run.seed !== null) query.append("of", run.name), query.append("seed", run.seed);
    const found = await (await fetch(`${BASE}/${run.seed === null ? `metrics/${run.path}` : "baseline"}?${query}`)).json();
    if (run.seed === null) run.query ||= new URLSearchParams([["history", found.history], ...Object.entries(found.last).map(([role, [step, figures]]) => ["last", `${role}:${step}:${figures}`])]);
    else run.state ??= found.state; // of the first load: what comes later may be newer, and is then asked for again
    for (const name of names) of(run, name);
    fill(run, found.series);
  }));
  // Each run has its own steps per update, times and tokens: charts get points that are placed already.
  const placed = (run, name) => {
    const place = placing(Charts.settings.axis, run.updates, kind => of(run, kind));
    return new Map([...of(run, name)].map(([step, value]) => [place(step), value]).filter(([x]) => x !== undefined));
  };
  const lines = name => sets.flatMap(of => {
    const one = of[0], many = of.map(run => ({ label: run.label, colour: `--c${run.colour}`, dash: run.dashed ? [6, 4] : undefined, points: placed(run, name) }));
    return Curve.seeds(of.length > 1 ? `${one.label} and ${of.length - 1} more` : one.label, `--c${one.colour}`, many, { dash: one.dashed ? [6, 4] : undefined });
  });
  const make = name => new Curve(box, name, lines(name), { onClose: () => { drawn.delete(name); remember(); } });
  const draw = name => { if (!drawn.has(name)) drawn.set(name, make(name)); };
  // The points, the axis or the choice of lines and bands have changed; so has the number of a chart's series, perhaps.
  const place = () => {
    Charts.settings.unit = Charts.settings.axis;
    for (const [name, chart] of drawn) {
      const series = lines(name);
      if (series.length === chart.series.length && seeds === Charts.settings.seeds) { series.forEach((one, k) => Object.assign(chart.series[k], one)); continue; }
      const made = make(name), open = chart.box.querySelector("details")?.open;
      chart.box.replaceWith(made.box);
      chart.end();
      if (open) made.box.querySelector("details").open = true;
      drawn.set(name, made);
    }
    seeds = Charts.settings.seeds;
    for (const one of document.querySelectorAll("[data-run]")) {
      const run = runs[one.dataset.run], first = seeds === "lines" ? run : runs.find(other => other.set === run.set);
      one.className = `k${first.colour}`;
    }
  };
  const choices = Charts.choices(at("tools"), "view:overlay", place);
  const remember = () => { choices.metrics = [...drawn.keys()]; choices.save(); };
  const wanted = choices.metrics || JSON.parse(box.dataset.curves);
  await load([...wanted, ...Object.values(amounts)]);
  choices.apply();
  wanted.forEach(draw);
  at("add").addEventListener("change", async event => {
    const names = Charts.named(event.target, at("names"));
    await load(names);
    names.forEach(draw);
    remember();
  });

  // The form that saves a panel sends the metrics that are drawn.
  at("save")?.addEventListener("submit", ({ target }) => {
    target.querySelectorAll("[name=metric]").forEach(field => field.remove());
    for (const name of drawn.keys()) target.append(Object.assign(Charts.el("input"), { type: "hidden", name: "metric", value: name }));
  });

  const get = async address => (await fetch(`${BASE}/${address}`, { signal: AbortSignal.timeout(20000) })).json();
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
      try {
        if (await (run.seed === null ? follow : reread)(run)) { place(); drawn.forEach(chart => chart.update()); }
      } catch { /* connection.js says so, or the file is being written */ }
      run.due = performance.now() + run.wait_s * 1000;
    }
    setTimeout(look, 1000 * Math.min(5, ...runs.map(run => run.wait_s || 5)));
  };
  look();
  box.dataset.ready = "1";
});
