// Start: draw the charts at the width they have, again when that changes; tables; buttons that copy.
({ charts: page.figures, said: page.said } = JSON.parse(document.getElementById("figures").textContent));

page.draw = () => {
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  // all widths before the first chart is drawn: each question after a change would lay the page out again
  const widths = figures.map((figure) => Math.max(260, Math.floor(figure.clientWidth)));
  figures.forEach((figure, index) => {
    const chart = page.figures[figure.dataset.chart];
    figure.replaceChildren(figure.querySelector("figcaption"));
    page.charts[chart.kind](chart, figure, widths[index]);
    const svg = figure.querySelector("svg");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${chart.caption} ${chart.note}`);
  });
  page.select("parallel", null);
};

page.copy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.body.appendChild(page.html("textarea"));
    area.value = text;
    area.select();
    document.execCommand("copy");
    area.remove();
  }
};

for (const button of document.querySelectorAll("button.copy"))
  button.addEventListener("click", async () => {
    await page.copy(button.parentNode.querySelector("pre").textContent);
    button.textContent = "copied";
    setTimeout(() => (button.textContent = "copy"), 1500);
  });

page.tables();
page.draw();
let drawn = document.documentElement.clientWidth;
addEventListener("resize", () => {
  if (Math.abs(document.documentElement.clientWidth - drawn) < 2) return;
  drawn = document.documentElement.clientWidth;
  page.draw();
});
