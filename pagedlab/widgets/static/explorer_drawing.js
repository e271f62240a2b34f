// Draws one side of the explorer, the block tables or the pool: as SVG, or as a canvas where there are too many blocks.
//
// A side is a list of rows, a row a list of items: {key, block, box, says, ...}. A row knows how to draw itself; in SVG
// it is drawn again only when what it depends on has changed.

const MOST_NODES = 4000; // blocks on both sides; above this a canvas
const NOBODY = "#8C959F"; // in use, by nobody whose table is known

function describeRows(story, at, view) {
  const size = story.block_size;
  const { labels, names } = story;
  const huesOf = (owners) => owners.map((i) => (i < 0 ? i : story.hues[i]));
  const tops = at.tables(view.sequences.map(({ blocks }) => blocks.length));
  const filledIn = ({ sequence, logical }) =>
    Math.max(0, Math.min(size || 1, view.sequences[sequence].tokens - logical * (size || 1)));
  const isShared = (block) => view.counts[block] > 1 || (view.holders.get(block) || []).length > 1;
  const owned = (owners) => {
    const all = [...new Set(owners)].map((i) => labels[i]);
    return all.join("").length <= 3 ? all.join("") : `${all[0]}+${all.length - 1}`;
  };
  const wordAt = (sequence, position) =>
    view.sequences[sequence].texts[position] || `${labels[sequence]}${position}`;

  // The slots of a block as words; `first` is the number that its first slot bears, `noun` what it counts.
  function slots(box, block, owners, holder, first, key, noun) {
    const has = holder ? filledIn(holder) : 0;
    return Array.from({ length: size }, (_, offset) => {
      const position = holder ? holder.logical * size + offset : -1;
      const full = offset < has;
      const text = full ? view.sequences[holder.sequence].texts[position] : "";
      const word = full ? wordAt(holder.sequence, position) : "";
      const said = text ? JSON.stringify(text) : `token ${position}`;
      const whose = full ? `${said}${noun === "Slot" ? ` of ${names[holder.sequence]}` : ""}` : "empty";
      return {
        ...{ key: `${key}.${offset}`, block, offset, owners: huesOf(owners), full, word, number: first + offset },
        box: at.slotIn(box, offset),
        isNew: full && view.grown.has(holder.sequence) && position >= view.grown.get(holder.sequence),
        shared: owners.length > 1,
        token: full ? { sequence: names[holder.sequence], position } : null,
        says: `${noun} ${first + offset}: ${whose}`,
      };
    });
  }
  // The same for a block that no table names, with what is still in it.
  function unnamed(box, block, owners, keeps) {
    const words = keeps ? view.words.get(block) || [] : [];
    return slots(box, block, owners, null, block * size, `${block}`, "Slot").map((item, offset) =>
      offset < words.length ? { ...item, faded: words[offset], says: `Slot ${item.number}: ${JSON.stringify(words[offset])}, kept` } : item,
    );
  }
  function cell(box, block, owners, has, label, corner, key, token, says) {
    const count = view.counts[block] || 0;
    return { key, block, box, owners: huesOf(owners), share: has / (size || 1), used: owners.length > 0 || count > 0, count, label, corner,
      token, says, shared: isShared(block) }; // prettier-ignore
  }

  const left = [];
  view.sequences.forEach(({ blocks, tokens }, i) => {
    const first = { tag: labels[i], owner: story.hues[i], top: tops[i] };
    if (names[i] !== labels[i] || at.left === "words") {
      const name = names[i] === labels[i] ? "" : `${names[i]}: `;
      first.head = `${name}${plural(tokens, "token")} in ${plural(blocks.length, "block")}`;
    }
    if (at.left === "words") {
      blocks.forEach((block, logical) => {
        const box = at.logical(tops[i], logical);
        const items = slots(box, block, [i], { sequence: i, logical }, logical * size, `${i}:${logical}`, "Token");
        const label = `Logical block ${logical} of ${names[i]}, block ${block} of the pool`;
        left.push({ key: `${i}:${logical}`, label, box, items, before: `${logical}`, after: `\u2192 ${block}`,
          first: logical === 0 ? first : null }); // prettier-ignore
      });
      return;
    }
    for (let start = 0; start < blocks.length; start += at.leftRow) {
      const items = blocks.slice(start, start + at.leftRow).map((block, j) => {
        const logical = start + j;
        const has = filledIn({ sequence: i, logical });
        const token = has && size ? { sequence: names[i], position: logical * size } : null;
        const says = `Logical block ${logical} of ${names[i]}: block ${block} of the pool`;
        return cell(at.logical(tops[i], logical), block, [i], has, `${block}`, "", `${i}:${logical}`, token, says);
      });
      const label = `${names[i]}, logical blocks ${start} to ${start + items.length - 1}`;
      left.push({ key: `${i}:${start}`, label, items, first: start === 0 ? first : null });
    }
  });

  const right = [];
  const perRow = at.right === "words" ? 1 : at.rightRow;
  for (let start = 0; start < story.num_blocks; start += perRow) {
    const end = Math.min(start + perRow, story.num_blocks);
    const row = { key: `${start}`, label: perRow === 1 ? `Block ${start}` : `Blocks ${start} to ${end - 1}`, items: [] };
    for (let block = start; block < end; block += 1) {
      const held = view.holders.get(block) || [];
      const owners = held.map(({ sequence }) => sequence);
      const box = at.pool(block);
      const count = view.counts[block];
      if (at.right === "words") {
        const most = held.reduce((a, b) => (a && filledIn(a) >= filledIn(b) ? a : b), null);
        const kept = !owners.length && count <= 0 && view.cached.has(block);
        const state = owners.length ? owned(owners) : count > 0 ? "used" : kept ? "cached" : "free";
        const whose = owners.length ? `of ${[...new Set(owners)].map((i) => names[i]).join(" and ")}` : state;
        Object.assign(row, { box, kept, owners: huesOf(owners), tag: state, before: `${block}`, after: count > 1 ? `\u00d7${count}` : "" });
        row.label += `, ${whose}${count > 1 ? `, ref count ${count}` : ""}`;
        if (owners.length) row.items = slots(box, block, owners, most, block * size, `${block}`, "Slot");
        else row.items = unnamed(box, block, count > 0 ? [-1] : [], kept || count > 0);
      } else {
        const has = held.length ? Math.max(...held.map(filledIn)) : size || 1;
        const whose = held.map(({ sequence, logical }) => `logical block ${logical} of ${names[sequence]}`).join(", ");
        const says = `Block ${block}: ${whose || (count > 0 ? "in use" : view.cached.has(block) ? "cached" : "free")}${count > 1 ? `, ref count ${count}` : ""}`;
        const label = at.left === "none" ? "" : owned(owners);
        const kept = !owners.length && count <= 0 && view.cached.has(block);
        row.items.push({ ...cell(box, block, owners, has, label, `${block}`, `${block}`, null, says), kept });
      }
    }
    const often = at.rightCell >= 12 ? 1 : Math.floor(24 / at.rightCell);
    if (perRow > 1 && at.rightCell < 36 && (start / perRow) % often === 0) {
      row.address = { x: at.rightX + TABLE - 8, y: row.items[0].box.y + 11, text: numeral(start) };
    }
    right.push(row);
  }
  return { left, right, tops, filledIn };
}

const plural = (n, one) => `${numeral(n)} ${one}${n === 1 ? "" : "s"}`;
const colourOf = (owner) => (owner < 0 ? NOBODY : COLOURS[owner % COLOURS.length]);
const inkOf = (owner) => (owner < 0 ? INKS[0] : INKS[owner % INKS.length]);

// What of a small cell is filled, and how: pairs of a colour and a width from 0 to 1; and what is written on it.
function lookOf(item) {
  const owner = item.owners.length ? item.owners[0] : -1;
  const size = item.box.w;
  if (size < SMALL) return { owner, words: [] };
  const large = size >= 36;
  const [label, corner] = item.label ? [item.label, large ? item.corner : ""] : [item.corner, ""];
  const { x, y } = item.box;
  const font = large ? 13 : size >= 28 ? 11 : 9.5;
  const words = [[x + size / 2, y + size / 2 + (corner ? 8 : 4.5), label, font, "middle", 700]];
  if (corner) words.push([x + 4, y + 12, corner, 10, "start", 400]);
  if (large && item.corner && item.count > 1) words.push([x + size - 3, y + 12, `\u00d7${item.count}`, 10, "end", 700]);
  return { owner, words };
}

function drawSlot(item, id) {
  const { x, y, w } = item.box;
  const at = { x: x + 1, y: y + 1, width: w - 2, height: SLOT - 2, rx: 3 };
  const empty = item.owners.length ? "plw-explorer-empty" : "plw-explorer-empty plw-explorer-free";
  const middle = x + w / 2;
  return [
    item.full
      ? drawing("rect", { ...at, class: "plw-explorer-token", style: `fill:${colourOf(item.owners[0])}` })
      : drawing("rect", { ...at, x: x + 1.5, y: y + 1.5, width: w - 3, height: SLOT - 3, class: empty }),
    item.full && item.shared && drawing("rect", { ...at, fill: `url(#${id}-thin)` }),
    item.isNew &&
      drawing("rect", { x: x + 2, y: y + 2, width: w - 4, height: SLOT - 4, rx: 3, class: "plw-explorer-changed" }),
    drawing("text", { x: x + 5, y: y + 11, class: "plw-explorer-number" }, `${item.number}`),
    item.full &&
      drawing(
        "text",
        { x: middle, y: y + 26, class: `plw-explorer-word${item.shared ? " plw-explorer-halo" : ""}` },
        shortened(item.word, w - 2),
      ),
    item.faded &&
      drawing("text", { x: middle, y: y + 26, class: "plw-explorer-word plw-explorer-halo plw-explorer-muted" }, shortened(item.faded, w - 2)),
  ];
}

function drawCell(item, id) {
  const { owner, words } = lookOf(item);
  const inset = item.box.w >= 12 ? 1 : 0.5;
  const side = item.box.w - 2 * inset;
  const at = { x: item.box.x + inset, y: item.box.y + inset, height: side, rx: side > 16 ? 3 : 0 };
  const full = item.share >= 1;
  const fill = `fill:${colourOf(owner)}`;
  const onColour = full && item.used;
  const ink = onColour ? `fill:${inkOf(owner)};stroke:${item.shared ? colourOf(owner) : "none"}` : null;
  const style = item.used ? "plw-explorer-halo" : "plw-explorer-muted";
  return [
    !item.used && drawing("rect", { ...at, width: side, class: "plw-explorer-track" }),
    item.kept && drawing("rect", { ...at, width: side, fill: `url(#${id}-cached)` }),
    item.used && !full && drawing("rect", { ...at, width: side, class: "plw-explorer-token", style: fill }),
    item.used && drawing("rect", { ...at, width: side * item.share, style: fill }),
    item.shared && drawing("rect", { ...at, width: side, fill: `url(#${id}-shared)` }),
    words.map(([x, y, text, size, anchor, weight]) => {
      const look = { "font-size": size, "text-anchor": anchor, "font-weight": weight };
      return text && drawing("text", { x, y, ...look, class: style, style: ink }, text);
    }),
  ];
}

// What stands beside the blocks of a row.
function drawBeside(row, at, id) {
  const out = [];
  const note = (x, y, name, text) => out.push(drawing("text", { x, y, class: `plw-explorer-${name}` }, text));
  if (row.box) {
    const { x, y, w, h } = row.box;
    const middle = y + h / 2 + 5;
    if (row.tag === undefined) {
      note(x - 8, middle, "index", row.before);
      note(x + w + 8, middle, "entry", row.after);
    } else {
      note(x - PHYSICAL + 22, middle, "block", row.before);
      if (row.kept) out.push(drawing("rect", { x: x + 1, y: y + 1, width: w - 2, height: h - 2, rx: 3, fill: `url(#${id}-cached)` }));
      if (row.owners.length) out.push(...drawTag(x - 38, y + h / 2 - 11, row.tag, row.owners, 33, id));
      else note(x - 22, middle - 1, row.kept ? "state plw-explorer-long" : "state", row.tag);
      if (row.after) note(x + w + 5, middle, "entry", row.after);
    }
  }
  if (row.address) note(row.address.x, row.address.y, "address", row.address.text);
  if (row.first) {
    const { tag, owner, top, head } = row.first;
    const words = at.left === "words";
    out.push(...drawTag(words ? LOGICAL : 0, words ? top + HEAD - 34 : top, tag, [owner], words ? 24 : 30, id));
    if (words) note(LOGICAL + 32, top + HEAD - 18, "head", head);
  }
  return out;
}

function drawTag(x, y, label, owners, width, id) {
  const at = { x, y, width, height: 22, rx: 5 };
  const many = owners.length > 1;
  const style = `fill:${inkOf(owners[0])}${many ? `;stroke:${colourOf(owners[0])}` : ""}`;
  const ink = { x: x + width / 2, y: y + 16, class: `plw-explorer-tag${many ? " plw-explorer-halo" : ""}`, style };
  return [
    drawing("rect", { ...at, style: `fill:${colourOf(owners[0])}` }),
    many && drawing("rect", { ...at, fill: `url(#${id}-shared)` }),
    drawing("text", ink, label),
  ].filter(Boolean);
}

// One side as SVG. `update(rows)` draws what has changed; `nodes` has the cells by key.
function vectorSide(place, label, id, testid) {
  const grid = drawing("svg", { role: "grid", "aria-label": label, "data-testid": testid });
  place.replaceChildren(grid);
  const nodes = new Map();
  let drawn = new Map();
  function drawRow(row, at) {
    const cells = row.items.map((item) => {
      const parts = drawing("g", { "aria-hidden": "true" }, item.offset === undefined ? drawCell(item, id) : drawSlot(item, id));
      const node = drawing("g", { role: "gridcell", class: "plw-explorer-cell", tabindex: -1, "aria-label": item.says,
        "data-key": item.key, "data-block": item.block }, parts); // prettier-ignore
      node.item = item;
      nodes.set(item.key, node);
      return node;
    });
    const beside = drawing("g", { "aria-hidden": "true" }, drawBeside(row, at, id));
    return drawing("g", { role: "row", "aria-label": row.label }, beside, cells);
  }
  return {
    nodes,
    update(rows, at) {
      const next = new Map();
      let behind = null;
      const keep = new Set();
      for (const row of rows) {
        const looks = JSON.stringify(row);
        const old = drawn.get(row.key);
        const node = old && old.looks === looks ? old.node : drawRow(row, at);
        next.set(row.key, { looks, node });
        row.items.forEach(({ key }) => keep.add(key));
        if (old && old.node !== node) old.node.replaceWith(node);
        else if ((behind ? behind.nextSibling : grid.firstChild) !== node) (behind ? behind.after(node) : grid.prepend(node));
        behind = node;
      }
      for (const [key, { node }] of drawn) if (!next.has(key)) node.remove();
      for (const key of nodes.keys()) if (!keep.has(key)) nodes.delete(key);
      drawn = next;
    },
    size(x, width, height) {
      build(grid, { width, height, viewBox: `${x} 0 ${width} ${height}` }, []);
      drawn = new Map(); // everything has moved
      grid.replaceChildren();
    },
  };
}

// One side as a canvas. What has the keyboard's focus is a single cell that is nowhere to be seen.
function canvasSide(place, label, id, testid) {
  const canvas = element("canvas", { "data-testid": testid });
  const cursor = element("div", { role: "gridcell", tabindex: 0, class: "plw-explorer-cell plw-explorer-cursor" });
  const grid = element("div", { role: "grid", "aria-label": label }, element("div", { role: "row" }, cursor));
  place.replaceChildren(canvas, grid);
  let origin = 0;
  return {
    cursor,
    canvas,
    update(rows, at) {
      const pen = canvas.getContext("2d");
      const scale = window.devicePixelRatio || 1;
      const style = (name) => {
        cursor.style.color = `var(--plw-${name})`;
        return getComputedStyle(cursor).color;
      };
      const [track, text, muted] = ["track", "text", "muted"].map(style);
      const family = getComputedStyle(place).fontFamily;
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, canvas.width, canvas.height);
      pen.translate(-origin, 0);
      const write = (x, y, words, size, anchor, weight, colour) => {
        pen.font = `${weight} ${size}px ${family}`;
        pen.textAlign = anchor === "middle" ? "center" : anchor;
        pen.fillStyle = colour;
        pen.fillText(words, x, y);
      };
      for (const row of rows) {
        for (const item of row.items) {
          const { owner, words } = lookOf(item);
          const inset = item.box.w >= 12 ? 1 : 0.5;
          const side = item.box.w - 2 * inset;
          const [x, y] = [item.box.x + inset, item.box.y + inset];
          pen.fillStyle = item.used ? colourOf(owner) : track;
          pen.globalAlpha = item.used && item.share < 1 ? 0.3 : 1;
          pen.fillRect(x, y, side, side);
          pen.globalAlpha = 1;
          if (item.used && item.share < 1) pen.fillRect(x, y, side * item.share, side);
          if (item.kept) {
            pen.fillStyle = "rgb(240 228 66 / 45%)";
            pen.fillRect(x, y, side, side);
            pen.fillStyle = "#8A6D00";
            pen.fillRect(x + side / 4, y + side / 4, side / 4, side / 4);
          }
          if (item.shared) {
            pen.strokeStyle = text;
            pen.lineWidth = Math.max(0.75, side / 9);
            pen.beginPath();
            for (const part of side < 12 ? [1] : [0.6, 1.4]) {
              pen.moveTo(x + Math.max(0, part - 1) * side, y + Math.min(1, part) * side);
              pen.lineTo(x + Math.min(1, part) * side, y + Math.max(0, part - 1) * side);
            }
            pen.stroke();
          }
          const ink = !item.used ? muted : item.share < 1 ? text : inkOf(owner);
          for (const [wx, wy, said, ...look] of words) write(wx, wy, said, ...look, ink);
        }
        if (row.address) write(row.address.x, row.address.y, row.address.text, 11, "end", 400, muted);
        if (row.first) {
          const { tag, owner, top } = row.first;
          pen.fillStyle = colourOf(owner);
          pen.fillRect(0, top, 30, 22);
          write(15, top + 16, tag, 13, "middle", 700, inkOf(owner));
        }
      }
    },
    size(x, width, height) {
      const scale = window.devicePixelRatio || 1;
      origin = x;
      Object.assign(canvas, { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
      Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    },
  };
}
