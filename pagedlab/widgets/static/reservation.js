// The reservation map: draws `state` (see reservation_layout.py), moves `max_len` and `selected`. Python does the sums.

const GUTTER = 52; // room for the number of a row's first slot
const ROW = 28; // height of a row of slots
const GAP = 6; // space below a row
const LEGEND = [
  ["token_states", "Token states", "hold keys and values now"],
  ["reserved", "Reserved", "will be used, but later"],
  ["internal", "Internal waste", "owned, never used"],
  ["external", "External", "owned by no request"],
];
const MOST_CHIPS = 64; // letters shown per group; the table has them all
const HINT = "Point at a strip or a letter for its numbers, or go there with Tab and the arrow keys. Enter keeps it selected.";

function render({ model, el }) {
  const id = freshId();
  let pointed = -1; // the request under the pointer or the keyboard's focus

  // What stays in place.
  const headline = element("p", { class: "plw-reservation-headline", "aria-live": "polite", "data-testid": "headline" });
  const reasons = element("div", { class: "plw-reservation-reasons", "data-testid": "reasons" });
  const slider = element("input", { type: "range", id: `${id}-slider`, step: 1, "data-testid": "max-len" });
  const less = element("button", { type: "button", "aria-label": "One step less", "data-testid": "less" }, "\u2212");
  const more = element("button", { type: "button", "aria-label": "One step more", "data-testid": "more" }, "+");
  const value = element("span", { class: "plw-reservation-value", "data-testid": "value" });
  const map = drawing("svg", { role: "grid", "aria-label": "The cache, slot by slot", "data-testid": "map" });
  const mapPlace = element("div", {}, map); // listens for the map: an SVG that listens for focus becomes a stop for Tab
  const groups = element("div", { class: "plw-reservation-groups", role: "list", "data-testid": "groups" });
  const queue = element("div", { class: "plw-reservation-queue", role: "group", "aria-label": "Requests in order of arrival" });
  const line = element("p", { class: "plw-reservation-line", "aria-live": "polite", "data-testid": "line" });
  const root = element(
    "div",
    {
      class: "plw-root plw-reservation",
      role: "group",
      "aria-label": "Reservation map",
      "data-lm-suppress-shortcuts": "true",
      "data-testid": "reservation-map",
    },
    headline,
    reasons,
    element(
      "div",
      { class: "plw-reservation-control" },
      element("label", { for: `${id}-slider` }, "max_len"),
      less,
      slider,
      more,
      value,
    ),
    mapPlace,
    groups,
    queue,
    line,
  );
  el.append(root);

  // max_len: the slider moves in steps, from one step to the limit.
  let unanswered = null;
  const send = throttled(60, (maxLen) => {
    model.set("max_len", maxLen);
    model.save_changes();
    clearTimeout(unanswered);
    unanswered = setTimeout(() => {
      if (model.get("state").max_len === model.get("max_len")) return;
      reasons.replaceChildren(
        element("p", { class: "plw-reservation-note" }, "Waiting for Python. If this stays, run the cell again to reconnect."),
      );
    }, 2000);
  });
  const limits = () => [Math.min(model.get("state").step, model.get("state").limit), model.get("state").limit];
  function move(maxLen) {
    const [low, high] = limits();
    const to = Math.max(low, Math.min(high, maxLen));
    showMaxLen(to);
    send.push(to);
  }
  // From a value between two steps, a step leads to the nearest one.
  function stepped(steps) {
    const { step } = model.get("state");
    const now = Number(slider.value) / step;
    return step * (steps > 0 ? Math.floor(now) + steps : Math.ceil(now) + steps);
  }
  function showMaxLen(maxLen) {
    const [low, high] = limits();
    slider.min = low;
    slider.max = high;
    slider.value = maxLen;
    slider.setAttribute("aria-valuetext", `${numeral(maxLen)} slots for each request`);
    slider.style.setProperty("--plw-done", `${high > low ? (100 * (maxLen - low)) / (high - low) : 100}%`);
    value.replaceChildren(element("b", {}, numeral(maxLen)), " slots each");
    less.disabled = maxLen <= low;
    more.disabled = maxLen >= high;
  }
  slider.addEventListener("input", () => {
    const { step, limit } = model.get("state");
    const dragged = Number(slider.value);
    move(dragged >= limit ? limit : Math.round(dragged / step) * step);
  });
  slider.addEventListener("keydown", (event) => {
    const [low, high] = limits();
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 8, PageDown: -8 }[event.key];
    const ends = { Home: low, End: high }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || (!steps && !ends)) return;
    event.preventDefault();
    move(ends || stepped(steps));
  });
  less.addEventListener("click", () => move(stepped(-1)));
  more.addEventListener("click", () => move(stepped(1)));

  // The map.
  function drawMap() {
    const state = model.get("state");
    const width = Math.max(200, mapPlace.clientWidth);
    const scale = (width - GUTTER) / state.slots_per_row;
    const height = state.rows.length * (ROW + GAP) - GAP + 4;
    const focused = map.contains(map.getRootNode().activeElement) ? map.getRootNode().activeElement.dataset.request : null;
    map.replaceChildren(patterns(id));
    build(map, { width, height, viewBox: `0 -2 ${width} ${height}` }, []);
    state.rows.forEach((row, i) => map.append(drawRow(state, row, i, scale)));
    const cells = [...map.querySelectorAll(".plw-reservation-cell")];
    const again = focused === null ? null : cells.find((cell) => cell.dataset.request === focused) || cells[0];
    restOnCell(again || cells[0]);
    if (again) again.focus();
  }
  function drawRow(state, row, number, scale) {
    const y = number * (ROW + GAP);
    const xOf = (slot) => GUTTER + (slot - row.start) * scale;
    return drawing(
      "g",
      { role: "row", "aria-label": `Slots ${numeral(row.start)} to ${numeral(row.end - 1)}` },
      drawing(
        "text",
        { x: GUTTER - 10, y: y + ROW / 2 + 4, class: "plw-reservation-address", "aria-hidden": "true" },
        numeral(row.start),
      ),
      row.cells.map((cell) => drawCell(state, cell, number, y, xOf)),
    );
  }
  function drawCell(state, cell, row, y, xOf) {
    const { pieces, request: index } = cell;
    const start = pieces[0][1];
    const end = pieces[pieces.length - 1][2];
    const x = xOf(start);
    const width = xOf(end) - x;
    const request = state.requests[index];
    const inset = index >= 0 && width > 4 ? 0.75 : 0; // a hairline between neighbours
    const sums = pieces.map(([group, from, to]) => `${numeral(to - from)} ${group.replace("_", " ")}`).join(", ");
    const owner = request ? `Request ${request.letter}` : "Free tail";
    const group = drawing("g", {
      role: "gridcell",
      class: "plw-reservation-cell",
      tabindex: -1,
      "aria-label": `${owner}, slots ${numeral(start)} to ${numeral(end - 1)}: ${sums}`,
      "data-request": index,
      "data-row": row,
      "data-middle": x + width / 2,
    });
    const bar = (from, to, attributes) =>
      drawing("rect", { x: from.toFixed(2), y, width: Math.max(0, to - from).toFixed(2), height: ROW, ...attributes });
    if (!request) {
      group.append(bar(x, x + width, { class: "plw-reservation-track", rx: 3 }));
      group.append(bar(x, x + width, { fill: `url(#${id}-free)`, rx: 3 }));
      const free = `${numeral(state.num_slots - state.fit * state.max_len)} free`;
      if (cell.named && width > 100) group.append(label(x + width / 2, y, free));
    } else {
      const colour = COLOURS[index % COLOURS.length];
      group.append(bar(x + inset, x + width - inset, { class: "plw-reservation-page" }));
      group.append(bar(x + inset, x + width - inset, { fill: colour, "fill-opacity": 0.14 }));
      for (const [name, from, to] of pieces) {
        const fill = {
          token_states: colour,
          reserved: `url(#${id}-later-${index % COLOURS.length})`,
          internal: `url(#${id}-never-${index % COLOURS.length})`,
        }[name];
        const left = xOf(from) + (from === start ? inset : 0);
        group.append(bar(left, xOf(to) - (to === end ? inset : 0), { fill, "data-group": name }));
      }
      const solid = pieces[0][0] === "token_states" ? xOf(pieces[0][2]) - x : 0;
      if (cell.named) group.append(...nameTag(index, request.letter, x, y, width, solid));
      if (request.cut && end === request.start + state.max_len) group.append(tornEdge(x + width - 3, y));
    }
    group.append(
      bar(x + 1, x + Math.max(2, width - 1), { class: "plw-reservation-outline", rx: 2, y: y + 1, height: ROW - 2 }),
    );
    return group;
  }
  // The letter stands on the solid part of a strip where that is wide enough, and else on a tag behind it, so that it
  // never makes the solid part look longer.
  function nameTag(index, letter, x, y, width, solid) {
    const size = 10 + 8 * letter.length;
    const text = (middle, fill) =>
      drawing(
        "text",
        { x: middle, y: y + ROW / 2 + 4.5, class: "plw-reservation-letter", style: fill, "aria-hidden": "true" },
        letter,
      );
    if (solid >= size + 8) return [text(x + 4 + size / 2, `fill:${INKS[index % INKS.length]}`)];
    if (width < size + 8) return [];
    const tag = { x: x + Math.min(solid + 3, width - size - 5), y: y + 5, width: size, height: ROW - 10, rx: 4, class: "plw-reservation-tag" };
    return [drawing("rect", tag), text(tag.x + size / 2)];
  }
  function label(x, y, text) {
    return drawing("text", { x, y: y + ROW / 2 + 4, class: "plw-reservation-free", "aria-hidden": "true" }, text);
  }
  function tornEdge(x, y) {
    let path = `M${x} ${y}`;
    for (let i = 1; i <= 8; i += 1) path += ` L${x + (i % 2 ? 4 : 0)} ${y + (i * ROW) / 8}`;
    const edge = (name) => drawing("path", { d: path, class: `plw-reservation-${name}` });
    return drawing("g", {}, edge("gap"), edge("torn"));
  }
  // Left and right go along the slots, up and down to the strip above or below.
  const restOnCell = roving(mapPlace, ".plw-reservation-cell", (cells, cell, key) => {
    const down = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (!down) return alongLine(cells, cell, key);
    const row = cells.filter((other) => Number(other.dataset.row) === Number(cell.dataset.row) + down);
    const away = (other) => Math.abs(other.dataset.middle - cell.dataset.middle);
    return row.sort((a, b) => away(a) - away(b))[0];
  });

  // The legend: groups of slots, then requests.
  function drawGroups() {
    const state = model.get("state");
    groups.replaceChildren(
      ...LEGEND.map(([group, name, meaning], i) => {
        const fill = {
          token_states: "var(--plw-muted)",
          reserved: `url(#${id}-later-grey)`,
          internal: `url(#${id}-never-grey)`,
          external: `url(#${id}-free)`,
        }[group];
        return element(
          "div",
          { role: "listitem" },
          element(
            "div",
            { class: "plw-reservation-name" },
            drawing(
              "svg",
              { width: 14, height: 14, "aria-hidden": "true" },
              drawing("rect", { x: 0.5, y: 0.5, width: 13, height: 13, rx: 3, class: "plw-reservation-track" }),
              drawing("rect", { x: 0.5, y: 0.5, width: 13, height: 13, rx: 3, style: `fill:${fill}`, class: "plw-reservation-key" }),
            ),
            name,
          ),
          element("div", {}, element("b", {}, state.percents[i]), ` ${numeral(state.counts[i])} slots`),
          element("div", {}, meaning),
        );
      }),
    );
  }
  function drawQueue() {
    const state = model.get("state");
    const active = queue.getRootNode().activeElement;
    const focused = queue.contains(active) ? active.dataset.request : null;
    const chips = state.requests.map((request, i) =>
      element(
        "button",
        {
          type: "button",
          class: `plw-reservation-chip${i < state.fit ? "" : " plw-reservation-waits"}${request.cut ? " plw-reservation-cut" : ""}`,
          style: `--plw-colour:${COLOURS[i % COLOURS.length]};--plw-ink:${INKS[i % INKS.length]}`,
          tabindex: -1,
          "aria-label": `Request ${request.letter}, ${i < state.fit ? "fits" : "waits"}${request.cut ? ", would be cut off" : ""}`,
          "data-request": i,
          "data-testid": `request-${request.letter}`,
        },
        request.letter,
        request.cut && drawing("svg", { width: 7, height: ROW, "aria-hidden": "true" }, tornEdge(1.5, 0)),
      ),
    );
    const part = (name, some) =>
      some.length > 0 &&
      element(
        "div",
        { class: "plw-reservation-part" },
        element("span", {}, `${name} (${numeral(some.length)})`),
        some.slice(0, MOST_CHIPS),
        some.length > MOST_CHIPS && element("span", {}, `and ${numeral(some.length - MOST_CHIPS)} more`),
      );
    queue.replaceChildren();
    build(queue, {}, [part("Fit", chips.slice(0, state.fit)), part("Wait", chips.slice(state.fit))]);
    const again = focused === null ? null : chips[focused];
    restOnChip(again || chips[Math.max(0, model.get("selected"))]);
    if (again) again.focus();
  }
  const restOnChip = roving(queue, ".plw-reservation-chip", alongLine);

  // One request at a time is in the light, everywhere: the one pointed at, or else the selected one.
  function light() {
    const { requests } = model.get("state");
    const selected = model.get("selected");
    const lit = pointed >= 0 ? pointed : selected;
    root.classList.toggle("plw-reservation-has-lit", lit >= 0);
    for (const node of root.querySelectorAll("[data-request]")) {
      const index = Number(node.dataset.request);
      node.classList.toggle("plw-reservation-lit", index >= 0 && index === lit);
      node.classList.toggle("plw-reservation-selected", index >= 0 && index === selected);
      const state = index >= 0 && index === selected;
      node.setAttribute(node.getAttribute("role") === "gridcell" ? "aria-selected" : "aria-pressed", state);
    }
    const says = lit >= 0 ? requests[lit].says : HINT;
    if (line.textContent !== says) line.textContent = says;
    line.classList.toggle("plw-reservation-hint", lit < 0);
  }
  const requestOf = (event) => {
    const node = event.target.closest && event.target.closest("[data-request]");
    return node ? Number(node.dataset.request) : -1;
  };
  const point = (index) => {
    if (index === pointed) return;
    pointed = index;
    light();
  };
  for (const part of [mapPlace, queue]) {
    part.addEventListener("pointerover", (event) => point(requestOf(event)));
    part.addEventListener("pointerleave", () => point(-1));
    part.addEventListener("focusin", (event) => point(requestOf(event)));
    part.addEventListener("focusout", () => point(-1));
    part.addEventListener("click", (event) => {
      const index = requestOf(event);
      if (!event.target.closest("[data-request]")) return;
      model.set("selected", index === model.get("selected") ? -1 : index);
      model.save_changes();
      light();
    });
  }
  root.addEventListener("keydown", (event) => {
    event.stopPropagation(); // a key pressed in here is meant for the widget, not for the notebook around it
    if (event.key !== "Escape" || model.get("selected") < 0) return;
    model.set("selected", -1);
    model.save_changes();
    light();
  });

  function drawAll() {
    const state = model.get("state");
    const [before, after] = state.headline.split(" \u00b7 ");
    headline.replaceChildren(element("span", {}, before), " \u00b7 ", element("span", {}, after));
    reasons.replaceChildren(
      ...[state.reason, state.cut].filter(Boolean).map((text) => element("p", {}, text)),
      ...[state.note].filter(Boolean).map((text) => element("p", { class: "plw-reservation-note" }, text)),
    );
    drawMap();
    drawGroups();
    drawQueue();
    light();
  }
  const onMaxLen = () => showMaxLen(model.get("max_len"));
  model.on("change:state", drawAll);
  model.on("change:state", onMaxLen);
  model.on("change:max_len", onMaxLen);
  model.on("change:selected", light);
  drawAll();
  onMaxLen();

  let drawnWidth = mapPlace.clientWidth;
  const observer = new ResizeObserver(() => {
    if (mapPlace.clientWidth === drawnWidth) return;
    drawnWidth = mapPlace.clientWidth;
    drawMap();
    light();
  });
  observer.observe(mapPlace);

  const stopListening = letGoOfKeys(root);
  return () => {
    stopListening();
    observer.disconnect();
    send.stop();
    clearTimeout(unanswered);
    model.off("change:state", drawAll);
    model.off("change:state", onMaxLen);
    model.off("change:max_len", onMaxLen);
    model.off("change:selected", light);
  };
}

export default { render };
