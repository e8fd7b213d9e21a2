// A map of records: every point can be found, chosen, compared and copied. What it shows is in the page.
(function () {
  "use strict";
  const MOST_NAMED = 7, MOST_LISTED = 500, SHADES = 24, CLIPPED = 0.02;
  const COLOURS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"];
  const style = getComputedStyle(document.documentElement);
  const token = (name) => style.getPropertyValue("--" + name).trim();

  function el(tag, settings, ...children) {
    const made = Object.assign(document.createElement(tag), settings);
    made.append(...children);
    return made;
  }
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const shorts = (text) => new Uint16Array(bytes(text).buffer);

  async function unpacked(text) {
    const packed = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(packed).text());
  }

  function shade(share) {
    const stops = token("ramp").split(",").map((each) => each.trim());
    const at = Math.min(share * (stops.length - 1), stops.length - 1.001), low = Math.floor(at);
    const parts = (hex) => [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
    const [from, to] = [parts(stops[low]), parts(stops[low + 1])];
    return "rgb(" + from.map((value, n) => Math.round(value + (to[n] - value) * (at - low))) + ")";
  }

  // The colours of numbers: a few outliers at either end take the colour of that end, or all others would look alike.
  function rampOf(colour) {
    if (colour.ramp) return colour.ramp;
    const sorted = colour.values.filter((value) => value !== null).sort((a, b) => a - b);
    const out = sorted.length < 10 ? 0 : Math.max(1, Math.round(sorted.length * CLIPPED)), last = sorted.length - 1;
    const isClipped = sorted[out] < sorted[last - out], [from, to] = isClipped ? [out, last - out] : [0, last];
    const scale = (value) => (colour.log ? Math.log(Math.max(value, 1)) : value), low = scale(sorted[from]), high = scale(sorted[to]);
    const text = (at) => sorted[at].toLocaleString("en"), unit = colour.unit ? " " + colour.unit : "";
    const share = (value) => Math.min(Math.max((scale(value) - low) / (high - low || 1), 0), 1);
    if (last < 0) return (colour.ramp = { share, ends: null, range: colour.none });
    const ends = [(sorted[0] < sorted[from] ? "≤ " : "") + text(from), (sorted[last] > sorted[to] ? "≥ " : "") + text(to) + unit];
    return (colour.ramp = { share, ends, range: text(0) + " to " + text(last) + unit });
  }

  // The groups of points that are drawn alike: what the legend lists, from the least important on.
  function groupsOf(colour) {
    if (colour.names) {
      const codes = shorts(colour.codes), groups = [];
      for (let n = 0; n < Math.min(colour.names.length, MOST_NAMED); n++) groups.push({ name: colour.names[n], colour: COLOURS[n], of: [] });
      const other = { name: colour.names.length - MOST_NAMED + " other labels", colour: "rest", of: [] };
      const none = { name: colour.none, colour: "muted", isRing: true, of: [] };
      codes.forEach((code, n) => (code === 0 ? none : groups[code - 1] || other).of.push(n));
      return [none, other, ...groups].filter((group) => group.of.length);
    }
    const ramp = rampOf(colour);
    const shades = Array.from({ length: SHADES }, (_, n) => ({ share: n / (SHADES - 1), of: [] }));
    const none = { name: colour.none, colour: "muted", isRing: true, of: [] };
    colour.values.forEach((value, n) => {
      if (value === null) none.of.push(n);
      else shades[Math.round(ramp.share(value) * (SHADES - 1))].of.push(n);
    });
    return [none, ...shades].filter((group) => group.of.length);
  }

  function start(root, data) {
    const find = (name) => root.querySelector(".map-" + name);
    const canvas = find("canvas"), context = canvas.getContext("2d"), tip = find("tip");
    const number = data.ids.length, nearest = shorts(data.nearest), closeness = shorts(data.closeness);
    const links = bytes(data.linked), hidden = new Set(), chosenIds = new Set(), pointers = new Map();
    const texts = data.ids.map((id, n) => (id + "\n" + data.accessions[n] + "\n" + data.descriptions[n] + "\n"
      + data.colours.map((each) => (each.names ? valueOf(each, n) : "")).join("\n")).toLowerCase());
    let colour = data.colours[0], groups = groupsOf(colour), place, points, view, width, height;
    let chosen = -1, found = new Set(), isArea = false, area = null, moved = 0, pinch = 0;

    function valueOf(each, n) {
      each.read = each.read || (each.names ? shorts(each.codes) : each.values);
      if (each.names) return each.read[n] ? each.names[each.read[n] - 1] : each.none;
      return each.read[n] === null ? each.none : each.read[n].toLocaleString("en");
    }
    const told = (each, n) => valueOf(each, n) + (each.unit ? " " + each.unit : "");
    function choosePlace(name) {
      place = data.places.find((each) => each.name === name);
      const xy = shorts(place.xy);
      const ends = [0, 1].map((axis) => xy.reduce((now, value, n) => (n % 2 === axis ? [Math.min(now[0], value), Math.max(now[1], value)] : now), [65535, 0]));
      points = { xy, ends };
      find("axes").textContent = place.axes;
      find("places").querySelectorAll("button").forEach((each) => each.setAttribute("aria-pressed", each.textContent === name));
      view = { k: 1, x: 0, y: 0 };
      draw();
    }
    function at(n) {  // pixels
      const [[left, right], [top, bottom]] = points.ends, pad = 18;
      const scale = Math.min((width - 2 * pad) / (right - left || 1), (height - 2 * pad) / (bottom - top || 1));
      const x = width / 2 + (points.xy[2 * n] - (left + right) / 2) * scale, y = height / 2 - (points.xy[2 * n + 1] - (top + bottom) / 2) * scale;
      return [x * view.k + view.x, y * view.k + view.y];
    }
    const radius = () => (number > 3000 ? 2.3 : number > 600 ? 3 : 4.2) * Math.min(view.k ** 0.35, 3);
    const shown = () => groups.filter((group) => !hidden.has(group.name));
    const colourOf = (group) => (group.share === undefined ? token(group.colour) : shade(group.share));

    function paint(to) {
      to.fillStyle = token("card");
      to.fillRect(0, 0, width, height);
      const size = radius(), fades = found.size > 0;
      function dots(group, of) {
        to.beginPath();
        for (const n of of) {
          const [x, y] = at(n);
          if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
          to.moveTo(x + size, y);
          to.arc(x, y, group.isRing ? size * 0.8 : size, 0, 7);
        }
        to.lineWidth = group.isRing ? 1 : 0.5;
        to.strokeStyle = group.isRing ? colourOf(group) : token("card");
        to.fillStyle = group.isRing ? token("card") : colourOf(group);
        to.fill();
        to.stroke();
      }
      to.globalAlpha = fades ? 0.18 : 0.9;
      for (const group of shown()) dots(group, group.of);
      to.globalAlpha = 1;
      if (fades) for (const group of shown()) dots(group, group.of.filter((n) => found.has(n)));
      to.strokeStyle = token("ink");
      function rings(of, wide, line) {
        to.lineWidth = line;
        for (const n of of) { to.beginPath(); to.arc(...at(n), size + wide, 0, 7); to.stroke(); }
      }
      rings(chosenIds, 1.5, 1.2);
      if (chosen < 0) return;
      to.lineWidth = 1;
      for (const n of nearestOf(chosen)) { to.beginPath(); to.moveTo(...at(chosen)); to.lineTo(...at(n)); to.stroke(); }
      rings(nearestOf(chosen), 2, 1);
      rings([chosen], 4, 2.4);
    }
    function draw() {
      width = canvas.clientWidth; height = canvas.clientHeight;
      const scale = devicePixelRatio || 1;
      Object.assign(canvas, { width: width * scale, height: height * scale });
      context.setTransform(scale, 0, 0, scale, 0, 0);
      paint(context);
      canvas.style.touchAction = view.k > 1 || isArea ? "none" : "pan-y";
      if (area) context.strokeRect(area[0], area[1], area[2] - area[0], area[3] - area[1]);
    }
    const nearestOf = (n) => Array.from(nearest.subarray(n * data.k, (n + 1) * data.k));
    function pointAt(x, y, reach) {
      let best = -1, least = reach * reach;
      for (const group of shown()) for (const n of group.of) {
        const [px, py] = at(n), distance = (px - x) ** 2 + (py - y) ** 2;
        if (distance <= least) { least = distance; best = n; }  // of equal ones that on top
      }
      return best;
    }

    const rank = (group) => (group.isRing ? 2 : group.colour === "rest" ? 1 : 0);
    const inLegend = () => groups.filter((group) => group.name).sort((a, b) => rank(a) - rank(b));
    function drawLegend() {
      const legend = find("legend"), ends = colour.names ? null : rampOf(colour).ends;
      const chip = (group) => el("button", { type: "button", className: "map-chip", ariaPressed: String(!hidden.has(group.name)), title: "show or hide", onclick() {
        if (!hidden.delete(group.name)) hidden.add(group.name);
        drawLegend(); draw();
      } }, el("i", { className: group.isRing ? "ring" : "", style: "--of: var(--" + group.colour + ")" }), el("bdi", {}, group.name), el("span", {}, group.of.length.toLocaleString("en")));
      const ramp = ends ? [el("span", { className: "map-ramp" }, ends[0], el("i", {}), ends[1])] : [];
      legend.replaceChildren(...ramp, ...inLegend().map(chip));
    }
    function linkOf(n) {
      const link = data.links[links[n] - 1];
      return link ? [el("a", { href: link[1] + encodeURIComponent(data.accessions[n]), target: "_blank", rel: "noopener" }, link[0] + " " + data.accessions[n])] : [];
    }
    function choose(n) {
      chosen = n;
      const card = find("card");
      if (n < 0) { card.replaceChildren(find("hint").content.cloneNode(true)); return draw(); }
      const facts = data.colours.flatMap((each) => [el("dt", {}, each.title), el("dd", {}, el("bdi", {}, told(each, n)))]);
      const others = nearestOf(n).map((other, rank) => el("li", {}, el("button", { type: "button", onclick: () => choose(other) }, el("bdi", {}, data.ids[other])),
        el("span", {}, " " + (closeness[n * data.k + rank] / 65535).toFixed(3) + " "), el("bdi", {}, data.descriptions[other])));
      const isListed = chosenIds.has(n);
      card.replaceChildren(el("h3", {}, el("bdi", {}, data.ids[n])), el("p", { className: "map-about" }, el("bdi", {}, data.descriptions[n] || "no description")), el("p", {}, ...linkOf(n)),
        el("dl", {}, ...facts), el("h4", {}, "Nearest, by cosine"), el("ol", {}, ...others),
        el("button", { type: "button", className: "map-add", onclick() { if (!chosenIds.delete(n)) chosenIds.add(n); list(); choose(n); } }, isListed ? "Take off the list" : "Put on the list"),
        el("button", { type: "button", onclick() { [n, ...nearestOf(n)].forEach((each) => chosenIds.add(each)); list(); choose(n); } }, "With its nearest"));
      draw();
    }

    const columns = ["id", "accession", "description", ...data.colours.map((each) => each.title)];
    const rowOf = (n) => [data.ids[n], data.accessions[n], data.descriptions[n], ...data.colours.map((each) => String(each.names || each.values[n] === null ? valueOf(each, n) : each.values[n]))];
    function tell() {
      const isLeft = [...found].some((n) => !chosenIds.has(n)), where = found.size && !isLeft ? ", on the list" : "";
      find("found").textContent = find("search").value.trim() ? found.size.toLocaleString("en") + " found" + where : "";
      find("take").hidden = !isLeft;
    }
    function list() {
      const of = [...chosenIds].sort((a, b) => a - b), box = find("list");
      box.hidden = !of.length;
      find("count").textContent = of.length.toLocaleString("en") + (of.length === 1 ? " record on the list" : " records on the list");
      find("rows").replaceChildren(el("thead", {}, el("tr", {}, ...columns.map((name) => el("th", {}, name)))),
        el("tbody", {}, ...of.slice(0, MOST_LISTED).map((n) => el("tr", {}, ...rowOf(n).map((cell) => el("td", { className: "text" }, cell))))));
      find("more").textContent = of.length > MOST_LISTED ? "The first " + MOST_LISTED + " are shown; a copy has all." : "";
      tell();
      draw();
    }
    const asText = () => [columns, ...[...chosenIds].sort((a, b) => a - b).map(rowOf)].map((row) => row.map((cell) => cell.replace(/\s+/g, " ")).join("\t")).join("\n") + "\n";
    async function copy(text) {
      try { await navigator.clipboard.writeText(text); } catch (refused) {  // as from some local files
        const area = el("textarea", { value: text });
        document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
      }
      find("copied").textContent = "Copied.";
    }
    function save() {
      const ramp = colour.names ? null : rampOf(colour), ends = ramp && ramp.ends;
      const scale = 3, rows = inLegend().filter((group) => !hidden.has(group.name)), first = ends ? 40 : 20;
      const picture = el("canvas", { width: width * scale, height: (height + 20 * rows.length + first + 14) * scale });
      const to = picture.getContext("2d");
      to.scale(scale, scale);
      to.fillStyle = token("card"); to.fillRect(0, 0, width, height + 999);
      paint(to);
      to.font = "13px " + getComputedStyle(document.body).fontFamily;
      const write = (text, x, y) => { to.fillStyle = token("ink"); to.fillText(text, x, height + y, width - x - 14); };
      write(place.name + ", by " + colour.title + (ramp ? ": " + ramp.range : ""), 14, 15);
      if (ends) {
        const left = 14 + to.measureText(ends[0]).width + 8, wide = Math.min(180, width / 3);
        write(ends[0], 14, 37);
        for (let n = 0; n < wide; n++) { to.fillStyle = shade(n / (wide - 1)); to.fillRect(left + n, height + 28, 1.5, 9); }
        write(ends[1], left + wide + 8, 37);
      }
      rows.forEach((group, n) => {
        to.fillStyle = to.strokeStyle = colourOf(group);
        to.beginPath(); to.arc(20, height + first + 10 + 20 * n, 5, 0, 7); to[group.isRing ? "stroke" : "fill"]();
        write(group.name, 34, first + 15 + 20 * n);
      });
      el("a", { href: picture.toDataURL("image/png"), download: "map.png" }).click();
    }

    function zoom(factor, x = width / 2, y = height / 2) {
      const k = Math.min(Math.max(view.k * factor, 1), 60);
      view = k === 1 ? { k, x: 0, y: 0 } : { k, x: x - ((x - view.x) * k) / view.k, y: y - ((y - view.y) * k) / view.k };
      draw();
    }
    const spot = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    const spread = () => { const [a, b] = [...pointers.values()]; return Math.hypot(a[0] - b[0], a[1] - b[1]); };
    canvas.onpointerdown = (event) => {
      if (event.button) return;
      pointers.set(event.pointerId, spot(event));
      canvas.setPointerCapture(event.pointerId);
      moved = pointers.size > 1 ? 99 : 0;
      pinch = pointers.size === 2 ? spread() : 0;
      if (isArea || event.shiftKey) area = [...spot(event), ...spot(event)];
    };
    canvas.onpointermove = (event) => {
      const here = spot(event), before = pointers.get(event.pointerId);
      if (!before) return hover(here, event);
      moved += Math.hypot(here[0] - before[0], here[1] - before[1]);
      pointers.set(event.pointerId, here);
      if (area) { area = [area[0], area[1], ...here]; return draw(); }
      if (pointers.size === 2) {
        const wide = spread(), [a, b] = [...pointers.values()];
        zoom(wide / (pinch || wide), (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
        pinch = wide;
      } else if (moved > 5) { view = { ...view, x: view.x + here[0] - before[0], y: view.y + here[1] - before[1] }; tip.hidden = true; draw(); }
    };
    canvas.onpointerup = (event) => {
      pointers.delete(event.pointerId);
      if (area && moved > 5) {
        const [x, y] = [[area[0], area[2]], [area[1], area[3]]].map((ends) => ends.sort((a, b) => a - b));
        for (const group of shown()) for (const n of group.of) { const [px, py] = at(n); if (px >= x[0] && px <= x[1] && py >= y[0] && py <= y[1]) chosenIds.add(n); }
        area = null; setArea(false); list();
      } else if (moved <= 5) { area = null; choose(pointAt(...spot(event), event.pointerType === "mouse" ? 12 : 24)); }
    };
    canvas.onpointercancel = (event) => { pointers.delete(event.pointerId); area = null; };
    canvas.onpointerleave = () => { tip.hidden = true; };
    canvas.onwheel = (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;  // the page scrolls
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 400), ...spot(event));
    };
    canvas.onkeydown = (event) => { const factor = { "+": 1.5, "=": 1.5, "-": 1 / 1.5, 0: 0 }[event.key]; if (factor !== undefined) zoom(factor); if (event.key === "Escape") choose(-1); };
    function hover(here, event) {
      const n = event.pointerType === "mouse" ? pointAt(...here, 10) : -1;
      canvas.style.cursor = isArea ? "crosshair" : n < 0 ? "grab" : "pointer";
      tip.hidden = n < 0;
      if (n < 0) return;
      tip.replaceChildren(el("b", {}, el("bdi", {}, data.ids[n])), el("span", {}, el("bdi", {}, data.descriptions[n])), el("span", {}, colour.title + ": " + told(colour, n)));
      tip.style.left = Math.min(here[0] + 14, width - tip.offsetWidth - 4) + "px";
      tip.style.top = (here[1] + tip.offsetHeight + 20 > height ? here[1] - tip.offsetHeight - 10 : here[1] + 14) + "px";
    }
    function setArea(on) { isArea = on; find("area").setAttribute("aria-pressed", on); canvas.style.touchAction = on ? "none" : "pan-y"; }
    function search(isEntered) {
      const wanted = find("search").value.trim().toLowerCase();
      found = new Set(wanted ? texts.flatMap((text, n) => (text.includes(wanted) ? [n] : [])) : []);
      tell();
      const exact = wanted ? data.ids.findIndex((id, n) => id.toLowerCase() === wanted || data.accessions[n].toLowerCase() === wanted) : -1;
      if (exact >= 0 || (isEntered && found.size)) choose(exact >= 0 ? exact : [...found][0]);
      else draw();
    }

    find("places").append(...data.places.map((each) => el("button", { type: "button", onclick: () => choosePlace(each.name) }, each.name)));
    find("places").hidden = data.places.length < 2;
    find("colour").append(...data.colours.map((each) => el("option", {}, each.title)));
    find("colour").onchange = (event) => { colour = data.colours[event.target.selectedIndex]; groups = groupsOf(colour); hidden.clear(); drawLegend(); draw(); };
    find("search").oninput = () => search(false);
    find("search").onkeydown = (event) => { if (event.key === "Enter") search(true); };
    find("take").onclick = () => { found.forEach((n) => chosenIds.add(n)); list(); };
    for (const [name, factor] of [["in", 1.6], ["out", 1 / 1.6], ["all", 0]]) find(name).onclick = () => zoom(factor);
    find("area").onclick = () => setArea(!isArea);
    find("save").onclick = save;
    find("copy").onclick = () => copy(asText());
    find("clear").onclick = () => { chosenIds.clear(); find("copied").textContent = ""; list(); };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    new ResizeObserver(draw).observe(canvas);
    view = { k: 1, x: 0, y: 0 };
    drawLegend();
    choosePlace(data.places[0].name);
    choose(-1);
    root.pointAt = (n) => at(n);
    root.dataset.drawn = number;
  }

  for (const root of document.querySelectorAll("[data-map]")) {
    unpacked(document.getElementById("data-" + root.dataset.map).textContent).then((data) => start(root, data)).catch((error) => {
      root.textContent = "This map could not be drawn: " + error.message;
      console.error(error);
    });
  }
})();
