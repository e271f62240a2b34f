// The block-table explorer: plays `story` (see explorer_story.py) up to `step`, shows what is `selected`.

const MOST_CHIPS = 24; // of the free list
const HINT =
  "Point at a token or a block, or go there with Tab and the arrow keys; Enter keeps it. Page Down is the next step.";

function render({ model, el }) {
  const id = freshId();
  let story; // these four follow from the story and the width
  let play;
  let at;
  let sides;
  let view; // the step that is shown
  let rows;
  let pointed = null; // what is under the pointer or the keyboard's focus

  const { first, back, next, last, slider, count } = stepControls();
  const controls = element("div", { class: "plw-control" }, first, back, next, last, slider, count);
  const caption = element("p", { class: "plw-explorer-caption", "aria-live": "polite", "data-testid": "caption" });
  const alarms = element("div", { "data-testid": "alarms" });
  const leftPlace = element("div", { class: "plw-explorer-side" });
  const rightPlace = element("div", { class: "plw-explorer-side" });
  const over = drawing("svg", { class: "plw-explorer-over", "aria-hidden": "true", "data-testid": "over" });
  const stage = element("div", { class: "plw-explorer-stage" }, leftPlace, rightPlace, over);
  const open = element("div", { class: "plw-explorer-open", role: "group", "data-testid": "open" });
  const line = element("p", { class: "plw-explorer-line", "aria-live": "polite", "data-testid": "line" });
  const free = element("div", { class: "plw-explorer-freelist", "data-testid": "free-list" });
  const legend = element("div", { class: "plw-explorer-legend", role: "list", "aria-label": "Marks" });
  const root = element(
    "div",
    {
      class: "plw-root plw-explorer",
      role: "group",
      "aria-label": "Block-table explorer",
      "data-lm-suppress-shortcuts": "true",
      "data-testid": "block-table-explorer",
    },
    controls,
    caption,
    alarms,
    stage,
    open,
    line,
    free,
    legend,
  );
  el.append(root);

  // Steps.
  const moved = movedTrait(model, "step", () => drawStep());
  function go(step) {
    const to = Math.max(0, Math.min(story.steps.length - 1, step));
    if (to !== model.get("step")) moved.set(to);
  }
  const step = () => model.get("step");
  first.addEventListener("click", () => go(0));
  back.addEventListener("click", () => go(step() - 1));
  next.addEventListener("click", () => go(step() + 1));
  last.addEventListener("click", () => go(story.steps.length - 1));
  slider.addEventListener("input", () => go(Number(slider.value)));

  // What an item, or the trait `selected`, is about: a block of the pool, and a token if there is one.
  function aboutToken({ sequence: name, position }) {
    const sequence = story.names.indexOf(name);
    const held = view.sequences[sequence];
    const logical = Math.floor(position / story.block_size);
    if (!held || position >= held.tokens || logical >= held.blocks.length) return null;
    const offset = position % story.block_size;
    return { selection: { sequence: name, position }, block: held.blocks[logical], sequence, logical, offset, position };
  }
  const aboutBlock = (block) => (block >= 0 && block < story.num_blocks ? { selection: { block }, block } : null);
  const aboutItem = (item) => (item.token ? aboutToken(item.token) : aboutBlock(item.block));
  function chosen() {
    const selected = model.get("selected");
    if ("block" in selected) return aboutBlock(selected.block);
    return "position" in selected ? aboutToken(selected) : null;
  }
  function select(about) {
    const same = about && JSON.stringify(about.selection) === JSON.stringify(model.get("selected"));
    model.set("selected", about && !same ? about.selection : {});
    model.save_changes();
    drawSelected();
  }
  function point(about) {
    if (JSON.stringify(about) === JSON.stringify(pointed)) return;
    pointed = about;
    light();
  }

  // Drawing: everything anew (another story or width), one step, or only what is in the light.
  function drawAll() {
    if (model.get("story") !== story) {
      story = model.get("story");
      play = player(story);
      slider.max = story.steps.length - 1;
    }
    const width = Math.max(320, stage.clientWidth);
    at = layOut(width, story.num_blocks, story.block_size, shapes(story));
    const most = Math.max(...shapes(story).map((sizes) => sizes.reduce((sum, size) => sum + size, 0)));
    const many = story.num_blocks + most > MOST_NODES;
    const make = (place, form, ...names) => (many && form === "blocks" ? canvasSide : vectorSide)(place, ...names);
    sides = [
      make(leftPlace, at.left, "Block tables", id, "tables"),
      make(rightPlace, at.right, "The pool", id, "pool"),
    ];
    leftPlace.hidden = at.left === "none";
    sides[0].size(0, Math.max(1, at.rightX - 8), at.height);
    sides[1].size(at.rightX - 8, width - at.rightX + 8, at.height);
    rightPlace.style.left = `${at.rightX - 8}px`;
    stage.style.height = `${at.height + 6}px`; // frames stick out a little
    build(over, { width, height: at.height, viewBox: `0 0 ${width} ${at.height}` }, []);
    controls.hidden = caption.hidden = story.steps.length < 2;
    open.hidden = at.left !== "blocks" || !story.block_size;
    const lines = Math.ceil(Math.min(64, story.block_size) / Math.max(1, Math.floor((width + 3) / 61)));
    open.style.minHeight = `${43 * lines}px`; // room for the slots, so that the page stays where it is
    drawStep();
  }

  function drawStep() {
    const active = root.getRootNode().activeElement;
    const focused = active && active.item && root.contains(active) ? active : null;
    const side = focused && leftPlace.contains(focused) ? 0 : 1;
    const key = focused && focused.item.key;
    view = play(step());
    rows = describeRows(story, at, view);
    sides[0].update(rows.left, at);
    sides[1].update(rows.right, at);
    for (const [place, drawn, list] of [[leftPlace, sides[0], rows.left], [rightPlace, sides[1], rows.right]]) {
      place.rows = list;
      if (drawn.cursor) rest(drawn, itemByKey(list, drawn.cursor.item && drawn.cursor.item.key) || firstItem(list));
      else if (![...drawn.nodes.values()].some((node) => node.getAttribute("tabindex") === "0")) {
        const node = drawn.nodes.get((firstItem(list) || {}).key);
        if (node) node.setAttribute("tabindex", 0);
      }
    }
    if (focused && sides[side].nodes) {
      const again = sides[side].nodes.get(key) || [...sides[side].nodes.values()][0];
      if (again && again !== focused) again.focus({ preventScroll: true });
    }
    pointed = focused && !focused.isConnected ? null : pointed;
    drawWords();
    drawSelected();
  }

  const firstItem = (list) => list.length && list[0].items[0];
  const itemByKey = (list, key) => list.flatMap((row) => row.items).find((item) => item.key === key);
  function rest(side, item) {
    side.cursor.item = item || null;
    side.cursor.setAttribute("aria-label", item ? item.says : "No blocks");
  }

  // What is said around the drawing.
  function drawWords() {
    const { steps } = story;
    const now = view.step;
    slider.value = step();
    slider.style.setProperty("--plw-done", `${steps.length > 1 ? (100 * step()) / (steps.length - 1) : 100}%`);
    slider.setAttribute("aria-valuetext", `Step ${step()} of ${steps.length - 1}: ${now.says}`);
    count.replaceChildren("step ", element("b", {}, numeral(step())), ` of ${numeral(steps.length - 1)}`);
    // A button that is switched off loses the keyboard: these only say that they are.
    for (const one of [first, back]) one.setAttribute("aria-disabled", step() === 0);
    for (const one of [next, last]) one.setAttribute("aria-disabled", step() === steps.length - 1);
    if (caption.textContent !== now.says) caption.textContent = now.says;
    caption.classList.toggle("plw-explorer-failed", now.failed);
    alarms.replaceChildren(
      ...now.problems.slice(0, 4).map(([, says]) => element("p", { class: "plw-explorer-alarm" }, says)),
    );

    const wrong = now.problems.map(([block]) => block);
    const chips = view.free.slice(0, MOST_CHIPS).map((block, i) => {
      const mark = i === 0 && story.order_known ? "plw-explorer-next" : "";
      const alarm = wrong.includes(block) ? " plw-explorer-chip-wrong" : "";
      const kept = view.cached.has(block) ? " plw-explorer-chip-kept" : "";
      return element("span", { "data-block": block, class: mark + alarm + kept }, `${block}`);
    });
    free.replaceChildren(
      element("b", {}, story.order_known ? "Free list, next block first" : "Free blocks"),
      ...(chips.length ? chips : ["empty: the pool is full"]),
      view.free.length > chips.length ? `and ${numeral(view.free.length - chips.length)} more` : "",
    );

    legend.replaceChildren(...legendOf(story, at));
  }

  // One thing at a time is in the light: what is pointed at, or else what is selected.
  function light() {
    const about = pointed || chosen();
    over.replaceChildren(...drawOver({ story, at, view, rows, id }, about));
    for (const chip of free.querySelectorAll("[data-block]")) {
      chip.classList.toggle("plw-explorer-chip-lit", Boolean(about) && Number(chip.dataset.block) === about.block);
    }
    sayAbout(about);
  }
  function markSelected() {
    const selected = JSON.stringify(model.get("selected"));
    for (const side of sides) {
      for (const node of side.nodes ? side.nodes.values() : [side.cursor]) {
        const own = selected !== "{}" && node.item && aboutItem(node.item);
        node.setAttribute("aria-selected", Boolean(own) && JSON.stringify(own.selection) === selected);
      }
    }
  }
  function drawSelected() {
    markSelected();
    light();
  }

  function sayAbout(about) {
    let said = [HINT];
    const selected = model.get("selected");
    if (!about && "position" in selected) said = [`Token ${selected.position} of ${selected.sequence} has no slot at this step.`];
    if (about && about.offset !== undefined) {
      const { position, block, logical, offset, sequence } = about;
      const size = story.block_size;
      const word = view.sequences[sequence].texts[position];
      said = [
        element("span", {}, `Token ${position} of ${story.names[sequence]}${word ? ` (${JSON.stringify(word)})` : ""}: `),
        element(
          "code",
          {},
          `block_table[${position} // ${size}] * ${size} + ${position} % ${size}`,
          ` = block_table[${logical}] * ${size} + ${offset} = ${block} * ${size} + ${offset} = `,
          element("b", {}, `slot ${block * size + offset}`),
        ),
      ];
    } else if (about) {
      const held = view.holders.get(about.block) || [];
      const whose = held.map((h) => `logical block ${h.logical} of ${story.names[h.sequence]}`);
      const size = story.block_size;
      const full = held.length && size ? ` ${Math.max(...held.map(rows.filledIn))} of its ${size} slots have a token.` : "";
      const refs = view.counts[about.block];
      said = held.length
        ? [`Block ${about.block} is ${whose.slice(0, 8).join(" and ")}; its ref count is ${refs}.${full}`]
        : [`Block ${about.block} is ${refs > 0 ? `in use; its ref count is ${refs}` : view.cached.has(about.block) ? "free, but the cache finds what it holds" : "free"}.`];
    }
    const before = line.textContent;
    const after = said.map((part) => part.textContent || part).join("");
    if (before !== after) line.replaceChildren(...said);
    line.classList.toggle("plw-explorer-hint", said[0] === HINT);
    if (!open.hidden) openBlock(about);
  }

  // Where the drawing has no room for words: the slots of one block.
  function openBlock(about) {
    const held = about && (view.holders.get(about.block) || [])[0];
    const own = about && about.offset !== undefined ? about : held;
    const size = story.block_size;
    const key = about ? JSON.stringify([step(), about.block, about.position]) : "";
    if (open.dataset.shows === key) return;
    const again = open.contains(root.getRootNode().activeElement);
    open.dataset.shows = key;
    open.setAttribute("aria-label", about ? `Slots of block ${about.block}` : "Slots of a block");
    const has = own ? rows.filledIn(own) : 0;
    const slots = about
      ? Array.from({ length: Math.min(size, 64) }, (_, offset) => {
          const position = own ? own.logical * size + offset : 0;
          const word = own && offset < has && (view.sequences[own.sequence].texts[position] || `${story.labels[own.sequence]}${position}`);
          const number = element("small", {}, `${about.block * size + offset}`);
          if (!word) return element("span", { class: "plw-explorer-slot" }, number);
          const label = `Slot ${about.block * size + offset}: token ${position} of ${story.names[own.sequence]}, ${word}`;
          const chip = element(
            "button",
            { type: "button", class: "plw-explorer-slot", tabindex: -1, "aria-label": label, "aria-pressed": `${offset === about.offset}`,
              style: `--plw-colour:${colourOf(story.hues[own.sequence])}` }, // prettier-ignore
            number,
            shortened(word, 54),
          );
          chip.about = { sequence: story.names[own.sequence], position };
          return chip;
        })
      : [element("span", { class: "plw-explorer-hint" }, "The slots of the block you point at or select appear here.")];
    open.replaceChildren(...slots);
    const stop = open.querySelector("button[aria-pressed=true]") || open.querySelector("button");
    if (stop) {
      stop.setAttribute("tabindex", 0);
      if (again) stop.focus();
    } else if (again) rightPlace.querySelector('[tabindex="0"]').focus({ preventScroll: true });
  }
  roving(open, "button.plw-explorer-slot", alongLine);
  open.addEventListener("focusout", ({ relatedTarget }) => relatedTarget && !open.contains(relatedTarget) && point(null));
  open.addEventListener("click", (event) => {
    const chip = event.target.closest("button.plw-explorer-slot");
    if (!chip) return;
    pointed = null; // the block that the focus came from
    select(aboutToken(chip.about));
  });

  // Pointer and keyboard, on both sides alike. Left and right go along the items, up and down to the nearest one there.
  function move(list, item, key) {
    const items = list.flatMap((row) => row.items);
    const index = items.findIndex((other) => other.key === item.key);
    const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: items.length - 1 }[key];
    const down = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (!down) return items[to];
    const { x, y } = item.box;
    const far = (other) => Math.abs(other.box.y - y) * 4 + Math.abs(other.box.x - x);
    const there = items.filter((other) => (other.box.y - y) * down > 0);
    return there.reduce((best, other) => (best && far(best) <= far(other) ? best : other), null);
  }
  function itemAt(place, event) {
    const box = stage.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    for (const row of place.rows) {
      for (const item of row.items) {
        const { x: left, y: top, w, h } = item.box;
        if (x >= left && x < left + w && y >= top && y < top + h) return item;
      }
      if (row.box && y >= row.box.y && y < row.box.y + row.box.h && Math.abs(x - row.box.x - row.box.w / 2) < row.box.w / 2 + PHYSICAL) {
        return { block: row.items[0].block }; // beside the slots: the block as a whole
      }
    }
    return null;
  }
  for (const place of [leftPlace, rightPlace]) {
    const side = () => sides[place === leftPlace ? 0 : 1];
    const aboutEvent = (event) => {
      const item = itemAt(place, event);
      return item && aboutItem(item);
    };
    place.addEventListener("pointermove", (event) => point(aboutEvent(event)));
    place.addEventListener("pointerleave", () => point(null));
    place.addEventListener("click", (event) => {
      const cell = event.target.closest(".plw-explorer-cell");
      const about = event.isTrusted ? aboutEvent(event) : cell && cell.item && aboutItem(cell.item);
      if (event.isTrusted) pointed = about; // the pointer is there, also where the click moved the focus
      if (about || event.isTrusted) select(about);
    });
    place.addEventListener("focusin", (event) => {
      const cell = event.target.closest(".plw-explorer-cell");
      if (cell && cell.item && cell.matches(":focus-visible")) point(aboutItem(cell.item));
      place.classList.toggle("plw-explorer-focused", Boolean(cell) && cell.matches(":focus-visible"));
    });
    place.addEventListener("focusout", (event) => {
      place.classList.remove("plw-explorer-focused");
      if (!open.contains(event.relatedTarget)) point(null); // its slots must not go as the focus comes to them
    });
    roving(place, ".plw-explorer-cell", (nodes, node, key) => {
      const item = node.item && move(place.rows, node.item, key);
      if (!item) return null;
      if (side().nodes) return side().nodes.get(item.key);
      rest(side(), item);
      point(aboutItem(item));
      return side().cursor;
    });
  }
  free.addEventListener("pointerover", (event) => {
    const chip = event.target.closest("[data-block]");
    point(chip && aboutBlock(Number(chip.dataset.block)));
  });
  free.addEventListener("pointerleave", () => point(null));
  root.addEventListener("keydown", (event) => {
    event.stopPropagation(); // a key pressed in here is meant for the widget, not for the notebook around it
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { PageDown: 1, PageUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      go(step() + by);
    }
    if (event.key === "Escape" && Object.keys(model.get("selected")).length) select(null);
  });

  model.on("change:story", drawAll);
  model.on("change:selected", drawSelected);
  drawAll();

  const stopWatching = whenLooksChange(stage, drawAll, drawAll);

  const stopListening = letGoOfKeys(root);
  return () => {
    stopListening();
    stopWatching();
    moved.stop();
    model.off("change:story", drawAll);
    model.off("change:selected", drawSelected);
  };
}

export default { render };
