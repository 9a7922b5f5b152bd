"use strict";
// Rows of #filtered that contain every word of #filter.
(() => {
  const field = document.getElementById("filter"), table = document.getElementById("filtered");
  if (!field || !table) return;
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
    }
    const matching = document.getElementById("matching");
    if (matching) matching.textContent = [...table.tBodies[0].rows].filter(row => !row.hidden).length;
  });
})();
