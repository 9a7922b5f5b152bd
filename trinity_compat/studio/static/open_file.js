"use strict";
// A file of the user's own computer comes to the form as another page's text does.
(() => {
  const file = document.getElementById("file"), form = document.getElementById("opened");
  if (!file) return;
  file.closest("label").hidden = false;
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    if (!chosen) return;
    form.elements.text.value = await chosen.text();
    form.elements.file_name.value = chosen.name.replace(/[^\w.@+-]/g, "_").replace(/^[.@+-]+/, "");
    form.submit();
  });
})();
