"use strict";
// The table again every few seconds; not while somebody has the focus in it, nor in a hidden tab. The chosen runs
// are in the address, and stay chosen.
(() => {
  const table = document.getElementById("table");
  const chosen = () => [...table.querySelectorAll("[name=run]:checked")].map(box => box.value);
  table.addEventListener("change", () => {
    const query = new URLSearchParams(location.search);
    query.delete("run");
    chosen().forEach(name => query.append("run", name));
    history.replaceState(null, "", `?${query}`);
  });
  setInterval(async () => {
    if (document.hidden || table.contains(document.activeElement)) return;
    try {
      const query = new URLSearchParams(location.search);
      query.set("table", "1");
      const answer = await fetch(`${BASE}/?${query}`);
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      table.replaceChildren(...fresh.body.childNodes);
      badge(+document.getElementById("warned").dataset.runs);
    } catch { /* connection.js says so */ }
  }, 3000);
})();
