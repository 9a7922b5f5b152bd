"use strict";
// A button with data-copy copies the text of the element of that id. It is hidden where no script runs.
document.addEventListener("click", async event => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  } catch { // not a secure context: the text is chosen, for the keyboard's copy
    getSelection().selectAllChildren(text);
    button.textContent = "Chosen: copy it";
  }
});
