"use strict";
// Sort a table by a column; a second press reverses. Missing values stay last.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const body = head.closest("table").tBodies[0];
    const column = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    const number = head.classList.contains("number");
    const value = (row) => row.cells[column].dataset.value;
    const rows = Array.from(body.rows).sort((a, b) => {
      const x = value(a), y = value(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = number ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true });
      return down ? -order : order;
    });
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  });
}
// Show only the rows that contain every word typed and are of a kind that is ticked.
function filter(name) {
  const table = document.getElementById(name);
  const words = document.querySelector(`input[data-filters="${name}"]`).value.toLowerCase().split(/\s+/);
  const kinds = Array.from(document.querySelectorAll(`input[data-kinds="${name}"]`));
  const off = new Set(kinds.filter((box) => !box.checked).map((box) => box.value));
  const rows = Array.from(table.tBodies[0].rows);
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = off.has(row.dataset.kind) || !words.every((word) => text.includes(word));
  }
  const shown = rows.filter((row) => !row.hidden).length;
  document.getElementById(name + "-count").textContent = `${shown} of ${rows.length} shown`;
}
for (const input of document.querySelectorAll("input[data-filters], input[data-kinds]")) {
  input.addEventListener("input", () => filter(input.dataset.filters || input.dataset.kinds));
}
// What was not run is not shown at first, unless nothing was.
for (const table of new Set(Array.from(document.querySelectorAll("input[data-kinds]"), (box) => box.dataset.kinds))) {
  filter(table);
}
// A link may lead to a row that the filter hides, or into a part that is folded: show it.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  const row = target.closest("tr[hidden]");
  if (row) {
    const name = row.closest("table").id;
    document.querySelector(`input[data-filters="${name}"]`).value = "";
    for (const box of document.querySelectorAll(`input[data-kinds="${name}"]`)) box.checked = true;
    filter(name);
  }
  const folded = target.querySelector("details") || target.closest("details");
  if (folded) folded.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", reveal);
addEventListener("load", reveal);
// A second press on the same link changes no address, but must still show what the filter hides.
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (link && link.hash === location.hash) reveal();
});
// Paper has no folds: what a verdict rests on is printed with it, where it rests on anything; not run by run.
const folds = () =>
  document.querySelectorAll('details.table, details.words, tr:not([data-kind="not run"]) details:not(.values)');
addEventListener("beforeprint", () => { for (const d of folds()) { d.dataset.was = d.open; d.open = true; } });
addEventListener("afterprint", () => { for (const d of folds()) d.open = d.dataset.was === "true"; });
