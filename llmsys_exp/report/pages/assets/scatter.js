// Points by two figures; with `same`, a line where both are equal. The pointer picks the nearest point.
page.charts.scatter = (chart, figure, width) => {
  const height = Math.round(Math.max(240, Math.min(380, width * 0.7)));
  const box = page.box(width, height);
  const svg = page.make("svg", { viewBox: `0 0 ${width} ${height}`, height });
  const [across, up] = [0, 1].map((place) => chart.points.map((point) => point.at[place]));
  const both = chart.same ? [...across, ...up] : null;
  const x = page.scale({ ...chart.x, ticks: width < 500 ? 3 : 5 }, both || across, box.left, box.right);
  const y = page.scale(chart.y, both || up, box.bottom, box.top);
  page.axes(svg, box, x, y, { x: chart.x.title, y: chart.y.title });
  if (chart.same) {
    const [low, high] = page.range(both.filter((value) => chart.x.kind !== "log" || value > 0));
    svg.append(page.make("line", { x1: x.at(low), y1: y.at(low), x2: x.at(high), y2: y.at(high), class: "guide" }));
    svg.append(page.make("text", { x: x.at(high) - 4, y: y.at(high) + 4, "text-anchor": "end", class: "soft" }, chart.same));
  }
  const places = chart.points.map((point) => {
    const [cx, cy] = [x.at(point.at[0]), y.at(point.at[1])];
    svg.append(page.make("circle", { cx, cy, r: chart.points.length > 300 ? 3 : 5, class: "dot f0", "data-n": point.n }));
    return { cx, cy, point };
  });
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const [px, py] = [((event.clientX - frame.left) / frame.width) * width, ((event.clientY - frame.top) / frame.height) * height];
    const away = (one) => Math.hypot(one.cx - px, one.cy - py);
    const open = places.filter((one) => !page.selected || page.selected.has(one.point.n));
    if (!open.length) return;
    const nearest = open.reduce((a, b) => (away(b) < away(a) ? b : a));
    const hit = away(nearest) < 30;
    page.near(hit ? nearest.point.n : null);
    page.tip(event, hit ? page.words(chart, nearest.point) : "");
  });
  svg.addEventListener("pointerleave", () => {
    page.near(null);
    page.tip();
  });
  figure.append(svg);
};

page.words = (chart, point) => {
  const [across, up] = point.at;
  const off = chart.same ? [`planned ${page.number(across)}, measured ${page.number(up)} (${((up / across - 1) * 100).toFixed(1)} %)`] : [];
  return [page.said[point.n], ...off].join("\n");
};
