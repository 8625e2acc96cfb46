// What a lesson's page gains from a script, all of it there without one: the meaning of a term where it stands, a
// kernel's callouts beside their lines, and its changes behind a tab.
(function () {
  "use strict";

  // --- terms: glossary.js (made with the site) holds window.rooflabTerms, a term's anchor -> its meaning ---
  function terms() {
    const meanings = window.rooflabTerms || {};
    const card = document.createElement("div");
    card.id = "rooflab-card";
    card.setAttribute("role", "tooltip");
    card.hidden = true;
    document.body.append(card);
    let at = null, leaving = 0;

    function hide() {
      card.hidden = true;
      if (at) at.removeAttribute("aria-describedby");
      at = null;
    }
    function show(link, meaning) {
      clearTimeout(leaving);
      hide();
      card.textContent = meaning;
      card.hidden = false;
      at = link;
      link.setAttribute("aria-describedby", card.id);
      const box = link.getBoundingClientRect(), width = document.documentElement.clientWidth;
      card.style.left = Math.max(8, Math.min(box.left, width - card.offsetWidth - 8)) + window.scrollX + "px";
      const above = box.top > card.offsetHeight + 70;
      card.style.top = (above ? box.top - card.offsetHeight - 4 : box.bottom + 4) + window.scrollY + "px";
    }
    function later() {
      leaving = setTimeout(hide, 150);
    }
    for (const link of document.querySelectorAll('.bd-article a[href*="glossary.html#term-"]')) {
      const meaning = meanings[decodeURIComponent(link.hash.slice(1))];
      if (!meaning) continue;
      link.classList.add("rooflab-term");
      link.addEventListener("mouseenter", () => show(link, meaning));
      link.addEventListener("focus", () => show(link, meaning));
      link.addEventListener("mouseleave", later);
      link.addEventListener("blur", hide);
    }
    card.addEventListener("mouseenter", () => clearTimeout(leaving));
    card.addEventListener("mouseleave", later);
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  }

  // --- kernels ---
  function tabs(root, number) {
    const whole = root.querySelector(".whole"), changes = root.querySelector("details.changes");
    if (!whole || !changes) return;
    const list = document.createElement("div"), other = document.createElement("div");
    list.className = "tabs";
    list.setAttribute("role", "tablist");
    other.append(...Array.from(changes.childNodes).filter((node) => node.nodeName !== "SUMMARY"));
    const panels = [whole, other], names = ["Whole", changes.querySelector("summary").textContent];
    const buttons = panels.map((panel, k) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = names[k];
      button.id = "rooflab-tab-" + number + "-" + k;
      button.setAttribute("role", "tab");
      panel.id = panel.id || "rooflab-panel-" + number + "-" + k;
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", button.id);
      button.setAttribute("aria-controls", panel.id);
      button.addEventListener("click", () => choose(k));
      button.addEventListener("keydown", (event) => {
        if (event.key === "ArrowLeft" || event.key === "ArrowRight") { choose(1 - k); buttons[1 - k].focus(); }
      });
      list.append(button);
      return button;
    });
    function choose(chosen) {
      panels.forEach((panel, k) => {
        panel.hidden = k !== chosen;
        buttons[k].setAttribute("aria-selected", String(k === chosen));
        buttons[k].tabIndex = k === chosen ? 0 : -1;
      });
      beside(root);
    }
    whole.before(list);
    changes.replaceWith(other);
    choose(0);
  }

  // A folded kernel's notes go with its code: without a script each repeats its line, here it stands beside it.
  function withCode(root) {
    const notes = root.querySelector(":scope > .callouts"), whole = root.querySelector("details.source .whole");
    if (!notes || !whole) return;
    const items = notes.querySelectorAll(":scope > ol > li");
    for (const item of items) {
      const line = item.querySelector("code"), end = item.querySelector("br");
      if (end && line && line.compareDocumentPosition(end) & Node.DOCUMENT_POSITION_FOLLOWING) {
        line.remove();
        end.remove();
      }
    }
    notes.classList.add("popout");
    whole.append(notes);
    const summary = root.querySelector("details.source > summary");
    summary.textContent += items.length === 1 ? ", with a note" : ", with " + items.length + " notes";
  }

  const MARK = /[\u2460-\u2473]/;

  function marks(root) {
    const found = [];
    for (const line of root.querySelectorAll(".whole .line")) {
      if (!MARK.test(line.textContent)) continue;
      const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
      let node;
      while ((node = walker.nextNode())) {
        const at = node.data.search(MARK);
        if (at < 0) continue;
        const mark = document.createElement("span"), rest = node.splitText(at);
        node.data = node.data.replace(/ $/, "\u00a0"); // a mark does not wrap without its "//"
        mark.className = "mark";
        mark.textContent = rest.data[0];
        rest.data = rest.data.slice(1);
        rest.before(mark);
        found.push(mark);
        break;
      }
    }
    return found;
  }

  // Callouts beside their lines where the window has room, each under the one before it.
  function beside(root) {
    const whole = root.querySelector(".whole"), notes = root.querySelectorAll(".whole .callouts > ol > li");
    if (!whole || whole.hidden || !notes.length) return;
    const found = root.querySelectorAll(".mark");
    let wide = window.matchMedia("(min-width: 1300px)").matches;
    root.classList.toggle("beside", wide);
    whole.style.minHeight = "";
    const high = Array.from(notes).reduce((sum, note) => sum + note.offsetHeight + 6, 0);
    if (wide && high > whole.offsetHeight + 100) root.classList.toggle("beside", (wide = false)); // too much to say
    const top = whole.getBoundingClientRect().top;
    let free = 0;
    notes.forEach((note, k) => {
      note.style.top = "";
      if (!wide || !found[k]) return;
      const wanted = found[k].getBoundingClientRect().top - top;
      note.style.top = Math.max(free, wanted) + "px";
      free = Math.max(free, wanted) + note.offsetHeight + 6;
    });
    if (wide) whole.style.minHeight = free + "px";
  }

  // The theme's Contents stay in sight in the same margin: they fold to their heading while a note is beside them.
  function contents(kernels) {
    const box = document.querySelector(".bd-sidebar-secondary"), list = box && box.querySelector("nav.page-toc");
    if (!list) return;
    let asked = 0;
    function settle() {
      asked = 0;
      const head = box.querySelector(".onthispage").offsetHeight;
      const bottom = box.getBoundingClientRect().top + head + list.offsetHeight;
      const shown = (root) => !root.querySelector("details.source:not([open])");
      const under = kernels.some((root) => root.classList.contains("beside") && shown(root)
        && Array.from(root.querySelectorAll(".whole .callouts > ol > li")).some((note) => {
          const at = note.getBoundingClientRect();
          return at.height > 0 && at.bottom > 0 && at.top < bottom + 8;
        }));
      box.classList.toggle("rooflab-under", under);
    }
    const ask = () => { asked = asked || requestAnimationFrame(settle); };
    for (const event of ["scroll", "resize", "load", "click"]) window.addEventListener(event, ask, { passive: true });
    document.addEventListener("toggle", ask, true); // a fold that opens moves what is below it
    ask();
  }

  // A picture that a phone scrolls sideways says so, and is scrolled by keyboard, too.
  function figures() {
    for (const old of document.querySelectorAll(".rooflab-wider")) old.remove();
    const boxes = ".cell_output:has(> img), .rooflab-drawing .drawing, .rooflab-explorer .drawing";
    for (const box of document.querySelectorAll(boxes)) {
      if (box.scrollWidth <= box.clientWidth + 2) continue;
      const picture = box.querySelector("img, svg");
      const hint = document.createElement("div");
      hint.className = "rooflab-wider";
      hint.textContent = "Scroll sideways to see all \u2192";
      picture.before(hint);
      box.tabIndex = 0;
      if (box.hasAttribute("role")) continue;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", "The figure");
    }
  }

  function all() {
    terms();
    figures();
    const kernels = Array.from(document.querySelectorAll(".rooflab-kernel"));
    kernels.forEach((root, number) => { withCode(root); marks(root); tabs(root, number); beside(root); });
    for (const root of kernels)
      for (const fold of root.querySelectorAll("details.source")) fold.addEventListener("toggle", () => beside(root));
    contents(kernels);
    window.addEventListener("load", figures); // drawings have their size by then
    window.addEventListener("resize", () => { kernels.forEach(beside); figures(); });
    window.addEventListener("load", () => kernels.forEach(beside));
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", all);
  else all();
})();
