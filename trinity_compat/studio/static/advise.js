"use strict";
// A file that is opened becomes the text; the button says that the simulation takes a while.
(() => {
  const form = document.getElementById("advise"), file = document.getElementById("file");
  file.closest("label").hidden = false;
  file.addEventListener("change", async () => {
    if (!file.files.length) return;
    form.elements.text.value = await file.files[0].text();
    file.value = "";
  });
  const button = form.querySelector(".primary"), told = button.textContent;
  form.addEventListener("submit", () => { button.textContent = "Simulating…"; });
  addEventListener("pageshow", () => { button.textContent = told; });
})();
