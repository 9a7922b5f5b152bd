"use strict";
// The texts of a zipped folder, read in the page: a zip of unknown origin costs no more than these limits.
const Zip = (() => {
  const LARGEST = { zip: 8 << 20, text: 1 << 20, all: 16 << 20, files: 2000 };
  const WORDS = "A zip of at most 8 MiB with 2000 files, and 16 MiB of text, is read.";
  const refused = why => { throw new Error(`${why} ${WORDS}`); };

  // The bytes that a stream gives, null beyond the limit.
  const bounded = async (stream, most) => {
    const reader = stream.getReader(), parts = [];
    for (let size = 0; ;) {
      const { done, value } = await reader.read();
      if (done) return new Uint8Array(await new Blob(parts).arrayBuffer());
      size += value.length;
      if (size > most) { await reader.cancel(); return null; }
      parts.push(value);
    }
  };
  const inflated = (bytes, most) => bounded(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw")), most);

  // The text of bytes, null for others than UTF-8's.
  const textOf = bytes => {
    try {
      const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
      return text.includes("\0") ? null : text;
    } catch { return null; }
  };

  const entries = view => {
    let end = view.byteLength - 22;
    while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
    if (end < 0) refused("This is not a zip.");
    const count = view.getUint16(end + 10, true), found = [];
    if (count > LARGEST.files) refused(`It holds ${count} files.`);
    for (let at = view.getUint32(end + 16, true), n = 0; n < count; n++) {
      if (view.getUint32(at, true) !== 0x02014b50) refused("Its list of files is damaged.");
      const name = view.getUint16(at + 28, true);
      found.push({
        name: new TextDecoder().decode(new Uint8Array(view.buffer, at + 46, name)), method: view.getUint16(at + 10, true),
        packed: view.getUint32(at + 20, true), size: view.getUint32(at + 24, true), place: view.getUint32(at + 42, true),
      });
      at += 46 + name + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
    }
    return found;
  };
  const isInside = name => name && !name.startsWith("/") && !/[\\\0]/.test(name) && name.length <= 300 && !name.split("/").some(part => part === ".." || part === "." || part === "");

  /** The texts below the folder by their names, and how many files are left out: others than text, or too large. */
  const read = async file => {
    if (file.size > LARGEST.zip) refused(`It has ${Math.ceil(file.size / (1 << 20))} MiB.`);
    const view = new DataView(await file.arrayBuffer()), texts = new Map();
    let left = 0, all = 0;
    try {
      for (const { name, method, packed, size, place } of entries(view)) {
        if (name.endsWith("/")) continue;
        if (!isInside(name) || size > LARGEST.text || ![0, 8].includes(method)) { left++; continue; }
        const start = place + 30 + view.getUint16(place + 26, true) + view.getUint16(place + 28, true);
        const raw = new Uint8Array(view.buffer, start, packed), bytes = method ? await inflated(raw, LARGEST.text) : raw;
        const text = bytes && bytes.length <= LARGEST.text ? textOf(bytes) : null;
        all += bytes ? bytes.length : LARGEST.text;  // also of what is left out: it has been unpacked
        if (all > LARGEST.all) refused("It holds too much text.");
        if (text === null) { left++; continue; }
        texts.set(name, text);
      }
    } catch (error) {
      if (error instanceof RangeError || error instanceof TypeError) refused("It is damaged.");
      throw error;
    }
    return { texts, left };
  };
  return { read, bounded };
})();
