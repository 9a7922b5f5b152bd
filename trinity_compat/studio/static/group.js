"use strict";
// A group's page: tokens plain or coloured, and the rewards of its task over training.
addEventListener("DOMContentLoaded", () => {
  document.getElementById("plain")?.addEventListener("change", event => {
    document.querySelectorAll(".tokens").forEach(box => box.classList.toggle("plain", event.target.checked));
  });
  const box = document.getElementById("over-time");
  if (!box) return;
  const rows = JSON.parse(box.dataset.rows);
  const curve = (label, colour, width, of) => ({ label, colour, width, points: new Map(rows.map(row => [row.step, row[of]])) });
  new Charts.Curve(box, "reward by step", [curve("best", "--c9", 1.2, "best"), curve("mean", "--c1", 2, "mean")], { marks: [+box.dataset.step] });
});
