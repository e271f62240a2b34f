// The occupancy explorer: sends the four choices to Python, which compiles, and draws `state` (see occupancy.py).

const NAMES = { target: "Target", num_warps: "Warps of a block", num_stages: "Stages", tile: "Tile" };

function render({ model, el }) {
  const id = freshId();
  let unanswered = null; // the clock that says that no Python listens
  let asked = null; // what was clicked last

  const form = element("div", { class: "plw-occupancy-form" });
  const status = element("p", { class: "plw-occupancy-status", role: "status", "data-testid": "status" });
  const kernels = element("div", { class: "plw-occupancy-kernels", "data-testid": "kernels" });
  const chartsPlace = element("div", { class: "plw-occupancy-charts" });
  const root = element(
    "div",
    { class: "plw-root plw-occupancy", role: "group", "aria-label": "Occupancy explorer", "data-lm-suppress-shortcuts": "true", "data-testid": "occupancy" },
    ...[scarcestPattern(id), form, status, kernels, chartsPlace],
  );
  el.append(root);

  // Choosing: one group of radio buttons for each. The browser gives them their keys.
  function drawForm() {
    const choices = model.get("choices");
    form.replaceChildren(
      ...Object.keys(NAMES)
        .filter((name) => choices[name].length)
        .map((name) =>
          element(
            "fieldset",
            { "data-testid": name },
            element("legend", {}, NAMES[name]),
            choices[name].map(({ value, name: says, gpus }) =>
              element(
                "label",
                {},
                element("input", { type: "radio", name: `${id}-${name}`, value }),
                element("span", {}, says, gpus && element("small", {}, gpus)),
              ),
            ),
          ),
        ),
    );
    showChoice();
  }
  function showChoice() {
    for (const name of Object.keys(NAMES)) {
      for (const input of form.querySelectorAll(`[name="${id}-${name}"]`)) input.checked = input.value === String(model.get(name));
    }
  }
  form.addEventListener("change", (event) => {
    const name = event.target.name.slice(id.length + 1);
    const value = name === "target" ? event.target.value : Number(event.target.value);
    model.set(name, value);
    model.save_changes();
    asked = { ...(asked || model.get("state").choice), [name]: value };
    drawStatus();
    clearTimeout(unanswered);
    unanswered = setTimeout(() => {
      if (asked === null) return;
      status.replaceChildren("Waiting for Python. If this stays, run the cell again to reconnect.");
    }, 4000);
  });

  function drawStatus() {
    const state = model.get("state");
    const choice = asked || state.choice;
    const busy = state.busy || asked !== null;
    root.setAttribute("aria-busy", busy);
    root.classList.toggle("plw-occupancy-busy", busy);
    if (busy) {
      const spinner = element("span", { class: "plw-occupancy-spinner", "aria-hidden": "true" });
      status.replaceChildren(spinner, `Compiling for ${choice.target} \u2026 the figures below are those of the choice before.`);
      return;
    }
    status.replaceChildren(element("b", {}, headline(state.shown)), ...state.kernels.map((told) => element("span", {}, inShort(told))));
  }
  function headline({ target, num_warps: warps, num_stages: stages, tile }) {
    const { gpus } = model.get("choices").target.find(({ value }) => value === target);
    const parts = [`${target}${gpus ? ` (${gpus})` : ""}`, `${warps} warp${warps === 1 ? "" : "s"}`, `${stages} stage${stages === 1 ? "" : "s"}`];
    return `For ${[...parts, ...(tile === null ? [] : [`a tile of ${tile}`])].join(", ")}.`;
  }
  const inShort = ({ label, figures, error }) =>
    ` ${capital(label)}: ${error ? (figures ? "cannot start, see below" : "does not compile, see below") : `${figures.blocks} block${figures.blocks === 1 ? "" : "s"} per SM, limited by ${figures.scarcest.join(" and ")}`}.`;

  const capital = (label) => (/^(yours|the )/.test(label) ? label[0].toUpperCase() + label.slice(1) : label);

  function drawKernels() {
    const { kernels: told } = model.get("state");
    kernels.replaceChildren(
      ...told.map(({ label, figures, error }, at) =>
        element(
          "section",
          { "aria-label": label, "data-testid": `kernel-${at}` },
          element("p", { class: "plw-heading" }, figures && signInText(at), capital(label)),
          figures && element("div", { class: "plw-occupancy-figures" }, table(figures), limits(figures)),
          error && element("p", { class: "plw-occupancy-error" }, error),
          figures && !error && element("p", {}, lift(figures)),
        ),
      ),
    );
  }
  const lift = ({ lift: said }) => (said.startsWith("nothing") ? `What would lift it: ${said}.` : `More blocks would take ${said}.`);
  function table(f) {
    const rows = [
      ["registers a thread", numeral(f.registers)],
      ["spilled", f.spill ? `${numeral(f.spill)} B` : "nothing", f.spill],
      ["shared memory a block", `${numeral(f.shared)} B`],
      ["blocks per SM", numeral(f.blocks), true],
      ["warps per SM", `${numeral(f.warps)} of ${numeral(f.most_warps)}, ${f.percent} %`],
      ["16-byte loads", `${numeral(f.wide)}, and ${numeral(f.narrow)} narrower`],
    ];
    return element(
      "table",
      {},
      rows.map(([name, value, bold]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, bold ? element("b", {}, value) : value))),
    );
  }
  const limits = (f) => element("table", {}, element("caption", {}, "Blocks per SM that each alone would allow"), drawLimits(f, id));

  // The curves, and under each a slider: what if the kernel had so many registers, so much shared memory?
  function drawCharts() {
    const { charts, drawn, kernels: told } = model.get("state");
    chartsPlace.replaceChildren(
      ...charts.map((chart, number) => {
        const shape = (i) => `${told[drawn[i]].label} has ${unit(number, chart.values[i])} and ${blocks(blocksAt(chart.steps[i], chart.values[i]))} per SM`;
        const svg = drawing("svg", {
          ...{ viewBox: "0 0 436 214", role: "img", "data-testid": `chart-${number}` },
          "aria-label": `Blocks per SM against ${chart.title}: ${chart.values.map((_, i) => shape(i)).join("; ")}`,
        });
        drawChart(svg, chart, drawn);
        const slider = element("input", { type: "range", min: 0, max: chart.most, step: number ? 1024 : 1, "data-testid": `what-if-${number}`, "aria-label": `What if: ${chart.title}` });
        slider.value = chart.values[0];
        const says = element("span", { class: "plw-occupancy-says" });
        const cursor = drawing("path", { class: "plw-occupancy-cursor" });
        svg.append(cursor);
        const show = () => {
          const value = slider.valueAsNumber;
          const [left, top, right, bottom] = chart.box;
          const x = left + ((right - left) * value) / chart.most;
          const found = chart.steps.map((steps, i) => `${blocks(blocksAt(steps, value))}${drawn.length > 1 ? ` (${drawn[i] ? "the reference" : "yours"})` : ""}`);
          const text = `With ${unit(number, value)}: ${found.join(", ")} per SM`;
          says.textContent = `${text}.`;
          slider.setAttribute("aria-valuetext", text);
          slider.style.setProperty("--plw-done", `${(100 * value) / chart.most}%`);
          cursor.setAttribute("d", `M${x.toFixed(1)} ${top}V${bottom}`);
        };
        slider.addEventListener("input", show);
        show();
        cursor.setAttribute("d", ""); // until it is moved
        return element("div", {}, svg, slider, says);
      }),
    );
  }
  const unit = (number, value) => (number ? `${numeral(value)} B of shared memory` : `${numeral(value)} register${value === 1 ? "" : "s"}`);
  const blocks = (count) => `${numeral(count)} block${count === 1 ? "" : "s"}`;

  root.addEventListener("keydown", (event) => event.stopPropagation()); // it is meant for the widget, not for the notebook

  function onState() {
    const { choice } = model.get("state");
    if (asked !== null && Object.keys(NAMES).every((name) => choice[name] === asked[name])) asked = null;
    if (asked === null) clearTimeout(unanswered);
    drawStatus();
  }
  let shown = null;
  function drawAll() {
    onState();
    const { busy, ...rest } = model.get("state");
    const now = JSON.stringify([rest.kernels, rest.charts]);
    if (now === shown) return; // only busy: what is drawn, and the keyboard's focus in it, stay
    shown = now;
    drawKernels();
    drawCharts();
  }
  model.on("change:state", drawAll);
  model.on("change:choices", drawForm);
  for (const name of Object.keys(NAMES)) model.on(`change:${name}`, showChoice);
  drawForm();
  drawAll();
  const stopListening = letGoOfKeys(root);
  return () => {
    stopListening();
    clearTimeout(unanswered);
    model.off("change:state", drawAll);
    model.off("change:choices", drawForm);
    for (const name of Object.keys(NAMES)) model.off(`change:${name}`, showChoice);
  };
}

export default { render };
