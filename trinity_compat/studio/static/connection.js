"use strict";
// Whether the studio still answers: asked every two seconds while somebody sees the page.
(() => {
  const told = document.getElementById("gone");
  let since = new Date();
  const ask = async () => {
    let said = "";
    try {
      const { status } = await fetch(`${BASE}/alive`, { signal: AbortSignal.timeout(2500) });
      if (status === 401) said = "The studio has been started again: open the address that it has printed.";
      else if (status === 204) since = new Date();
      else said = `The studio answers with an error (${status}).`;
    } catch { said = `The studio does not answer: what is here is of ${since.toLocaleTimeString()}. The runs go on without it.`; }
    if (told.textContent !== said) told.textContent = said;
    told.hidden = !said;
  };
  const watch = async () => {
    if (!document.hidden) await ask();
    setTimeout(watch, 2000);
  };
  watch();
})();
