// The tile viewer: draws `story` (see tiles_story.py), moves `program`, `step` and `access`.

function render({ model, el }) {
  const id = freshId();
  let story; // these follow from the story and the traits
  let index; // of the program
  let pointed = -1; // the block under the pointer or the keyboard's focus
  let own; // the blocks of the program's sequence

  const { first, back, next, last, slider, count } = stepControls();
  const controls = element("div", { class: "plw-control" }, first, back, next, last, slider, count);
  const caption = element("div", { class: "plw-tiles-caption", "aria-live": "polite", "data-testid": "caption" });
  const grid = (name, label) => drawing("svg", { role: "grid", "aria-label": label, "data-testid": name });
  const programs = grid("programs", "Programs");
  const pool = grid("pool", "Pool");
  const sequence = grid("sequence", "Sequence");
  const heading = (words) => element("p", { class: "plw-heading" }, words);
  const programsHead = heading("Programs");
  const poolHead = heading("");
  const sequenceHead = heading("");
  const legend = element("div", { class: "plw-tiles-legend", role: "list", "aria-label": "Marks" });
  const sequencePart = element("div", {}, sequenceHead, sequence);
  const poolPart = element("div", { class: "plw-tiles-pool" }, poolHead, pool, sequencePart, legend);
  const programsPart = element("div", { class: "plw-tiles-programs" }, programsHead, programs);
  const line = element("p", { class: "plw-tiles-line", "aria-live": "polite", "data-testid": "line" });
  const accesses = element("div", { class: "plw-tiles-accesses", role: "group", "aria-label": "Reads and writes of this step", "data-testid": "accesses" });
  const values = element("div", { class: "plw-tiles-values", "data-testid": "values" });
  const stage = element("div", { class: "plw-tiles-stage" }, programsPart, poolPart);
  const root = element(
    "div",
    { class: "plw-root plw-tiles", role: "group", "aria-label": "Tile viewer", "data-lm-suppress-shortcuts": "true", "data-testid": "tiles" },
    ...[controls, caption, stage, line, heading("Reads and writes of this step"), accesses, values],
  );
  el.append(root);

  const program = () => story.programs[index];
  const step = () => program().steps[now()];
  const now = () => Math.min(model.get("step"), program().steps.length - 1);
  const light = () => Math.min(model.get("access"), step().accesses.length - 1);

  // Moving. Python hears of a step a little later; of a program or an access at once.
  const moved = movedTrait(model, "step", () => drawStep());
  function go(to) {
    const wanted = Math.max(0, Math.min(program().steps.length - 1, to));
    if (wanted === model.get("step")) return;
    model.set("access", -1);
    moved.set(wanted);
  }
  function choose(to) {
    if (to === index) return;
    const steps = story.programs[to].steps.length;
    model.set("access", -1);
    if (model.get("step") >= steps) model.set("step", steps - 1);
    model.set("program", story.programs[to].pid);
    model.save_changes();
  }
  function pick(access) {
    model.set("access", access === light() ? -1 : access);
    model.save_changes();
  }
  first.addEventListener("click", () => go(0));
  back.addEventListener("click", () => go(now() - 1));
  next.addEventListener("click", () => go(now() + 1));
  last.addEventListener("click", () => go(program().steps.length - 1));
  slider.addEventListener("input", () => go(Number(slider.value)));

  // Words.
  function programInWords(at) {
    const pid = story.programs[at].pid;
    const used = Math.max(1, ...story.grid.map((size, i) => (size > 1 ? i + 1 : 1)));
    const means = story.axes.slice(0, used).map((axis, i) => (axis.length > 1 ? `${axis} ${pid[i]}` : ""));
    const meant = means.filter(Boolean).join(", ");
    return `Program (${pid.slice(0, used).join(", ")})${meant ? `: ${meant}` : ""}`;
  }
  const fromTo = (what, from, to) => (from === to ? `${what} ${from}` : `${what}s ${from} to ${to}`);
  function blockInWords(one) {
    const { tables, lens, size } = story.pool;
    const holders = tables.flatMap((blocks, i) => {
      const logical = blocks.indexOf(one.block);
      if (logical < 0) return [];
      const to = Math.min(lens[i], (logical + 1) * size) - 1;
      return [`block ${logical} of sequence ${lettersOf(i)} (${fromTo("position", logical * size, to)})`];
    });
    const said = [`Block ${one.block}${holders.length ? ` is ${holders.join(" and ")}` : tables.length ? " is nobody's" : ""}`];
    for (const [kind, verb] of [["load", "reads"], ["store", "writes"]]) {
      const runs = runsOf(step(), light(), kind);
      const slotsOf = (part) => runs[part].filter(([block]) => block === one.block).map(([, from, to]) => fromTo("slot", from, to)).join(", ");
      const [k, v] = [slotsOf("k"), slotsOf("v")];
      const found = k === v ? [["K and V", k]] : [["K", k], ["V", v]];
      for (const [which, slots] of found) if (slots) said.push(`this step ${verb} ${which} of ${slots}`);
    }
    return `${said.join("; ")}.`;
  }
  const lanesInWords = ({ on, lanes }) => (lanes === 1 ? (on ? "1 number" : "off") : `${numeral(on)} of ${numeral(lanes)} lanes on`);
  const HINT = "Point at a block, or go there with Tab and the arrow keys, to see whose it is. Choose a line below to light its slots alone.";

  // Drawing: all, one step, what is in the light.
  function drawAll() {
    story = model.get("story");
    const pid = model.get("program").join();
    index = Math.max(0, story.programs.findIndex((each) => each.pid.join() === pid));
    const focused = programs.contains(root.getRootNode().activeElement);
    const axes = `\u2192 ${story.axes[0]}${story.shape[1] > 1 ? `, \u2193 ${story.axes[1]}` : ""}`;
    programsHead.replaceChildren(story.listed ? "Programs traced" : "Programs", story.listed ? "" : element("span", {}, axes));
    drawPrograms(programs, layOutPrograms(story.shape), story, index, programInWords);
    if (focused) programs.querySelector("[tabindex='0']").focus({ preventScroll: true });
    const most = program().steps.length - 1;
    slider.max = most;
    for (const one of [first, back, next, last, slider, count]) one.hidden = most === 0;
    controls.hidden = most === 0;
    poolPart.hidden = !story.pool.blocks.length;
    own = ownBlocks(story.pool, program().sequence);
    sequencePart.hidden = !own.length;
    drawStep();
  }
  function drawStep() {
    const most = program().steps.length - 1;
    const at = now();
    slider.value = at;
    slider.style.setProperty("--plw-done", `${most ? (100 * at) / most : 100}%`);
    slider.setAttribute("aria-valuetext", `Step ${at} of ${most}, ${step().label}`);
    count.replaceChildren("step ", element("b", {}, at), ` of ${most}`);
    for (const one of [first, back]) one.setAttribute("aria-disabled", at === 0);
    for (const one of [next, last]) one.setAttribute("aria-disabled", at === most);
    const said = `${most ? `${step().label}: ` : ""}${step().says}.`;
    caption.replaceChildren(element("p", {}, programInWords(index)), element("p", {}, said[0].toUpperCase() + said.slice(1)));
    drawAccesses();
    drawValues();
    drawLight();
  }
  function drawLight() {
    const on = light();
    const state = { reads: runsOf(step(), on, "load"), writes: runsOf(step(), on, "store"), earlier: touchedBefore(program(), now(), on) };
    const { blocks, size, parts, left_out: leftOut } = story.pool;
    if (blocks.length) {
      const width = Math.max(240, poolPart.clientWidth);
      const head = program().head >= 0 ? `, KV head ${program().head}` : "";
      poolHead.textContent = `Pool${head}${leftOut ? `; ${numeral(leftOut)} other blocks are not drawn` : ""}`;
      redraw(pool, layOutBlocks(width, blocks.length, size, parts.length), poolBlocks(story.pool), state, "pool");
      if (own.length) {
        const letter = lettersOf(program().sequence);
        sequenceHead.textContent = `Sequence ${letter}: ${numeral(story.pool.lens[program().sequence])} tokens, in order`;
        redraw(sequence, layOutBlocks(width, own.length, size, parts.length), own, state, "own");
      }
      drawLegend(state);
    }
    accesses.querySelectorAll("button").forEach((each, at) => each.setAttribute("aria-pressed", at === on));
    linkBlocks();
  }
  // Drawn anew, with the keyboard's focus on the block on which it was.
  function redraw(svg, at, blocks, state, name) {
    const active = root.getRootNode().activeElement;
    const cells = () => [...svg.querySelectorAll(".plw-tiles-block")];
    const before = Math.max(0, cells().findIndex((cell) => cell.getAttribute("tabindex") === "0"));
    const focused = svg.contains(active);
    drawBlocks(svg, at, story.pool, blocks, state, `${id}-${name}`, blockInWords);
    const again = cells()[Math.min(before, blocks.length - 1)];
    if (again) again.setAttribute("tabindex", "0");
    if (again && focused) again.focus({ preventScroll: true });
  }
  function drawLegend({ reads, writes, earlier }) {
    const any = (runs) => runs.k.length + runs.v.length > 0;
    const colour = colourOf(program().sequence);
    const hatch = `url(#${id}-pool-before-${program().sequence < 0 ? "none" : program().sequence % COLOURS.length})`;
    const marks = [
      [any(reads), "read in this step", { fill: colour }, true],
      [any(writes), "written in this step", { fill: `url(#${id}-pool-written)` }, true],
      [any(earlier), "touched before by this program", { fill: hatch }],
      [story.pool.tables.length, "holds a token", { fill: colour, "fill-opacity": 0.25 }],
    ];
    legend.hidden = !marks.some(([occurs]) => occurs);
    legend.replaceChildren(
      ...marks
        .filter(([occurs]) => occurs)
        .map(([, says, look, outlined]) => {
          const svg = drawing("svg", { width: 18, height: 13, "aria-hidden": "true" }, drawing("rect", { width: 18, height: 13, ...look }));
          if (outlined) svg.append(drawing("rect", { x: 0.75, y: 0.75, width: 16.5, height: 11.5, class: "plw-tiles-lit" }));
          return element("span", { role: "listitem" }, svg, says);
        }),
    );
  }
  function drawAccesses() {
    const active = root.getRootNode().activeElement;
    const focused = accesses.contains(active) ? [...accesses.children].indexOf(active) : -1;
    const lines = step().accesses.map((each, at) =>
      element(
        "button",
        { type: "button", class: "plw-tiles-access", tabindex: at ? -1 : 0, "data-testid": `access-${at}` },
        element("span", { class: "plw-tiles-number" }, each.line),
        element("code", {}, story.source[each.line] || ""),
        element("span", { class: "plw-tiles-lanes" }, lanesInWords(each)),
        element("span", { class: "plw-tiles-what" }, element("b", {}, each.kind === "load" ? "reads" : "writes"), ` ${each.tensor}: ${each.says}`),
      ),
    );
    accesses.replaceChildren(...(lines.length ? lines : [element("p", {}, "None.")]));
    if (focused >= 0 && lines.length) lines[Math.min(focused, lines.length - 1)].focus({ preventScroll: true });
  }
  function drawValues() {
    const told = step().values;
    const most = Math.max(0, ...program().steps.flatMap((each) => each.values.map(([, , now]) => now.length)));
    values.hidden = !most;
    values.style.minHeight = "";
    if (!told.length) {
      if (most) values.replaceChildren(element("p", { class: "plw-heading" }, "At the end of this step"), element("p", { class: "plw-tiles-none" }, "This step is not one of the loop's."));
      return;
    }
    const head = element("tr", {}, element("th", { scope: "col" }, "row"), Array.from({ length: most }, (_, row) => element("th", { scope: "col" }, row)));
    const rows = told.map(([name, old, numbers]) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, name),
        numbers.map((number, row) => {
          const changed = row < old.length && old[row] !== number;
          return element("td", { class: changed && "plw-tiles-changed" }, number, changed && element("small", {}, `was ${old[row]}`));
        }),
      ),
    );
    values.replaceChildren(element("p", { class: "plw-heading" }, "At the end of this step"), element("table", {}, element("thead", {}, head), element("tbody", {}, rows)));
  }

  // The same block in the pool and in the sequence is in the light together.
  function linkBlocks() {
    for (const cell of root.querySelectorAll(".plw-tiles-block")) {
      cell.classList.toggle("plw-tiles-linked", Number(cell.dataset.block) === pointed);
    }
    const one = pointed >= 0 && poolBlocks(story.pool).find(({ block }) => block === pointed);
    const said = one ? blockInWords(one) : HINT;
    line.hidden = !story.pool.blocks.length;
    if (line.textContent !== said) line.textContent = said;
    line.classList.toggle("plw-tiles-hint", !one);
  }
  const blockOf = (node) => {
    const cell = node && node.closest && node.closest(".plw-tiles-block");
    return cell ? Number(cell.dataset.block) : -1;
  };
  function point(block) {
    if (block === pointed) return;
    pointed = block;
    linkBlocks();
  }
  const focusedBlock = () => blockOf(root.getRootNode().activeElement);
  for (const svg of [pool, sequence]) {
    svg.addEventListener("pointerover", (event) => point(blockOf(event.target)));
    svg.addEventListener("pointerleave", () => point(focusedBlock()));
    svg.addEventListener("focusin", (event) => point(blockOf(event.target)));
    svg.addEventListener("focusout", () => setTimeout(() => root.isConnected && point(focusedBlock())));
    svg.addEventListener("click", (event) => {
      const cell = event.target.closest(".plw-tiles-block");
      if (cell && event.isTrusted) cell.focus({ preventScroll: true });
    });
    roving(svg, ".plw-tiles-block", (cells, cell, key) => {
      const by = { ArrowUp: -1, ArrowDown: 1 }[key];
      if (!by) return alongLine(cells, cell, key);
      const rows = [...svg.querySelectorAll("[role=row]")];
      const row = rows.indexOf(cell.parentNode);
      const column = [...cell.parentNode.children].indexOf(cell);
      const to = rows[row + by];
      return to && to.children[Math.min(column, to.children.length - 1)];
    });
  }
  programs.addEventListener("click", (event) => {
    const cell = event.target.closest(".plw-tiles-program");
    if (!cell) return;
    if (event.isTrusted) cell.focus({ preventScroll: true });
    choose(Number(cell.dataset.program));
  });
  // The arrow keys choose, as they do among radio buttons.
  roving(programs, ".plw-tiles-program", (cells, cell, key) => {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
    const place = (each) => each.dataset.place.split(",").map(Number);
    const [x, y] = place(cell);
    let to = { Home: cells[0], End: cells[cells.length - 1] }[key];
    if (by) {
      // The nearest one that was traced, in that direction.
      const along = (each) => (place(each)[0] - x) * by[0] + (place(each)[1] - y) * by[1];
      const aside = (each) => Math.abs((place(each)[0] - x) * by[1]) + Math.abs((place(each)[1] - y) * by[0]);
      const ahead = cells.filter((each) => along(each) > 0).sort((a, b) => aside(a) - aside(b) || along(a) - along(b));
      to = ahead.find((each) => aside(each) === 0) || ahead[0];
    }
    if (!to) return null;
    choose(Number(to.dataset.program));
    return programs.querySelector(`[data-program="${to.dataset.program}"]`);
  });
  accesses.addEventListener("click", (event) => {
    const at = [...accesses.children].indexOf(event.target.closest(".plw-tiles-access"));
    if (at >= 0) pick(at);
  });
  roving(accesses, ".plw-tiles-access", alongLine);
  root.addEventListener("keydown", (event) => {
    event.stopPropagation(); // a key pressed in here is meant for the widget, not for the notebook around it
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { PageDown: 1, PageUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      go(now() + by);
    }
    if (event.key === "Escape" && light() >= 0) pick(light());
  });

  model.on("change:story", drawAll);
  model.on("change:program", drawAll);
  model.on("change:access", drawLight);
  drawAll();

  const stopWatching = whenLooksChange(stage, drawLight, drawLight);
  const stopListening = letGoOfKeys(root);
  return () => {
    stopListening();
    stopWatching();
    moved.stop();
    model.off("change:story", drawAll);
    model.off("change:program", drawAll);
    model.off("change:access", drawLight);
  };
}

export default { render };
