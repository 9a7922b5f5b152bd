"use strict";
// Where the page without a server has its answers from: a worker with Python, which is ended at its limit and started
// again.
const translator = (() => {
  const LIMIT_MS = 1000 * Number(document.documentElement.dataset.limit);
  const FIRST_MS = 6 * LIMIT_MS, SIMULATION_MS = 6 * LIMIT_MS, START_MS = 180_000;
  const queue = [], listeners = new Set();
  let worker = null, ready = false, settled = false, asked = null, timer = 0, number = 0, folder = new Map();

  const told = state => { for (const listener of listeners) listener(state); };
  // A worker of a blob has this page's content security policy: also there no request leaves the origin.
  const start = () => {
    const source = new Blob([`import ${JSON.stringify(new URL("worker.js", document.baseURI).href)};`], { type: "text/javascript" });
    const address = URL.createObjectURL(source);
    worker = new Worker(address, { type: "module" });
    ready = settled = false;
    worker.addEventListener("message", ({ data }) => { URL.revokeObjectURL(address); heard(data); });
    worker.addEventListener("error", event => failed(event.message || "a file is missing"));
    told("starts");
    timer = setTimeout(() => failed(`no answer in ${START_MS / 1000} s`), START_MS);
  };
  const end = () => { worker.terminate(); clearTimeout(timer); worker = asked = null; };
  const failed = why => {
    const waiting = asked ? [asked, ...queue.splice(0)] : queue.splice(0);
    end();
    told("failed");
    for (const { fail } of waiting) fail(new Error(`The translator cannot be loaded (${why}). Open this page again.`));
  };
  const heard = data => {
    if (data.failed) return failed(data.failed);
    if (data.ready) { ready = true; clearTimeout(timer); told("ready"); if (asked) limit(); return; }
    if (!asked || data.number !== asked.number) return;
    if (data.broken) return restarted(`Python ended: ${data.broken}`);
    clearTimeout(timer);
    settled = true;
    const { take } = asked;
    asked = null;
    take(JSON.parse(data.text));
    next();
  };
  // What waits is mostly of the same text, and fails with it.
  const restarted = why => {
    const waiting = [asked, ...queue.splice(0)];
    end();
    start();
    for (const { fail } of waiting) fail(new Error(why));
  };
  const limit = () => {
    const most = !settled ? FIRST_MS : asked.request.kind === "advise" ? SIMULATION_MS : LIMIT_MS;
    timer = setTimeout(() => restarted(`This was ended: more than ${most / 1000} s.`), most);
  };
  const next = () => {
    if (asked || !queue.length) return;
    if (!worker) start();
    asked = queue.shift();
    worker.postMessage({ number: asked.number, asked: asked.request });
    if (ready) limit();
  };
  // The first example's answers, which are there before Python is: those of its text without options.
  let prepared = null;
  const known = ({ kind, name, text, options = {}, files = {} }) =>
    prepared && name === prepared.name && text === prepared.text && !Object.keys({ ...options, ...files }).length && prepared.answers[kind];
  const send = request => new Promise((take, fail) => {
    const answer = known(request);
    if (answer) return take(structuredClone(answer));
    queue.push({ number: ++number, request, take, fail });
    next();
  });

  // -- from the page's fields to the package's requests ---------------------------------------------

  const OF_TRINITY = /^(?:buffer|explorer|synchronizer|cluster)\s*:|^ +algorithm_type\s*:/m;
  const OF_VERL = /^(?:actor_rollout_ref|data|trainer|algorithm|defaults)\s*:/m;
  const nameFor = text => (text.startsWith("#!") || !(OF_VERL.test(text) || OF_TRINITY.test(text)) ? "run.sh" : "config.yaml");
  const isYaml = name => /\.ya?ml$/.test(name);
  // field → option, for each kind
  const READING = { env: "env" }, RELEASE = { "verl-version": "release" };
  const LAUNCH = { ...READING, ...RELEASE, target: "target", gpus: "gpus", mode: "mode", set: "set" };
  const OPTIONS = {
    translate: { ...LAUNCH, "rollout-gpus": "rollout_gpus", "sync-offset": "sync_offset", launch: "launch", minimal: "minimal", "no-comments": "no_comments", "as-published": "as_published" },
    audit: LAUNCH, upgrade: { ...READING, ...RELEASE }, ignored: { ...READING, ...RELEASE }, advise: { ...RELEASE, gpus: "gpus" }, parse: READING, diff: READING, "to-verl": {},
  };
  const FLAGS = new Set(["minimal", "no_comments", "as_published"]), LISTS = new Set(["env", "set"]);
  const optionsOf = (kind, fields) => {
    const found = {};
    for (const [field, option] of Object.entries(OPTIONS[kind])) {
      const values = fields.getAll(field).filter(value => value.trim());
      if (values.length) found[option] = FLAGS.has(option) ? true : LISTS.has(option) ? values : values[0];
    }
    return found;
  };
  const run = async (kind, source, fields, { options = {}, files = {} } = {}) => {
    const given = { kind, ...source, options: { ...optionsOf(kind, fields), ...options }, files: { ...Object.fromEntries(folder), ...files } };
    const found = await send(given);
    if (found.error) {
      const { where, message, hint } = found.error;
      found.messages.push(`error: ${where ? `${where}: ` : ""}${message}`, ...(hint ? [`  hint: ${hint}`] : []));
    }
    return { name: source.name, ...found };
  };
  const openValues = async parsed => {
    const found = new Map();
    for (const launch of parsed.data ? parsed.data.launches : []) for (const one of launch.unresolved) if (one.variable) found.set(one.variable, one);
    if (!found.size) return [];
    const names = await send({ variables: [...found.keys()] });  // without those that a shell or a scheduler sets
    return names.map(name => found.get(name));
  };
  const translated = async (source, fields) => {
    if (!source.text.trim()) return { name: source.name, empty: true };
    const isTrinitys = isYaml(source.name) && !/^actor_rollout_ref\s*:/m.test(source.text) && OF_TRINITY.test(source.text);
    if (isTrinitys) return { ...await run("to-verl", source, fields), trinity: true };
    const found = run("translate", source, fields), audit = run("audit", source, fields);
    const parsed = isYaml(source.name) ? { data: null } : run("parse", source, fields);
    const later = Promise.all([audit, parsed]).then(async ([first, second]) => ({ audit: first.data, open: await openValues(second) }));
    later.catch(() => {});  // told by the translation, which the same end of the worker has failed
    return { ...await found, trinity: false, audit: null, open: [], later };
  };
  const differing = async (source, fields) => {
    const against = fields.get("against"), files = {};
    let first = `verl==${against}`;
    if (!against) {
      first = fields.get("other-name") || "other.sh";
      if (first === source.name) first = `other-${first}`;
      files[first] = fields.get("other");
    }
    const found = await run("diff", source, fields, { options: { against: first }, files });
    return { ...found, a: first, comparison: found.data ? found.data.comparisons[0] : null };
  };
  /** Answer the page's fields, as the studio does. */
  const ask = async fields => {
    const text = fields.get("text") || "", view = fields.get("view");
    const source = { name: fields.get("name") || nameFor(text), text };
    if (view === "diff") return differing(source, fields);
    return view ? run(view, source, fields) : translated(source, fields);
  };
  let keysFound = null;
  const keys = () => (keysFound = keysFound || fetch("keys.json").then(reply => reply.json()));
  return {
    ask, keys, start,
    onState: listener => listeners.add(listener),
    /** Take answers of one text: {name, text, answers: kind → answer}. */
    prepare: found => { prepared = found; },
    /** Take the folder that the text lies in: name → text. */
    setFolder: texts => { folder = texts; },
  };
})();
translator.start();
