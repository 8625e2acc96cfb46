// Boards without a kernel: every .rooflab-board on the page gets a control for each of its columns, and its
// list shows what is chosen. The list comes from lib/rooflab/board.py and is whole without this script.
(function () {
  "use strict";
  const ALL = "all";

  function start(root) {
    const asked = JSON.parse(root.dataset.controls);
    const items = Array.from(root.querySelectorAll("li"), (item) => ({
      item, picks: item.dataset.picks.split(",").map(Number),
    }));
    const row = document.createElement("div");
    row.className = "controls";
    const said = document.createElement("p");
    said.className = "said";
    said.setAttribute("aria-live", "polite");

    const selects = asked.map(([label, values, first]) => {
      const control = document.createElement("label");
      const select = document.createElement("select");
      [ALL, ...values].forEach((value) => select.add(new Option(value, value, false, value === first)));
      select.addEventListener("change", show);
      control.append(label + " ", select);
      row.append(control);
      return select;
    });

    function show() {
      let left = 0;
      for (const { item, picks } of items) {
        const there = selects.every((select, k) => select.selectedIndex === 0 || picks[k] === select.selectedIndex - 1);
        item.hidden = !there;
        left += there;
      }
      said.textContent = left + " of " + items.length + " " + root.dataset.what + ".";
    }

    for (const place of root.querySelectorAll(".lesson")) {
      const link = document.createElement("a");
      link.href = place.dataset.to;
      link.textContent = place.textContent;
      place.replaceWith(link);
    }
    const details = root.querySelector("details");
    details.before(row, said);
    const list = root.querySelector("ul");
    list.tabIndex = 0; // it scrolls, by keyboard too
    details.replaceWith(list);
    show();
  }

  function all() {
    document.querySelectorAll(".rooflab-board").forEach(start);
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", all);
  else all();
})();
