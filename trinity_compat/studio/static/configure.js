"use strict";
// Checks and files while one types, a moment after the last key. The address holds the form: a reload shows it again.
(() => {
  const form = document.getElementById("form"), result = document.getElementById("result");
  const pause_ms = 250;
  let timer = 0, asked = new AbortController();
  const mark = () => {
    const wrong = new Set([...result.querySelectorAll("[data-wrong]")].map(each => each.dataset.wrong));
    const inside = path => [...wrong].some(name => name === path || name.startsWith(`${path}.`));
    for (const field of form.elements) {
      if (inside(field.name.replace(/^v:/, "")) && field.name) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
    for (const button of result.querySelectorAll("[data-copy]")) button.hidden = false;
  };
  const look = async () => {
    asked.abort();
    asked = new AbortController();
    const query = new URLSearchParams(new FormData(form)), posts = form.method === "post";
    if (!posts) history.replaceState(null, "", `${BASE}/configure?${query}`);
    query.set("part", "1");
    result.setAttribute("aria-busy", "true");
    try {
      const { signal } = asked;
      const answer = await (posts ? fetch(form.action, { method: "POST", body: query, signal }) : fetch(`${BASE}/configure?${query}`, { signal }));
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      result.replaceChildren(...fresh.body.childNodes);
      mark();
      result.removeAttribute("aria-busy");
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
    look();
  });
  // The arguments of the chosen function alone, and those that are given.
  const argue = () => {
    for (const field of form.querySelectorAll("[data-of]")) {
      const given = field.querySelector("[name]"), chosen = form.elements[given.name.replace(/_args\.\w+$/, "")].value;
      field.classList.toggle("other", !given.value && !field.dataset.of.split(" ").includes(chosen));
    }
  };
  form.addEventListener("change", argue);
  argue();
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
  form.dataset.ready = "1";
})();
