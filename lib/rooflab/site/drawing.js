// Drawings on the site: the still image becomes part of the page, in the page's own ink, and where it holds frames,
// one is shown at a time, with a slider and two buttons. The image comes from lib/rooflab/view/diagram/svg.py.
(function () {
  "use strict";

  function inline(image) {
    const bytes = Uint8Array.from(atob(image.src.split(",")[1]), (c) => c.charCodeAt(0));
    const parsed = new DOMParser().parseFromString(new TextDecoder().decode(bytes), "image/svg+xml");
    const svg = document.importNode(parsed.documentElement, true);
    svg.querySelector(".paper").remove();
    svg.removeAttribute("color");
    svg.style.minWidth = Math.min(0.8 * svg.getAttribute("width"), 384) + "px"; // text stays readable on a phone
    const frame = document.createElement("div");
    frame.className = "drawing";
    frame.tabIndex = 0; // on a phone it scrolls sideways: by keyboard too
    frame.setAttribute("role", "group");
    frame.setAttribute("aria-label", "The drawing");
    frame.append(svg);
    image.replaceWith(frame);
    return svg;
  }

  function step(root, svg, number) {
    const frames = [...svg.querySelectorAll(".frame")];
    if (frames.length < 2) return;
    const sizes = frames.map((frame) => frame.dataset.size.split(" ").map(Number));
    const heading = svg.querySelector(".heading").getBBox();
    const width = Math.ceil(Math.max(heading.width, ...sizes.map((size) => size[0]))) + 16;
    const height = Math.max(...sizes.map((size) => size[1])) + 38;
    const stands = frames.map((frame) => frame.getAttribute("transform"));
    const whole = { box: svg.getAttribute("viewBox"), width: svg.getAttribute("width") };
    const words = svg.getAttribute("aria-label");

    const controls = document.createElement("div");
    controls.className = "controls";
    const range = document.createElement("input");
    Object.assign(range, { type: "range", min: 1, max: frames.length, step: 1, value: 1, autocomplete: "off" });
    range.id = "drawing-step-" + number;
    const label = document.createElement("label");
    label.htmlFor = range.id;
    label.textContent = "Step";
    const said = document.createElement("output");
    said.setAttribute("aria-live", "polite");
    const back = button("Back", -1), next = button("Next", 1);
    const all = document.createElement("button");
    all.type = "button";
    all.textContent = "All steps";
    all.setAttribute("aria-pressed", "false");

    function button(text, by) {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = text;
      made.addEventListener("click", () => show(Number(range.value) + by));
      return made;
    }

    function show(at) {
      range.value = Math.min(frames.length, Math.max(1, at));
      const chosen = Number(range.value) - 1;
      frames.forEach((frame, k) => {
        frame.style.display = k === chosen ? "" : "none";
        frame.setAttribute("transform", "translate(8 30)");
      });
      svg.setAttribute("viewBox", "0 0 " + width + " " + height);
      svg.setAttribute("width", width);
      svg.style.minWidth = Math.min(width, Math.max(0.8 * width, 340), 384) + "px"; // as for a still; narrow ones stay
      const text = chosen + 1 + " of " + frames.length + ": " + frames[chosen].dataset.says;
      said.textContent = text;
      range.setAttribute("aria-valuetext", text);
      svg.setAttribute("aria-label", words + " Step " + text);
      back.disabled = chosen === 0;
      next.disabled = chosen === frames.length - 1;
      all.setAttribute("aria-pressed", "false");
    }

    all.addEventListener("click", () => {
      if (all.getAttribute("aria-pressed") === "true") return show(Number(range.value));
      frames.forEach((frame, k) => {
        frame.style.display = "";
        frame.setAttribute("transform", stands[k]);
      });
      svg.setAttribute("viewBox", whole.box);
      svg.setAttribute("width", whole.width);
      svg.style.minWidth = Math.min(0.8 * whole.width, 384) + "px";
      svg.setAttribute("aria-label", words);
      said.textContent = "all " + frames.length + " steps";
      all.setAttribute("aria-pressed", "true");
    });
    range.addEventListener("input", () => show(Number(range.value)));
    controls.append(label, range, back, next, all, said);
    root.prepend(controls);
    show(1);
    // Few frames, or small ones, are compared; many are stepped through.
    if (frames.length <= 3 || Number(whole.box.split(" ")[3]) <= 400) all.click();
  }

  function start() {
    document.querySelectorAll(".rooflab-drawing").forEach((root, number) => {
      const image = root.querySelector("img");
      if (image) step(root, inline(image), number);
    });
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
