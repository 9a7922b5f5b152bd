// Prints what the web page's parser answers for each file that stdin names, a line of JSON for each:
// node page_parser.js FOLDER, the folder that `make web-parser` makes.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

globalThis.crypto ??= require("crypto").webcrypto;
const file = (name) => path.join(process.argv[2], name);
for (const name of ["wasm_exec.js", "parser.js"]) vm.runInThisContext(fs.readFileSync(file(name), "utf8"));

(async () => {
  await loadTrinityCompatParser("", fs.readFileSync(file("parser.wasm")));
  const answers = [];
  for (const name of fs.readFileSync(0, "utf8").split("\n").filter(Boolean)) {
    answers.push(JSON.stringify(trinityCompatParse(new Uint8Array(fs.readFileSync(name)))));
  }
  process.stdout.write(answers.join("\n"), () => process.exit(0));
})();
