"use strict";
(() => {
  const words = (text) => text.trim().toLowerCase();
  const make = (name, text, facts) => Object.assign(document.createElement(name), { textContent: text }, facts);

  // A dash is unknown: no number.
  const number = (text) => {
    const found = parseFloat(text.replace(/[$,\s]/g, "").replace("\u2212", "-"));
    return Number.isNaN(found) ? null : found;
  };

  function sort(table, column, head) {
    const down = head.getAttribute("aria-sort") === "ascending";
    const numeric = "number" in head.dataset;
    const rows = [...table.tBodies].map((body) => {
      const text = body.rows[0].cells[column].textContent;
      return { body, key: numeric ? number(text) : words(text) };
    });
    rows.sort((one, other) => {
      // Unknown is last, whichever way the others stand.
      if (one.key === null || other.key === null) return (one.key === null) - (other.key === null);
      const order = numeric ? one.key - other.key : one.key.localeCompare(other.key, "en", { numeric: true });
      return down ? -order : order;
    });
    table.append(...rows.map((row) => row.body));
    for (const other of head.parentNode.cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  }

  function sortable(table) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = make("button", head.textContent, { type: "button" });
      button.addEventListener("click", () => sort(table, column, head));
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
    });
  }

  function filterable(table, bar, title) {
    const bodies = [...table.tBodies];
    const texts = bodies.map((body) => words([...body.rows[0].cells].map((cell) => cell.textContent).join(" ")));
    const input = make("input", "", { type: "search", placeholder: "filter rows" });
    input.setAttribute("aria-label", `filter: ${title}`);
    const told = make("output", `${bodies.length} rows`);
    input.addEventListener("input", () => {
      const asked = words(input.value).split(/\s+/);
      let shown = 0;
      bodies.forEach((body, place) => {
        body.hidden = !asked.every((word) => texts[place].includes(word));
        shown += !body.hidden;
      });
      told.textContent = shown === bodies.length ? `${shown} rows` : `${shown} of ${bodies.length} rows`;
    });
    bar.append(input, told);
  }

  function openable(table, bar) {
    const opened = [];
    for (const body of table.tBodies) {
      if (body.rows.length < 2) continue;
      const cell = body.rows[0].cells[0];
      const button = make("button", cell.textContent, { type: "button" });
      const set = (open) => {
        body.classList.toggle("open", open);
        button.setAttribute("aria-expanded", String(open));
      };
      set(false);
      button.addEventListener("click", () => set(!body.classList.contains("open")));
      cell.replaceChildren(button);
      opened.push(set);
    }
    if (!opened.length) return;
    const all = make("button", "open all", { type: "button" });
    all.addEventListener("click", () => {
      const open = all.textContent === "open all";
      opened.forEach((set) => set(open));
      all.textContent = open ? "close all" : "open all";
    });
    bar.append(all);
  }

  document.documentElement.classList.add("js");
  for (const table of document.querySelectorAll("table")) {
    const section = table.closest("section");
    const bar = make("div", "", { className: "tools" });
    sortable(table);
    if (table.tBodies.length > 3) filterable(table, bar, section.querySelector("h3").textContent);
    if (table.classList.contains("opens")) openable(table, bar);
    table.parentNode.before(bar);
  }
})();
