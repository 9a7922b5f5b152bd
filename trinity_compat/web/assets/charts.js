"use strict";
// Curves (uPlot) and stacked bars (SVG) in the page's colours: what every page of ours draws with.
const Charts = (() => {
  const el = (tag, text, cls) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (cls) made.className = cls;
    return made;
  };
  const svg = (tag, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const name in attributes) made.setAttribute(name, attributes[name]);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  // A colour of the style sheet as a canvas takes it, in the theme of now.
  const css = (name, alpha = 1) => {
    const probe = el("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g);
    probe.remove();
    return `rgb(${r} ${g} ${b} / ${alpha})`;
  };
  // JSON lacks NaN and the infinities: a page gets their names.
  const number = value => typeof value === "string" ? Number(value) : value;
  const broken = value => typeof value === "number" && !Number.isFinite(value);
  const figure = given => {
    const value = number(given);
    if (value === null || value === undefined) return "–";
    if (broken(value)) return String(value).replace("Infinity", "∞").replace("-", "−");
    const size = Math.abs(value);
    if (size >= 1e4) return value.toLocaleString("en", { maximumFractionDigits: 0 }).replaceAll(",", " ");
    return size > 0 && size < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(4));
  };
  // An axis' label, as exact as its ticks stand apart (0 on a logarithmic one: three digits then).
  const tick = (value, apart) => {
    const size = Math.abs(value);
    const [unit, suffix] = size >= 1e6 && !(apart < 1e4) ? [1e6, "M"] : size >= 1e4 && !(apart < 100) ? [1e3, "k"] : [1, ""];
    if (size > 0 && size < 1e-3) return value.toExponential(apart && apart < size ? 1 : 0);
    if (!apart) return +(value / unit).toPrecision(3) + suffix;
    let digits = 0;
    while (digits < 6 && Math.abs(Math.round(apart / unit * 10 ** digits) - apart / unit * 10 ** digits) > 1e-6) digits += 1;
    return (value / unit).toFixed(digits) + suffix;
  };
  // The nodes of a fragment that the studio's own pages are made of.
  const parsed = text => new DOMParser().parseFromString(text, "text/html").body.childNodes;

  // A time axis' label, in the largest unit that its ticks stand apart by.
  const clock = (seconds, apart) => {
    const [unit, name] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([size]) => apart >= size) || [1, "s"];
    return `${+(seconds / unit).toFixed(apart < 1 ? 2 : 0)} ${name}`;
  };

  // Exponential moving average, corrected for its start; gaps stay gaps.
  const smoothed = (values, weight) => {
    if (!weight) return values;
    let mean = 0, mass = 0;
    return values.map(value => {
      if (value === null || value === undefined) return value;
      mean = weight * mean + (1 - weight) * value;
      mass = weight * mass + (1 - weight);
      return mean / mass;
    });
  };
  // uPlot's own choice, but room around a curve that never moves.
  const around = (plot, low, high) => {
    if (low === null || low === undefined) return [0, 1];
    if (low !== high) return uPlot.rangeNum(low, high, 0.08, true);
    if (!low) return [0, 1];
    const room = Math.abs(low) / 10;
    return [low - room, high + room];
  };

  // A chart's numbers, for those who do not see it: a table, made when it is opened, of the newest rows.
  // read() returns [titles, rows].
  const MOST_ROWS = 100;
  const values = (read, title = "Values") => {
    const box = el("details", undefined, "data"), place = el("div", undefined, "rows");
    const line = (cells, titled) => {
      const row = el("tr");
      cells.forEach((text, k) => {
        const cell = el(titled || !k ? "th" : "td", text, k ? "n" : undefined);
        if (titled || !k) cell.scope = titled ? "col" : "row";
        row.append(cell);
      });
      return row;
    };
    place.tabIndex = 0;
    box.append(el("summary", title), place);
    box.fill = () => {
      if (!box.open) return;
      const [titles, rows] = read(), made = el("table", undefined, "figures"), head = el("thead"), body = el("tbody");
      head.append(line(titles, true));
      body.append(...rows.slice(-MOST_ROWS).reverse().map(cells => line(cells)));
      if (rows.length > MOST_ROWS) made.append(el("caption", `The newest ${MOST_ROWS} of ${figure(rows.length)}`));
      made.append(head, body);
      place.replaceChildren(made);
    };
    box.addEventListener("toggle", box.fill);
    return box;
  };

  // The function from x to the value of sorted points, on the line between two of them, undefined beyond the ends.
  const valueAt = points => {
    let k = 0;
    return x => {
      while (k < points.length && points[k][0] < x) k += 1;  // asked in ascending order
      if (k === points.length || (k === 0 && points[0][0] > x)) return undefined;
      const [x1, y1] = points[k];
      if (x1 === x) return y1;
      const [x0, y0] = points[k - 1];
      return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
    };
  };
  const quantile = (values, share) => {
    const sorted = [...values].sort((a, b) => a - b), at = share * (sorted.length - 1), low = Math.floor(at);
    return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
  };

  // What a page tells of a metric: its readable name and what it means, on the option that offers it.
  const about = name => [...document.getElementById("names")?.options || []].find(option => option.value === name);
  const download = (blob, name) => {
    const link = Object.assign(el("a"), { href: URL.createObjectURL(blob), download: name.replace(/[^\w.@-]+/g, "-") });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  const all = new Set();
  // place: a step's x on the chosen axis, undefined where it has none. zoom: [from, to] on that axis.
  const settings = { smooth: 0, log: false, axis: "step", unit: "step", place: step => step, zoom: null, seeds: "band" };
  const HEIGHT = 170, LEFT = 46; // the height where the style sheet gives none
  const AXIS = { ticks: { show: false }, font: "11px system-ui" };
  const XS = [1, 2, 5].flatMap(k => [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9].map(unit => k * unit)).sort((a, b) => a - b);
  const SECONDS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, ...XS.map(k => k * 86400)];
  const across = (plot, low, high) => settings.zoom || (low === null || low === undefined ? [0, 1] : [low, high > low ? high : low + 1]);
  // Values that have no finite neighbour: a line would not show them.
  const alone = values => {
    const known = values.flatMap((value, i) => value === undefined ? [] : [i]);
    return known.filter((i, k) => values[i] !== null && (values[known[k - 1]] ?? null) === null && (values[known[k + 1]] ?? null) === null);
  };

  // One chart: drag zooms all, a double click shows all again, and every chart of its group follows the cursor.
  // series: [{label, colour (a CSS variable), points: Map step → value, low, high: Maps of a band, width,
  // broken: {kind, count, first} of points that are not drawn}]
  // marks: x of dashed lines. between: {windows, title} of what is drawn below.
  class Curve {
    constructor(box, title, series, { group = "curves", onClose, between, tag, marks = [] } = {}) {
      Object.assign(this, { title, series, group, between, marks });
      this.box = el("figure", undefined, "chart");
      this.box.setAttribute("role", "group");
      this.box.setAttribute("aria-label", title);
      const head = el("h3"), name = el("span", undefined, "name"), told = about(title);
      name.append(...(told?.label && told.label !== title ? [`${told.label} `, el("small", title)] : [title]));
      name.title = told?.title || title;
      this.value = el("span", "", "value");
      this.warning = el("span", "", "pill broken");
      head.append(name, " ", this.value, " ", this.warning);
      if (tag) head.append(" ", el("span", tag, `pill ${tag}`));
      this.place = el("div", undefined, "plot");
      this.tip = el("div", undefined, "tip");
      this.tip.hidden = true;
      this.place.append(this.tip);
      const acts = el("span", undefined, "acts");
      this.large = Curve.button("", () => this.alone(), `Full screen: ${title}`);
      this.large.append(svg("svg", { viewBox: "0 0 16 16", width: 13, height: 13, "aria-hidden": "true" }));
      this.large.firstChild.append(svg("path", { d: "M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4", fill: "none", stroke: "currentColor", "stroke-width": 1.8 }));
      acts.append(this.large);
      if (onClose) acts.append(Curve.button("×", () => { this.end(); onClose(); }, `Remove ${title}`));
      this.box.append(head, this.place, acts);
      if (between) this.place.after(this.below = svg("svg", { class: "between", role: "img", "aria-label": between.title }));
      box.append(this.box);
      all.add(this);
      this.sizes = new ResizeObserver(() => this.plot?.setSize(this.size()));
      this.sizes.observe(this.place);
      this.make();
    }
    static button(text, act, label) {
      const made = el("button", text, label ? "quiet" : undefined);
      made.type = "button";
      if (label) made.setAttribute("aria-label", label);
      made.addEventListener("click", act);
      return made;
    }
    size() { return { width: this.place.clientWidth || 300, height: this.place.clientHeight || HEIGHT }; }
    // The chart as large as the window, with what it means, its numbers as a table, and its files.
    alone() {
      const dialog = el("dialog", undefined, "alone"), place = el("span"), bar = el("p", undefined, "tools");
      dialog.setAttribute("aria-label", this.title);
      bar.append(
        Curve.button("CSV", () => download(new Blob([this.csv()], { type: "text/csv" }), `${this.title}.csv`)),
        Curve.button("PNG", () => this.picture().toBlob(blob => download(blob, `${this.title}.png`))),
        Curve.button("Close", () => dialog.close()), about(this.title)?.title || "");
      this.table = values(() => [
        [settings.unit, ...this.series.map(one => one.label)],
        this.steps.map(step => [figure(step), ...this.series.map(one => figure(one.points.get(step)))]),
      ]);
      this.table.open = true;
      this.box.before(place);
      dialog.append(bar, this.box, this.table);
      document.body.append(dialog);
      dialog.addEventListener("close", () => {
        place.replaceWith(dialog.querySelector(".chart") || "");
        dialog.remove();
        this.table = null;
        this.large.focus({ preventScroll: true });
      });
      dialog.showModal();
    }
    csv() {
      const cell = text => /[",\n]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : text;
      const rows = this.steps.map(step => [settings.place(step), ...this.series.map(one => one.points.get(step) ?? "")]);
      return [[settings.unit, ...this.series.map(one => one.label)], ...rows].map(cells => `${cells.map(cell).join()}\r\n`).join("");
    }
    // The plot under its title and the names of its lines.
    picture() {
      const from = this.plot.ctx.canvas, made = el("canvas"), ctx = made.getContext("2d"), line = 18 * devicePixelRatio;
      const names = [[this.title, "--ink"], ...(this.series.length > 1 ? this.series.map(one => [one.label, one.colour]) : [])];
      Object.assign(made, { width: from.width, height: from.height + names.length * line });
      ctx.fillStyle = css("--card");
      ctx.fillRect(0, 0, made.width, made.height);
      ctx.font = `${line * .7}px system-ui`;
      names.forEach(([text, colour], k) => { ctx.fillStyle = css(colour); ctx.fillText(text, line / 2, (k + .75) * line); });
      ctx.drawImage(from, 0, names.length * line);
      return made;
    }
    // The series of runs that differ in their seed: a line each, or their mean with a band: from the lowest to the
    // highest, or between the quartiles. runs: [{label, points, dash}]
    static seeds(label, colour, runs, options = {}) {
      const many = runs.length > 1;
      if (!many || settings.seeds === "lines") return runs.map(run => ({ ...options, ...(many ? { width: 1 } : {}), ...run, colour: run.colour || colour }));
      const ends = settings.seeds === "quartiles" ? [.25, .75] : [0, 1], [points, low, high] = [new Map(), new Map(), new Map()];
      const read = runs.map(run => valueAt([...run.points].sort((a, b) => a[0] - b[0])));
      for (const x of [...new Set(runs.flatMap(run => [...run.points.keys()]))].sort((a, b) => a - b)) {
        const values = read.map(at => at(x)).filter(value => value !== undefined);
        points.set(x, sum(values) / values.length);
        if (values.every(Number.isFinite)) [low, high].forEach((of, k) => of.set(x, quantile(values, ends[k])));
      }
      return [{ ...options, label, colour, points, low, high }];
    }
    end() { this.sizes.disconnect(); this.plot?.destroy(); this.box.remove(); all.delete(this); }
    // null is a gap; undefined, where a series has no value, is not: lines go on to its next one.
    data() {
      const steps = [...new Set(this.series.flatMap(one => [...one.points.keys()]))].sort((a, b) => a - b);
      this.steps = steps.filter(step => settings.place(step) !== undefined);
      const column = points => this.steps.map(step => broken(points.get(step)) ? null : points.get(step));
      return [this.steps.map(settings.place), ...this.series.flatMap(one => {
        const raw = column(one.points);
        return [smoothed(raw, settings.smooth), ...this.extra(one).map(kind => kind === "raw" ? raw : column(one[kind]))];
      })];
    }
    // What is drawn of a series besides its line: the unsmoothed values, else its band.
    extra(one) { return this.faint ? ["raw"] : one.low ? ["high", "low"] : []; }
    // Logarithmic, but linear between the smallest values of both signs (or a millionth of the largest) where
    // some are zero or negative.
    scale(data) {
      if (!settings.log) return { range: around };
      const values = data.slice(1).flat().filter(value => value !== null && value !== undefined);
      if (values.every(value => value > 0)) return { distr: 3 };
      const sizes = values.map(Math.abs).filter(size => size > 0);
      const [least, most] = sizes.reduce(([low, high], size) => [Math.min(low, size), Math.max(high, size)], [Infinity, 0]);
      const range = (plot, low, high) => { const [below, above] = low === null ? [0, 1] : uPlot.rangeAsinh(low, high, 10, true); return [low >= 0 ? 0 : below, above]; };
      return { distr: 4, range, asinh: most ? 10 ** Math.floor(Math.log10(Math.max(least, most / 1e6))) : 1 };
    }
    make() {
      this.plot?.destroy();
      this.faint = settings.smooth > 0;
      const data = this.data(), scale = this.scale(data), time = settings.axis === "time";
      this.drawnAs = JSON.stringify(scale);
      const drawn = [{}], bands = [];
      for (const one of this.series) {
        const colour = css(one.colour), no = { show: false };
        const dots = { show: one.points.size < 3, filter: (plot, index, all) => all ? null : alone(plot.data[index]), size: 5, fill: colour, stroke: colour };
        drawn.push({ stroke: colour, width: one.width || 1.7, dash: one.dash, points: dots });
        const extra = this.extra(one);
        if (extra.length === 2) bands.push({ series: [drawn.length, drawn.length + 1], fill: css(one.colour, .15) });
        for (const kind of extra) drawn.push({ stroke: kind === "raw" ? css(one.colour, .27) : "transparent", width: kind === "raw" ? 1 : 0, points: no });
      }
      const axis = { ...AXIS, stroke: css("--dim"), grid: { stroke: css("--grid"), width: 1 } };
      const values = (plot, ticks, _, __, apart) => ticks.map(value => value === null ? "" : tick(value, settings.log ? 0 : apart));
      this.plot = new uPlot({
        ...this.size(),
        padding: [6, time ? 18 : 8, 0, 0],
        legend: { show: false },
        cursor: {
          sync: { key: this.group, scales: ["x", null], filters: { pub: kind => kind.startsWith("mouse") && !["mousedown", "mouseup"].includes(kind) } },
          y: false, points: { size: 6 }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => zoom(null) },
        },
        scales: { x: { time: false, range: across }, y: scale },
        axes: [{ ...axis, size: 24, space: 46, incrs: time ? SECONDS : XS, values: (_, ticks, __, ___, apart) => ticks.map(x => (time ? clock : tick)(x, apart)) }, { ...axis, size: (_, ticks) => Math.max(LEFT, 10 + 6.5 * Math.max(0, ...(ticks || []).map(text => text.length))), space: 32, values }],
        series: drawn, bands,
        hooks: { setCursor: [plot => { this.say(plot.cursor.idx); this.tell(plot); }], setSelect: [plot => this.select(plot)], drawAxes: [plot => this.mark(plot)],
                 draw: [plot => this.below && drawBetween(this.below, this.between, plot)] },
      }, data, this.place);
      this.offer(this.plot.over);
      this.say(null);
    }
    // A click (no drag, no double click) is the event "step": {step, title, series}, the series nearest to the cursor.
    offer(over) {
      let from = 0, soon;
      over.addEventListener("mousedown", event => { from = event.clientX; clearTimeout(soon); });
      over.addEventListener("click", event => {
        const { idx, top } = this.plot.cursor, step = this.steps[idx], y = this.plot.posToVal(top, "y");
        if (step === undefined || event.detail > 1 || Math.abs(event.clientX - from) > 2) return;
        const away = one => Math.abs((one.points.get(step) ?? Infinity) - y);
        const series = this.series.reduce((best, one) => away(one) < away(best) ? one : best);
        const detail = { step, title: this.box.getAttribute("aria-label"), series };
        soon = setTimeout(() => this.box.dispatchEvent(new CustomEvent("step", { bubbles: true, detail })), 300);
      });
    }
    select(plot) {
      const { left, width } = plot.select;
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      if (width > 2) zoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
    }
    // Dashed lines, and a red stripe over each step that has no number.
    mark(plot) {
      const { ctx, bbox } = plot, xs = plot.data[0];
      ctx.save();
      ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
      ctx.fillStyle = css("--bad", .3);
      this.steps.forEach((step, i) => {
        if (!this.series.some(one => broken(one.points.get(step)))) return;
        const [from, at, to] = [i - 1, i, i + 1].map(k => plot.valToPos(xs[Math.max(0, Math.min(k, xs.length - 1))], "x", true));
        const wide = Math.max(3 * devicePixelRatio, (to - from) / 3);
        ctx.fillRect(at - wide / 2, bbox.top, wide, bbox.height);
      });
      ctx.strokeStyle = css("--bad"); ctx.setLineDash([2, 3]); ctx.lineWidth = devicePixelRatio;
      for (const step of this.marks) {
        const at = plot.valToPos(settings.place(step), "x", true);
        ctx.beginPath(); ctx.moveTo(at, bbox.top); ctx.lineTo(at, bbox.top + bbox.height); ctx.stroke();
      }
      ctx.restore();
    }
    // On one line, of the same height whatever the cursor does: the values under it, else the newest ones, as they
    // were logged; of many series from the lowest to the highest, since the cursor's box names them.
    say(at) {
      const many = this.series.length > 1;
      const known = this.series.flatMap(one => {
        const step = this.steps[at ?? this.steps.findLastIndex(each => one.points.has(each))];
        return step === undefined ? [] : [[one, step]];
      });
      if (known.length > 3) {
        const found = known.map(([one, step]) => one.points.get(step)).filter(Number.isFinite);
        this.value.textContent = found.length ? `${figure(Math.min(...found))} … ${figure(Math.max(...found))}` : "–";
      } else this.value.replaceChildren(...known.flatMap(([one, step], k) => {
        const part = el("span", (many ? `${one.label} ` : "") + Curve.said(one, step));
        if (many) part.prepend(Curve.swatch(one));
        return k && many ? [" · ", part] : [part];
      }));
      if (at !== null && at !== undefined) this.value.append(` at ${settings.unit} ${figure(this.steps[at])}`);
      const found = this.series.flatMap(one => {
        const at = this.steps.filter(step => broken(one.points.get(step)));
        const kinds = [...new Set(at.map(step => figure(one.points.get(step))))].join(", ");
        const told = one.broken || (at.length ? { kind: kinds, count: at.length, first: at[0] } : null);
        if (!told) return [];
        const where = told.count > 1 ? `at ${told.count} points, first at ${settings.unit} ${figure(told.first)}` : `at ${settings.unit} ${figure(told.first)}`;
        return [`${many ? `${one.label}: ` : ""}${told.kind} ${where}`];
      });
      this.warning.textContent = found.length > 2 ? `${found[0]}; so in ${found.length - 1} more` : found.join("; ");
      this.warning.hidden = !found.length;
    }
    static swatch(one) {
      const made = el("i");
      made.style.background = `var(${one.colour})`;
      return made;
    }
    static said(one, step) {
      const [low, high] = [one.low, one.high].map(points => points?.get(step));
      return figure(one.points.get(step)) + (low === undefined || figure(low) === figure(high) ? "" : ` (${figure(low)} … ${figure(high)})`);
    }
    // Beside the cursor: each series' name and its newest value up to there, the highest first.
    tell(plot) {
      const { idx, left } = plot.cursor;
      this.tip.hidden = this.series.length < 2 || idx === null || idx === undefined || !plot.over.matches(":hover");
      if (this.tip.hidden) return;
      const rows = this.series.flatMap(one => {
        let k = idx;
        while (k >= 0 && !one.points.has(this.steps[k])) k -= 1;
        if (k < 0) return [];
        const row = el("div", undefined, "line"), step = this.steps[k];
        row.append(Curve.swatch(one), el("span", one.label), el("b", Curve.said(one, step) + (k < idx ? ` at ${figure(step)}` : "")));
        return [[one.points.get(step), row]];
      });
      const order = value => Number.isFinite(value) ? value : -Infinity;
      rows.sort((a, b) => order(b[0]) - order(a[0]) || 0);
      this.tip.replaceChildren(el("small", `${settings.unit} ${figure(this.steps[idx])}`), ...rows.map(([, row]) => row));
      const at = left + plot.over.offsetLeft, room = this.place.clientWidth;
      Object.assign(this.tip.style, at < room / 2 ? { left: `${at + 12}px`, right: "auto" } : { right: `${room - at + 12}px`, left: "auto" });
    }
    // The points, the axis or the zoom have changed.
    update() {
      this.change();
      this.table?.fill();
    }
    change() {
      const data = this.data();
      if (this.series.some(one => one.points.size < 4) || JSON.stringify(this.scale(data)) !== this.drawnAs) { this.make(); return; }
      this.plot.setData(data);
      this.say(this.plot.cursor.idx);
    }
  }

  const redraw = () => all.forEach(chart => chart.make());
  addEventListener("themechange", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const set = changes => { Object.assign(settings, changes); redraw(); };
  const zoom = to => {
    settings.zoom = to;
    all.forEach(chart => chart.plot.setData(chart.plot.data));
    dispatchEvent(new Event("zoomed"));
  };

  // The metric of ``offered`` that a field names, in a list; says so if there is none.
  const named = (field, offered) => {
    const name = field.value, found = [...offered.options].some(option => option.value === name);
    field.setCustomValidity(found || !name ? "" : `No metric is named ${name}`);
    field.reportValidity();
    if (found) field.value = "";
    return found ? [name] : [];
  };

  // The function from a run's step to its x. Times and tokens add up over the trainer's steps, and end with its last.
  const amounts = { time: "timing_s/step", tokens: "perf/total_num_tokens" };
  const placing = (axis, { updates, samples }, of) => {
    if (axis === "samples") return step => samples === null ? undefined : step * samples;
    if (!(axis in amounts)) return step => axis === "update" ? step * updates : step;
    const totals = new Map([[0, 0]]);
    let total = 0;
    for (const [step, amount] of [...of(amounts[axis])].sort((a, b) => a[0] - b[0])) totals.set(step, total += amount > 0 ? amount : 0);
    return step => totals.get(step);
  };

  // A page's choices, in the fields of ``form`` and in the address, so that a reload or a link shows the same;
  // and in the browser under ``key``, for the next visit without them.
  const OWN = ["metric", "smooth", "log", "x", "zoom", "seeds"];
  const choices = (form, key, changed = () => {}) => {
    const field = name => form.elements[name];
    let given = new URLSearchParams(location.search);
    if (!OWN.some(name => given.has(name))) try { given = new URLSearchParams(localStorage.getItem(key) || ""); } catch { /* not kept */ }
    const chosen = { metrics: given.has("metric") ? given.getAll("metric").filter(Boolean) : null };
    field("smooth").value = given.get("smooth") || 0;
    field("log").checked = given.has("log");
    for (const name of ["x", "seeds"]) if ([...field(name)?.options || []].some(option => option.value === given.get(name))) field(name).value = given.get(name);
    const limits = (given.get("zoom") || "").split(",").map(parseFloat);
    if (limits.length === 2 && limits[0] < limits[1]) settings.zoom = limits;
    const save = () => {
      const own = new URLSearchParams((chosen.metrics?.length === 0 ? [""] : chosen.metrics || []).map(name => ["metric", name]));
      if (+field("smooth").value) own.set("smooth", field("smooth").value);
      if (field("log").checked) own.set("log", "1");
      for (const name of ["x", "seeds"]) if (field(name)?.selectedIndex > 0) own.set(name, field(name).value);
      if (settings.zoom) own.set("zoom", settings.zoom.map(x => +x.toPrecision(6)).join());
      const whole = new URLSearchParams([...new URLSearchParams(location.search)].filter(([name]) => !OWN.includes(name)));
      own.forEach((value, name) => whole.append(name, value));
      history.replaceState(null, "", `${location.pathname}${whole.size ? "?" : ""}${whole}${location.hash}`);
      own.delete("zoom");
      try { localStorage.setItem(key, own); } catch { /* not kept */ }
    };
    const apply = () => {
      Object.assign(settings, { smooth: +field("smooth").value, log: field("log").checked, axis: field("x")?.value || "step", seeds: field("seeds")?.value || "band" });
      changed();
      redraw();
    };
    field("smooth").addEventListener("input", apply);
    field("smooth").addEventListener("change", save);
    field("log").addEventListener("change", () => { apply(); save(); });
    field("x")?.addEventListener("change", () => { settings.zoom = null; apply(); zoom(null); });
    field("seeds")?.addEventListener("change", () => { apply(); save(); });
    field("whole").addEventListener("click", () => zoom(null));
    addEventListener("zoomed", () => { field("whole").hidden = !settings.zoom; save(); });
    field("whole").hidden = !settings.zoom;
    form.addEventListener("submit", event => event.preventDefault());
    return Object.assign(chosen, { save, apply });
  };

  // Below a chart: rectangles of [from, to, low, high, apart] over the x that it shows, and a line at 0.
  const drawBetween = (pic, { windows, title }, plot) => {
    const { min: first, max: last } = plot.scales.x, wide = plot.width;
    const left = plot.bbox.left / devicePixelRatio, right = wide - 8, top = 8, bottom = 68;
    const shown = windows.filter(([from, to, low]) => to >= first && from <= last && low !== null);
    pic.setAttribute("viewBox", `0 0 ${wide} 76`);
    pic.replaceChildren();
    if (!shown.length) return;
    const least = Math.min(0, ...shown.map(one => one[2])), most = Math.max(0, ...shown.map(one => one[3]));
    const up = y => bottom - (most > least ? (y - least) / (most - least) : .5) * (bottom - top);
    const along = x => Math.max(left, Math.min(right, left + (last > first ? (x - first) / (last - first) : .5) * (right - left)));
    for (const [from, to, low, high, apart] of shown) {
      const size = { width: Math.max(1, along(to) - along(from)), height: Math.max(1, up(low) - up(high)) };
      pic.append(svg("rect", { x: along(from), y: up(high), ...size, class: apart ? "apart" : "not-apart" }));
    }
    pic.append(svg("line", { x1: left, x2: right, y1: up(0), y2: up(0), class: "zero" }));
    for (const [x, y, text] of [[left - 4, up(0) + 3, "0"], [left - 4, 11, figure(most)], [left - 4, 74, figure(least)], [right, 11, title]])
      pic.append(svg("text", { x, y, "text-anchor": "end" }, text));
  };

  // The options of a chart of two sides: the verdict, B − A over windows of steps, and a mark where they part.
  const extras = ({ verdict, parts }) => {
    const windows = verdict === "identical" ? null : parts?.from.map((from, i) => {
      const [low, high] = [parts.low[i], parts.high[i]];
      return [from, parts.from[i + 1] ?? parts.to[i], low, high, Boolean(parts.at) && (low > 0 || high < 0)];
    });
    return { tag: verdict, between: windows && { windows, title: "B − A" }, marks: windows && parts.at ? [parts.at[0]] : [] };
  };
  // A metric of two sides, as compare/html.py's ``drawn`` gives it: each side's mean, a band over its seeds, and
  // B − A over windows of steps, where that is known.
  const pair = (box, metric, options) => {
    const side = (label, colour, runs, lost, width) => {
      const points = (run, k) => new Map([...metric.x.map((x, i) => [x, run[i]]), ...(lost?.[k] || []).map(([x, value]) => [x, number(value)])]);
      const lines = runs.map((run, k) => ({ label: runs.length > 1 ? `${label}${k + 1}` : label, points: points(run, k) }));
      const broken = runs.length === 1 ? metric.not_finite?.[label.toLowerCase()] : null;
      return Curve.seeds(label, colour, lines, { width, broken });
    };
    const series = [...side("A", "--a", metric.a_seeds, metric.a_lost, 2.6), ...side("B", "--b", metric.b_seeds, metric.b_lost, 1.4)];
    return new Curve(box, metric.name, series, { ...extras(metric), ...options });
  };

  const sum = parts => Object.values(parts).reduce((a, b) => a + b, 0);

  // Stacked bars, one a row. rows: [[name, {part: seconds}]]; colours: part → class; highest: where a bar is full.
  const stack = (rows, colours, highest, label) => {
    const W = 1000, H = 96, B = 92, T = 4;
    const pic = svg("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
    pic.append(hatch());
    for (const share of [0, .5, 1]) {
      const y = B - share * (B - T);
      pic.append(svg("line", { x1: 0, x2: W, y1: y, y2: y, class: "rule" }));
    }
    const wide = W / Math.max(rows.length, 24);
    rows.forEach(([name, parts], index) => {
      let y = B;
      for (const part in parts) {
        const high = parts[part] / highest * (B - T);
        y -= high;
        const bar = svg("rect", { x: index * wide + wide * .08, y, width: wide * .84, height: Math.max(high, .3), class: colours(part) });
        bar.append(svg("title", {}, `step ${name}: ${part} ${figure(parts[part])} s of ${figure(sum(parts))} s`));
        pic.append(bar);
      }
    });
    return pic;
  };
  // One bar from left to right.
  const bar = (parts, colours, longest, label) => {
    const pic = svg("svg", { viewBox: "0 0 1000 22", preserveAspectRatio: "none", role: "img", "aria-label": label, class: "bar" });
    pic.append(hatch());
    let x = 0;
    for (const part in parts) {
      const wide = parts[part] / longest * 1000, piece = svg("rect", { x, y: 0, width: wide, height: 22, class: colours(part) });
      piece.append(svg("title", {}, `${part}: ${figure(parts[part])} s`));
      pic.append(piece);
      x += wide;
    }
    return pic;
  };
  const hatch = () => {
    const defs = svg("defs", {}), made = svg("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    made.append(svg("line", { x1: 0, x2: 0, y1: 0, y2: 5 }));
    defs.append(made);
    return defs;
  };
  // Part → class, the same on every page; what is waiting is hatched.
  const PARTS = ["gen", "update_actor", "old_log_prob", "rollout", "ref", "update_critic", "adv", "reward",
                 "values", "write", "update_weights", "weights", "save_checkpoint", "testing"];
  const palette = waiting => part => waiting.includes(part) ? "wait" : part === "other" ? "k9" : `k${(PARTS.indexOf(part) + 8) % 8 + 1}`;
  const key = (parts, colours) => parts.map(part => {
    const entry = el("span", part);
    entry.prepend(el("i", undefined, colours(part)));
    return entry;
  });
  return { Curve, set, settings, choices, named, amounts, placing, number, extras, pair, stack, bar, palette, key, sum, el, svg, figure, parsed, values };
})();
