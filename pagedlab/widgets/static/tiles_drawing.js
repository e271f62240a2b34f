// What the tile viewer draws: the grid of programs, and blocks with the slots that a step touches. As tiles_picture.py.

const colourOf = (sequence) => (sequence >= 0 ? COLOURS[sequence % COLOURS.length] : "#56B4E9");
const lettersOf = (index) => (index >= 26 ? lettersOf(Math.floor(index / 26) - 1) : "") + String.fromCharCode(65 + (index % 26));

// The runs of slots in the light, by cache: of one access, or of the whole step. `kind`: "load", "store".
function runsOf(step, access, kind) {
  const found = { k: [], v: [] };
  step.accesses.forEach((each, at) => {
    if (each.part && (access < 0 || access === at) && (!kind || kind === each.kind)) found[each.part].push(...each.runs);
  });
  return found;
}
function touchedBefore(program, step, access) {
  const found = { k: [], v: [] };
  for (let at = 0; at < step + (access >= 0 ? 1 : 0); at += 1) {
    const runs = runsOf(program.steps[at], -1);
    for (const part of ["k", "v"]) found[part].push(...runs[part]);
  }
  return found;
}

// Blocks of the pool, and those of one sequence in its order: { block, head, owner, filled, logical }.
const poolBlocks = ({ blocks, owners, filled }) =>
  blocks.map((block, i) => ({
    block,
    head: `${block} ${owners[i].map(lettersOf).join("")}`.trim(),
    owner: owners[i].length ? owners[i][0] : -1,
    filled: filled[i],
  }));
function ownBlocks(pool, sequence) {
  if (sequence < 0 || sequence >= pool.tables.length) return [];
  return pool.tables[sequence].slice(0, pool.most).map((block, logical) => ({
    block,
    logical,
    head: `${logical} \u2192 ${block}`,
    owner: sequence,
    filled: Math.min(pool.size, pool.lens[sequence] - logical * pool.size),
  }));
}

// One group for each block; `state` is { reads, writes, earlier }. Returns rows of cells, for the keyboard.
function drawBlocks(svg, at, pool, blocks, state, id, says) {
  svg.replaceChildren(tilePatterns(id));
  build(svg, { width: Math.ceil(at.width), height: Math.ceil(at.height) }, []);
  const wide = (slots) => (at.slot ? slots * at.slot : slots ? at.cell : 0);
  for (let first = 0; first < blocks.length; first += at.perLine) {
    const row = drawing("g", { role: "row" });
    blocks.slice(first, first + at.perLine).forEach((one, column) => {
      const [x, y] = at.corner(first + column);
      if (at.slot && !column) {
        pool.parts.forEach((part, i) =>
          svg.append(drawing("text", { x: SIDE - 8, y: y + (i + 0.75) * at.part, class: "plw-tiles-side", "aria-hidden": "true" }, part.toUpperCase())),
        );
      }
      const cell = drawing("g", { role: "gridcell", class: "plw-tiles-block", tabindex: -1, "data-block": one.block, "aria-label": says(one) });
      const bar = (left, top, width, attributes) =>
        cell.append(drawing("rect", { x: left.toFixed(2), y: top, width: Math.max(0, width).toFixed(2), height: at.part, ...attributes }));
      if (at.slot) cell.append(drawing("text", { x, y: y - 5, class: "plw-tiles-head", "aria-hidden": "true" }, one.head));
      const colour = colourOf(one.owner);
      pool.parts.forEach((part, i) => {
        const top = y + i * at.part;
        bar(x, top, at.cell, { class: "plw-tiles-track" });
        if (one.owner >= 0) bar(x, top, wide(one.filled), { fill: colour, "fill-opacity": 0.25 });
        const layers = [
          [state.earlier, `url(#${id}-before-${one.owner < 0 ? "none" : one.owner % COLOURS.length})`, "earlier"],
          [state.reads, colour, "read"],
          [state.writes, `url(#${id}-written)`, "written"],
        ];
        for (const [runs, fill, name] of layers) {
          for (const [block, from, to] of runs[part]) {
            if (block !== one.block) continue;
            const left = x + (at.slot ? from * at.slot : 0);
            const width = wide(to - from + 1);
            bar(left, top, width, { fill, "data-mark": name, "data-part": part });
            if (name !== "earlier") {
              const line = { x: left + 0.75, y: top + 0.75, width: Math.max(0.5, width - 1.5), height: at.part - 1.5 };
              cell.append(drawing("rect", { ...line, class: "plw-tiles-lit" }));
            }
          }
        }
        if (at.slot >= 5) {
          let ticks = "";
          for (let slot = 1; slot < at.size; slot += 1) ticks += `M${(x + slot * at.slot).toFixed(2)} ${top}v${at.part}`;
          cell.append(drawing("path", { d: ticks, class: "plw-tiles-ticks" }));
        }
      });
      cell.append(drawing("rect", { x, y, width: at.cell, height: at.parts * at.part, class: "plw-tiles-frame" }));
      row.append(cell);
    });
    svg.append(row);
  }
}

function drawPrograms(svg, at, story, chosen, says) {
  svg.replaceChildren();
  build(svg, { width: Math.ceil(at.width), height: Math.ceil(at.height) }, []);
  const every = Math.max(1, Math.round(18 / at.cell));
  const label = (x, y, words, anchor) =>
    svg.append(drawing("text", { x, y, class: "plw-tiles-index", style: `text-anchor:${anchor}`, "aria-hidden": "true" }, words));
  const traced = new Map(story.cells.map((cell, i) => [cell.join(), i]));
  for (let z = 0; z < at.layers; z += 1) {
    const top = z * at.layer;
    if (at.layers > 1) label(0, top + HEAD - 5, `${story.axes[2]} ${z}`, "start");
    if (!story.listed) {
      for (let x = 0; x < at.columns; x += every) label(at.corner(x, 0, z)[0] + at.cell / 2, top + at.head - 5, x, "middle");
      for (let y = 0; y < at.rows; y += every) label(SIDE - 6, at.corner(0, y, z)[1] + at.cell / 2 + 4, y, "end");
    }
    for (let y = 0; y < at.rows; y += 1) {
      const row = drawing("g", { role: "row" });
      for (let x = 0; x < at.columns; x += 1) {
        const index = traced.get([x, y, z].join());
        if (index === undefined && story.listed) continue;
        const [left, high] = at.corner(x, y, z);
        const box = { x: left + 1, y: high + 1, width: at.cell - 2, height: at.cell - 2, rx: 3 };
        if (index === undefined) {
          row.append(drawing("rect", { ...box, class: "plw-tiles-untraced", "aria-hidden": "true" }));
          continue;
        }
        const on = index === chosen;
        row.append(
          drawing(
            "g",
            {
              ...{ role: "gridcell", class: "plw-tiles-program", tabindex: on ? 0 : -1, "aria-selected": String(on), "aria-label": says(index) },
              ...{ "data-program": index, "data-place": [x, z * at.rows + y].join() },
            },
            drawing("rect", box),
            on && at.cell >= 14 && drawing("circle", { cx: left + at.cell / 2, cy: high + at.cell / 2, r: 3 }),
          ),
        );
      }
      if (row.querySelector("[role]")) svg.append(row);
      else svg.append(...row.childNodes);
    }
  }
}

function tilePatterns(id) {
  const stripes = (name, turn, apart, thick, ground, over, opacity) =>
    drawing(
      "pattern",
      { id: `${id}-${name}`, width: apart, height: apart, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${turn})` },
      drawing("rect", { width: apart, height: apart, fill: ground, "fill-opacity": opacity }),
      drawing("rect", { width: thick, height: apart, fill: over }),
    );
  return drawing(
    "defs",
    {},
    stripes("before-none", 45, 5, 1.6, "#56B4E9", "#56B4E9", 0.3),
    COLOURS.map((colour, i) => stripes(`before-${i}`, 45, 5, 1.6, colour, colour, 0.4)),
    stripes("written", -45, 6, 1.5, "#D55E00", "#FFFFFF", 1),
  );
}
