"use strict";
// One slider for each task: the point of every network moves along its curve of NLL on both sides.
for (const box of document.querySelectorAll(".slider")) {
  const data = JSON.parse(box.querySelector("script").textContent);
  const svg = box.querySelector("svg"), range = box.querySelector("input"), shown = box.querySelector("output");
  const colours = ["currentColor", "#d55e00"], dashes = ["", "6 3"];
  const known = (curve) => curve.temperature.map((t, i) => [curve.familiar[i], curve.unfamiliar[i]]).filter((p) => p[0] !== null && p[1] !== null);
  const points = data.curves.flatMap(known);
  if (!points.length) continue;
  const reach = (axis) => {
    const values = points.map((p) => p[axis]), low = Math.min(...values), high = Math.max(...values);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [Math.max(0, low - room), high + room];
  };
  const [left, right] = reach(0), [low, high] = reach(1);
  const x = (value) => 60 + (value - left) / (right - left) * 445, y = (value) => 270 - (value - low) / (high - low) * 235;
  const add = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    svg.appendChild(made);
    return made;
  };
  const ticks = (from, to) => {
    const rough = (to - from) / 5, size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * size).find((each) => each >= rough);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), found = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push([at, at.toFixed(digits)]);
    return found;
  };
  add("path", { d: "M60 35V270H505", fill: "none", stroke: "currentColor" });
  for (const [at, text] of ticks(left, right)) add("text", { x: x(at), y: 289, "text-anchor": "middle", fill: "currentColor" }, text);
  for (const [at, text] of ticks(low, high)) add("text", { x: 54, y: y(at) + 4, "text-anchor": "end", fill: "currentColor" }, text);
  add("text", { x: 282, y: 313, "text-anchor": "middle", fill: "currentColor" }, "NLL on familiar data");
  add("text", { x: -152, y: 15, "text-anchor": "middle", transform: "rotate(-90)", fill: "currentColor" }, "NLL on unfamiliar data");
  const body = box.querySelector("tbody");
  const movers = data.curves.map((curve, index) => {
    const path = known(curve).map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ");
    add("polyline", { points: path, fill: "none", stroke: colours[index], "stroke-width": 2, "stroke-dasharray": dashes[index] });
    if (curve.fitted !== null) {
      let near = 0;
      curve.temperature.forEach((t, i) => { if (Math.abs(Math.log(t / curve.fitted)) < Math.abs(Math.log(curve.temperature[near] / curve.fitted))) near = i; });
      if (curve.familiar[near] !== null && curve.unfamiliar[near] !== null) {
        const a = x(curve.familiar[near]), b = y(curve.unfamiliar[near]);
        add("path", { d: `M${a - 6} ${b - 6}L${a + 6} ${b + 6}M${a - 6} ${b + 6}L${a + 6} ${b - 6}`, stroke: colours[index], "stroke-width": 3 });
      }
    }
    add("line", { x1: 70 + 200 * index, x2: 100 + 200 * index, y1: 16, y2: 16, stroke: colours[index], "stroke-width": 2, "stroke-dasharray": dashes[index] });
    add("text", { x: 107 + 200 * index, y: 20, fill: "currentColor" }, curve.title);
    const row = body.insertRow(), cells = [0, 1, 2, 3].map(() => row.insertCell());
    cells[0].textContent = curve.title;
    cells[3].textContent = curve.fitted === null ? "–" : curve.fitted.toFixed(2);
    return { curve, cells, dot: add("circle", { r: 7, fill: colours[index], stroke: "var(--paper)", "stroke-width": 2 }) };
  });
  const text = (value) => (value === null ? "–" : value.toFixed(4));
  const move = () => {
    const at = Number(range.value);
    shown.textContent = data.curves[0].temperature[at].toFixed(2);
    for (const { curve, cells, dot } of movers) {
      cells[1].textContent = text(curve.familiar[at]);
      cells[2].textContent = text(curve.unfamiliar[at]);
      const there = curve.familiar[at] !== null && curve.unfamiliar[at] !== null;
      dot.setAttribute("visibility", there ? "visible" : "hidden");
      if (there) { dot.setAttribute("cx", x(curve.familiar[at])); dot.setAttribute("cy", y(curve.unfamiliar[at])); }
    }
  };
  range.max = data.curves[0].temperature.length - 1;
  range.value = data.start;
  range.addEventListener("input", move);
  move();
  box.hidden = false;
}
