"use strict";
document.getElementById("plain")?.addEventListener("change", event => {
  document.querySelectorAll(".tokens").forEach(box => box.classList.toggle("plain", event.target.checked));
});
