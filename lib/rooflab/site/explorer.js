// Explorers without a kernel: every .rooflab-explorer on the page becomes controls over its recorded cases.
// The data and the still image come from lib/rooflab/view/explorer_svg.py; coordinates are in the image's own units.
(function () {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";

  function element(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const key of Object.keys(attributes)) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // The still image, drawn into the page so that its groups can be filled again, in the page's own ink.
  function inline(image) {
    const bytes = Uint8Array.from(atob(image.src.split(",")[1]), (c) => c.charCodeAt(0));
    const parsed = new DOMParser().parseFromString(new TextDecoder().decode(bytes), "image/svg+xml");
    const svg = document.importNode(parsed.documentElement, true);
    svg.querySelector(".paper").remove();
    svg.removeAttribute("color");
    const frame = document.createElement("div");
    frame.className = "drawing";
    frame.tabIndex = 0; // on a phone it scrolls sideways: by keyboard too
    frame.setAttribute("role", "group");
    frame.setAttribute("aria-label", "The drawing");
    frame.append(svg);
    image.replaceWith(frame);
    return svg;
  }

  function short(value) {
    return Math.round(value * 10) / 10;
  }

  // Distance of two values of one control: of numbers that of their logarithms, of words 0 or 1000.
  function apart(a, b) {
    if (a === b) return 0;
    if (typeof a !== "number" || typeof b !== "number") return 1000;
    return Math.abs(Math.log2(1 + Math.abs(a)) - Math.log2(1 + Math.abs(b)));
  }

  function start(root) {
    const data = JSON.parse(root.dataset.explorer);
    const [left, top, right, bottom] = data.box;
    const count = data.controls.length;
    const cases = data.cases.map((c) => ({
      picks: c.slice(0, count), x: c[count], y: c[count + 1], roof: c[count + 2], facts: c[count + 3],
      told: c[count + 4],
    }));
    // Parts that several cases share are held once, as explorer_facts.packed says.
    for (const c of cases) c.facts = c.facts.map((p) => (typeof p === "number" ? data.words[p] : p)).join("; ");
    const viewOf = (picks) => data.views[picks.slice(1).join(",")];
    for (const c of cases) c.px = data.axes[viewOf(c.picks).axis].at[c.x];
    const svg = inline(root.querySelector("img"));
    const line = root.querySelector(".said");
    let moved = []; // the controls that a choice took along
    const chosen = { picks: cases[data.start].picks.slice(), x: cases[data.start].x };

    // The recorded case nearest to the choice, of those that have the value just chosen.
    function nearest(kept) {
      let best = null, least = Infinity;
      for (const c of cases) {
        if (kept >= 0 && c.picks[kept] !== chosen.picks[kept]) continue;
        let total = apart(data.x.values[c.x], data.x.values[chosen.x]);
        data.controls.forEach((control, k) => {
          total += apart(control.values[c.picks[k]], control.values[chosen.picks[k]]);
        });
        if (total < least) [best, least] = [c, total];
      }
      return best;
    }

    function name(picks, x) {
      const words = data.controls.map((control, k) => control.label + " " + control.texts[picks[k]]);
      return words.concat(data.x.label + " " + data.x.texts[x]).join(", ");
    }

    function fill(group, children) {
      svg.querySelector('[data-group="' + group + '"]').replaceChildren(...children);
    }

    // As explorer_svg.path: no line spans a gap in which other curves were measured.
    function path(points, ticks) {
      const open = (a, b) => b - a > (right - left) / 3 && ticks.filter((t) => a < t[0] && t[0] < b).length >= 3;
      return points.map((p, k) => (k && !open(points[k - 1][0], p[0]) ? "L" : "M") + p.join(" ")).join("");
    }

    function series(picks, radius, ticks) {
      const found = cases.filter((c) => c.picks.every((p, k) => p === picks[k]));
      const points = found.map((c) => [c.px, c.y]).sort((a, b) => a[0] - b[0]);
      return {
        line: points.length ? [element("path", { d: path(points, ticks) })] : [],
        dots: points.map((p) => element("circle", { cx: p[0], cy: p[1], r: radius })),
      };
    }

    // The chosen curve's predictions, a short line at a lone one.
    function foretell(shown, view, axis) {
      const told = cases.filter((c) => c.told !== undefined && c.picks.every((p, k) => p === shown.picks[k]));
      const points = told.map((c) => [c.px, c.told]).sort((a, b) => a[0] - b[0]);
      const lone = points.length === 1 && "M" + short(points[0][0] - 8) + " " + points[0][1] + "h16";
      const named = (view.told || []).filter((t) => t[0] === shown.picks[0] && points.length);
      fill("predicted", points.length ? [element("path", { d: lone || path(points, axis.ticks) })] : []);
      fill("predicted-name", named.map((t) => element("text", { x: t[1], y: t[2] }, data.predicted)));
    }

    // The axes of the shown slice, its ticks, and what leads to its names.
    function frame(view, axis) {
      const words = view.y.map((t) => element("text", { x: left - 6, y: short(t[0] + 4), "text-anchor": "end" }, t[1]));
      for (const [px, text] of axis.ticks) {
        if (text) words.push(element("text", { x: px, y: bottom + 17, "text-anchor": "middle" }, text));
      }
      const ticks = axis.ticks.map((t) => "M" + t[0] + " " + bottom + "v4").join("");
      fill("grid", [element("path", { d: view.y.map((t) => "M" + left + " " + t[0] + "H" + right).join("") })]);
      fill("axis", [element("path", { d: "M" + left + " " + bottom + "H" + right + ticks })]);
      fill("ticks", words);
      fill("leaders", view.leaders ? [element("path", { d: view.leaders })] : []);
    }

    function draw() {
      const shown = nearest(-1);
      const view = viewOf(shown.picks);
      const roof = shown.roof < 0 ? null : [data.roofs[shown.roof], view.roofs[shown.roof]];
      const axis = data.axes[view.axis];
      frame(view, axis);
      fill("roof", roof ? [element("path", { d: "M" + left + " " + roof[1] + "H" + right })] : []);
      fill("roof-label", roof ? [element("text", { x: left + 4, y: short(roof[1] - 5) }, roof[0])] : []);
      const others = { line: [], dots: [] };
      data.controls[0].values.forEach((_, j) => {
        const mine = j === shown.picks[0];
        const drawn = series([j].concat(shown.picks.slice(1)), mine ? 3 : 1.8, axis.ticks);
        if (mine) {
          fill("line", drawn.line);
          fill("dots", drawn.dots);
        } else {
          others.line.push(...drawn.line);
          others.dots.push(...drawn.dots);
        }
      });
      fill("others", others.line);
      fill("others-dots", others.dots);
      const named = { name: [], names: [] };
      for (const [j, x, y] of view.names) {
        named[j === shown.picks[0] ? "name" : "names"].push(element("text", { x: x, y: y }, data.names[j]));
      }
      fill("name", named.name);
      fill("names", named.names);
      foretell(shown, view, axis);
      const px = shown.px, py = shown.y;
      fill("wanted", []);
      fill("ring", [element("circle", { cx: px, cy: py, r: 6.5 })]);
      let [at, anchor] =
        px > right - 48 ? [right - 14, "end"] : px < left + 48 ? [left + 4, "start"] : [px, "middle"];
      const below = py < top + 12 || (roof && 6 < py - roof[1] && py - roof[1] < 28);
      let y = short(below ? py + 21 : py - 12);
      if (axis.ticks.length === 1) [at, anchor, y] = [short(px - 12), "end", short(py + 4)];
      fill("value", [element("text", { x: at, y: y, "text-anchor": anchor }, shown.facts.split(";")[0])]);
      const also = moved.length ? " Not recorded with the other choices: " + moved.join(", ") + " went along." : "";
      line.textContent = name(shown.picks, shown.x) + ": " + shown.facts + "." + also;
    }

    function labelled(text, control, name) {
      const pair = document.createElement("span");
      const label = document.createElement("label");
      label.textContent = text;
      label.htmlFor = control.id = root.id + "-" + name;
      control.autocomplete = "off";
      pair.className = "control";
      pair.append(label, control);
      return pair;
    }

    const controls = document.createElement("div");
    controls.className = "controls";
    const selects = [];
    data.controls.forEach((control, k) => {
      const select = document.createElement("select");
      control.texts.forEach((text, j) => select.append(new Option(text, j, false, j === chosen.picks[k])));
      select.addEventListener("change", () => {
        chosen.picks[k] = Number(select.value);
        settle(k);
      });
      if (control.texts.length > 1) controls.append(labelled(control.label, select, k));
      selects.push(select);
    });
    const range = document.createElement("input");
    const readout = document.createElement("output");
    Object.assign(range, { type: "range", min: 0, step: 1 });
    const sizes = labelled(data.x.label, range, "x");
    sizes.append(readout);
    let held = []; // the sizes recorded for the chosen controls: the slider has no others
    // After control k was chosen: the others, and the size, go to the nearest recorded case with its value.
    function settle(k) {
      const before = chosen.picks.slice(), found = nearest(k);
      chosen.picks = found.picks.slice();
      chosen.x = found.x;
      moved = data.controls.filter((_, j) => before[j] !== chosen.picks[j]).map((control) => control.label);
      selects.forEach((select, j) => { select.value = chosen.picks[j]; });
      const mine = cases.filter((c) => c.picks.every((p, j) => p === chosen.picks[j]));
      held = mine.map((c) => c.x).sort((a, b) => a - b);
      range.max = held.length - 1;
      range.value = held.indexOf(chosen.x);
      sizes.hidden = held.length < 2; // one size is no choice: the drawing's axis and the text name it
      size();
      draw();
    }
    function size() {
      chosen.x = held[Number(range.value)];
      readout.textContent = data.x.texts[chosen.x];
      range.setAttribute("aria-valuetext", data.x.texts[chosen.x]);
    }
    range.addEventListener("input", () => {
      moved = [];
      size();
      draw();
    });
    controls.append(sizes);
    root.prepend(controls);
    root.querySelector(".note").remove();
    root.removeAttribute("data-explorer");
    settle(-1);
    moved = [];
  }

  function all() {
    document.querySelectorAll(".rooflab-explorer[data-explorer]").forEach(start);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", all);
  else all();
})();
