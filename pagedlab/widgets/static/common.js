// Helpers shared by all widgets. This text is put in front of each widget's own module.

const numeral = (n) => n.toLocaleString("en-US");

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

// element("p", { class: "note" }, "text", ...) makes an HTML element; drawing("rect", {...}) makes an SVG one.
const element = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
const drawing = (tag, attributes, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// Ids must be unique in the page, and the same widget may be on it more than once.
const freshId = () => "plw" + Math.random().toString(36).slice(2, 10);

// At most one call per `wait` milliseconds; the last value always arrives.
function throttled(wait, call) {
  let timer = null;
  let latest;
  let waiting = false;
  const fire = () => {
    timer = null;
    if (!waiting) return;
    waiting = false;
    timer = setTimeout(fire, wait);
    call(latest);
  };
  return {
    push(value) {
      latest = value;
      waiting = true;
      if (timer === null) fire();
    },
    stop() {
      clearTimeout(timer);
      timer = null;
      waiting = false;
    },
  };
}

// A trait that is moved here: the picture follows at once, Python hears of it a little later. Python's answer to an earlier
// move may arrive in between; the latest move is what counts.
function movedTrait(model, name, draw) {
  let wanted;
  const saver = throttled(60, () => {
    model.save_changes();
    wanted = undefined;
  });
  const changed = () => {
    if (wanted !== undefined && model.get(name) !== wanted) model.set(name, wanted);
    else draw();
  };
  model.on(`change:${name}`, changed);
  return {
    set(value) {
      wanted = value;
      model.set(name, value);
      saver.push(value);
    },
    stop() {
      saver.stop();
      model.off(`change:${name}`, changed);
    },
  };
}

// A click elsewhere takes the keyboard out of the widget. JupyterLab leaves it there when the click is on a cell's prompt,
// and the notebook's own keys would then do nothing.
function letGoOfKeys(root) {
  const onPointer = (event) => {
    const active = root.getRootNode().activeElement;
    if (active && root.contains(active) && !event.composedPath().includes(root)) active.blur();
  };
  document.addEventListener("pointerdown", onPointer, true);
  return () => document.removeEventListener("pointerdown", onPointer, true);
}

// One stop for the Tab key in a group of items, and the arrow keys between them ("roving tabindex").
// `next(item, key)` says where a key leads; it returns nothing for keys that lead nowhere.
function roving(container, selector, next) {
  const items = () => [...container.querySelectorAll(selector)];
  const rest = (item) => {
    for (const other of items()) other.setAttribute("tabindex", other === item ? "0" : "-1");
  };
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (item) rest(item);
  });
  container.addEventListener("keydown", (event) => {
    const item = event.target.closest(selector);
    if (!item || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") {
      item.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      event.preventDefault();
      return;
    }
    const to = next(items(), item, event.key);
    if (!to) return;
    event.preventDefault();
    to.focus();
  });
  return rest;
}

// The usual way along a line of items.
function alongLine(items, item, key) {
  const at = items.indexOf(item);
  const to = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: items.length - 1 };
  return items[to[key]];
}

// The patterns of the four groups of slots, in grey and in each request's colour. `id` keeps two views apart.
function patterns(id) {
  const later = (name, colour) =>
    drawing(
      "pattern",
      { id: `${id}-later-${name}`, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      drawing("rect", { width: 3.2, height: 7, style: `fill:${colour}` }),
    );
  const never = (name, colour) =>
    drawing(
      "pattern",
      { id: `${id}-never-${name}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
      [2, 6].map((at) => drawing("circle", { cx: at, cy: at, r: 1.1, style: `fill:${colour}` })),
    );
  const grey = "var(--plw-muted)";
  return drawing(
    "defs",
    {},
    later("grey", grey),
    never("grey", grey),
    COLOURS.map((colour, i) => [later(i, colour), never(i, colour)]),
    drawing(
      "pattern",
      { id: `${id}-free`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(-45)" },
      drawing("rect", { width: 1, height: 6, style: "fill:var(--plw-line);opacity:0.6" }),
    ),
  );
}

// Draw again when the place for the drawing gets another width, or the page another theme (a canvas keeps the colours
// that it was drawn with). Returns a function that ends it.
function whenLooksChange(stage, onWidth, onTheme) {
  let drawnWidth = stage.clientWidth;
  const resized = new ResizeObserver(() => {
    if (stage.clientWidth === drawnWidth) return;
    drawnWidth = stage.clientWidth;
    onWidth();
  });
  resized.observe(stage);
  const themed = new MutationObserver(() => setTimeout(onTheme, 200));
  themed.observe(document.body, { attributeFilter: ["data-jp-theme-name"] });
  return () => {
    resized.disconnect();
    themed.disconnect();
  };
}

function pictureButton(name, label, shape) {
  const picture = drawing("svg", { width: 16, height: 14, "aria-hidden": "true" }, drawing("path", { d: shape }));
  return element("button", { type: "button", "aria-label": label, "data-testid": name }, picture);
}

// The controls over a story's steps.
function stepControls() {
  return {
    first: pictureButton("first", "First step", "M1 1h2.5v12h-2.5zM15 1v12l-10-6z"),
    back: pictureButton("back", "One step back", "M11 1v12l-8-6zM12 1h2v12h-2z"),
    next: pictureButton("next", "One step forward", "M5 1v12l8-6zM2 1h2v12h-2z"),
    last: pictureButton("last", "Last step", "M15 1h-2.5v12h2.5zM1 1v12l10-6z"),
    slider: element("input", { type: "range", min: 0, step: 1, "aria-label": "Step", "data-testid": "step" }),
    count: element("span", { class: "plw-count", "data-testid": "count" }),
  };
}
