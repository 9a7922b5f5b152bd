// Loads the shell parser of a web page: a classic script, for a worker and for node.
//
// `await loadTrinityCompatParser(baseUrl)` defines `trinityCompatParse(source: Uint8Array): string`, which answers
// JSON: {"tree": …} or {"error": "LINE:COLUMN: MESSAGE"}. `wasm_exec.js` must have been loaded before, or else be
// loadable from baseUrl by importScripts.
"use strict";

globalThis.loadTrinityCompatParser = async (baseUrl, bytes) => {
  if (!globalThis.Go) importScripts(new URL("wasm_exec.js", baseUrl).href);
  const wasm = bytes ?? (await fetch(new URL("parser.wasm", baseUrl)).then((answer) => answer.arrayBuffer()));
  const module = await WebAssembly.compile(wasm);
  let parse = null;

  const start = () => {
    const go = new Go();
    go.exit = () => (parse = null);
    go.run(new WebAssembly.Instance(module, go.importObject));
    parse = globalThis.trinityCompatParse;
    globalThis.trinityCompatParse = answer;
  };

  // Code that is nested too deeply ends the instance; the next text gets another.
  const answer = (source) => {
    if (parse === null) start();
    try {
      return parse(source) ?? '{"error": "commands nested too deeply"}';
    } catch {
      parse = null;
      return '{"error": "commands nested too deeply"}';
    }
  };

  start();
};
