"use strict";
// The table again every few seconds; not while somebody has the focus in it, nor in a hidden tab.
(() => {
  const table = document.getElementById("table");
  setInterval(async () => {
    if (document.hidden || table.contains(document.activeElement)) return;
    try {
      const answer = await fetch(`${BASE}/?table=1`);
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      table.replaceChildren(...fresh.body.childNodes);
      badge(+document.getElementById("warned").dataset.runs);
    } catch { /* the studio has ended; the next look may find it again */ }
  }, 3000);
})();
