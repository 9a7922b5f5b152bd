"use strict";
// While the index of a job's answers is being made: the parts of the page that show them, fetched again.
(() => {
  const again = async () => {
    if (!document.querySelector("[data-indexing]")) return;
    try {
      const answer = await fetch(location.href), fresh = answer.ok && new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const id of fresh ? ["found", "rows"] : []) {
        const old = document.getElementById(id), made = fresh.getElementById(id);
        if (old && made && !old.contains(document.activeElement)) old.replaceWith(made);
      }
    } catch { /* connection.js says so */ }
    setTimeout(again, 1500);
  };
  setTimeout(again, 1000);
})();
