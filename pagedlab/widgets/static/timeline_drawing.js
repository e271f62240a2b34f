// Draws the figures of the timeline, with one of two pens: elements of an SVG, or a canvas for what has too many cells.

const LOOKS = { prefill: "#E69F00", decode: "#56B4E9", tokens: "#009E73", ink: "#14161A" };
// Patterns: the size of a tile, the lines in it, their width, their colour, and how much of it (or of another colour) there
// is behind them.
const TILES = {
  preempted: [10, "M0 10L10 0M-2 2L2 -2M8 12L12 8", 3, "#D55E00", 0.14],
  swapped: [6, "M1.5 0V6", 2.6, "#CC79A7", 0.18],
  aborted: [10, "M0 0L10 10M-2 8L2 12M8 -2L12 2", 2, "muted", 0.1],
  done: [6, "M1.5 1.5h.01M4.5 4.5h.01", 2, "muted", 0.1],
  empty: [8, "M0 0L8 8M-2 6L2 10M6 -2L10 2", 1.5, "#009E73", 0.14],
  cached: [6, "M1.5 1.5h.01M4.5 4.5h.01", 2, "#8A6D00", 0.3, "#F0E442"],
};
const THEMED = ["text", "muted", "line", "track", "page"];
const PATTERN_OF = { X: "preempted", S: "swapped", "-": "done", A: "aborted" };
const WORDS = { X: ["preempted", "X"], S: ["swapped out", "S"], "-": ["finished", "F"], A: ["aborted", "A"] };

const fixed = (n) => Math.round(n * 100) / 100;

// Styles: { fill, stroke, width, dash, opacity }, colours by the names above.
function vectorPen(svg, id) {
  const paint = (name) => {
    if (!name) return "none";
    if (TILES[name]) return `url(#${id}-${name})`;
    return LOOKS[name] || `var(--plw-${name})`;
  };
  const style = ({ fill, stroke, width, dash, opacity }) =>
    `fill:${paint(fill)};stroke:${paint(stroke)}${width ? `;stroke-width:${width}` : ""}${dash ? `;stroke-dasharray:${dash}` : ""}${opacity ? `;opacity:${opacity}` : ""}`;
  svg.replaceChildren(tileDefinitions(id));
  return {
    from: -Infinity,
    to: Infinity,
    path: (d, look) => svg.append(drawing("path", { d, style: style(look) })),
    rect: (x, y, w, h, rx, look, test) =>
      svg.append(drawing("rect", { x: fixed(x), y: fixed(y), width: fixed(Math.max(0.2, w)), height: fixed(h), rx, style: style(look), ...test })),
    text: (x, y, words, { size, fill = "text", anchor = "start", weight = 400 }) =>
      svg.append(drawing("text", { x: fixed(x), y: fixed(y), "text-anchor": anchor, "font-size": size, "font-weight": weight, style: `fill:${paint(fill)}` }, words)),
  };
}

function tileDefinitions(id) {
  const colour = (name) => (THEMED.includes(name) ? `var(--plw-${name})` : name);
  return drawing(
    "defs",
    {},
    Object.entries(TILES).map(([name, [size, lines, width, hue, ground, behind = hue]]) =>
      drawing(
        "pattern",
        { id: `${id}-${name}`, width: size, height: size, patternUnits: "userSpaceOnUse" },
        drawing("rect", { width: size, height: size, style: `fill:${colour(behind)};opacity:${ground}` }),
        drawing("path", { d: lines, "stroke-linecap": "round", style: `fill:none;stroke:${colour(hue)};stroke-width:${width}` }),
      ),
    ),
  );
}

// A canvas as wide as what is in view; `left` is what has been scrolled away.
function canvasPen(canvas, left, wide, high) {
  const dense = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: Math.ceil(wide * dense), height: Math.ceil(high * dense) });
  Object.assign(canvas.style, { width: `${wide}px`, height: `${high}px` });
  const pen = canvas.getContext("2d");
  const styles = getComputedStyle(canvas);
  const colour = (name) => {
    if (!THEMED.includes(name)) return LOOKS[name] || name;
    probe.style.color = `var(--plw-${name})`; // a mixed colour is only worked out where it is used
    return getComputedStyle(probe).color;
  };
  const probe = element("i", { style: "display:none" });
  canvas.parentNode.append(probe);
  const known = {};
  const paint = (name) => (known[name] ||= TILES[name] ? pattern(...TILES[name]) : colour(name));
  function pattern(size, lines, width, hue, ground, behind = hue) {
    const tile = element("canvas", { width: size * dense, height: size * dense });
    const inner = tile.getContext("2d");
    inner.scale(dense, dense);
    Object.assign(inner, { fillStyle: colour(behind), strokeStyle: colour(hue), lineWidth: width, lineCap: "round" });
    inner.globalAlpha = ground;
    inner.fillRect(0, 0, size, size);
    inner.globalAlpha = 1;
    inner.stroke(new Path2D(lines));
    const made = pen.createPattern(tile, "repeat");
    made.setTransform(new DOMMatrix([1 / dense, 0, 0, 1 / dense, 0, 0]));
    return made;
  }
  pen.setTransform(dense, 0, 0, dense, -left * dense, 0);
  function drawShape(shape, { fill, stroke, width = 1, dash, opacity = 1 }) {
    pen.globalAlpha = opacity;
    if (fill) {
      pen.fillStyle = paint(fill);
      pen.fill(shape);
    }
    if (stroke) {
      pen.setLineDash(dash ? dash.split(" ").map(Number) : []);
      Object.assign(pen, { strokeStyle: paint(stroke), lineWidth: width });
      pen.stroke(shape);
    }
  }
  return {
    from: left,
    to: left + wide,
    path: (d, look) => drawShape(new Path2D(d), look),
    rect(x, y, w, h, rx, look) {
      const shape = new Path2D();
      if (rx) shape.roundRect(x, y, Math.max(0.2, w), h, rx);
      else shape.rect(x, y, Math.max(0.2, w), h);
      drawShape(shape, look);
    },
    text(x, y, words, { size, fill = "text", anchor = "start", weight = 400 }) {
      pen.globalAlpha = 1;
      pen.font = `${weight} ${size}px ${styles.fontFamily}`;
      pen.textAlign = anchor === "middle" ? "center" : anchor;
      pen.fillStyle = paint(fill);
      pen.fillText(words, x, y);
    },
    done: () => probe.remove(),
  };
}

function drawFigures(pen, story, at) {
  const long = story.ends[story.ends.length - 1];
  story.traces.forEach((trace, index) => {
    const bottom = at.poolTop(index) + at.pool;
    const lines = ticks(long, at.scale, story.axis === "steps");
    pen.path(lines.map((tick) => `M${fixed(tick * at.scale)} ${at.rowTop(index, 0)}V${bottom}`).join(""), { stroke: "line", opacity: 0.45 });
    trace.rows.forEach((row, r) => row && drawRow(pen, trace, row, at.rowTop(index, r), at, `${index}:${r}`));
    drawPool(pen, trace, index, at);
  });
  const whole = story.axis === "steps";
  for (const tick of ticks(long - (whole ? 1 : 0), at.scale, whole)) {
    const label = whole ? numeral(tick + story.first) : numeral(Number(tick.toPrecision(6)));
    pen.text(tick * at.scale + (whole ? Math.max(4, at.scale / 2) : tick ? 0 : 4), at.height - AXIS + 18, label, { size: 11, fill: "muted", anchor: "middle" });
  }
}

function drawRow(pen, trace, row, y, at, key) {
  const x = (step) => begins(trace, step) * at.scale;
  const xEnd = (step) => endsAt(trace, step) * at.scale;
  let prefills = 0;
  for (const [state, start, end] of runsOf(row)) {
    const [left, right] = [x(start), xEnd(end - 1)];
    const first = prefills;
    prefills += state === "P" ? end - start : 0;
    if (right < pen.from || left > pen.to) continue;
    const apart = state === "P" || (state === "D" && (right - left) / (end - start) >= 5);
    const test = (i) => ({ "data-cell": `${key}:${i}` });
    const letter = right - left >= 15 * (end - start) ? "D" : "";
    if (apart) {
      for (let i = start; i < end; i += 1) {
        if (xEnd(i) < pen.from || x(i) > pen.to) continue;
        if (state === "P") drawCell(pen, x(i), xEnd(i), y, at.row, "prefill", `${row.prefills[first + i - start]}`, false, test(i));
        else drawCell(pen, x(i), xEnd(i), y, at.row, "decode", letter, true, test(i));
      }
    } else if (state === "D") drawCell(pen, left, right, y, at.row, "decode", "", true, test(start));
    else if (state === ".") drawWaiting(pen, left, right, y, at.row);
    else {
      drawCell(pen, left, right, y, at.row, PATTERN_OF[state], "", false, test(start));
      drawWord(pen, state, left, right, y, at.row);
    }
  }
  if (row.end) drawEnd(pen, xEnd(row.end[0]), y, at.row, row.end[1]);
}

// A prefill is as high as its row, a decode is lower: they differ without their colours, too.
function drawCell(pen, left, right, y, high, fill, words, slim, test) {
  const inset = high * (slim ? 0.24 : 0.08);
  const gap = right - left >= 5 ? 0.75 : 0;
  pen.rect(left + gap, y + inset, right - left - 2 * gap, high - 2 * inset, gap ? 2 : 0, { fill }, test);
  const size = Math.min(11.5, (high - 2 * inset) * 0.86);
  if (!words || size < 8 || right - left < 3 + size * 0.62 * (slim ? 1 : Math.max(2, words.length))) return;
  pen.text((left + right) / 2, y + high / 2 + size * 0.36, words, { size, fill: "ink", anchor: "middle" });
}

function drawWaiting(pen, left, right, y, high) {
  const size = Math.min(11.5, high * 0.72);
  const middle = y + high / 2;
  if (size >= 8 && right - left >= 4 * size) {
    pen.text(left + 3, middle + size * 0.36, "waits", { size, fill: "muted" });
    left += 5 + 2.7 * size;
  }
  pen.path(`M${fixed(left + 1)} ${middle}H${fixed(right - 1)}`, { stroke: "muted", dash: "2 3" });
}

function drawWord(pen, state, left, right, y, high) {
  const [word, letter] = WORDS[state];
  const size = Math.min(11.5, high * 0.72);
  const words = right - left >= 14 + 0.58 * size * word.length ? word : letter;
  const width = 6 + 0.57 * size * words.length;
  if (size < 8 || right - left < width + 4) return;
  pen.rect(left + 3, y + high / 2 - size * 0.62, width, size * 1.24, 2, { fill: "page" });
  pen.text(left + 6, y + high / 2 + size * 0.36, words, { size });
}

// Where a request is over: a dark bar, or a cross.
function drawEnd(pen, x, y, high, reason) {
  if (reason !== "abort") return pen.rect(x - 3, y + 1, 3, high - 2, 1, { fill: "text" });
  const r = Math.min(5, high / 2 - 1);
  const [cx, cy] = [x - r - 1, y + high / 2];
  const cross = `M${fixed(cx - r)} ${cy - r}L${fixed(cx + r)} ${cy + r}M${fixed(cx + r)} ${cy - r}L${fixed(cx - r)} ${cy + r}`;
  pen.path(cross, { stroke: "page", width: 5 });
  return pen.path(cross, { stroke: "text", width: 2.25 });
}

// From the bottom up: tokens, empty slots of used blocks, free blocks with content that may be used again.
function drawPool(pen, trace, index, at) {
  const top = at.poolTop(index);
  const bottom = top + at.pool;
  const most = Math.max(1, ...trace.total);
  const { used, cached, slots, block_size: size } = trace;
  const right = endsAt(trace, used.length - 1) * at.scale;
  const area = (values, look) => {
    let d = `M0 ${bottom}`;
    values.forEach((value, i) => {
      if (i && value === values[i - 1]) return;
      d += `${i ? `H${fixed(begins(trace, i) * at.scale)}` : ""}V${fixed(bottom - (at.pool * value) / most)}`;
    });
    pen.path(`${d}H${fixed(right)}V${bottom}z`, look);
  };
  pen.rect(0, top, right, at.pool, 0, { fill: "track" });
  if (cached.some(Boolean)) {
    const kept = used.map((blocks, i) => blocks + cached[i]);
    area(kept, { fill: "cached" });
    area(used, { fill: "page" });
  }
  if (size) area(used, { fill: "empty" });
  area(size ? used.map((blocks, i) => Math.min(blocks, slots[i] / size)) : used, { fill: "tokens" });
}

// What does not scroll: names and totals of the figures, labels of the rows and of the pool.
function drawFrame(pen, story, at, selected, width) {
  const every = Math.max(1, Math.round(12 / at.row));
  story.traces.forEach((trace, index) => {
    if (story.traces.length > 1) {
      pen.text(0, at.figure(index) + 14, trace.name, { size: 14, weight: 700 });
      const x = 9 * trace.name.length + 16;
      const totals = totalsInWords(trace.totals);
      while (totals.length > 1 && x + 6.6 * totals.join(", ").length > width) totals.pop(); // as many as there is room for
      pen.text(x, at.figure(index) + 14, totals.join(", "), { size: 12.5, fill: "muted" });
    }
    story.labels.forEach((label, r) => {
      const chosen = story.names[r] === selected;
      if (r % every && !chosen) return;
      const size = Math.min(13, at.row * every * 0.8);
      const y = at.rowTop(index, r) + at.row / 2 + size * 0.36;
      pen.text(GUTTER - 10, y, label, { size, weight: chosen ? 700 : 400, anchor: "end" });
    });
    const note = (y, words) => pen.text(GUTTER - 10, at.poolTop(index) + y, words, { size: 11, fill: "muted", anchor: "end" });
    note(10, numeral(Math.max(1, ...trace.total)));
    note(at.pool / 2 + 4, "blocks");
    note(at.pool, "0");
  });
  pen.text(GUTTER - 10, at.height - AXIS + 18, story.axis === "steps" ? "step" : "s", { size: 11, fill: "muted", anchor: "end" });
}

const plural = (count, one) => `${numeral(count)} ${count === 1 ? one : `${one}s`}`;

function totalsInWords(totals) {
  const one = (value) => value.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
  return [
    plural(totals.num_steps, "step"),
    totals.seconds !== null && `${Number(totals.seconds.toPrecision(4))} s`,
    `${one(totals.tokens_per_step)} tokens a step`,
    `mean batch ${one(totals.mean_batch)}`,
    `${Math.round(100 * totals.mean_usage)} % of the pool in use`,
    totals.num_preemptions > 0 && plural(totals.num_preemptions, "preemption"),
  ].filter(Boolean);
}
