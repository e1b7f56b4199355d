"use strict";
// What every chart needs: elements, scales with ticks, numbers as text, and the words beside the pointer.

const page = { charts: {}, selected: null };

page.make = (name, attributes = {}, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

page.html = (name, className, text) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};

// Four digits that matter, as `layout.shown` writes them.
page.number = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size >= 1e4 && size < 1e12) return Math.round(value).toLocaleString("en-US");
  if (Number.isInteger(value) && size < 1e4) return String(value);
  return size !== 0 && (size < 1e-4 || size >= 1e12) ? value.toExponential(2).replace(/\.?0+e/, "e") : String(Number(value.toPrecision(4)));
};

// A scale has `at` (value to pixels), `ticks` (values) and `text` (value to words). `axis.kind` is linear, log or
// words (values are places in `axis.words`); `axis.marks` are values to mark in place of round numbers.
page.scale = (axis, values, from, to) => {
  if (axis.kind === "words") {
    const step = (to - from) / Math.max(1, axis.words.length);
    const text = (index) => axis.words[index];
    return { at: (index) => from + (index + 0.5) * step, ticks: axis.words.map((_, index) => index), text, step };
  }
  const known = values.filter((value) => value !== null && (axis.kind !== "log" || value > 0));
  let low = known.length ? Math.min(...known) : 0;
  let high = known.length ? Math.max(...known) : 1;
  if (axis.kind === "log") return page.logScale(axis, low, high, from, to);
  if (axis.zero) low = Math.min(0, low);
  if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const step = page.niceStep((high - low) / (axis.ticks || 5), axis.whole);
  if (!axis.tight) [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  const ticks = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step)
    ticks.push(Number(value.toPrecision(12)));
  return { at: (value) => from + ((value - low) / (high - low)) * (to - from), ticks: axis.marks || ticks, text: page.number };
};

page.logScale = (axis, low, high, from, to) => {
  if (low === high) [low, high] = [low / 2, high * 2];
  const [first, last] = [Math.log10(low), Math.log10(high)];
  const ticks = [];
  for (let power = Math.floor(first); power <= Math.ceil(last); power++)
    for (const digit of last - first < 1.5 ? [1, 2, 5] : [1])
      ticks.push(Number((digit * 10 ** power).toPrecision(3)));
  const inside = ticks.filter((value) => value >= low / 1.0001 && value <= high * 1.0001);
  return {
    at: (value) => from + ((Math.log10(Math.max(value, low)) - first) / (last - first)) * (to - from),
    ticks: axis.marks || (inside.length > 1 ? inside : [low, high]),
    text: page.number,
  };
};

page.niceStep = (rough, whole) => {
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).find((digit) => digit * power >= rough * 0.999);
  return whole ? Math.max(1, step) : step;
};

// Grid lines, ticks and titles of a chart with two axes; `box` is where the figures go.
page.axes = (svg, box, x, y, titles) => {
  let before = -Infinity;
  for (const value of x.ticks) {
    const at = x.at(value);
    svg.append(page.make("line", { x1: at, x2: at, y1: box.top, y2: box.bottom, class: "grid" }));
    const label = page.make("text", { x: at, y: box.bottom + 16, "text-anchor": "middle", class: "soft" }, x.text(value));
    const half = (String(x.text(value)).length * 7) / 2;
    if (at - half < before + 6) continue;
    before = at + half;
    svg.append(label);
  }
  let below = Infinity;
  for (const value of y.ticks) {
    const at = y.at(value);
    if (Math.abs(at - below) < 11) continue;
    below = at;
    svg.append(page.make("line", { x1: box.left, x2: box.right, y1: at, y2: at, class: "grid" }));
    svg.append(page.make("text", { x: box.left - 6, y: at + 4, "text-anchor": "end", class: "soft" }, y.text(value)));
  }
  svg.append(page.make("text", { x: box.right, y: box.bottom + 33, "text-anchor": "end" }, titles.x));
  svg.append(page.make("text", { x: box.left, y: box.top - 9 }, titles.y));
};

page.box = (width, height, left = 58) => ({ left, right: width - 10, top: 24, bottom: height - 38 });

page.tip = (event, text) => {
  const tip = (page.tipNode ??= document.body.appendChild(page.html("div", "tip")));
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 6))}px`;
  tip.style.top = `${event.clientY + 16 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 16}px`;
};

// Mark everything that is of one point, wherever it is on the page.
page.near = (number) => {
  for (const node of document.querySelectorAll(".near")) node.classList.remove("near");
  if (number === null || number === undefined) return;
  for (const node of document.querySelectorAll(`[data-n="${Number(number)}"]`)) {
    node.classList.add("near");
    if (node.classList.contains("thread")) node.parentNode.append(node);
  }
};

page.legend = (figure, entries) => {
  const legend = page.html("div", "legend");
  for (const [className, text] of entries) {
    const entry = page.html("span");
    const swatch = page.make("svg", { viewBox: "0 0 18 10" });
    swatch.append(page.make("rect", { width: 18, height: 10, rx: 2, class: className }));
    entry.append(swatch, text);
    legend.append(entry);
  }
  figure.append(legend);
};

// Seven colours from the lowest value to the highest.
page.shade = (value, low, high) => (high > low ? Math.min(6, Math.floor(((value - low) / (high - low)) * 7)) : 3);

page.range = (values) => {
  const known = values.filter((value) => value !== null);
  return known.length ? [Math.min(...known), Math.max(...known)] : [0, 0];
};

page.shadeLegend = (figure, title, low, high) => {
  const legend = page.html("div", "legend");
  const scale = page.make("svg", { viewBox: "0 0 140 10", class: "shades" });
  for (let index = 0; index < 7; index++)
    scale.append(page.make("rect", { x: 20 * index, width: 20, height: 10, class: `c${index}` }));
  const entry = page.html("span");
  entry.append(`${title}: ${page.number(low)}`, scale, page.number(high));
  legend.append(entry);
  figure.append(legend);
};
