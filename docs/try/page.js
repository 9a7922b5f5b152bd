"use strict";
// What only the page without a server has: examples, a zipped folder, a link with the text in it, and its use offline.
addEventListener("DOMContentLoaded", () => {
  const T = Translate, at = id => document.getElementById(id), form = at("translate");

  // -- state of the worker ------------------------------------------------------------------------

  const STATES = { starts: "Python and the translator are being loaded …", ready: "", failed: "The translator is not loaded." };
  const show = state => {
    at("loading").textContent = STATES[state];
    document.documentElement.dataset.worker = state;
    if (state === "ready") register();
  };
  // After the first load, so that nothing is fetched twice: the files come from the browser's cache.
  let registered = false;
  const register = async () => {
    if (registered || !navigator.serviceWorker) return;
    registered = true;
    try {
      await navigator.serviceWorker.register("sw.js");
      await navigator.serviceWorker.ready;
      at("offline").hidden = false;
    } catch { /* a private window, or storage that is full: the page works with a connection */ }
  };
  translator.onState(show);
  show("starts");

  // -- examples -----------------------------------------------------------------------------------

  for (const button of document.querySelectorAll("#examples button")) button.addEventListener("click", async () => {
    try {
      const reply = await fetch(`examples/${button.dataset.name}`);
      if (!reply.ok) throw new Error(`The example cannot be loaded (${reply.status}).`);
      alone();
      T.load(button.dataset.name, await reply.text());
    } catch (error) { T.told(error.message); }
  });

  // -- a zipped folder ----------------------------------------------------------------------------

  let texts = new Map();
  const alone = () => { texts = new Map(); translator.setFolder(texts); at("tree").hidden = true; };
  const RANK = [/\.(?:sh|bash)$/, /\.ya?ml$/];
  const rank = name => { const found = RANK.findIndex(kind => kind.test(name)); return found < 0 ? RANK.length : found; };
  translator.open = async file => {
    if (!/\.zip$/i.test(file.name)) { alone(); return false; }
    try {
      const found = await Zip.read(file);
      const names = [...found.texts.keys()].filter(name => rank(name) < RANK.length).sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
      if (!names.length) throw new Error(`${file.name} holds no script and no YAML.`);
      texts = found.texts;
      translator.setFolder(texts);
      at("tree-name").replaceChildren(...names.map(name => T.element("option", name)));
      at("tree-note").textContent = `${texts.size} files${found.left ? `, ${found.left} left out` : ""}`;
      at("tree").hidden = false;
      take();
    } catch (error) { T.told(error.message); }
    return true;
  };
  const take = () => T.load(at("tree-name").value, texts.get(at("tree-name").value));
  at("tree-name").addEventListener("change", take);

  // -- links --------------------------------------------------------------------------------------

  const note = text => { at("share-note").textContent = text; };
  at("share").addEventListener("click", async () => {
    if (texts.size) return note("A folder does not fit in a link: open one of its files alone.");
    const fields = [...T.fields()].filter(([, value]) => value);
    const link = await Share.link(fields);
    if (!link) return note("The text is too long for a link.");
    history.replaceState(null, "", link);
    try { await navigator.clipboard.writeText(link); note("The link is copied; the text is in it."); } catch { note("The link is this page's address now."); }
  });
  const filled = async () => {
    try {
      const fields = await Share.fields(location.hash);
      if (!fields) return false;
      alone();
      const given = new Map(fields);
      form.reset();
      for (const [name, value] of fields) {
        const field = form.querySelector(`[name="${CSS.escape(name)}"]`);
        if (!field || name === "name") continue;
        if (field.type === "checkbox") field.checked = true; else field.value = value;
      }
      T.load(given.get("name") || "run.sh", given.get("text") || "");
    } catch (error) { T.told(error.message); }
    return true;
  };
  addEventListener("hashchange", filled);

  // -- the page as it opens -----------------------------------------------------------------------

  // An example that is translated already; not in place of a text that the visitor has given in the meantime.
  const opened = async () => {
    if (await filled()) return;
    try {
      const first = await (await fetch("first.json")).json();
      if (T.text() || T.opened().name) return;
      translator.prepare(first);
      T.load(first.name, first.text);
    } catch { /* the page is as good without it */ }
  };
  opened().finally(() => { document.body.dataset.page = "1"; });
});
