"use strict";
// Checks and files while one types, a moment after the last key. The address holds the form: a reload shows it again.
(() => {
  const form = document.getElementById("form"), result = document.getElementById("result");
  const pause_ms = 250, rest_ms = 900, again_ms = 1000;
  let timer = 0, looks = "";
  const mark = () => {
    const wrong = new Set([...result.querySelectorAll("[data-wrong]")].map(each => each.dataset.wrong));
    const inside = path => [...wrong].some(name => name === path || name.startsWith(`${path}.`));
    for (const field of form.elements) {
      if (inside(field.name.replace(/^v:/, "")) && field.name) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
    for (const button of result.querySelectorAll("[data-copy]")) button.hidden = false;
  };
  // What takes seconds, the dry run and the prediction, begins once nothing has changed for a moment, once for a text.
  let tried = "", trying = new AbortController(), rest = 0;
  const yaml = () => document.getElementById("t-yaml")?.textContent ?? "";
  const part = async (address, options) => {
    const answer = await fetch(address, options);
    if (!answer.ok) throw new Error(answer.statusText);
    return new DOMParser().parseFromString(await answer.text(), "text/html").body;
  };
  const ask = async (place, signal) => {
    if (!place?.dataset.csrf) return;
    const body = new URLSearchParams({ csrf: place.dataset.csrf, text: tried });
    try {
      let found = await part(`${BASE}/configure/${place.id}`, { method: "POST", body, signal });
      for (let next = true; next;) {
        next = found.querySelector("[data-busy='1']")?.dataset.part;
        place.replaceChildren(...found.childNodes);
        place.removeAttribute("aria-busy");
        if (!next) return;
        await new Promise(done => setTimeout(done, again_ms));
        found = await part(next, { signal });
      }
    } catch { /* a later text, or connection.js says so */ }
  };
  const attempt = () => {
    trying.abort();
    trying = new AbortController();
    tried = yaml();
    if (!tried) return;
    ask(document.getElementById("check"), trying.signal);
    figure();
  };
  // One prediction and one look at a time, however slow the machine: the server answers each to its end.
  let figures = "";
  const figure = async () => {
    if (figures) { figures = "again"; return; }
    do {
      figures = "now";
      await ask(document.getElementById("figures"));
    } while (figures === "again");
    figures = "";
  };
  const look = async () => {
    if (looks) { looks = "again"; return; }
    do {
      looks = "now";
      await look_once();
    } while (looks === "again");
    looks = "";
  };
  const look_once = async () => {
    const query = new URLSearchParams(new FormData(form)), posts = form.method === "post";
    if (!posts) history.replaceState(null, "", `${BASE}/configure?${query}`);
    query.set("part", "1");
    result.setAttribute("aria-busy", "true");
    try {
      const fresh = await (posts ? part(form.action, { method: "POST", body: query }) : part(`${BASE}/configure?${query}`));
      const shown = ["check", "figures"].map(id => document.getElementById(id));
      result.replaceChildren(...fresh.childNodes);
      const is_new = yaml() !== tried;
      for (const old of shown.filter(Boolean)) {
        if (is_new && old.id === "check") continue;
        if (is_new) old.setAttribute("aria-busy", "true");
        document.getElementById(old.id)?.replaceWith(old);
      }
      mark();
      result.removeAttribute("aria-busy");
      clearTimeout(rest);
      if (is_new || !yaml()) rest = setTimeout(attempt, yaml() ? rest_ms : 0);
    } catch { /* a later look, or connection.js says so */ }
  };
  form.addEventListener("input", event => {
    if (!event.target.name) return;
    clearTimeout(timer);
    timer = setTimeout(look, pause_ms);
  });
  form.addEventListener("submit", event => {
    if (event.submitter?.hasAttribute("formaction")) return; // a download
    event.preventDefault();
    clearTimeout(timer);
    tried = "";
    look();
  });
  // The arguments of the chosen function alone, and those that are given.
  const argue = () => {
    for (const field of form.querySelectorAll("[data-of]")) {
      const given = field.querySelector("[name]"), chosen = form.elements[given.name.replace(/_args\.\w+$/, "")].value;
      field.classList.toggle("other", !given.value && !field.dataset.of.split(" ").includes(chosen));
    }
  };
  // The fields that count with the others' choices; the rest have their defaults.
  const fit = () => {
    for (const place of form.querySelectorAll("[data-when]")) {
      place.hidden = !place.dataset.when.split(";").every(each => {
        const [name, values] = each.split("="), other = form.elements[name];
        return values.split(" ").includes(other.value) && !(other !== place && other.closest("[hidden]"));
      });
      for (const field of place.querySelectorAll("[name]")) field.disabled = Boolean(field.closest("[hidden]"));
    }
  };
  form.addEventListener("change", () => { argue(); fit(); });
  argue();
  fit();
  // Entries of a repeated section: the empty one at the end, once it is filled, leaves another behind it; names have the number.
  for (const section of form.querySelectorAll("[data-entries]")) {
    const last = () => section.querySelector(":scope > [data-new]"), place = section.dataset.entries;
    const blank = last().cloneNode(true), title = place.split(".").pop();
    const settle = () => { for (const button of section.querySelectorAll("[data-remove]")) button.hidden = Boolean(button.closest("[data-new]")); };
    section.addEventListener("input", event => {
      const entry = event.target.closest("[data-new]");
      if (!entry) return;
      const number = Number(entry.querySelector("[name]").name.slice(2 + place.length + 1).split(".")[0]), next = blank.cloneNode(true);
      delete entry.dataset.new;
      entry.querySelector("summary").textContent = `${title} ${number}`;
      for (const each of next.querySelectorAll("[id],[name],[for],[aria-describedby]")) {
        for (const name of ["id", "name", "for", "aria-describedby"]) {
          const text = each.getAttribute(name);
          if (text) each.setAttribute(name, text.replace(/(?<=\.)\d+(?=\.)/, number + 1));
        }
      }
      section.append(next);
      settle();
    });
    section.addEventListener("click", event => {
      if (!event.target.hasAttribute("data-remove")) return;
      event.target.closest(".entry").remove();
      look();
    });
    settle();
  }
  const find = document.getElementById("find");
  find?.addEventListener("input", () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const section of form.querySelectorAll("details")) {
      const fields = [...section.querySelectorAll(".field")];
      for (const field of fields) field.hidden = !words.every(word => field.dataset.words.includes(word));
      section.hidden = fields.every(field => field.hidden);
      if (words.length) section.open = true;
    }
  });
  find?.addEventListener("keydown", event => { if (event.key === "Enter") event.preventDefault(); });
  mark();
  attempt();
  form.dataset.ready = "1";
})();
