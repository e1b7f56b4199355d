// Parallel coordinates: a line for each point through its settings and figures. Dragging along an axis keeps the
// points inside; the other charts and the table follow.
page.charts.parallel = (chart, figure, width) => {
  const least = 92;
  const across = Math.max(width, chart.axes.length * least);
  const height = 330;
  const svg = page.make("svg", { viewBox: `0 0 ${across} ${height}`, height, width: across });
  svg.style.width = `${across}px`;
  const [top, bottom, side] = [44, height - 14, least / 2];
  const places = chart.axes.map((_, index) => (chart.axes.length > 1 ? side + (index * (across - 2 * side)) / (chart.axes.length - 1) : across / 2));
  const scales = chart.axes.map((axis, index) => page.scale({ ...axis, tight: true }, chart.lines.map((line) => line.at[index]), bottom, top));
  const [low, high] = page.range(chart.lines.map((line) => line.value));
  const threads = svg.appendChild(page.make("g", { class: chart.lines.length > 60 ? "many" : "" }));
  const ys = chart.lines.map((line) => line.at.map((value, index) => (value === null ? null : scales[index].at(value))));
  chart.lines.forEach((line, index) => page.thread(threads, line, ys[index], places, line.value === null ? "nothing" : `q${page.shade(line.value, low, high)}`));
  const brushes = new Map();
  chart.axes.forEach((axis, index) => {
    page.upright(svg, axis, scales[index], places[index], top, bottom);
    page.brush(svg, places[index], top, bottom, (range) => {
      if (range) brushes.set(index, range);
      else brushes.delete(index);
      page.select("parallel", brushes.size ? chart.lines.filter((_, line) => page.inside(ys[line], brushes)).map((line) => line.n) : null);
    });
  });
  const frame = page.html("div", across > width ? "scroll" : "");
  frame.append(svg);
  figure.append(frame);
  if (chart.title) page.shadeLegend(figure, chart.title, low, high);
};

page.inside = (ys, brushes) => [...brushes].every(([index, [from, to]]) => ys[index] !== null && ys[index] >= from && ys[index] <= to);

page.thread = (svg, line, ys, places, className) => {
  let path = "";
  let pen = "M";
  ys.forEach((y, index) => {
    if (y !== null) path += `${pen}${places[index].toFixed(1)},${y.toFixed(1)}`;
    pen = y === null ? "M" : "L";
  });
  const node = svg.appendChild(page.make("path", { d: path, class: `thread ${className}`, "data-n": line.n }));
  node.addEventListener("pointerenter", (event) => {
    page.near(line.n);
    page.tip(event, page.said[line.n]);
  });
  node.addEventListener("pointerleave", () => {
    page.near(null);
    page.tip();
  });
};

page.upright = (svg, axis, scale, x, top, bottom) => {
  svg.append(page.make("line", { x1: x, x2: x, y1: top, y2: bottom, class: "axis" }));
  const words = page.folded(axis.title, 15);
  words.forEach((word, index) => svg.append(page.make("text", { x, y: 13 + index * 14, "text-anchor": "middle" }, word)));
  let above = Infinity;
  scale.ticks.forEach((value) => {
    if (Math.abs(scale.at(value) - above) < 11) return;
    above = scale.at(value);
    const text = page.folded(String(scale.text(value)), 13)[0];
    svg.append(page.make("text", { x: x + 5, y: scale.at(value) + 4, class: "soft", "paint-order": "stroke", stroke: "var(--page)", "stroke-width": 3 }, text));
  });
};

// Cut a text into at most two lines of some length, at a dot or space where there is one.
page.folded = (text, length) => {
  if (text.length <= length) return [text];
  const cut = Math.max(text.lastIndexOf(".", length), text.lastIndexOf(" ", length), text.lastIndexOf("_", length));
  const at = cut > 2 ? cut + 1 : length;
  const rest = text.slice(at);
  return [text.slice(0, at), rest.length > length ? `${rest.slice(0, length - 1)}…` : rest];
};

page.brush = (svg, x, top, bottom, changed) => {
  const mark = svg.appendChild(page.make("rect", { x: x - 9, width: 18, y: top, height: 0, class: "brush", visibility: "hidden" }));
  const grip = svg.appendChild(page.make("rect", { x: x - 11, width: 22, y: top - 6, height: bottom - top + 12, class: "grip" }));
  const y = (event) => {
    const frame = svg.getBoundingClientRect();
    const at = ((event.clientY - frame.top) / frame.height) * svg.viewBox.baseVal.height;
    return Math.max(top - 3, Math.min(bottom + 3, at));
  };
  let from = null;
  grip.addEventListener("pointerdown", (event) => {
    from = y(event);
    grip.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  grip.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const [low, high] = [Math.min(from, y(event)), Math.max(from, y(event))];
    mark.setAttribute("visibility", "visible");
    mark.setAttribute("y", low);
    mark.setAttribute("height", high - low);
  });
  grip.addEventListener("pointerup", (event) => {
    const [low, high] = [Math.min(from, y(event)), Math.max(from, y(event))];
    from = null;
    if (high - low < 4) mark.setAttribute("visibility", "hidden");
    changed(high - low < 4 ? null : [low, high]);
  });
};
