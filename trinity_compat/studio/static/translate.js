"use strict";
// The page Translate: the text goes to `translator` after a pause, and its answer links the lines of both sides.
addEventListener("DOMContentLoaded", () => {
  const C = CodeMirror, at = id => document.getElementById(id);
  const PAUSE_MS = 120, form = at("translate");
  const WORST = { approximated: "warning", unsupported_upstream: "info", unsupported: "error", fork_key: "warning", unknown: "error" };
  const languages = { left: new C.Compartment(), right: new C.Compartment() };
  let ending = "\n", answer = null, links = { left: new Map(), right: new Map() }, asked = 0, timer = 0, waiting = false;

  const element = (tag, text, name) => Object.assign(document.createElement(tag), { textContent: text, className: name || "" });
  const lineOf = view => view.state.doc.lineAt(view.state.selection.main.head).number;

  // -- editors ------------------------------------------------------------------------------------

  const linked = side => C.EditorView.updateListener.of(change => {
    if (change.docChanged && side === "left") later();
    if ((change.selectionSet || change.focusChanged) && change.view.hasFocus) point(side, lineOf(change.view));
  });
  const hovered = side => C.EditorView.domEventHandlers({
    mousemove(event, view) {
      const place = view.posAtCoords({ x: event.clientX, y: event.clientY });
      if (place !== null) point(side, view.state.doc.lineAt(place).number, { scroll: false });
    },
  });
  // -- completion ---------------------------------------------------------------------------------

  let known = null;
  const keysOf = async () => {
    known = known || translator.keys();
    const { releases, keys } = await known, launch = answer && launchOf(answer);
    const release = form.elements["verl-version"].value || (launch && launch.verl_version.value), bit = releases.includes(release) ? releases.indexOf(release) : releases.length - 1;
    return Object.keys(keys).filter(key => keys[key] >> bit & 1);
  };
  // The section of a YAML that a line stands in, with its dot.
  const sectionAt = (doc, number, indent) => {
    const above = [];
    for (let line = number - 1; line >= 1 && indent > 0; line--) {
      const found = /^( *)([\w-]+):\s*(#.*)?$/.exec(doc.line(line).text);
      if (found && found[1].length < indent) { above.unshift(found[2]); indent = found[1].length; }
    }
    return above.map(name => `${name}.`).join("");
  };
  const complete = async context => {
    const inYaml = /\.ya?ml$/.test(at("left-name").textContent);
    const word = context.matchBefore(inYaml ? /^ *\w+/ : /(?<![\w=/$.-])[+~]{0,2}[a-z][\w.]*/);
    if (!word) return null;
    const text = word.text.replace(/^[ +~]+/, ""), from = word.to - text.length;
    if (text.length < 3 && !context.explicit) return null;
    const keys = await keysOf();
    if (!inYaml) return { from, options: keys.map(label => ({ label, type: "property", boost: label.startsWith("actor_rollout_ref.") ? 50 : 0 })), validFor: /^[\w.]*$/ };
    const line = context.state.doc.lineAt(context.pos), section = sectionAt(context.state.doc, line.number, from - line.from);
    const names = new Set(keys.filter(key => key.startsWith(section)).map(key => key.slice(section.length).split(".")[0]));
    return { from, options: [...names].map(label => ({ label, type: "property", apply: `${label}:` })), validFor: /^\w*$/ };
  };

  const left = Editors.make(at("left"), [
    languages.left.of(Editors.language("run.sh")), C.history(), C.drawSelection(), C.lintGutter(), C.autocompletion({ override: [complete] }), linked("left"), hovered("left"),
    C.placeholder("#!/bin/bash\npython3 -m verl.trainer.main_ppo …"), C.EditorView.lineWrapping,
    C.EditorView.domEventHandlers({ drop: event => { const [file] = event.dataTransfer.files; if (file) { event.preventDefault(); open(file); return true; } return false; } }),
  ]);
  const right = Editors.make(at("right"), [
    languages.right.of(C.yaml()), C.EditorState.readOnly.of(true), linked("right"), hovered("right"), C.EditorView.lineWrapping,
  ]);

  let opened = { name: "", text: "" };
  const load = (name, text) => {
    opened = { name, text };
    ending = text.includes("\r\n") ? "\r\n" : "\n";
    form.elements.name.value = name.replace(/[^\w.@+/-]/g, "_").replace(/^[.+@/-]+/, "");
    Editors.replace(left, text.replaceAll("\r\n", "\n"));
    later();  // also the same text under another name
  };
  const open = async file => {
    if (translator.open && await translator.open(file)) return;
    if (file.size > 1 << 20) return told("A text of at most 1 MiB is translated.");
    load(file.name, await file.text());
  };
  at("file").addEventListener("change", async event => { const [file] = event.target.files; if (file) await open(file); event.target.value = ""; });
  for (const kind of ["dragover", "drop"]) addEventListener(kind, event => event.preventDefault());
  addEventListener("drop", event => { const [file] = event.dataTransfer.files; if (file) open(file); });

  // -- asking -------------------------------------------------------------------------------------

  const told = text => { at("problem").textContent = text; at("problem").hidden = !text; };
  const later = () => { asked++; form.dataset.waits = "1"; clearTimeout(timer); timer = setTimeout(ask, PAUSE_MS); };
  const fields = extra => {
    const body = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value && typeof value === "string") body.append(name, value);
    for (const field of document.querySelectorAll("#open input")) if (field.value) body.append("env", `${field.dataset.name}=${field.value}`);
    body.append("text", left.state.doc.toString().replaceAll("\n", ending));
    for (const [name, value] of Object.entries(extra || {})) body.append(name, value);
    return body;
  };
  const post = extra => translator.ask(fields(extra));
  const ask = async () => {
    form.dataset.waits = "1";
    if (waiting) return;  // one at a time: its end asks again
    const number = asked;
    waiting = true;
    at("state").textContent = "translating …";
    try {
      const { later: rest, ...found } = await post({});
      if (number === asked) show(found, !rest);
      const more = await rest;
      if (more && number === asked) show({ ...found, ...more });
    } catch (error) {
      if (number === asked) { told(error.message); at("state").textContent = ""; }
    }
    waiting = false;
    if (number === asked) delete form.dataset.waits; else later();
  };
  form.addEventListener("input", event => { if (event.target.id !== "file") later(); });
  form.addEventListener("submit", event => { event.preventDefault(); later(); });

  // -- showing ------------------------------------------------------------------------------------

  const show = (found, complete = true) => {
    answer = found;
    const failed = found.limit || (!found.empty && !found.text);
    at("left-name").textContent = found.name;
    at("right-name").textContent = found.trinity ? "veRL script" : "Trinity YAML";
    left.dispatch({ effects: languages.left.reconfigure(Editors.language(found.name)) });
    right.dispatch({ effects: languages.right.reconfigure(found.trinity ? Editors.language("run.sh") : C.yaml()) });
    if (!failed || found.empty) Editors.replace(right, found.text || "");
    told(found.limit ? `The translation was ended: ${found.limit}.` : failed ? errorOf(found) : "");
    at("right").toggleAttribute("data-old", Boolean(failed));
    at("state").textContent = found.empty ? "Nothing to translate yet." : failed ? "not translated" : "";
    if (!found.empty && !failed) at("state").append(...counted(found));
    lose(failed ? null : launchOf(found));
    for (const id of ["copy", "download", "start"]) if (at(id)) at(id).disabled = Boolean(failed || found.empty);
    at("command").textContent = found.command || "–";
    at("copy-command").disabled = !found.command;
    list(found);
    relink();
    if (complete) offer(found);
    if (complete) document.dispatchEvent(new CustomEvent("translated", { detail: found }));
  };
  const errorOf = found => {
    const first = found.messages.findIndex(line => line.startsWith("error: "));
    return first < 0 ? found.messages.join("\n") || `Exit code ${found.code}.` : found.messages.slice(first).join("\n").replace(/^error: /, "");
  };
  const launchOf = found => {
    const launches = found.audit ? found.audit.launches : [], number = Number(form.elements.launch.value || 1);
    return launches[number - 1] || launches[0] || null;
  };
  // The number of keys of each status, which leads to them in the audit.
  const counted = found => {
    const launch = launchOf(found);
    if (!launch) return [];
    return [`${launch.keys} keys: `, ...Object.entries(launch.counts).flatMap(([status, n], place) => {
      const link = element("button", `${n} ${status.replaceAll("_", " ")}`, `link status ${status.replaceAll("_", "-")}`);
      link.type = "button";
      link.addEventListener("click", () => document.dispatchEvent(new CustomEvent("status", { detail: status })));
      return place ? [", ", link] : [link];
    })];
  };
  // The keys that are not carried as they are, the worst first.
  const RANKS = ["unknown", "unsupported", "fork_key", "unsupported_upstream", "approximated"], SHOWN = 5;
  const worstFirst = findings => [...findings].sort((a, b) => (RANKS.indexOf(a.status) + 1 || 9) - (RANKS.indexOf(b.status) + 1 || 9));
  const lose = launch => {
    const lost = worstFirst(launch ? launch.findings : []).filter(finding => RANKS.includes(finding.status));
    at("lost").hidden = !lost.length;
    at("lost").replaceChildren(...lost.slice(0, SHOWN).map(told_of));
    if (lost.length > SHOWN) at("lost").append(element("li", `and ${lost.length - SHOWN} more, in Audit`, "dim"));
  };
  const list = found => {
    const items = (found.messages || []).map(line => {
      const item = element("li", ""), place = placeOf(line, found.name);
      if (place) {
        const link = element("button", `line ${place.line}`, "link");
        link.type = "button";
        link.addEventListener("click", () => go(left, place.line));
        item.append(link, ` ${place.text}`);
      } else item.textContent = line;
      return item;
    });
    at("messages").replaceChildren(...(items.length ? items : [element("li", "None.", "dim")]));
  };
  const placeOf = (line, name) => {
    const text = line.replace(/^error: /, "");
    const rest = text.startsWith(`${name}:`) ? text.slice(name.length + 1) : "";
    const found = /^(\d+): /.exec(rest);
    return found && { line: Number(found[1]), text: rest.slice(found[0].length) };
  };
  const go = (view, number) => {
    const line = view.state.doc.line(Math.min(Math.max(number, 1), view.state.doc.lines));
    view.focus();
    view.dispatch({ selection: { anchor: line.from }, effects: C.EditorView.scrollIntoView(line.from, { y: "center" }) });
  };

  // -- links --------------------------------------------------------------------------------------

  // The dotted path of each line of a YAML that we wrote, '' for others.
  const pathsOf = text => {
    const open = [];
    return text.split("\n").map(line => {
      const found = /^(\s*)(?:- )?(?:'([^']+)'|"([^"]+)"|([\w.@/-]+)):(?:\s|$)/.exec(line);
      if (!found || /^\s*#/.test(line)) return line.trim() && !line.startsWith("#") && open.length ? open.at(-1).path : "";
      const indent = found[1].length + (/^\s*- /.test(line) ? 2 : 0), key = found[2] || found[3] || found[4];
      while (open.length && open.at(-1).indent >= indent) open.pop();
      const path = open.length ? `${open.at(-1).path}.${key}` : key;
      open.push({ indent, path });
      return path;
    });
  };
  const add = (map, line, other, finding) => {
    const held = map.get(line) || { lines: new Set(), findings: new Set() };
    if (other) held.lines.add(other);
    if (finding) held.findings.add(finding);
    map.set(line, held);
  };
  const sourceLine = (source, name) => (source && source.startsWith(`${name}:`) && Number(source.slice(name.length + 1))) || 0;
  const relink = () => {
    links = { left: new Map(), right: new Map() };
    const diagnostics = [], launch = answer && launchOf(answer);
    if (launch) {
      const text = right.state.doc.toString(), lines = text.split("\n"), paths = pathsOf(text);
      for (const finding of launch.findings) {
        const line = sourceLine(finding.source, answer.name);
        if (line) add(links.left, line, 0, finding);
        if (finding.target) paths.forEach((path, index) => {
          if (path !== finding.target && !path.startsWith(`${finding.target}.`)) return;
          add(links.right, index + 1, line, finding);
          if (line) add(links.left, line, index + 1, finding);
        });
        if (line && WORST[finding.status]) diagnostics.push(lint(finding, line));
      }
      // A comment names every line that its value comes from.
      const named = new RegExp(`${answer.name.replace(/[.+]/g, "\\$&")}:(\\d+(?:,\\d+)*)`, "g");
      lines.forEach((line, index) => {
        const comment = /\s# (.*)$/.exec(line);
        for (const found of comment ? comment[1].matchAll(named) : []) for (const number of found[1].split(",")) {
          add(links.right, index + 1, Number(number));
          add(links.left, Number(number), index + 1);
          for (const finding of (links.left.get(Number(number)) || {}).findings || []) add(links.right, index + 1, 0, finding);
        }
      });
    }
    if (answer && answer.messages) answer.messages.forEach(message => {
      const place = message.startsWith("error: ") ? placeOf(message, answer.name) : null;
      if (place) diagnostics.push(whole(place.line, "error", place.text));
    });
    const doc = left.state.doc;
    left.dispatch(C.setDiagnostics(left.state, diagnostics.filter(each => each && each.to <= doc.length).sort((a, b) => a.from - b.from)));
  };
  const whole = (number, severity, message) => {
    if (number < 1 || number > left.state.doc.lines) return null;
    const line = left.state.doc.line(number), from = line.from + line.text.search(/\S|$/);
    return { from, to: line.to, severity, message };
  };
  const lint = (finding, number) => {
    const found = whole(number, WORST[finding.status], `${finding.code} ${finding.status}: ${finding.reason}`);
    if (!found) return null;
    const line = left.state.doc.line(number), place = line.text.indexOf(finding.key);
    if (place >= 0) Object.assign(found, { from: line.from + place, to: line.from + place + finding.key.length });
    const near = /did you mean ([\w.]+)\?/.exec(finding.reason);
    if (near && place >= 0) found.actions = [{ name: `Write ${near[1]}`, apply: (view, from, to) => view.dispatch({ changes: { from, to, insert: near[1] } }) }];
    return found;
  };
  const point = (side, number, options) => {
    const held = links[side].get(number), other = side === "left" ? right : left;
    Editors.show(side === "left" ? left : right, [number], { scroll: false });
    Editors.show(other, held ? [...held.lines] : [], options);
    const items = held ? [...held.findings].map(told_of) : [];
    if (!items.length) items.push(element("li", `Line ${number} of the ${side === "left" ? "text" : "translation"}: no key is set here.`, "dim"));
    at("linked").replaceChildren(...items);
  };
  const told_of = finding => {
    const item = element("li", "");
    item.append(element("code", finding.key), " ", element("span", finding.status.replaceAll("_", " "), `status ${finding.status.replaceAll("_", "-")}`));
    if (finding.target) item.append(" ", element("code", finding.target));
    item.append(" ", element("span", finding.code, "pill"), element("small", finding.reason, "why"));
    return item;
  };

  // -- open values --------------------------------------------------------------------------------

  const offer = found => {
    const names = new Map((found.open || []).map(each => [each.variable, each]));
    const box = at("open"), fieldsNow = new Map([...box.querySelectorAll("input")].map(field => [field.dataset.name, field]));
    for (const [name, field] of fieldsNow) if (!names.has(name) && !field.value) field.parentElement.remove();
    for (const [name, each] of names) if (!fieldsNow.has(name)) {
      const label = element("label", `${name} `), field = element("input", "");
      Object.assign(field, { placeholder: each.expression, title: `Line ${each.line}` });
      field.dataset.name = name;
      label.append(field);
      box.append(label);
    }
    box.hidden = !box.querySelector("input");
  };

  // -- taking away --------------------------------------------------------------------------------

  const copied = async (button, text) => {
    await navigator.clipboard.writeText(text);
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1500);
  };
  at("copy").addEventListener("click", event => copied(event.target, answer.text));
  at("copy-command").addEventListener("click", event => copied(event.target, at("command").textContent));
  // A script or a Trinity YAML starts as it is. A YAML of veRL's, or a text whose translation alone has the page's
  // options, by its translation.
  at("to-start")?.addEventListener("submit", () => {
    const to = at("to-start").elements, given = new FormData(form);
    const changed = ["rollout-gpus", "sync-offset", "launch", "verl-version"].some(name => given.get(name));
    const own = answer.trinity || !(changed || /\.ya?ml$/.test(answer.name));
    const set = own ? [...given.getAll("set"), given.get("gpus") && `trainer.n_gpus_per_node=${given.get("gpus")}`] : [];
    to.text.value = own ? left.state.doc.toString().replaceAll("\n", ending) : answer.text;
    to.file_name.value = own ? answer.name : "trinity.yaml";
    to.settings.value = set.filter(Boolean).join("\n");
    to.environment.value = [...document.querySelectorAll("#open input")].filter(field => field.value).map(field => `${field.dataset.name}=${field.value}`).join("\n");
    to.folder.value = given.get("folder");
    to.mode.value = own ? given.get("mode") : "";
  });
  at("download").addEventListener("click", () => {
    const link = document.createElement("a"), stem = answer.name.replace(/\.\w+$/, "");
    link.href = URL.createObjectURL(new Blob([answer.text]));
    link.download = answer.trinity ? `${stem}.sh` : `${stem}.yaml` === answer.name ? `${stem}-trinity.yaml` : `${stem}.yaml`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  });
  // For the other tabs (translate_tabs.js).
  window.Translate = { element, worstFirst, told, fields, post, go: line => go(left, line), launchOf, sourceLine, load, text: () => left.state.doc.toString(), opened: () => opened, told_of, errorOf };
  form.dataset.ready = "1";
});
