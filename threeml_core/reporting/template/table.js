// Tables of the report: sorted by a click on a header, columns of a wide one switched, rows as cards on a phone.
"use strict";
const SCALES = { K: 1e3, M: 1e6, G: 1e9, B: 1e9, min: 60, h: 3600 };
const NOTHING = new Set(["", "—", "not run"]);

const text = (row, column) => row.cells[column].textContent.trim();

function number(cell) {
  const found = cell.match(/^[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?(?= ?([a-z]+(?![\w/]))?)/i);
  return found ? parseFloat(found[0].replaceAll(",", "")) * (SCALES[found[3]] ?? 1) : NaN;
}

function compare(first, second) {
  const [a, b] = [number(first), number(second)];
  return isNaN(a) || isNaN(b) ? first.localeCompare(second, "en", { numeric: true }) : a - b;
}

// from the order of the page to rising, to falling, and back; cells with nothing in them stay last
function sort(table, order, heads, column) {
  const before = heads[column].ariaSort;
  const turn = before === "ascending" ? -1 : 1;
  heads.forEach((head) => (head.ariaSort = null));
  const rows = [...order];
  if (before !== "descending") {
    heads[column].ariaSort = turn > 0 ? "ascending" : "descending";
    const empty = (row) => NOTHING.has(text(row, column));
    rows.sort((a, b) => empty(a) - empty(b) || (empty(a) ? 0 : turn * compare(text(a, column), text(b, column))));
  }
  table.tBodies[0].append(...rows);
}

function switches(table, heads) {
  const box = document.createElement("details");
  box.className = "columns";
  box.innerHTML = "<summary>choose columns</summary><fieldset><legend>Columns shown</legend></fieldset>";
  heads.slice(1).forEach((head, i) => {
    const label = document.createElement("label"), input = document.createElement("input");
    Object.assign(input, { type: "checkbox", checked: true });
    input.addEventListener("change", () => {
      for (const row of table.rows) row.cells[i + 1].hidden = !input.checked;
    });
    label.append(input, head.textContent);
    box.lastChild.append(label);
  });
  table.before(box);
}

for (const table of document.querySelectorAll("table.study")) {
  const heads = [...table.tHead.rows[0].cells], order = [...table.tBodies[0].rows];
  for (const row of order) [...row.cells].forEach((cell, i) => (cell.dataset.label = heads[i].textContent));
  table.classList.toggle("cards", heads.length > 3);
  if (heads.length > 6) switches(table, heads);
  if (order.length < 3) continue;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "sort by this column";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, order, heads, column));
    head.append(button);
  });
}
