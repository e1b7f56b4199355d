// A figure over two settings. A cell with several points shows their mean, one without a figure says why.
page.charts.heat = (chart, figure, width) => {
  const [columns, rows] = [chart.x.words.length, chart.y.words.length];
  const left = Math.min(130, 14 + 7 * Math.max(...chart.y.words.map((word) => String(word).length)));
  const cell = Math.max(26, Math.min(46, (width - left) / columns));
  const height = rows * cell + 62;
  const box = { left, right: width - 4, top: 24, bottom: 24 + rows * cell };
  const svg = page.make("svg", { viewBox: `0 0 ${width} ${height}`, height });
  const x = page.scale({ kind: "words", words: chart.x.words }, [], box.left, box.right);
  const y = page.scale({ kind: "words", words: chart.y.words }, [], box.bottom, box.top);
  const [low, high] = page.range(chart.cells.map((one) => one.value));
  page.axes(svg, box, x, y, { x: chart.x.title, y: chart.y.title });
  for (const one of chart.cells) {
    const shade = one.value === null ? null : page.shade(one.value, low, high);
    const [left_, top] = [x.at(one.x) - x.step / 2 + 1, y.at(one.y) + y.step / 2 + 1];
    const size = { x: left_, y: top, width: x.step - 2, height: -y.step - 2 };
    const group = svg.appendChild(page.make("g", one.n === null ? {} : { "data-n": one.n }));
    group.append(page.make("rect", { ...size, class: shade === null ? "none" : `c${shade}` }));
    const text = one.value === null ? one.state : page.number(one.value);
    if (x.step > 7 * text.length)
      group.append(page.make("text", { x: x.at(one.x), y: y.at(one.y) + 4, "text-anchor": "middle", class: shade === null ? "soft" : `t${shade}` }, text));
    group.addEventListener("pointermove", (event) => {
      page.near(one.n);
      page.tip(event, [page.said[one.first], one.others].filter(Boolean).join("\n"));
    });
    group.addEventListener("pointerleave", () => {
      page.near(null);
      page.tip();
    });
  }
  figure.append(svg);
  page.shadeLegend(figure, chart.title, low, high);
};
