// Where everything of the timeline goes, the same sums as timeline_layout.py; and what a request did in a step.

const GUTTER = 54;
const HEAD = 30;
const NO_HEAD = 6;
const BEFORE_POOL = 10;
const BETWEEN = 24;
const AXIS = 30;
const WIDEST = 34;
const ROWS = [[10, 28], [20, 24], [36, 19], [56, 14], [96, 11], [Infinity, 9]]; // prettier-ignore
const POOLS = [[1, 84], [2, 64], [Infinity, 48]]; // prettier-ignore

// x is measured from the right of the gutter, which does not scroll.
function layOut(width, { names, traces, ends }, zoom) {
  const [, row] = ROWS.find(([most]) => names.length * traces.length <= most);
  const [, pool] = POOLS.find(([most]) => traces.length <= most);
  const length = ends[ends.length - 1];
  const scale = (zoom * (width - GUTTER)) / (length || 1);
  const head = traces.length > 1 ? HEAD : NO_HEAD;
  const figure = head + names.length * row + BEFORE_POOL + pool + BETWEEN;
  const at = { row, pool, scale, long: length * scale, height: traces.length * figure - BETWEEN + AXIS };
  at.figure = (index) => index * figure;
  at.rowTop = (index, r) => at.figure(index) + head + r * row;
  at.poolTop = (index) => at.rowTop(index, names.length) + BEFORE_POOL;
  return at;
}

function ticks(length, scale, whole) {
  for (let size = whole ? 1 : 1e-6; ; size *= 10) {
    for (const factor of [1, 2, 5]) {
      const apart = factor * size;
      if (apart * scale < (apart === 1 ? 34 : 64)) continue;
      return Array.from({ length: Math.floor(length / apart + 1e-9) + 1 }, (_, i) => i * apart);
    }
  }
}

// Where step `i` of a trace begins and ends along the axis.
const begins = (trace, i) => (trace.starts ? trace.starts[i] : i);
const endsAt = (trace, i) => (trace.ends ? trace.ends[i] : i + 1);

// The first of the sorted `values` that is not below `value`.
function bisect(values, value) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The step of a trace that a column shows, or -1 when the trace has ended; and the column that shows a step.
function stepAt(story, trace, column) {
  const step = trace.ends && trace.ends.length !== story.ends.length ? bisect(trace.ends, story.ends[column]) : column;
  return step < trace.used.length ? step : -1;
}
const columnOf = (story, trace, step) =>
  trace.ends && trace.ends.length !== story.ends.length ? bisect(story.ends, trace.ends[step]) : step;

function runsOf(row) {
  if (row.runs) return row.runs;
  const { states } = row;
  row.runs = [];
  for (let start = 0, i = 1; i <= states.length; i += 1) {
    if (i < states.length && states[i] === states[start]) continue;
    if (states[start] !== " ") row.runs.push([states[start], row.from + start, row.from + i]);
    start = i;
  }
  return row.runs;
}

// What the letters do not tell, step by step; worked out when it is first asked for.
function counts(row) {
  if (row.counts) return row.counts;
  const jumps = { computed: new Map(row.computed), tokens: new Map(row.tokens) };
  let [computed, tokens, prefills] = [0, 0, 0];
  row.counts = [...row.states].map((state, offset) => {
    const i = row.from + offset;
    const scheduled = state === "P" ? row.prefills[prefills] : state === "D" ? 1 : 0;
    prefills += state === "P";
    computed = jumps.computed.has(i) ? jumps.computed.get(i) : computed + scheduled;
    if (scheduled) tokens = Math.max(tokens, computed + 1);
    if (jumps.tokens.has(i)) tokens = jumps.tokens.get(i);
    return { scheduled, computed, tokens };
  });
  return row.counts;
}

function momentAt(row, step) {
  const state = row && row.states[step - row.from];
  if (!state || state === " ") return null;
  let blocks = [];
  for (const [i, kept, added] of row.blocks) {
    if (i > step) break;
    blocks = [...blocks.slice(0, kept), ...added];
  }
  const reason = row.end && row.end[0] <= step ? row.end[1] : "";
  return { state, ...counts(row)[step - row.from], blocks, reason };
}

const someTokens = (n) => `${numeral(n)} ${n === 1 ? "token" : "tokens"}`;

function cellInWords(name, trace, r, step) {
  const row = trace.rows[r];
  const moment = momentAt(row, step);
  if (!row) return `${name} is not in ${trace.name ? "this schedule" : "these steps"}.`;
  if (!moment) return `${name} ${step < row.from ? "has not come yet" : "has left"}.`;
  const { state, scheduled, computed, tokens, blocks, reason } = moment;
  const does = {
    ".": "waits",
    P: `prefills ${someTokens(scheduled)}`,
    D: "decodes 1 token",
    X: "is preempted and waits",
    S: "is swapped out and waits",
    "-": "is finished",
    A: "is aborted",
  }[state];
  const done = reason && scheduled ? ` and is done (${reason})` : "";
  const stored = `${numeral(computed)} of its ${someTokens(tokens)} stored`;
  if (state === "S") return `${name} ${does}; ${stored}, outside the pool.`;
  if (!blocks.length) return `${name} ${does}${done}; it holds no blocks.`;
  const more = blocks.length > 16 ? ` and ${numeral(blocks.length - 16)} more` : "";
  const some = `${blocks.length === 1 ? "block" : "blocks"} ${blocks.slice(0, 16).join(", ")}${more}`;
  return `${name} ${does}${done}; ${stored}, in ${some}.`;
}

function poolInWords(trace, step) {
  const [used, total, cached, slots] = [trace.used, trace.total, trace.cached, trace.slots].map((each) => each[step]);
  const size = trace.block_size;
  const full = size && used ? ` with ${someTokens(slots)} in their ${numeral(used * size)} slots` : "";
  const kept = cached ? `; ${numeral(cached)} of the free ones are kept for later hits` : "";
  return `${numeral(used)} of ${numeral(total)} ${total === 1 ? "block" : "blocks"} used${full}${kept}.`;
}
