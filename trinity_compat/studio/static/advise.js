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
  const button = form.querySelector(".primary"), told = button.textContent, progress = document.getElementById("progress");
  let clock = 0;
  form.addEventListener("submit", () => {
    const began = performance.now();
    const tell = () => { progress.textContent = `Simulating for ${Math.round((performance.now() - began) / 1000)} s: 1 to 15 s of processor time, more on the clock of a busy machine.`; };
    button.textContent = "Simulating…";
    clearInterval(clock);
    clock = setInterval(tell, 1000);
    tell();
  });
  addEventListener("pageshow", () => { clearInterval(clock); button.textContent = told; progress.textContent = ""; });
})();
