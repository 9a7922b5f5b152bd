"use strict";
// One run, live: what the page was made with, then what is new every second.
addEventListener("DOMContentLoaded", async () => {
  const { el, figure, number, parsed, sum, Curve, stack } = Charts;
  const at = id => document.getElementById(id);
  const live = at("live"), job = live.dataset.job;
  const points = new Map();               // metric → Map(step → value)
  const of = name => points.get(name) || points.set(name, new Map()).get(name);
  const drawn = new Map();                // metric → Curve
  let buffer = null, last = {}, history = 0;

  const load = async names => {
    const query = new URLSearchParams(names.map(name => ["name", name]));
    const answer = await (await fetch(`${BASE}/metrics/${job}?${query}`)).json();
    for (const name in answer.series) {
      const [steps, values] = answer.series[name], into = of(name);
      steps.forEach((step, index) => into.set(step, number(values[index])));
    }
    return answer;
  };
  // The tiles: the change since the first step, the best value, and a small curve.
  const TILES = { reward: [["critic/score/mean", "critic/rewards/mean"], Math.max], lag: [["training/model_version_lag/mean"], null],
                  tokens: [["perf/tokens_per_second", "perf/throughput"], Math.max], seconds: [["timing_s/step"], Math.min] };
  const tiles = () => {
    for (const id in TILES) {
      const [names, best] = TILES[id], name = names.find(each => points.get(each)?.size);
      const values = [...(points.get(name) || [])].filter(([step, value]) => step > 0 && Number.isFinite(value)).sort((a, b) => a[0] - b[0]);
      const line = at(`s-${id}`), flat = values.map(([, value]) => value);
      line.toggleAttribute("hidden", values.length < 2);
      if (values.length < 2) continue;
      const low = flat.reduce((a, b) => Math.min(a, b)), high = flat.reduce((a, b) => Math.max(a, b));
      const change = flat.at(-1) - flat[0], found = best && (best === Math.max ? high : low);
      const of = found === null ? "" : `, best ${figure(found)} at step ${values[flat.indexOf(found)][0]}`;
      at(`d-${id}`).textContent = `${change ? `${change < 0 ? "−" : "+"}${figure(Math.abs(change))}` : "no change"} since step ${values[0][0]}${of}`;
      const first = values[0][0], wide = values.at(-1)[0] - first || 1;
      line.firstElementChild.setAttribute("points", values.map(([step, value]) =>
        `${(2 + (step - first) / wide * 116).toFixed(1)},${(high === low ? 14 : 25 - (value - low) / (high - low) * 22).toFixed(1)}`).join(" "));
    }
  };
  const draw = name => {
    if (drawn.has(name) || !of(name).size) return;
    const series = [{ label: name, colour: "--c1", points: of(name) }];
    drawn.set(name, new Curve(at("charts"), name, series, { onClose: () => { drawn.delete(name); remember(); } }));
  };
  const known = new Set([...at("names").options].map(option => option.value));
  const ofPage = () => {
    const scores = [...known].filter(name => name.startsWith("val-core")).slice(0, 2);
    const found = [...JSON.parse(live.dataset.curves).filter(name => known.has(name)), ...scores];
    return found.length ? found : [...known].slice(0, 6);
  };
  const wanted = () => choices.metrics || ofPage();
  const remember = () => { choices.metrics = [...drawn.keys()]; choices.save(); };
  const inBuffer = () => JSON.parse(live.dataset.buffer).filter(name => known.has(name));

  // ---- axes ----
  const choices = Charts.choices(at("tools"), `view:${job}`, () => placing());
  const placing = () => {
    for (const option of at("tools").elements.x.options) option.disabled = option.value in Charts.amounts && !of(Charts.amounts[option.value]).size;
    Charts.settings.place = Charts.placing(Charts.settings.axis, { updates: +live.dataset.updates }, of);
  };

  // ---- curves ----
  const drawBuffer = () => {
    // Of the states only those that some group was ever in, ready groups always.
    const states = inBuffer().filter((name, k) => !k || [...of(name).values()].some(value => value));
    const series = states.map((name, k) => ({ label: name.replace("buffer/", ""), colour: `--c${k + 1}`, points: of(name) }));
    buffer?.end();
    at("buffer").replaceChildren();
    if (series.length) buffer = new Curve(at("buffer"), series.length > 1 ? "groups" : "groups ready", series);
    else at("buffer").append(el("p", "No buffer depth recorded yet.", "dim"));
  };
  ({ last, history } = await load([...wanted(), ...inBuffer(), ...Object.values(Charts.amounts), ...Object.values(TILES).flatMap(([names]) => names)]));
  tiles();
  choices.apply();
  wanted().forEach(draw);
  at("none-yet").hidden = drawn.size > 0;
  drawBuffer();
  // Metrics that a step brought for the first time: offered, and drawn if they belong to the page's choice.
  const meet = async names => {
    names.forEach(name => known.add(name));
    const answer = await fetch(`${BASE}/run/${job}`); // its options have the readable names too
    const fresh = answer.ok && [...parsed(await answer.text())].map(each => each.querySelector?.("#names")).find(Boolean);
    if (fresh) at("names").replaceWith(fresh);
    else at("names").append(...names.map(name => new Option(name, name)));
    await load([...wanted(), ...inBuffer()].filter(name => !points.has(name)));
    wanted().forEach(draw);
    at("none-yet").hidden = drawn.size > 0;
    if (!choices.metrics) at("charts").append(...ofPage().map(name => drawn.get(name).box));
    drawBuffer();
  };
  at("add").addEventListener("change", async event => {
    const names = Charts.named(event.target, at("names"));
    await load(names.filter(name => !drawn.has(name)));
    names.forEach(draw);
    remember();
  });

  // A step of a chart leads to its groups; of a validation's score to the tasks of that validation.
  live.addEventListener("step", ({ detail: { step, title } }) => {
    location.assign(`${BASE}/groups/${job}?${title.startsWith("val-") ? "kind=eval&" : ""}step=${step}`);
  });

  // ---- lanes ----
  const sides = {}, MOST = 60;
  const { sides: first, waiting } = await (await fetch(`${BASE}/seconds/${job}`)).json();
  const MOST_PARTS = 8;
  // One table of both sides, for those who do not see the bars.
  const table = Charts.values(() => {
    const found = Object.keys(sides).flatMap(side => sides[side].map(([step, of]) => [side, step, of])).sort((a, b) => a[1] - b[1]);
    const names = [...new Set(found.flatMap(([, , of]) => Object.keys(of)))];
    return [["step", "side", ...names.map(name => `${name}, s`)], found.map(([side, step, of]) => [figure(step), side, ...names.map(name => figure(of[name]))])];
  }, "Seconds of each step, in a table");
  // A side's parts, the longest first: each has a colour of its own, those that would need a ninth count as other.
  const partsOf = rows => {
    const whole = {};
    for (const [, of] of rows) for (const part in of) whole[part] = (whole[part] || 0) + of[part];
    const named = Object.keys(whole).filter(part => !waiting.includes(part) && part !== "other" && whole[part] > sum(whole) / 100);
    return named.sort((a, b) => whole[b] - whole[a]).slice(0, MOST_PARTS);
  };
  const joined = (of, parts) => {
    const found = {};
    for (const part in of) {
      const name = waiting.includes(part) ? "waiting" : parts.includes(part) ? part : "other";
      found[name] = (found[name] || 0) + of[part];
    }
    return found;
  };
  const lane = found => {
    for (const side in found) sides[side] = [...new Map([...(sides[side] || []), ...found[side]])].sort((a, b) => a[0] - b[0]).slice(-MOST);
    const order = Object.keys(sides).filter(side => sides[side].length).sort().reverse();
    const boxes = order.map(side => {
      const parts = partsOf(sides[side]), rows = sides[side].map(([step, of]) => [step, joined(of, parts)]);
      const box = el("div", undefined, "lane"), head = el("h3", `${side} `), colours = part => part === "waiting" ? "wait" : part === "other" ? "k9" : `k${parts.indexOf(part) + 1}`;
      const highest = Math.max(...rows.map(([, of]) => sum(of)));
      const mean = rows.reduce((total, [, of]) => total + sum(of), 0) / rows.length;
      const idle = rows.reduce((total, [, of]) => total + (of.waiting || 0), 0) / rows.length;
      const said = `${figure(mean)} s a step, ${Math.round(idle / mean * 100)} % of it waiting`;
      head.append(el("span", `${said} · ${rows.length > 1 ? `steps ${rows[0][0]}–${rows.at(-1)[0]}` : `step ${rows[0][0]}`}`));
      const scale = el("div", undefined, "scaled"), ticks = el("div", undefined, "ticks"), read = el("p", "", "reading dim"), pic = stack(rows, colours, highest, `${side}: ${said}`);
      ticks.append(...[highest, highest / 2, 0].map(value => el("span", value ? `${figure(value)} s` : "0")));
      scale.append(ticks, pic);
      pic.addEventListener("pointerover", event => { const told = event.target.querySelector?.("title"); if (told && event.target !== pic) read.textContent = told.textContent; });
      const others = ["other", "waiting"].filter(part => rows.some(([, of]) => of[part]));
      const key = el("p", undefined, "key");
      key.append(...Charts.key([...parts, ...others], colours));
      box.append(head, scale, read, key);
      return box;
    });
    at("lanes").replaceChildren(...(boxes.length ? boxes : [el("p", "No step has finished yet.", "dim")]));
    if (boxes.length) at("lanes").append(table);
    table.fill();
  };
  lane(first);

  // ---- figures ----
  const link = (text, address) => { const made = el("a", text); made.href = address; return made; };
  const alertLine = ({ text, metric, since }) => {
    const line = el("li", `${text} `);
    if (metric) line.append(link("curve", `${BASE}/run/${job}?${new URLSearchParams({ show: metric, at: since })}`), " · ");
    if (since !== null) line.append(link(`answers of step ${since}`, `${BASE}/groups/${job}?step=${since}`));
    return line;
  };
  const show = now => {
    const pill = el("span", now.state, `pill ${now.state}`);
    pill.title = now.means;
    at("state").replaceChildren(pill);
    const going = ["running", "stopping", "starting"].includes(now.state);
    at("stopping").textContent = now.stopping; at("stopping").hidden = !now.stopping;
    at("stop").hidden = !going; at("resume").hidden = going || now.state === "done";
    const [kind, told] = now.verdict;
    if (at("verdict").textContent !== told) at("verdict").textContent = told;
    at("verdict").className = `verdict-line ${kind}`; at("verdict").hidden = !told;
    at("t-elapsed").textContent = now.elapsed ? `for ${now.elapsed}` : "";
    at("waits").textContent = now.waits; at("waits").hidden = !now.waits;
    // Only what has changed is read out.
    const alerts = JSON.stringify(now.alerts);
    if (at("alerts").dataset.told !== alerts) {
      if (at("alerts").dataset.told !== undefined || now.alerts.length !== at("alerts").children.length) at("alerts").replaceChildren(...now.alerts.map(alertLine));
      at("alerts").dataset.told = alerts;
    }
    at("alarm").hidden = !now.alerts.length;
    badge(now.alerts.length);
    at("t-step").textContent = figure(now.step);
    at("t-total").textContent = now.total ? `of ${figure(now.total)}` : "";
    at("t-bar").hidden = !now.total; at("t-bar").max = now.total || 1; at("t-bar").value = now.step;
    at("t-left").textContent = now.left ? `about ${now.left} left` : "";
    for (const [id, value] of [["reward", now.reward], ["lag", now.lag], ["tokens", now.tokens], ["seconds", now.step_s],
                               ["ready", now.depth.ready], ["version", now.version]]) at(`t-${id}`).textContent = figure(value);
    at("t-depth").textContent = ["claimed", "stale", "void"].filter(k => now.depth[k]).map(k => `${now.depth[k]} ${k}`).join(", ");
    at("t-checkpoint").textContent = now.checkpoint ? `checkpoint of ${now.checkpoint}` : "no checkpoint";
    const { log, lines } = now.failure || {};
    at("failure").hidden = !lines;
    if (at("f-lines").textContent !== (lines || "")) at("f-lines").textContent = lines || "";
    at("f-log").textContent = `log/${log}.log`;
    at("starts").hidden = !now.starts.length || now.step > 0;
    at("starts").replaceChildren(...now.starts.map(({ side, phases }) => {
      const list = el("ol", undefined, "phases");
      if (side) list.append(el("li", side, "side"));
      list.append(...phases.map(([name, took, state]) => {
        const phase = el("li", `${name} `, state);
        phase.append(el("b", took));
        if (state === "now") phase.setAttribute("aria-current", "step");
        return phase;
      }));
      return list;
    }));
    at("sides").replaceChildren(...now.sides.map(side => {
      const row = el("tr"), name = el("th", side.name), state = el("td", `${side.state} `);
      name.scope = "row";
      state.append(el("small", side.reason || side.detail, "why"));
      row.append(name, state, el("td", `${side.seen} ago`), el("td", side.where));
      return row;
    }));
  };

  // ---- logs ----
  const logs = {}, KEEP = 5000, tools = at("log-tools");  // lines
  const LEVELS = { error: /\b(error|critical|fatal|exception|traceback)\b/i, warn: /\b(warn(ing)?|error|critical|fatal|exception|traceback)\b/i };
  const METRICS = /(?:Training Progress:.*\])?\bstep:\s?\d+(?: - \S+:\S+){9,}.*/;  // veRL's console logger: the curves have them
  const shownLine = line => {
    const { words, level, metrics } = tools.elements;
    if (level.value && !LEVELS[level.value].test(line)) return null;
    if (words.value && !line.toLowerCase().includes(words.value.toLowerCase())) return null;
    return metrics.checked || words.value ? line : line.replace(METRICS, all => `${/step:\s?\d+/.exec(all)[0]} - ${all.split(" - ").length - 1} metrics`);
  };
  const fill = ({ pane, follow, lines }) => {
    const found = lines.map(shownLine).filter(line => line !== null);
    pane.textContent = found.length || !lines.length ? found.join("\n") : "No line matches.";
    if (follow.checked) pane.scrollTop = pane.scrollHeight;
  };
  const log = ([name, text]) => {
    if (!logs[name]) {
      const box = el("div", undefined, "log"), head = el("h3", name), label = el("label", " follow"), follow = el("input"), whole = link("download", `${BASE}/log/${job}?${new URLSearchParams({ name })}`);
      follow.type = "checkbox"; follow.checked = true;
      whole.setAttribute("aria-label", `download log of ${name}`);
      label.prepend(follow); head.append(whole, label);
      const pane = el("pre");
      pane.tabIndex = 0; pane.setAttribute("role", "region"); pane.setAttribute("aria-label", `log of ${name}`);
      box.append(head, pane); at("logs").append(box);
      logs[name] = { pane, follow, lines: [] };
    }
    logs[name].lines.push(...text.replace(/\n$/, "").split("\n"));
    logs[name].lines = logs[name].lines.slice(-KEEP);
    fill(logs[name]);
  };
  tools.addEventListener("input", () => Object.values(logs).forEach(fill));
  tools.addEventListener("submit", event => event.preventDefault());

  // ---- what happens ----
  const evaluate = async () => {
    const answer = await fetch(`${BASE}/run/${job}?evaluations=1`);
    if (answer.ok) at("evaluations").replaceChildren(...parsed(await answer.text()));
  };
  const told = {
    now: now => { at("problem").hidden = true; show(now); },
    rows: async ({ rows, seconds }) => {
      for (const [step, row] of rows) for (const name in row) if (points.has(name)) of(name).set(step, number(row[name]));
      placing();
      tiles();
      drawn.forEach(chart => chart.update());
      buffer?.update();
      lane(seconds.sides);
      const names = new Set(rows.flatMap(([, row]) => Object.keys(row)));
      if ([...names].some(name => name.startsWith("val-"))) await evaluate();
      const unknown = [...names].filter(name => !known.has(name));
      if (unknown.length) await meet(unknown);
    },
    log,
    resumed: text => { at("resumed").textContent = text; at("resumed").hidden = !text; },
    again: () => location.reload(),  // a resume took steps back
    problem: text => { at("problem").textContent = text; at("problem").hidden = false; },
  };
  // Each look says what to ask next, and when; a page that nobody sees asks seldom.
  const seen = Object.entries(last).map(([role, [step, figures]]) => ["last", `${role}:${step}:${figures}`]);
  let query = new URLSearchParams([["history", history], ...seen]), timer, looking = false;
  const look = async () => {
    clearTimeout(timer);
    if (looking) return;
    looking = true;
    let wait_s = 5;
    try {
      const answer = await (await fetch(`${BASE}/look/${job}?${query}`, { signal: AbortSignal.timeout(20000) })).json();
      for (const [name, data] of answer.events) await told[name](data);
      ({ next: query, wait_s } = answer);
    } catch { /* connection.js says so */ }
    looking = false;
    timer = setTimeout(look, 1000 * (document.hidden ? 15 : wait_s));
  };
  addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  look();
  // An alert's link names a metric and a step.
  const asked = new URLSearchParams(location.search), wish = asked.get("show");
  if (wish && known.has(wish)) {
    await load([wish]);
    draw(wish);
    const { box, plot } = drawn.get(wish), step = +asked.get("at");
    box.classList.add("asked");
    box.scrollIntoView({ block: "center" });
    if (asked.has("at")) plot.setCursor({ left: plot.valToPos(Charts.settings.place(step) ?? step, "x"), top: 0 });
  }
  live.dataset.ready = "1";
});
