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
  const figure = value => {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
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

  // Exponential moving average, corrected for its start; gaps stay gaps.
  const smoothed = (values, weight) => {
    if (!weight) return values;
    let mean = 0, mass = 0;
    return values.map(value => {
      if (value === null) return null;
      mean = weight * mean + (1 - weight) * value;
      mass = weight * mass + (1 - weight);
      return mean / mass;
    });
  };
  // uPlot's own choice, but room around a curve that never moves.
  const around = (plot, low, high) => {
    if (low === null || low === undefined) return [0, 1];
    if (low !== high) return uPlot.rangeNum(low, high, 0.08, true);
    const room = Math.abs(low) / 10 || 1;
    return [low - room, high + room];
  };

  const all = new Set();
  const settings = { smooth: 0, log: false };
  const HEIGHT = 170, LEFT = 46;
  const AXIS = { ticks: { show: false }, font: "11px system-ui" };
  const XS = [1, 2, 5].flatMap(k => [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9].map(unit => k * unit)).sort((a, b) => a - b);

  // One chart: drag zooms, a double click shows all again, and every chart of its group follows the cursor.
  // series: [{label, colour (a CSS variable), points: Map x → value, low, high: Maps of a band, width}]
  // marks: x of dashed lines. between: {windows, title} of what is drawn below.
  class Curve {
    constructor(box, title, series, { group = "curves", onClose, between, tag, marks = [] } = {}) {
      Object.assign(this, { series, group, between, marks });
      this.box = el("figure", undefined, "chart");
      this.box.setAttribute("role", "group");
      this.box.setAttribute("aria-label", title);
      const head = el("h3", title + " ");
      this.value = el("span", "", "value");
      head.append(this.value);
      if (tag) head.append(" ", el("span", tag, `pill ${tag}`));
      this.place = el("div", undefined, "plot");
      this.box.append(head, this.place);
      if (between) this.box.append(this.below = svg("svg", { class: "between", role: "img", "aria-label": between.title }));
      if (onClose) {
        const close = el("button", "×", "quiet close");
        close.type = "button";
        close.setAttribute("aria-label", `Remove ${title}`);
        close.addEventListener("click", () => { this.end(); onClose(); });
        this.box.append(close);
      }
      box.append(this.box);
      all.add(this);
      this.sizes = new ResizeObserver(() => this.plot?.setSize({ width: this.place.clientWidth, height: HEIGHT }));
      this.sizes.observe(this.place);
      this.make();
    }
    end() { this.sizes.disconnect(); this.plot?.destroy(); this.box.remove(); all.delete(this); }
    data() {
      const xs = [...new Set(this.series.flatMap(one => [...one.points.keys()]))].sort((a, b) => a - b);
      const low = value => settings.log && value !== null && value <= 0 ? null : value;
      const column = points => xs.map(x => low(points.get(x) ?? null));
      return [xs, ...this.series.flatMap(one => {
        const raw = column(one.points);
        return [smoothed(raw, settings.smooth), ...this.extra(one).map(kind => kind === "raw" ? raw : column(one[kind]))];
      })];
    }
    // What is drawn of a series besides its line: the unsmoothed values, else its band.
    extra(one) { return this.faint ? ["raw"] : one.low ? ["high", "low"] : []; }
    make() {
      this.plot?.destroy();
      this.faint = settings.smooth > 0;
      this.at = [];                       // where in the data each series stands
      const drawn = [{}], bands = [];
      for (const one of this.series) {
        const colour = css(one.colour), no = { show: false };
        this.at.push(drawn.length);
        drawn.push({ stroke: colour, width: one.width || 1.7, spanGaps: true, points: { show: one.points.size < 3, size: 5, fill: colour, stroke: colour } });
        const extra = this.extra(one);
        if (extra.length === 2) bands.push({ series: [drawn.length, drawn.length + 1], fill: css(one.colour, .15) });
        for (const kind of extra) drawn.push({ stroke: kind === "raw" ? css(one.colour, .27) : "transparent", width: kind === "raw" ? 1 : 0, spanGaps: true, points: no });
      }
      const axis = { ...AXIS, stroke: css("--dim"), grid: { stroke: css("--grid"), width: 1 } };
      const values = (plot, ticks, _, __, apart) => ticks.map(value => value === null ? "" : tick(value, settings.log ? 0 : apart));
      this.plot = new uPlot({
        width: this.place.clientWidth || 300, height: HEIGHT,
        padding: [6, 8, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: this.group, scales: ["x", null] }, y: false, points: { size: 6 }, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: settings.log ? { distr: 3 } : { range: around } },
        axes: [{ ...axis, size: 24, space: 46, incrs: XS, values: (_, ticks, __, ___, apart) => ticks.map(x => tick(x, apart)) }, { ...axis, size: (_, ticks) => Math.max(LEFT, 10 + 6.5 * Math.max(0, ...(ticks || []).map(text => text.length))), space: 32, values }],
        series: drawn, bands,
        hooks: { setCursor: [plot => this.say(plot.cursor.idx)], drawAxes: [plot => this.mark(plot)],
                 draw: [plot => this.below && drawBetween(this.below, this.between, plot)] },
      }, this.data(), this.place);
      this.say(null);
    }
    mark(plot) {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.strokeStyle = css("--bad"); ctx.setLineDash([2, 3]); ctx.lineWidth = devicePixelRatio;
      for (const x of this.marks) {
        const at = plot.valToPos(x, "x", true);
        ctx.beginPath(); ctx.moveTo(at, bbox.top); ctx.lineTo(at, bbox.top + bbox.height); ctx.stroke();
      }
      ctx.restore();
    }
    // The values under the cursor, else the newest ones.
    say(at) {
      const xs = this.plot?.data[0] || [];
      const index = at ?? xs.length - 1;
      if (index < 0) { this.value.textContent = ""; return; }
      const parts = this.series.map((one, k) => {
        const value = figure(this.plot.data[this.at[k]][index]);
        const [low, high] = [one.low, one.high].map(points => points?.get(xs[index]));
        const range = low === undefined || figure(low) === figure(high) ? "" : ` (${figure(low)} … ${figure(high)})`;
        return this.series.length > 1 ? `${one.label} ${value}${range}` : `${value}${range}`;
      });
      this.value.textContent = `${parts.join(" · ")}${at === null || at === undefined ? "" : ` at ${figure(xs[index])}`}`;
    }
    // The points have grown. Who has zoomed in stays there.
    update() {
      if (this.series.some(one => one.points.size < 4)) { this.make(); return; }
      const { min, max } = this.plot.scales.x, old = this.plot.data[0];
      const zoomed = min > old[0] || max < old.at(-1);
      this.plot.setData(this.data(), !zoomed);
      if (zoomed) this.plot.setScale("x", { min, max });
      this.say(this.plot.cursor.idx);
    }
  }

  const redraw = () => all.forEach(chart => chart.make());
  addEventListener("themechange", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const set = changes => { Object.assign(settings, changes); redraw(); };

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

  // A metric of two sides, as compare/html.py's ``drawn`` gives it: each side's mean, a band over its seeds, and
  // B − A over windows of steps, where that is known.
  const pair = (box, metric, options) => {
    const side = (label, colour, runs, width) => {
      const over = of => new Map(metric.x.map((x, i) => [x, of(runs.map(run => run[i]))]));
      const mean = values => sum(values) / values.length;
      const band = runs.length > 1 ? { low: over(values => Math.min(...values)), high: over(values => Math.max(...values)) } : {};
      return { label, colour, width, points: over(mean), ...band };
    };
    const series = [side("A", "--a", metric.a_seeds, 2.6), side("B", "--b", metric.b_seeds, 1.4)];
    const parts = metric.verdict === "identical" ? null : metric.parts;
    const windows = parts?.from.map((from, i) => {
      const [low, high] = [parts.low[i], parts.high[i]];
      return [from, parts.from[i + 1] ?? parts.to[i], low, high, Boolean(parts.at) && (low > 0 || high < 0)];
    });
    const told = { between: windows && { windows, title: "B − A" }, marks: parts?.at ? [parts.at[0]] : [] };
    return new Curve(box, metric.name, series, { tag: metric.verdict, ...told, ...options });
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
  // Part → class, in the order in which ``parts`` got them; what is waiting is hatched.
  const palette = (parts, waiting) => part => waiting.includes(part) ? "wait" : part === "other" ? "k9" : `k${parts.indexOf(part) % 8 + 1}`;
  const key = (parts, colours) => parts.map(part => {
    const entry = el("span", part);
    entry.prepend(el("i", undefined, colours(part)));
    return entry;
  });
  return { Curve, set, pair, stack, bar, palette, key, sum, el, svg, figure, parsed };
})();
