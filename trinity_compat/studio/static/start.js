"use strict";
// The state of a start, once a second while it is checked or begins; then the run's own page.
(() => {
  const state = document.getElementById("state"), pause_ms = 1000;
  const inner = () => state.firstElementChild;
  const look = async () => {
    const answer = await fetch(state.dataset.part);
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").body.firstElementChild;
    if (fresh.innerHTML === inner().innerHTML) return;
    const ended = fresh.dataset.run, folds = part => [...part.querySelectorAll("details")];
    const open = new Set(folds(state).filter(each => each.open).map(each => each.innerText.split("\n")[0]));
    state.replaceChildren(fresh);
    for (const each of folds(fresh)) each.open = open.has(each.innerText.split("\n")[0]);
    if (ended) location.replace(ended);
  };
  const watch = async () => {
    try { if (!document.hidden) await look(); } catch { /* connection.js says so */ }
    if (inner().dataset.busy && !inner().dataset.run) setTimeout(watch, pause_ms);
  };
  if (inner().dataset.busy) setTimeout(watch, pause_ms);
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
})();
