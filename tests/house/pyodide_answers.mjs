// Answers requests under pyodide: node pyodide_answers.mjs PYODIDE PARSER ZIP…, the folders of `make web-parser` and
// scripts/site/make_pyodide.sh, and what Python imports. A line of stdin is JSON, {"request": …, "folder": …} for the
// page's `answer` or {"python": code}; a line of stdout is the answer, or what the code has printed, as JSON.
import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import url from "node:url";
import vm from "node:vm";

const [folder, parser, ...zips] = process.argv.slice(2);
const file = (name) => path.join(parser, name);
for (const name of ["wasm_exec.js", "parser.js"]) vm.runInThisContext(fs.readFileSync(file(name), "utf8"));
await loadTrinityCompatParser("", fs.readFileSync(file("parser.wasm")));

const { loadPyodide } = await import(url.pathToFileURL(path.join(folder, "pyodide.mjs")));
const python = await loadPyodide();
for (const zip of zips) python.unpackArchive(new Uint8Array(fs.readFileSync(zip)), "zip", { extractDir: "/light" });
python.runPython("import sys; sys.path.insert(0, '/light')");
const answer = python.runPython("from trinity_compat.cli._browser import answer; answer");
const printed = python.runPython(`
import contextlib, io
def printed(code):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    return out.getvalue()
printed`);

for await (const line of readline.createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  const said = asked.python ? printed(asked.python) : answer(JSON.stringify(asked.request), asked.folder);
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
