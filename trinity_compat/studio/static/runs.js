"use strict";
// The rows that have changed, every few seconds, sooner while runs are still being read; not in a hidden tab.
// A row that has the focus stays as it is. The chosen runs are in the address, and stay chosen.
(() => {
  const table = document.getElementById("table");
  const rows = () => [...table.querySelectorAll("tr[data-mark]")];
  const chosen = () => [...table.querySelectorAll("[name=run]:checked")].map(box => box.value);
  const nodes = text => [...new DOMParser().parseFromString(text, "text/html").body.childNodes];
  const row = text => new DOMParser().parseFromString(`<table>${text}</table>`, "text/html").querySelector("tr");
  const run = row => row.querySelector("[name=run]");
  table.addEventListener("change", () => {
    const query = new URLSearchParams(location.search);
    query.delete("run");
    chosen().forEach(name => query.append("run", name));
    history.replaceState(null, "", `?${query}`);
  });
  const arrange = (body, wanted) => {
    [...body.children].forEach(each => { if (!wanted.includes(each)) each.remove(); });
    // A row that is moved loses the focus: only those that have to be are.
    wanted.forEach((each, at) => { if (body.children[at] !== each) body.insertBefore(each, body.children[at] || null); });
  };
  const show = found => {
    const there = rows(), marked = new Map(there.map(each => [each.dataset.mark, each]));
    const named = new Map(there.map(each => [run(each).value, each]));
    const current = mark => {
      if (marked.has(mark)) return marked.get(mark);
      const fresh = row(found.rows[mark]), old = named.get(run(fresh).value);
      if (old && old.contains(document.activeElement)) return old;
      if (old) run(fresh).checked = run(old).checked;
      return fresh;
    };
    const bodies = [...table.querySelectorAll("tbody")], whole = table.querySelector("table");
    found.parts.forEach(([heading, marks], at) => {
      const body = bodies[at] || whole.appendChild(document.createElement("tbody"));
      const wanted = marks.map(current);
      if (heading) {
        const columns = whole.querySelectorAll("thead th").length;
        const head = body.querySelector(".group") || row(`<tr class="group"><th scope="rowgroup" colspan="${columns}"></th></tr>`);
        if (head.firstElementChild.textContent !== heading) head.firstElementChild.textContent = heading;
        wanted.unshift(head);
      }
      arrange(body, wanted);
    });
    bodies.slice(found.parts.length).forEach(body => body.remove());
    document.getElementById("foot").replaceChildren(...nodes(found.foot));
  };
  const look = async () => {
    const query = new URLSearchParams(location.search);
    query.set("table", "1");
    query.set("has", [table.dataset.mark, ...rows().map(each => each.dataset.mark)].join());
    const answer = await fetch(`${BASE}/?${query}`);
    if (answer.status !== 200) return;
    const found = await answer.json();
    document.getElementById("pending").replaceChildren(...nodes(found.pending));
    if (found.table === undefined) show(found); else table.replaceChildren(...nodes(found.table));
    table.dataset.mark = found.mark;
    table.dataset.unread = found.unread;
    badge(found.warned);
  };
  const watch = async () => {
    try { if (!document.hidden) await look(); } catch { /* connection.js says so */ }
    setTimeout(watch, +table.dataset.unread ? 1000 : 3000);
  };
  setTimeout(watch, +table.dataset.unread ? 1000 : 3000);
})();
