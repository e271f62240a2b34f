// What the occupancy explorer draws: the limits as bars, and the what-if curves. As occupancy_picture.py.

const KERNEL_COLOURS = ["var(--plw-yours)", "var(--plw-reference)"];

// A kernel's sign: a disc, or an open diamond for the reference.
const signOf = (at) =>
  at
    ? drawing("path", { d: "M0 -10L10 0L0 10L-10 0z", style: `fill:none;stroke:${KERNEL_COLOURS[at]};stroke-width:2.5` })
    : drawing("circle", { r: 6, style: `fill:${KERNEL_COLOURS[0]};stroke:var(--plw-page)` });

const signInText = (at) => drawing("svg", { width: 24, height: 24, viewBox: "-12 -12 24 24", "aria-hidden": "true" }, signOf(at));

function drawChart(svg, chart, drawn) {
  const [left, top, right, bottom] = chart.box;
  const label = (x, y, anchor, words, more) => drawing("text", { x, y, style: `text-anchor:${anchor}`, ...more }, words);
  svg.replaceChildren(
    ...chart.y.flatMap(([y, words]) => [
      drawing("path", { d: `M${left} ${y}H${right}`, class: "plw-occupancy-rule" }),
      label(left - 14, y + 4, "end", words, { class: "plw-occupancy-tick" }),
    ]),
    ...chart.x.flatMap(([x, words]) => [
      drawing("path", { d: `M${x} ${bottom}v4`, class: "plw-occupancy-axis" }),
      label(x, bottom + 17, "middle", words, { class: "plw-occupancy-tick" }),
    ]),
    label((left + right) / 2, bottom + 34, "middle", chart.title, {}),
    label(12, (top + bottom) / 2, "middle", "blocks per SM", { transform: `rotate(-90 12 ${(top + bottom) / 2})` }),
    ...chart.curves.map((path, i) =>
      drawing("path", { d: path, class: drawn[i] ? "plw-occupancy-other" : "plw-occupancy-curve", "data-testid": `curve-${drawn[i]}` }),
    ),
    ...chart.points.map(([x, y], i) => drawing("g", { transform: `translate(${x} ${y})`, "data-testid": `point-${drawn[i]}` }, signOf(drawn[i]))),
  );
}

const blocksAt = (steps, value) => (steps.find(([first, last]) => first <= value && value <= last) || [0, 0, 0])[2];

// Blocks that each resource alone would allow; the scarcest is hatched and named.
function drawLimits(figures, id) {
  const most = Math.min(Math.max(1, ...figures.limits.map(([, blocks]) => blocks || 0)), 4 * Math.max(1, figures.blocks));
  return figures.limits.map(([name, blocks]) => {
    const scarcest = figures.scarcest.includes(name);
    const share = blocks === null ? 1 : Math.min(1, blocks / most);
    const bar = drawing(
      "svg",
      { width: 150, height: 13, "aria-hidden": "true" },
      drawing("rect", { width: 150, height: 13, rx: 2, class: "plw-occupancy-track" }),
      drawing("rect", { width: 150 * share, height: 13, rx: 2, class: "plw-occupancy-bar", style: scarcest ? `fill:url(#${id}-scarcest)` : null }),
    );
    const said = blocks === null ? "any number" : numeral(blocks);
    return element(
      "tr",
      { class: scarcest && "plw-occupancy-scarcest" },
      element("th", { scope: "row" }, name),
      element("td", {}, bar),
      element("td", {}, said + (scarcest ? ", the limit" : "")),
    );
  });
}

const scarcestPattern = (id) =>
  drawing(
    "svg",
    { width: 0, height: 0, "aria-hidden": "true", class: "plw-occupancy-defs" },
    drawing(
      "defs",
      {},
      drawing(
        "pattern",
        { id: `${id}-scarcest`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        drawing("rect", { width: 6, height: 6, fill: "#E69F00" }),
        drawing("rect", { width: 2, height: 6, fill: "#14161A" }),
      ),
    ),
  );
