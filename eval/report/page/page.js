"use strict";
// Everything stands in the page without this script. It adds sorting and filtering of tables,
// values on focus and hover, and opens what is folded (but for sentences) when printing.
(() => {
  const make = (tag, given = {}, text = "") => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  };

  // A cell's value: a number where it carries one, NaN where it carries none, else its text.
  const value = (row, column) => {
    const cell = row.cells[column];
    const order = cell.dataset.v;
    if (order === undefined) return cell.textContent.trim();
    return order === "" ? NaN : Number(order);
  };

  const compare = (a, b) =>
    typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;

  // Undefined values stay last, whichever way the others go.
  const sorted = (rows, column, way) =>
    rows
      .map((row, at) => ({ row, at, key: value(row, column) }))
      .sort((a, b) => {
        const lack = Number.isNaN(a.key) - Number.isNaN(b.key);
        if (lack) return lack;
        if (Number.isNaN(a.key)) return a.at - b.at;
        return way * compare(a.key, b.key) || a.at - b.at;
      })
      .map(({ row }) => row);

  // A press: ascending, then descending, then as it was. Whole-benchmark rows stay on top.
  const sortable = (table, said) => {
    const body = table.tBodies[table.tBodies.length - 1];
    const first = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const name = head.textContent.trim();
      if (!name) return;
      const button = make("button", { type: "button" }, name);
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = { none: "ascending", ascending: "descending", descending: "none" }[now];
        for (const other of heads) {
          if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
        }
        head.setAttribute("aria-sort", next);
        const way = next === "descending" ? -1 : 1;
        body.append(...(next === "none" ? first : sorted(first, column, way)));
        said.textContent =
          next === "none" ? "in the first order again" : `sorted by ${name}, ${next}`;
      });
    });
  };

  const filterable = (table, number) => {
    const body = table.tBodies[table.tBodies.length - 1];
    const rows = [...body.rows].map((row) => [row, row.textContent.toLowerCase()]);
    if (rows.length < 6) return;
    const id = `filter-${number}`;
    const line = make("div", { class: "filter" });
    const input = make("input", { type: "search", id, autocomplete: "off", spellcheck: "false" });
    const shown = make("output", { for: id }, `${rows.length} of ${rows.length} rows`);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const [row, text] of rows) {
        row.hidden = !words.every((word) => text.includes(word));
        count += !row.hidden;
      }
      shown.textContent = `${count} of ${rows.length} rows`;
    });
    const label = make("label", { for: id }, "Filter rows");
    const name = table.closest(".wide").getAttribute("aria-label");
    label.append(make("span", { class: "sr" }, ` of ${name}`));
    line.append(label, input, shown);
    table.closest(".wide").before(line);
  };

  document.querySelectorAll("table.data").forEach((table, number) => {
    const said = make("span", { class: "sr", role: "status" });
    table.closest(".wide").after(said);
    sortable(table, said);
    filterable(table, number);
  });

  // Charts: one stop of the Tab key each; arrows go from mark to mark; Escape hides the values.
  document.querySelectorAll("figure").forEach((figure) => {
    const marks = [...figure.querySelectorAll("[tabindex]:not(.wide)")];
    if (!marks.length) return;
    const tip = make("div", { class: "tip", "aria-hidden": "true" });
    tip.hidden = true;
    figure.append(tip);
    const show = (mark) => {
      tip.textContent = mark.dataset.said;
      tip.hidden = false;
      const box = figure.getBoundingClientRect();
      const at = mark.getBoundingClientRect();
      const room = box.width - tip.offsetWidth;
      const left = at.left - box.left + at.width / 2 - tip.offsetWidth / 2;
      tip.style.left = `${Math.max(0, Math.min(room, left))}px`;
      const above = at.top - box.top - tip.offsetHeight - 6;
      const fits = at.top - tip.offsetHeight - 6 > 0;
      tip.style.top = `${fits ? above : at.bottom - box.top + 6}px`;
    };
    const hide = () => {
      tip.hidden = true;
    };
    marks.forEach((mark, number) => {
      const title = mark.querySelector("title");
      mark.dataset.said = title.textContent;
      mark.setAttribute("aria-label", title.textContent.replaceAll("\n", "; "));
      title.remove(); // else the browser shows its own beside ours
      mark.setAttribute("tabindex", number ? "-1" : "0");
      mark.addEventListener("focus", () => show(mark));
      mark.addEventListener("blur", hide);
      const place = mark.closest(".row") ?? mark;
      place.addEventListener("mouseenter", () => show(mark));
      place.addEventListener("mouseleave", hide);
      mark.addEventListener("keydown", (event) => {
        const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
        const ends = { Home: 0, End: marks.length - 1 }[event.key];
        if (event.key === "Escape") hide();
        const next = ends ?? (step === undefined ? undefined : number + step);
        if (next === undefined || !marks[next]) return;
        event.preventDefault();
        mark.setAttribute("tabindex", "-1");
        marks[next].setAttribute("tabindex", "0");
        marks[next].focus();
      });
    });
  });

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open]):not(.sentences)")];
    for (const folded of opened) folded.open = true;
  });
  addEventListener("afterprint", () => {
    for (const folded of opened) folded.open = false;
  });
})();
