"use strict";
// The page without a connection: its files of one build, from a cache. The build writes VERSION and FILES above.
const NAME = `trinity-compat-${VERSION}`;
const BASE = new URL("./", location.href).href;
const known = new Set(FILES.map(name => BASE + name));

addEventListener("install", event => event.waitUntil((async () => (await caches.open(NAME)).addAll(FILES))()));
// A new build waits until no page of the old one is open, so that no page mixes two.
addEventListener("activate", event => event.waitUntil((async () => {
  const old = (await caches.keys()).filter(name => name.startsWith("trinity-compat-") && name !== NAME);
  await Promise.all(old.map(name => caches.delete(name)));
  await clients.claim();
})()));
addEventListener("fetch", event => {
  const address = event.request.url.split(/[?#]/)[0], name = address === BASE ? `${BASE}index.html` : address;
  if (event.request.method !== "GET" || !known.has(name)) return;
  event.respondWith((async () => (await (await caches.open(NAME)).match(name)) || fetch(event.request))());
});
