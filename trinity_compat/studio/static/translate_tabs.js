"use strict";
// The tabs beside the text: the audit as a table, the upgraded text and the settings that differ as diffs, the keys
// that stock veRL ignores, and the advice.
addEventListener("DOMContentLoaded", () => {
  const C = CodeMirror, T = Translate, at = id => document.getElementById(id), element = T.element;
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  let latest = null, other = null, number = 0;

  // -- tabs ---------------------------------------------------------------------------------------

  const chosen = () => tabs.find(tab => tab.getAttribute("aria-selected") === "true");
  const choose = tab => {
    for (const each of tabs) {
      each.setAttribute("aria-selected", String(each === tab));
      each.tabIndex = each === tab ? 0 : -1;
      at(each.getAttribute("aria-controls")).hidden = each !== tab;
    }
    refresh();
  };
  for (const tab of tabs) {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
      next.focus();
      choose(next);
    });
  }
  document.addEventListener("status", event => { choose(at("tab-audit")); at("audit-status").value = event.detail; sift(); });
  document.addEventListener("translated", event => { latest = event.detail; refresh(); });
  const refresh = () => {
    const view = chosen().getAttribute("aria-controls");
    if (!latest || latest.empty) return;
    if (latest.command) at("command").textContent = latest.command;
    if (view === "yaml") return;
    if (view === "audit") audit(); else if (view === "diff") diff(); else ask(view, {}, { upgrade: upgraded, ignored, advise: advised }[view]);
  };
  const ask = async (view, extra, then) => {
    const mine = ++number, note = at(`${view}-note`), panel = at(view);
    const began = performance.now();
    const clock = setInterval(() => { if (mine === number) note.textContent = `At work for ${Math.round((performance.now() - began) / 1000)} s.`; }, 1000);
    panel.dataset.waits = "1";
    try {
      const found = await T.post({ view, ...extra });
      if (mine === number) {
        note.textContent = found.limit ? `It was ended: ${found.limit}.` : "";
        at("command").textContent = found.command;
        then(found, note);
      }
    } catch (error) { if (mine === number) note.textContent = error.message; }
    clearInterval(clock);
    if (mine === number) delete panel.dataset.waits;
  };
  const place = (source, name) => {
    const line = T.sourceLine(source, name);
    if (!line) return element("small", source || "");
    const link = element("button", `line ${line}`, "link");
    link.type = "button";
    link.addEventListener("click", () => T.go(line));
    return link;
  };
  const code = value => element("code", typeof value === "string" ? value : JSON.stringify(value));
  const cell = (...parts) => { const found = element("td", ""); found.append(...parts); return found; };
  const head = (...parts) => { const found = element("th", ""); found.scope = "row"; found.append(...parts); return found; };

  // -- audit --------------------------------------------------------------------------------------

  const audit = () => {
    const launch = T.launchOf(latest), rows = launch ? T.worstFirst(launch.findings) : [], status = at("audit-status"), kept = status.value;
    const known = launch ? Object.keys(launch.counts) : [];
    status.replaceChildren(...["", ...known].map(name => Object.assign(element("option", name ? `${name.replaceAll("_", " ")} (${launch.counts[name]})` : "all"), { value: name })));
    status.value = known.includes(kept) ? kept : "";
    at("audit-note").textContent = !launch ? "There is no launch to account for." : launch.refused || `${launch.keys} keys, read as veRL ${launch.verl_version.value}: ${launch.verl_version.why}`;
    at("audit-table").tBodies[0].replaceChildren(...rows.map(finding => {
      const row = element("tr", "");
      row.dataset.status = finding.status;
      const result = cell(element("span", finding.status.replaceAll("_", " "), `status ${finding.status.replaceAll("_", "-")}`), " ", element("span", finding.code, "pill"));
      if (finding.target) result.append(" ", element("code", finding.target));
      result.append(element("small", finding.reason, "why"));
      row.append(head(element("code", finding.key), " = ", code(finding.value), " ", place(finding.source, latest.name)), result);
      return row;
    }));
    sift();
  };
  const sift = () => {
    const words = at("audit-words").value.toLowerCase().split(/\s+/), status = at("audit-status").value;
    for (const row of at("audit-table").tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = Boolean(status && row.dataset.status !== status) || !words.every(word => text.includes(word));
    }
  };
  at("audit-words").addEventListener("input", sift);
  at("audit-status").addEventListener("change", sift);

  // -- upgrade ------------------------------------------------------------------------------------

  const merge = new C.Compartment(), language = new C.Compartment();
  let view = null, newer = "";
  const upgraded = (found, note) => {
    view = view || Editors.make(at("upgraded"), [merge.of([]), language.of([]), C.EditorState.readOnly.of(true), C.EditorView.lineWrapping], { coloured: false });
    const before = T.text();
    newer = found.text && !found.limit ? found.text : "";
    at("take-upgrade").disabled = !newer || newer === before;
    if (!newer) note.textContent = note.textContent || T.errorOf(found);
    else if (newer === before) note.textContent = found.code ? "Nothing can be changed: see the reasons." : "Nothing changes: the text is in this spelling already.";
    else note.textContent = found.code ? "Something cannot be carried: see the reasons." : "";
    view.dispatch({ effects: merge.reconfigure([]) });
    Editors.replace(view, newer);
    view.dispatch({ effects: [
      language.reconfigure(Editors.language(found.name)),
      merge.reconfigure(newer ? C.unifiedMergeView({ original: before, mergeControls: false, collapseUnchanged: { margin: 3, minSize: 6 } }) : []),
    ] });
    at("reasons").replaceChildren(...(newer ? found.messages : []).map(text => {
      const item = element("li", ""), start = /^[^:]+:\d+(?=: )/.exec(text);
      if (start) item.append(place(start[0], found.name), text.slice(start[0].length + 1)); else item.textContent = text;
      return item;
    }));
  };
  at("take-upgrade").addEventListener("click", () => { T.load(latest.name, newer); choose(at("tab-yaml")); });

  // -- diff ---------------------------------------------------------------------------------------

  const diff = () => {
    const against = at("against").value, base = against === "file" ? other : against === "opened" ? T.opened() : null;
    if (against === "opened" && !base.text) { at("diff-note").textContent = "No file has been opened: choose a release or another file."; return; }
    ask("diff", base ? { other: base.text, "other-name": base.name } : { against }, differing);
  };
  const GROUPS = { differences: "In effect", following: "As a consequence", without_effect: "Without effect" };
  const differing = (found, note) => {
    const rows = [];
    if (!found.comparison) note.textContent = note.textContent || T.errorOf(found);
    else {
      const count = found.comparison.differences.length, differ = count === 1 ? "1 setting differs" : `${count} settings differ`;
      note.textContent = found.comparison.same ? "Nothing differs in effect." : `${differ} in effect from ${found.a}.`;
    }
    for (const [name, title] of Object.entries(GROUPS)) {
      const held = found.comparison ? found.comparison[name] : [];
      if (!held.length) continue;
      const part = element("tr", "", "part"), label = head(`${title} (${held.length})`);
      label.colSpan = 3;
      part.append(label);
      rows.push(part);
      for (const one of held) {
        const row = element("tr", ""), why = one.stock ? `a run here honours it, stock ${one.stock}` : one.follows || one.why || "";
        const key = head(element("code", one.key));
        if (why) key.append(element("small", why, "why"));
        row.append(key, cell(code(one.a), " ", element("small", one.a_place || "")), cell(code(one.b), " ", place(one.b_place, found.name)));
        rows.push(row);
      }
    }
    at("diff-table").tBodies[0].replaceChildren(...rows);
  };
  at("against").addEventListener("change", refresh);
  at("other").addEventListener("change", async event => {
    const [file] = event.target.files;
    if (!file) return;
    const name = file.name.replace(/[^\w.@+-]/g, "_").replace(/^[.+@-]+/, "");
    other = { name, text: await file.text() };
    const option = at("against").querySelector('[value="file"]');
    Object.assign(option, { textContent: name, hidden: false });
    at("against").value = "file";
    event.target.value = "";
    refresh();
  });
  // -- ignored keys, advice -----------------------------------------------------------------------

  const ignored = (found, note) => {
    const launches = found.data ? found.data.launches : [];
    const rows = launches.flatMap(launch => launch.ignored.map(one => {
      const row = element("tr", "");
      row.append(head(element("code", one.key), " = ", code(one.value), " ", place(one.source, found.name)), cell(one.why));
      return row;
    }));
    if (!launches.length) note.textContent = note.textContent || T.errorOf(found);
    else if (!rows.length) note.textContent = "No setting without effect is known.";
    else note.textContent = `${rows.length === 1 ? "1 setting has" : `${rows.length} settings have`} no effect under stock veRL ${launches[0].verl_version.value}.`;
    at("ignored-table").tBodies[0].replaceChildren(...rows);
  };
  const percent = share => `${Math.round(100 * share)} %`;
  const advised = (found, note) => {
    const modes = found.data ? found.data.modes : [];
    if (!found.data) note.textContent = note.textContent || T.errorOf(found);
    else note.textContent = `Predicted for ${found.data.gpus} GPU${found.data.gpus === 1 ? "" : "s"}; not measured.`;
    at("advised").hidden = !modes.length;
    at("advise-table").tBodies[0].replaceChildren(...modes.map(mode => {
      const row = element("tr", ""), name = head(mode.name);
      if (mode.command) name.append(element("small", mode.command, "why"));
      row.append(name);
      if (mode.refused) {
        row.append(Object.assign(cell(`cannot run: ${mode.refused}`), { colSpan: 6 }));
        return row;
      }
      const gpus = mode.in_turns ? `${mode.trainer_gpus} in turns` : `${mode.explorer_gpus} + ${mode.trainer_gpus}`;
      const problems = mode.memory ? mode.memory.problems : null;
      const fits = !problems ? "–" : problems.length ? element("span", `does not fit: ${problems.join("; ")}`, "status unsupported") : "fits";
      const stale = mode.staleness_max ? `${mode.staleness_mean.toFixed(2)}, at most ${mode.staleness_max}` : "0";
      row.append(cell(gpus), cell(percent(mode.gpu_time_used)), cell(String(mode.step_s)), cell(String(mode.of_stock)), cell(stale), cell(fits));
      return row;
    }));
    at("assumptions").replaceChildren(...(found.data ? found.data.assumptions : []).map(text => element("li", text)));
  };
  document.body.dataset.tabs = "1";
});
