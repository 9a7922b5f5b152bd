"use strict";
// The path below which the studio is: '' or '/…'.
const BASE = document.documentElement.dataset.base;
// How much of the page asks for a look, in its title, which a tab shows that nobody sees.
const badge = count => { document.title = (count ? `(${count}) ` : "") + document.title.replace(/^\(\d+\) /, ""); };
// Light or dark: the reader's choice, else the system's. In the head, before anything is painted.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const apply = () => {
    document.documentElement.dataset.theme = chosen() || (system.matches ? "dark" : "light");
    dispatchEvent(new Event("themechange"));
  };
  apply();
  system.addEventListener("change", apply);
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem("theme", next); } catch { /* private window: for this page only */ }
      document.documentElement.dataset.theme = next;
      dispatchEvent(new Event("themechange"));
    });
  });
})();
