"use strict";
// A link that holds the text: compressed, in the fragment, which no browser sends.
const Share = (() => {
  const LONGEST = 48_000, LARGEST = 1 << 20;  // characters of a fragment, bytes of what it holds
  const start = "#text=";

  const through = async (bytes, stream, most) => Zip.bounded(new Blob([bytes]).stream().pipeThrough(stream), most);

  /** The address of this page with the fields, null where it would be too long for mail and chat. */
  const link = async fields => {
    const bytes = await through(new TextEncoder().encode(JSON.stringify(fields)), new CompressionStream("deflate-raw"), Infinity);
    const text = btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
    return text.length > LONGEST ? null : location.href.split("#")[0] + start + text;
  };
  /** The fields of a link, as [[name, value], …]; null where the address has none. Throws for one that is damaged. */
  const fields = async fragment => {
    if (!fragment.startsWith(start)) return null;
    try {
      const text = fragment.slice(start.length);
      if (text.length > LONGEST) throw new RangeError();
      const packed = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), letter => letter.charCodeAt(0));
      const found = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(await through(packed, new DecompressionStream("deflate-raw"), LARGEST)));
      const isPair = pair => Array.isArray(pair) && pair.length === 2 && pair.every(each => typeof each === "string");
      if (!Array.isArray(found) || found.length > 100 || !found.every(isPair)) throw new TypeError();
      return found;
    } catch { throw new Error("The link is damaged, or was made by something else."); }
  };
  return { link, fields };
})();
