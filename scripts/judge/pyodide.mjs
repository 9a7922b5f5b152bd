// Runs a Python file in pyodide, CPython for WebAssembly: node pyodide.mjs PYODIDE REPOSITORY SITE FILE WORDS.
// REPOSITORY and SITE (the light side's packages) are /repo and /site there; WORDS is its variable of that name.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const [folder, repository, site, file, words] = process.argv.slice(2);
const { loadPyodide } = createRequire(import.meta.url)(`${folder}/pyodide.js`);
const pyodide = await loadPyodide({ indexURL: `${folder}/` });
for (const [place, root] of [["/repo", repository], ["/site", site]]) {
  pyodide.FS.mkdir(place);
  pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, { root }, place);
}
pyodide.globals.set("words", words);
process.exitCode = await pyodide.runPythonAsync(readFileSync(file, "utf8"));
