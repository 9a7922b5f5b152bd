"use strict";
// Curves (uPlot) and stacked bars (SVG) in the page's colours. What every page of charts draws with.
const Charts = (() => {
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const el = (tag, text, cls) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (cls) made.className = cls;
    return made;
  };
  const svg = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const name in attributes) made.setAttribute(name, attributes[name]);
    return made;
  };
  const figure = value => {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e4) return value.toLocaleString("en", { maximumFractionDigits: 0 }).replaceAll(",", " ");
    return size > 0 && size < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(4));
  };
  const brief = value => {
    const size = Math.abs(value);
    if (size >= 1e6) return +(value / 1e6).toPrecision(3) + "M";
    if (size >= 1e4) return +(value / 1e3).toPrecision(3) + "k";
    return size > 0 && size < 1e-3 ? value.toExponential(0) : String(+value.toPrecision(3));
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
  const HEIGHT = 170;

  // One chart. series: [{label, colour (a CSS variable), points: Map step → value}]
  class Curve {
    constructor(box, title, series, { group = "curves", onClose, tag, ticks = brief } = {}) {
      this.series = series; this.group = group; this.ticks = ticks;
      this.box = el("figure", undefined, "chart");
      this.box.setAttribute("role", "group");
      this.box.setAttribute("aria-label", title);
      const head = el("h3", title + " ");
      this.value = el("span", "", "value");
      head.append(this.value);
      if (tag) head.append(" ", el("span", tag, `pill ${tag}`));
      this.place = el("div", undefined, "plot");
      this.box.append(head, this.place);
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
      const found = [xs];
      for (const one of this.series) {
        const raw = xs.map(x => low(one.points.has(x) ? one.points.get(x) : null));
        found.push(smoothed(raw, settings.smooth));
        if (this.faint) found.push(raw);
      }
      return found;
    }
    make() {
      this.plot?.destroy();
      this.faint = settings.smooth > 0;
      const curve = one => {
        const colour = css(one.colour);
        const points = { show: one.points.size < 3, size: 5, fill: colour, stroke: colour };
        const drawn = { stroke: colour, width: 1.7, spanGaps: true, points };
        return this.faint ? [drawn, { stroke: colour + "44", width: 1, spanGaps: true, points: { show: false } }] : [drawn];
      };
      const axis = { stroke: css("--dim"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      this.plot = new uPlot({
        width: this.place.clientWidth || 300, height: HEIGHT,
        padding: [6, 8, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: this.group }, y: false, points: { size: 6 } },
        scales: { x: { time: false }, y: settings.log ? { distr: 3 } : { range: around } },
        axes: [{ ...axis, size: 24, space: 46, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5] },
               { ...axis, size: 46, space: 32, values: (_, ticks) => ticks.map(v => v === null ? "" : this.ticks(v)) }],
        series: [{}, ...this.series.flatMap(curve)],
        hooks: { setCursor: [plot => this.say(plot.cursor.idx)] },
      }, this.data(), this.place);
      this.say(null);
    }
    // The values under the cursor, else the newest ones.
    say(at) {
      const xs = this.plot?.data[0] || [];
      const index = at ?? xs.length - 1;
      if (index < 0) { this.value.textContent = ""; return; }
      const wide = this.faint ? 2 : 1;
      const parts = this.series.map((one, k) => {
        const value = figure(this.plot.data[1 + k * wide][index]);
        return this.series.length > 1 ? `${one.label} ${value}` : value;
      });
      this.value.textContent = `${parts.join(" · ")}${at === null || at === undefined ? "" : ` at ${xs[index]}`}`;
    }
    update() {
      if (this.series.some(one => one.points.size < 4)) { this.make(); return; }
      this.plot.setData(this.data());
      this.say(this.plot.cursor.idx);
    }
  }

  const redraw = () => all.forEach(chart => chart.make());
  addEventListener("themechange", redraw);
  const set = changes => { Object.assign(settings, changes); redraw(); };

  // Stacked bars, one a step. rows: [[step, {part: seconds}]]; colours: part → class.
  const stack = (rows, colours, highest, label) => {
    const W = 1000, H = 96, L = 0, B = 92, T = 4;
    const pic = svg("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
    const defs = svg("defs", {}), hatch = svg("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    hatch.append(svg("line", { x1: 0, x2: 0, y1: 0, y2: 5 })); defs.append(hatch); pic.append(defs);
    for (const share of [0, .5, 1]) {
      const y = B - share * (B - T);
      pic.append(svg("line", { x1: L, x2: W, y1: y, y2: y, class: "rule" }));
    }
    const wide = (W - L) / Math.max(rows.length, 12);
    rows.forEach(([step, parts], index) => {
      let y = B;
      for (const part in parts) {
        const high = parts[part] / highest * (B - T);
        y -= high;
        const bar = svg("rect", { x: L + index * wide + wide * .08, y, width: wide * .84, height: Math.max(high, .3), class: colours(part) });
        const title = svg("title", {});
        title.textContent = `step ${step}: ${part} ${figure(parts[part])} s`;
        bar.append(title); pic.append(bar);
      }
    });
    return pic;
  };
  return { Curve, set, stack, el, svg, figure, parsed };
})();
