"use strict";
// A link with data-key is followed when its key is pressed, outside of fields and without other keys.
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, .tokens")) return;
  document.querySelector(`a[data-key="${CSS.escape(event.key)}"]`)?.click();
});
