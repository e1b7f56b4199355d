// Tables that are sorted by a click on a column and filtered by words; that of the points also by states and by what
// charts select. A long table holds some rows at a time: more come in when they are scrolled to, all when it is printed.
page.ROWS_AT_A_TIME = 200;

page.Rows = class {
  constructor(table) {
    this.table = table;
    this.body = table.tBodies[0];
    const more = table.parentNode.querySelector("template");
    const rows = [...this.body.rows, ...(more ? more.content.querySelectorAll("tr") : [])];
    this.order = rows.map((row) => ({ row, n: Number(row.dataset.n), state: row.dataset.state, text: row.textContent.toLowerCase() }));
    this.all = this.order.length;
    this.open = this.order;
    [...table.tHead.rows[0].cells].forEach((head, index) => this.sortedBy(head, index));
    table.parentNode.addEventListener("scroll", (event) => {
      const { scrollTop, scrollHeight, clientHeight } = event.target;
      if (scrollTop + 2 * clientHeight > scrollHeight) this.more(page.ROWS_AT_A_TIME);
    });
    addEventListener("beforeprint", () => this.more(Infinity));
  }

  show(lets) {
    this.lets = lets || this.lets || (() => true);
    this.open = this.order.filter(this.lets);
    this.body.replaceChildren();
    this.more(page.ROWS_AT_A_TIME);
  }

  more(count) {
    const there = this.body.rows.length;
    this.body.append(...this.open.slice(there, there + count).map((one) => one.row));
  }

  sortedBy(head, index) {
    const button = page.html("button", "", head.textContent);
    button.type = "button";
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of this.table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = this.order.map((one) => [page.cell(one.row, index), one]);
      keyed.sort(([a], [b]) => (a === null || b === null || !down ? page.compare(a, b) : page.compare(b, a)));
      this.order = keyed.map(([, one]) => one);
      this.show();
    });
  }
};

page.cell = (row, index) => {
  const text = row.cells[index].textContent.trim();
  const number = Number(text.replaceAll(",", "").replace(/ ?%$/, ""));
  return text === "" ? null : Number.isNaN(number) ? text : number;
};

// Nothing comes last, whichever way a table is sorted.
page.compare = (a, b) => {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
};

page.holds = (text) => {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (one) => words.every((word) => one.text.includes(word));
};

// What each filter lets through, as point numbers; a point is shown where all of them do.
page.filters = new Map();

page.select = (name, numbers) => {
  const had = page.filters.delete(name);
  if (numbers === null && !had) return;
  if (numbers !== null) page.filters.set(name, new Set(numbers));
  const sets = [...page.filters.values()];
  page.selected = sets.length ? new Set([...sets[0]].filter((n) => sets.every((one) => one.has(n)))) : null;
  for (const node of document.querySelectorAll("svg [data-n]"))
    node.classList.toggle("off", page.selected !== null && !page.selected.has(Number(node.dataset.n)));
  page.points.show((one) => !page.selected || page.selected.has(one.n));
  const count = document.getElementById("count");
  count.textContent = `${page.points.open.length === page.points.all ? "" : `${page.points.open.length.toLocaleString("en-US")} of `}${count.dataset.all} points`;
};

page.filterable = (points) => {
  const search = document.getElementById("search");
  const boxes = [...document.querySelectorAll("input[data-state]")];
  const apply = () => {
    const holds = page.holds(search.value);
    const states = new Set(boxes.filter((box) => box.checked).map((box) => box.dataset.state));
    const open = points.order.filter((one) => states.has(one.state) && holds(one));
    page.select("table", open.length === points.all ? null : open.map((one) => one.n));
  };
  for (const input of [search, ...boxes]) input.addEventListener("input", apply);
  document.getElementById("reset").addEventListener("click", () => {
    search.value = "";
    for (const box of boxes) box.checked = true;
    apply();
    page.draw();
  });
  points.body.addEventListener("pointerover", (event) => page.near(event.target.closest("tr")?.dataset.n));
  points.body.addEventListener("pointerleave", () => page.near(null));
};

page.tables = () => {
  for (const table of document.querySelectorAll("table.sortable")) {
    const rows = new page.Rows(table);
    const search = document.querySelector(`input[data-filters="${table.id}"]`);
    search?.addEventListener("input", () => rows.show(page.holds(search.value)));
    if (!table.classList.contains("points")) continue;
    page.points = rows;
    page.filterable(rows);
  }
};
