// What lies above the blocks: heads, frames, and the lines from tables to the pool. Small, and drawn anew whenever the
// pointer moves on, so that the blocks below stay as they are.

function drawOver({ story, at, view, rows, id }, about) {
  const now = view.step;
  const inPool = (block) => block >= 0 && block < story.num_blocks;
  const logicalBox = ({ sequence, logical }) => at.logical(rows.tops[sequence], logical);
  const boxesOf = (block) => {
    const held = (view.holders.get(block) || []).map(logicalBox);
    return inPool(block) ? [at.pool(block), ...held] : held;
  };
  const frame = ({ x, y, w, h }, name, out = 0) => {
    const by = out + (w < 12 ? 2 : 0); // a frame as small as the cell would hide it
    const box = { x: x - by, y: y - by, width: w + 2 * by, height: h + 2 * by, rx: Math.min(5, w / 3) };
    return drawing("rect", { ...box, class: `plw-explorer-${name}` });
  };
  const line = (path, name) => [
    drawing("path", { d: path, class: "plw-explorer-way-ground" }),
    drawing("path", { d: path, class: `plw-explorer-${name}`, "marker-end": `url(#${id}-${name})` }),
  ];

  const marks = [];
  const small = []; // there may be thousands of these: one path for all of them
  const grown = []; // where there are no slots to frame: the blocks that got this step's tokens
  if (at.left === "blocks" && story.block_size) {
    for (const [i, from] of view.grown) grown.push(...view.sequences[i].blocks.slice(Math.floor(from / story.block_size)));
  }
  for (const block of new Set([...now.taken, ...now.shared, ...now.returned, ...grown])) {
    for (const box of boxesOf(block)) {
      if (box.w < SMALL) small.push(`M${box.x} ${box.y}h${box.w}v${box.h}h${-box.w}z`);
      else marks.push(frame(box, "changed", 1));
    }
  }
  if (small.length) marks.push(drawing("path", { d: small.join(""), class: "plw-explorer-changed plw-explorer-fine" }));
  for (const [block] of now.problems) {
    for (const box of boxesOf(block)) {
      marks.push(frame(box, "wrong", 3));
      marks.push(drawing("circle", { cx: box.x + box.w, cy: box.y + box.h, r: 8, class: "plw-explorer-alarm-dot" }));
      marks.push(drawing("text", { x: box.x + box.w, y: box.y + box.h + 4.5, class: "plw-explorer-alarm-sign" }, "!"));
    }
  }
  for (const [source, destination] of now.copies) {
    if (!inPool(source) || !inPool(destination)) continue;
    const [from, to] = [at.pool(source), at.pool(destination)];
    if (at.right === "words" && from.x === to.x) {
      const down = to.y > from.y; // beside the words
      const [x, y1, y2] = [from.x + from.w + 3, from.y + (down ? 0.8 : 0.2) * from.h, to.y + (down ? 0.2 : 0.8) * to.h];
      marks.push(line(`M${x} ${y1}C${x + 26} ${y1} ${x + 26} ${y2} ${x} ${y2}`, "copied"));
      continue;
    }
    const [a, b] = [from, to].map(({ x, y, w, h }) => [x + w / 2, y + h / 2]);
    const bow = 0.2 * (Math.abs(b[0] - a[0]) + Math.abs(b[1] - a[1])) + 10;
    marks.push(line(`M${a}Q${(a[0] + b[0]) / 2 + bow} ${(a[1] + b[1]) / 2} ${b}`, "copied"));
  }
  if (about) {
    const isToken = about.offset !== undefined;
    marks.push(boxesOf(about.block).map((box) => frame(box, "lit")));
    if (inPool(about.block)) {
      const end = at.pool(about.block);
      for (const holder of view.holders.get(about.block) || []) {
        const main = !isToken || (holder.sequence === about.sequence && holder.logical === about.logical);
        const path = wayBetween(at, logicalBox(holder), end, main && isToken ? about.offset : null);
        marks.push(line(path, main ? "way" : "side-way"));
      }
      if (isToken && at.right === "words") marks.push(frame(at.slotIn(end, about.offset), "lit", -1));
    }
    if (isToken && at.left === "words") marks.push(frame(at.slotIn(logicalBox(about), about.offset), "lit", -1));
  }
  return [definitions(id), ...heads(story, at, view), ...marks.flat(Infinity)];
}

function heads(story, at, view) {
  const size = story.block_size;
  const free = view.counts.filter((holders) => holders <= 0).length;
  const kept = view.cached.size ? `, ${numeral(view.cached.size)} of them cached` : "";
  const text = (x, y, name, words) => drawing("text", { x, y, class: `plw-explorer-${name}` }, words);
  const each = size ? ` \u00b7 ${plural(size, "slot")} each` : "";
  const out = [
    text(at.rightX, 14, "title", "The pool: physical blocks"),
    text(at.rightX, 31, "subtitle", `${numeral(free)} of ${numeral(story.num_blocks)} free${kept}${each}`),
  ];
  if (at.left === "none") return out;
  let says = at.leftWidth > 310 ? "each counts its blocks from 0; \u2192 block of the pool" : "\u2192 block of the pool";
  if (at.left === "blocks") {
    says = at.leftCell >= SMALL ? "a cell is a block, its number the block of the pool" : "a cell is a block, in order";
    if (at.leftWidth < 310) says = "a cell is a block";
  }
  return [...out, text(0, 14, "title", "Block tables: logical blocks"), text(0, 31, "subtitle", says)];
}

// What the marks mean, and which letter is whose. The same at every step, so that nothing below it moves.
function legendOf({ steps, names, labels, block_size: size }, at) {
  const marks = [];
  if (at.left === "words") marks.push(["token", "slot with a token"], ["empty", "slot still empty"], ["free", "free block"]);
  else if (at.left === "none") marks.push(["used", "block in use"], ["track", "free block"]);
  else if (size) marks.push(["part", "block in use, as far as it is filled"], ["track", "free block"]);
  else marks.push(["full", "block in use"], ["track", "free block"]);
  if (steps.some(({ counts }) => counts.some(([, holders]) => holders > 1))) {
    marks.push([at.left === "words" ? "shared" : "shared plw-explorer-mark-strong", "shared block, \u00d7 its ref count"]);
  }
  if (steps.some(({ cached }) => cached && cached.length)) marks.push(["cached", "free, but the cache finds what it holds"]);
  if (steps.some(({ copies }) => copies.length)) marks.push(["copied", "contents copied"]);
  if (steps.length > 1) marks.push(["changed", "changed by this step"]);
  if (steps.some(({ problems }) => problems.length)) marks.push(["wrong", "cannot be right"]);
  const full = names.flatMap((name, i) => (name === labels[i] ? [] : [`${labels[i]} is ${name}`]));
  const more = full.length > 12 ? [`and ${full.length - 12} more`] : [];
  const item = (...parts) => element("span", { role: "listitem" }, ...parts);
  return [
    ...marks.map(([mark, says]) => item(element("i", { class: `plw-explorer-mark-${mark}` }), says)),
    ...[...full.slice(0, 12), ...more].map((says) => item(says)),
  ];
}

// Arrow heads, and the hatching of shared blocks: on a colour, and behind words.
function definitions(id) {
  const units = { orient: "auto", markerUnits: "userSpaceOnUse" };
  const arrow = (name) =>
    drawing(
      "marker",
      { id: `${id}-${name}`, markerWidth: 9, markerHeight: 9, refX: 8, refY: 4, ...units },
      drawing("path", { d: "M0 0L8 4L0 8z", class: `plw-explorer-${name}-head` }),
    );
  const hatch = (name, apart) =>
    drawing(
      "pattern",
      { id: `${id}-${name}`, width: apart, height: apart, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      drawing("rect", { width: 1.6, height: apart, class: `plw-explorer-hatch-${name}` }),
    );
  const cached = drawing(
    "pattern",
    { id: `${id}-cached`, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
    drawing("rect", { width: 6, height: 6, style: "fill:#f0e442;opacity:0.3" }),
    [1.5, 4.5].map((at) => drawing("circle", { cx: at, cy: at, r: 1, class: "plw-explorer-kept" })),
  );
  return drawing("defs", {}, cached, arrow("way"), arrow("side-way"), arrow("copied"), hatch("shared", 6), hatch("thin", 8));
}
