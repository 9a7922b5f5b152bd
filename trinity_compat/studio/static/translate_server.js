"use strict";
// Where the page Translate has its answers from: the studio.
const translator = (() => {
  const keys = async () => (await fetch(`${BASE}/keys`)).json();
  const ask = async fields => {
    const reply = await fetch(`${BASE}/translate`, { method: "POST", body: fields });
    const found = reply.headers.get("content-type").startsWith("application/json") ? await reply.json() : {};
    if (!reply.ok) throw new Error(found.problem || `The studio answers with an error (${reply.status}). Open this page again.`);
    return found;
  };
  return { keys, ask };
})();
