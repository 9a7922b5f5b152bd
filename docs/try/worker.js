// The translator of the page: Python with the package's own wheel, and the shell parser. The page ends this worker at
// its limit of time and starts another.
import { loadPyodide } from "./pyodide/pyodide.mjs";
import "./parser/wasm_exec.js";
import "./parser/parser.js";

const HERE = new URL("./", import.meta.url).href;
const SITE = "/lib/python3.14/site-packages";
// Where a script finds itself: the package makes the folder for each text.
const FOLDER = "/home/scripts";
// A launch for which most of the package is imported.
const WARM = { kind: "translate", name: "run.sh", text: "python3 -m verl.trainer.main_ppo data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8\n" };

let answer = null;
const early = [];
onmessage = ({ data }) => (answer ? answer(data) : early.push(data));

// The build has compressed each .wasm, so that it is as small from every server.
const original = globalThis.fetch;
const unpacked = async (url, options) => {
  const reply = await original(`${url}.bin`, options);
  if (!reply.ok) throw new Error(`${url}: ${reply.status}`);
  return new Response(reply.body.pipeThrough(new DecompressionStream("gzip")), { headers: { "content-type": "application/wasm" } });
};
globalThis.fetch = (resource, options) => {
  const url = String(resource.url || resource);
  return url.endsWith(".wasm") ? unpacked(url, options) : original(resource, options);
};

const bytes = async name => {
  const reply = await original(HERE + name);
  if (!reply.ok) throw new Error(`${name}: ${reply.status}`);
  return reply.arrayBuffer();
};

const started = async () => {
  const list = bytes("wheels.json").then(found => JSON.parse(new TextDecoder().decode(found)));
  const [python, wheels] = await Promise.all([
    loadPyodide({ indexURL: `${HERE}pyodide/`, env: { HOME: "/home", LANG: "C.UTF-8" } }),
    list.then(names => Promise.all(names.map(name => bytes(`wheels/${name}`)))),
    globalThis.loadTrinityCompatParser(`${HERE}parser/`),
  ]);
  for (const wheel of wheels) python.unpackArchive(wheel, "zip", { extractDir: SITE });
  const command = python.pyimport("trinity_compat.cli._browser").answer;
  const isAlwaysSet = python.pyimport("trinity_compat.launch.unset_variables").is_always_set;
  return asked => (asked.variables ? JSON.stringify(asked.variables.filter(name => !isAlwaysSet(name))) : command(JSON.stringify(asked), FOLDER));
};

started().then(
  found => {
    answer = ({ number, asked }) => {
      // A crash of Python itself, as of one without memory, leaves no worker to ask again.
      try { postMessage({ number, text: found(asked) }); } catch (error) { postMessage({ number, broken: String(error).slice(-2000) }); }
    };
    postMessage({ ready: true });
    if (!early.length) found(WARM);
    for (const data of early.splice(0)) answer(data);
  },
  error => postMessage({ failed: String(error) }),
);
