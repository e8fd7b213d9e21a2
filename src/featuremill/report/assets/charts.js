// Draws every chart of the page in the page's own colours, and again when light turns to dark.
(function () {
  "use strict";
  const style = getComputedStyle(document.documentElement);
  const token = (name) => style.getPropertyValue("--" + name).trim();

  const colours = (name) => token(name).split(",").map((colour) => colour.trim());

  function theme() {
    const font = getComputedStyle(document.body).fontFamily;
    const [ink, muted, line, card] = ["ink", "muted", "line", "card"].map(token);
    const text = { font, fontSize: 12, color: muted };
    return {
      background: card,
      font,
      padding: { left: 2, right: 6, top: 6, bottom: 2 },
      view: { stroke: null },
      axis: {
        labelColor: muted, titleColor: muted, gridColor: line, domainColor: line, tickColor: line,
        labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", titlePadding: 8, labelPadding: 5,
        tickSize: 4, labelFlush: false,
      },
      axisY: { domain: false, ticks: false, titleAngle: 0, titleAlign: "left", titleAnchor: "end", titleX: 0, titleY: -10 },
      legend: {
        orient: "top", direction: "horizontal", labelColor: ink, titleColor: muted, labelFontSize: 12,
        titleFontSize: 12, titleFontWeight: "normal", symbolType: "square", symbolStrokeWidth: 0,
        gradientThickness: 8, gradientLength: 180, offset: 12, labelLimit: 260, titleOrient: "left",
        layout: { top: { direction: "vertical", anchor: "start", margin: 6 } },
      },
      range: { ramp: colours("ramp"), heatmap: colours("heat") },
      mark: { color: token("first") },
      style: {
        "cell-bar": { fill: token("first"), stroke: card, strokeWidth: 0.6 },
        "shard": { stroke: card, strokeWidth: 1, cornerRadius: 2 },
        "point": { filled: true, opacity: 0.75, size: 46 },
        "cloud": { opacity: 0.75 },
        "curve": { strokeWidth: 1.4, strokeJoin: "round" },
        "hover": { filled: true, opacity: 0, size: 90 },
        "guide": { color: muted, strokeDash: [3, 3], strokeWidth: 1 },
        "remark": text,
        "lane": { ...text, color: ink },
        "lane-behind": { ...text, color: card, stroke: card, strokeWidth: 6, strokeJoin: "round" },
      },
    };
  }

  // In a chart's own colours, "--name" is a colour of the style sheet.
  function coloured(key, value) {
    const colour = (each) => (String(each).startsWith("--") ? token(each.slice(2)) : each);
    return key === "range" && Array.isArray(value) ? value.map(colour) : value;
  }

  const tooltip = { disableDefaultStyle: true };
  const actions = { export: true, source: false, compiled: false, editor: false };
  const drawn = new Map();

  async function draw(element) {
    const spec = JSON.parse(document.getElementById("data-" + element.dataset.chart).textContent, coloured);
    const renderer = element.dataset.renderer;
    try {
      if (drawn.has(element)) drawn.get(element).finalize();
      const options = { mode: "vega-lite", config: theme(), renderer, actions, tooltip };
      Object.assign(options, { defaultStyle: false, forceActionsMenu: true });
      options.downloadFileName = element.dataset.chart;
      drawn.set(element, await vegaEmbed(element, spec, options));
    } catch (error) {
      element.textContent = "This figure could not be drawn: " + error.message;
      console.error(error);
    }
  }

  // What is folded has no width: its charts are drawn when it is opened.
  async function drawAll() {
    const open = Array.from(document.querySelectorAll("[data-chart]")).filter((each) => each.clientWidth);
    await Promise.all(open.map(draw));
    document.documentElement.dataset.drawn = drawn.size;
  }

  document.querySelectorAll("details:has([data-chart])").forEach((fold) => fold.addEventListener("toggle", drawAll));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
})();
