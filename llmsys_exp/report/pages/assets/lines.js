// Curves over steps. The pointer picks the nearest step and says what each curve has there.
page.charts.lines = (chart, figure, width) => {
  const height = Math.round(Math.max(210, Math.min(320, width * 0.5)));
  const box = page.box(width, height);
  const svg = page.make("svg", { viewBox: `0 0 ${width} ${height}`, height });
  const all = chart.series.flatMap((one) => one.points);
  const x = page.scale({ kind: "linear", tight: true, whole: true, ticks: width < 500 ? 4 : 8 }, all.map((p) => p[0]), box.left, box.right);
  const y = page.scale(chart.y, all.map((p) => p[1]), box.bottom, box.top);
  page.axes(svg, box, x, y, { x: chart.x.title, y: chart.y.title });
  chart.series.forEach((one, index) => page.curve(svg, one, index % 6, x, y));
  const guide = svg.appendChild(page.make("line", { y1: box.top, y2: box.bottom, class: "guide", visibility: "hidden" }));
  const steps = [...new Set(all.map((p) => p[0]))].sort((a, b) => a - b);
  const tables = chart.series.map((one) => new Map(one.points));
  svg.addEventListener("pointermove", (event) => {
    const at = ((event.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width) * width;
    const step = steps.reduce((a, b) => (Math.abs(x.at(b) - at) < Math.abs(x.at(a) - at) ? b : a), steps[0]);
    guide.setAttribute("x1", x.at(step));
    guide.setAttribute("x2", x.at(step));
    guide.setAttribute("visibility", "visible");
    const said = chart.series
      .map((one, index) => [one.name, tables[index].get(step)])
      .filter(([, value]) => value !== undefined && value !== null)
      .map(([name, value]) => `${name}: ${page.number(value)}`);
    page.tip(event, [`${chart.x.title} ${page.number(step)}`, ...said].join("\n"));
  });
  svg.addEventListener("pointerleave", () => {
    guide.setAttribute("visibility", "hidden");
    page.tip();
  });
  figure.append(svg);
  if (chart.series.length > 1) page.legend(figure, chart.series.map((one, index) => [`f${index % 6}`, one.name]));
};

page.curve = (svg, series, index, x, y) => {
  let path = "";
  let pen = "M";
  for (const [step, value] of series.points) {
    if (value === null) {
      pen = "M";
      continue;
    }
    path += `${pen}${x.at(step).toFixed(1)},${y.at(value).toFixed(1)}`;
    pen = "L";
  }
  svg.append(page.make("path", { d: path, class: `line s${index}` }));
  if (series.points.length > 40) return;
  for (const [step, value] of series.points)
    if (value !== null) svg.append(page.make("circle", { cx: x.at(step), cy: y.at(value), r: 3, class: `dot f${index}` }));
};
