// The schedule timeline: draws `story` (see timeline_story.py), moves `step`, follows the `selected` request.

const MOST_CELLS = 4000; // more are drawn on a canvas
const HINT =
  "Point at a cell for its tokens and blocks, or go there with Tab and the arrow keys; Enter follows the request. Page Down is the next step.";

function render({ model, el }) {
  const id = freshId();
  let story; // these follow from the story, the width and the zoom
  let at;
  let zoom = 1;
  let canvas = null; // instead of an SVG
  let pointed = null; // what is under the pointer: a figure, and a row and step of it, or its pool
  let player = null; // the clock while it plays by itself

  const { first, back, next, last, slider, count } = stepControls();
  const PLAY = "M3 1v12l10-6z";
  const PAUSE = "M3 1h3.5v12h-3.5zM9.5 1h3.5v12h-3.5z";
  const play = pictureButton("play", "Play", PLAY);
  const out = pictureButton("zoom-out", "Show more steps at once", "M2 6h12v2.4h-12z");
  const closer = pictureButton("zoom-in", "Show fewer steps, wider", "M2 6h12v2.4h-12zM6.8 1h2.4v12h-2.4z");
  const zooms = element("span", { class: "plw-timeline-zoom", role: "group", "aria-label": "Width of a step" }, out, closer);
  const controls = element("div", { class: "plw-control" }, first, back, play, next, last, slider, count, zooms);
  const caption = element("div", { class: "plw-timeline-caption", "aria-live": "polite", "data-testid": "caption" });
  const frame = drawing("svg", { class: "plw-timeline-frame", "aria-hidden": "true", "data-testid": "frame" });
  const surface = element("div", { class: "plw-timeline-surface" });
  const under = drawing("svg", { class: "plw-timeline-under", "aria-hidden": "true" });
  const over = drawing("svg", { class: "plw-timeline-over", "aria-hidden": "true", "data-testid": "over" });
  const grids = element("div", {});
  const sheet = element("div", { class: "plw-timeline-sheet", "data-testid": "sheet" }, under, surface, over, grids);
  const scroll = element("div", { class: "plw-timeline-scroll" }, sheet);
  const stage = element("div", { class: "plw-timeline-stage" }, frame, scroll);
  const line = element("p", { class: "plw-timeline-line", "aria-live": "polite", "data-testid": "line" });
  const legend = element("div", { class: "plw-timeline-legend", role: "list", "aria-label": "Marks" });
  const root = element(
    "div",
    {
      class: "plw-root plw-timeline",
      role: "group",
      "aria-label": "Schedule timeline",
      "data-lm-suppress-shortcuts": "true",
      "data-testid": "timeline",
    },
    controls,
    caption,
    stage,
    line,
    legend,
  );
  el.append(root);

  // Steps. `column` counts from 0; the trait has the step's own number.
  const moved = movedTrait(model, "step", () => drawStep());
  const column = () => model.get("step") - story.first;
  const columns = () => story.ends.length;
  function go(to) {
    const step = story.first + Math.max(0, Math.min(columns() - 1, to));
    if (step !== model.get("step")) moved.set(step);
  }
  function stop() {
    clearInterval(player);
    player = null;
    caption.setAttribute("aria-live", "polite");
    play.setAttribute("aria-label", "Play");
    play.querySelector("path").setAttribute("d", PLAY);
  }
  function start() {
    if (column() === columns() - 1) go(0);
    const pause = Math.max(60, Math.min(500, 20_000 / columns()));
    caption.setAttribute("aria-live", "off"); // nobody could listen so quickly
    play.setAttribute("aria-label", "Pause");
    play.querySelector("path").setAttribute("d", PAUSE);
    player = setInterval(() => {
      if (column() === columns() - 1 || !root.isConnected) stop();
      else go(column() + 1);
    }, pause);
  }
  const byHand = (to) => {
    stop();
    go(to);
  };
  first.addEventListener("click", () => byHand(0));
  back.addEventListener("click", () => byHand(column() - 1));
  play.addEventListener("click", () => (player === null ? start() : stop()));
  next.addEventListener("click", () => byHand(column() + 1));
  last.addEventListener("click", () => byHand(columns() - 1));
  slider.addEventListener("input", () => byHand(Number(slider.value)));
  function select(name) {
    if (name === model.get("selected")) return;
    model.set("selected", name);
    model.save_changes();
  }

  // Zoom: from all steps at once to a step as wide as its words.
  const room = () => Math.max(320, stage.clientWidth);
  const fitting = () => Math.min(room(), GUTTER + WIDEST * columns());
  const most = () => Math.max(1, (WIDEST * columns()) / (fitting() - GUTTER));
  function zoomBy(factor) {
    const middle = midColumn() * at.scale - scroll.scrollLeft; // stays where it is
    zoom = Math.max(1, Math.min(most(), zoom * factor));
    drawAll();
    scroll.scrollLeft = midColumn() * at.scale - Math.max(0, Math.min(scroll.clientWidth, middle));
    drawSurface();
  }
  const columnStart = (index) => (index ? story.ends[index - 1] : 0);
  const midColumn = () => (columnStart(column()) + story.ends[column()]) / 2;
  out.addEventListener("click", () => zoomBy(0.5));
  closer.addEventListener("click", () => zoomBy(2));

  // Drawing: everything anew (another story, width or zoom), what is in view, one step, or only what is in the light.
  function drawAll() {
    if (model.get("story") !== story) {
      story = model.get("story");
      slider.max = columns() - 1;
      const cells = story.traces.flatMap(({ rows }) => rows.map((row) => (row ? row.states.length : 0)));
      canvas = cells.reduce((sum, length) => sum + length, 0) > MOST_CELLS ? element("canvas", { "aria-hidden": "true" }) : null;
      if (canvas) surface.replaceChildren(canvas);
      makeGrids();
      legend.replaceChildren(...legendOf(story, id));
    }
    zoom = Math.min(zoom, most());
    at = layOut(fitting(), story, zoom);
    const high = at.height;
    sheet.style.width = `${Math.ceil(at.long) + 2}px`;
    sheet.style.height = `${high}px`;
    stage.style.height = `${high + (zoom > 1 ? 14 : 2)}px`;
    build(frame, { width: room(), height: high }, []);
    for (const layer of [under, over]) build(layer, { width: Math.ceil(at.long) + 2, height: high }, []);
    zooms.hidden = most() < 1.2;
    out.setAttribute("aria-disabled", zoom <= 1);
    closer.setAttribute("aria-disabled", zoom >= most());
    const wide = room() / 7.2;
    const lines = story.traces.map(({ notes, name }) => Math.ceil((Math.max(...notes.map((note) => note.length)) + name.length + 10) / wide));
    caption.style.minHeight = `${22 * lines.reduce((sum, each) => sum + Math.min(story.traces.length > 1 ? 2 : 3, each), 0)}px`; // nothing below it moves
    line.style.minHeight = `${20 + 20 * Math.max(2, story.traces.length)}px`;
    if (!canvas) {
      const svg = drawing("svg", { width: Math.ceil(at.long) + 2, height: high, "aria-hidden": "true" });
      drawFigures(vectorPen(svg, id), story, at);
      surface.replaceChildren(svg);
    }
    drawSurface();
    drawStep();
  }
  function drawSurface() {
    if (!canvas) return;
    const pen = canvasPen(canvas, scroll.scrollLeft, Math.min(scroll.clientWidth, at.long + 2), at.height);
    drawFigures(pen, story, at);
    pen.done();
  }
  let due = 0;
  scroll.addEventListener("scroll", () => {
    cancelAnimationFrame(due);
    due = requestAnimationFrame(drawSurface);
  });

  function drawStep() {
    const now = column();
    slider.value = now;
    slider.style.setProperty("--plw-done", `${columns() > 1 ? (100 * now) / (columns() - 1) : 100}%`);
    slider.setAttribute("aria-valuetext", `Step ${model.get("step")} of ${story.first + columns() - 1}`);
    count.replaceChildren("step ", element("b", {}, numeral(model.get("step"))), ` of ${numeral(story.first + columns() - 1)}`);
    for (const one of [first, back]) one.setAttribute("aria-disabled", now === 0);
    for (const one of [next, last]) one.setAttribute("aria-disabled", now === columns() - 1);
    caption.replaceChildren(
      ...story.traces.map((trace) => {
        const step = stepAt(story, trace, now);
        const number = numeral(step + story.first);
        const name = trace.name && element("b", {}, `${trace.name} `);
        if (step < 0) return element("p", {}, name, element("span", {}, `ended at step ${numeral(trace.used.length - 1)}.`));
        const where = trace.ends && trace.name ? `step ${number}: ` : trace.name ? "" : `Step ${number}: `;
        return element("p", {}, name, `${where}${trace.notes[step]}.`);
      }),
    );
    placeCells();
    follow();
    light();
  }
  // The column of the cursor stays in view.
  function follow() {
    const [left, right] = [columnStart(column()) * at.scale, story.ends[column()] * at.scale];
    const margin = Math.min(60, scroll.clientWidth / 4);
    if (left < scroll.scrollLeft) scroll.scrollLeft = left - margin;
    else if (right > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = right - scroll.clientWidth + margin;
  }

  // For the keyboard and for screen readers: in each row the cell under the cursor, laid over the drawing.
  function makeGrids() {
    grids.replaceChildren(
      ...story.traces.map((trace, index) => {
        const label = `${trace.name ? `${trace.name}: ` : ""}requests, a row each, over the steps`;
        const size = { "aria-rowcount": story.names.length, "aria-colcount": columns() + 1 };
        return element(
          "div",
          { role: "grid", "aria-label": label, ...size, "data-testid": `grid-${index}` },
          story.names.map((name, row) => {
            const cell = element("div", { role: "gridcell", class: "plw-timeline-cell", tabindex: row ? -1 : 0, "data-name": name });
            cell.at = { index, row };
            return element("div", { role: "row" }, element("span", { role: "rowheader", class: "plw-timeline-hidden", "aria-colindex": 1 }, name), cell);
          }),
        );
      }),
    );
    for (const grid of grids.children) {
      roving(grid, ".plw-timeline-cell", (cells, cell, key) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
        const end = { Home: 0, End: columns() - 1 }[key];
        if (by === undefined && end === undefined) return alongLine(cells, cell, key);
        byHand(end === undefined ? column() + by : end);
        return cell;
      });
    }
  }
  function placeCells() {
    const now = column();
    for (const cell of grids.querySelectorAll(".plw-timeline-cell")) {
      const { index, row } = cell.at;
      const trace = story.traces[index];
      const step = stepAt(story, trace, now);
      const x = step < 0 ? columnStart(now) * at.scale : begins(trace, step) * at.scale;
      const right = step < 0 ? story.ends[now] * at.scale : endsAt(trace, step) * at.scale;
      Object.assign(cell.style, { left: `${x}px`, top: `${at.rowTop(index, row)}px`, width: `${Math.max(3, right - x)}px`, height: `${at.row}px` });
      cell.setAttribute("aria-colindex", now + 2);
      cell.setAttribute("aria-selected", story.names[row] === model.get("selected"));
      cell.setAttribute("aria-label", words({ index, row, step }));
    }
  }

  // One thing is in the light: what is pointed at, or has the keyboard's focus, or else the request that is followed.
  function light() {
    const selected = model.get("selected");
    const layers = { under: [], over: [] };
    const box = (x, y, w, h, name, layer = "over") =>
      layers[layer].push(drawing("rect", { x, y, width: Math.max(2, w), height: h, rx: 3, class: `plw-timeline-${name}` }));
    const now = column();
    const [left, right] = [columnStart(now) * at.scale, story.ends[now] * at.scale];
    story.traces.forEach((trace, index) => {
      const top = at.rowTop(index, 0);
      box(left, top - 3, right - left, at.poolTop(index) + at.pool - top + 6, "cursor");
      const row = story.names.indexOf(selected);
      if (row >= 0) box(0, at.rowTop(index, row), at.long, at.row, "followed", "under");
    });
    const focused = focusedCell();
    const about = pointed || (focused && { ...focused.at, step: stepAt(story, story.traces[focused.at.index], now) });
    if (pointed) {
      const { index, row, step } = pointed;
      const trace = story.traces[index];
      const x = begins(trace, step) * at.scale;
      const high = row < 0 ? at.pool : at.row;
      box(x, row < 0 ? at.poolTop(index) : at.rowTop(index, row), endsAt(trace, step) * at.scale - x, high, "lit");
    }
    under.replaceChildren(...layers.under);
    over.replaceChildren(...layers.over);
    frame.replaceChildren();
    drawFrame(vectorPen(frame, `${id}-frame`), story, at, selected, room());
    say(about, selected);
  }
  const focusedCell = () => {
    const active = root.getRootNode().activeElement;
    return active && active.at && grids.contains(active) ? active : null;
  };
  function words({ index, row, step }) {
    const trace = story.traces[index];
    if (step < 0) return `${trace.name} has ended.`;
    const where = `${trace.name ? `${trace.name}, s` : "S"}tep ${numeral(step + story.first)}: `;
    return where + (row < 0 ? poolInWords(trace, step) : cellInWords(story.names[row], trace, row, step));
  }
  function say(about, selected) {
    let said = [HINT];
    if (about) said = [words(about)];
    else if (selected) {
      const row = story.names.indexOf(selected);
      said = story.traces.map((trace, index) => words({ index, row, step: stepAt(story, trace, column()) }));
    }
    const text = said.join("\n");
    if (line.textContent !== text) line.textContent = text;
    line.classList.toggle("plw-timeline-hint", said[0] === HINT);
  }

  // The pointer.
  function placeOf(event) {
    const box = sheet.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    for (let index = 0; index < story.traces.length; index += 1) {
      const trace = story.traces[index];
      const along = x / at.scale;
      const step = trace.ends ? bisect(trace.ends, along) : Math.floor(along);
      if (x < 0 || step >= trace.used.length) continue;
      const row = Math.floor((y - at.rowTop(index, 0)) / at.row);
      if (row >= 0 && row < story.names.length) return { index, row, step };
      if (y >= at.poolTop(index) && y < at.poolTop(index) + at.pool) return { index, row: -1, step };
    }
    return null;
  }
  function point(place) {
    if (JSON.stringify(place) === JSON.stringify(pointed)) return;
    pointed = place;
    light();
  }
  sheet.addEventListener("pointermove", (event) => point(placeOf(event)));
  sheet.addEventListener("pointerleave", () => point(null));
  sheet.addEventListener("click", (event) => {
    const key = event.isTrusted ? null : event.target.at; // Enter on a cell
    const place = key ? { ...key, step: stepAt(story, story.traces[key.index], column()) } : placeOf(event);
    if (!place) return;
    const to = place.step < 0 ? column() : columnOf(story, story.traces[place.index], place.step);
    const again = to === column() && story.names[place.row] === model.get("selected");
    byHand(to);
    if (place.row >= 0) select(again ? "" : story.names[place.row]);
    const cell = grids.children[place.index].querySelectorAll(".plw-timeline-cell")[Math.max(0, place.row)];
    if (!key) cell.focus({ preventScroll: true });
  });
  grids.addEventListener("focusin", () => light());
  grids.addEventListener("focusout", () => setTimeout(() => root.isConnected && light()));
  root.addEventListener("keydown", (event) => {
    event.stopPropagation(); // a key pressed in here is meant for the widget, not for the notebook around it
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { PageDown: 1, PageUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      byHand(column() + by);
    }
    if (event.key === "Escape") {
      stop();
      select("");
    }
  });

  const onSelected = () => {
    placeCells();
    light();
  };
  model.on("change:story", drawAll);
  model.on("change:selected", onSelected);
  drawAll();

  const stopWatching = whenLooksChange(stage, drawAll, drawSurface);

  const stopListening = letGoOfKeys(root);
  return () => {
    stop();
    stopListening();
    stopWatching();
    moved.stop();
    model.off("change:story", drawAll);
    model.off("change:selected", onSelected);
  };
}

// What the marks mean, as far as they occur, and which letter is whose.
function legendOf(story, id) {
  const rows = story.traces.flatMap((trace) => trace.rows.filter(Boolean));
  const has = (state) => rows.some((row) => row.states.includes(state));
  const ends = (abort) => rows.some((row) => row.end && (row.end[1] === "abort") === abort);
  const marks = [
    [has("P"), "prefill, with its tokens", (pen) => drawCell(pen, 0, 24, 0, 20, "prefill", "32")],
    [has("D"), "decode, 1 token", (pen) => drawCell(pen, 0, 24, 0, 20, "decode", "D", true)],
    [has("."), "waiting", (pen) => pen.path("M0 10H24", { stroke: "muted", dash: "2 3" })],
    ...[["X", "preempted: computes again later"], ["S", "swapped out"], ["-", "finished, still holds memory"]].map(([state, says]) => [
      has(state),
      says,
      (pen) => drawCell(pen, 0, 24, 0, 20, PATTERN_OF[state]),
    ]),
    [ends(false), "finished", (pen) => drawCell(pen, 0, 24, 0, 20, "decode", "", true) || drawEnd(pen, 24, 0, 20, "stop")],
    [ends(true), "aborted", (pen) => drawCell(pen, 0, 24, 0, 20, "aborted") || drawEnd(pen, 24, 0, 20, "abort")],
    [true, "pool: tokens", (pen) => drawCell(pen, 0, 24, 0, 20, "tokens")],
    [story.traces.some((trace) => trace.block_size), "empty slots of used blocks", (pen) => drawCell(pen, 0, 24, 0, 20, "empty")],
    [
      story.traces.some((trace) => trace.cached.some(Boolean)),
      "free, kept for later hits",
      (pen) => drawCell(pen, 0, 24, 0, 20, "cached"),
    ],
  ];
  const item = (...parts) => element("span", { role: "listitem" }, ...parts);
  return [
    ...marks
      .filter(([occurs]) => occurs)
      .map(([, says, draw], i) => {
        const svg = drawing("svg", { width: 24, height: 20, "aria-hidden": "true" });
        draw(vectorPen(svg, `${id}-mark${i}`));
        return item(svg, says);
      }),
    ...story.which.map((says) => item(says)),
  ];
}

export default { render };
