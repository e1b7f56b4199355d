// Planned beside measured, one pair of bars a row; `low` and `high` are the band of the forecast.
page.charts.bars = (chart, figure, width) => {
  const isKnown = (value) => value !== null && value !== undefined;
  const measured = chart.rows.some((row) => isKnown(row.measured));
  const rowHeight = chart.rows.some((row) => isKnown(row.planned) && isKnown(row.measured)) ? 44 : 33;
  const height = chart.rows.length * rowHeight + 8;
  const svg = page.make("svg", { viewBox: `0 0 ${width} ${height}`, height });
  const values = chart.rows.flatMap((row) => [row.planned, row.measured, row.high]).filter(isKnown);
  const most = Math.max(...values, 0) || 1;
  const at = (value) => (value / most) * (width - 96);
  chart.rows.forEach((row, index) => {
    const top = index * rowHeight;
    const group = svg.appendChild(page.make("g"));
    group.append(page.make("rect", { x: 0, y: top, width, height: rowHeight, fill: "transparent" }));
    group.append(page.make("text", { x: 0, y: top + 13 }, row.name));
    const bars = [["planned", "f0"], ["measured", "f1"]].filter(([key]) => isKnown(row[key]));
    bars.forEach(([key, className], place) => {
      const y = top + 18 + place * 12;
      group.append(page.make("rect", { x: 0, y, width: Math.max(1, at(row[key])), height: 10, class: className }));
      group.append(page.make("text", { x: at(row[key]) + 6, y: y + 9, class: "soft" }, `${page.number(row[key])} ${chart.unit}`));
    });
    if (isKnown(row.high))
      group.append(page.make("rect", { x: at(row.low), y: top + 16, width: Math.max(1, at(row.high) - at(row.low)), height: 14, class: "band" }));
    group.addEventListener("pointermove", (event) => page.tip(event, row.said));
    group.addEventListener("pointerleave", () => page.tip());
  });
  figure.append(svg);
  const legend = chart.rows.some((row) => isKnown(row.planned)) ? [["f0", "planned"]] : [];
  if (measured) legend.push(["f1", "measured"]);
  page.legend(figure, legend);
};
