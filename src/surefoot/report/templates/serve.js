"use strict";
// Whatever comes from the server or from a file is set as text, never as markup.
const drop = document.getElementById("drop");
const input = document.getElementById("file");
const status = document.getElementById("status");
const results = document.getElementById("results");
const SHOWN = 5;
let latest = 0; // the number of the latest request

function element(tag, className, text) {
  const created = document.createElement(tag);
  if (className) created.className = className;
  if (text !== undefined) created.textContent = text;
  return created;
}

function showStatus(text, wrong) {
  status.textContent = text;
  status.className = wrong ? "wrong" : "";
}

function percent(p) {
  if (p > 0.999 && p < 1) return "> 99.9%";
  if (p > 0 && p < 0.001) return "< 0.1%";
  return (100 * p).toFixed(1) + "%";
}

function bar(p, className) {
  const outer = element("div", "bar " + (className || ""));
  outer.setAttribute("aria-hidden", "true"); // the number is next to it
  const inner = element("i");
  inner.style.width = 100 * p + "%";
  outer.append(inner);
  return outer;
}

function picture(file) {
  const image = element("img");
  image.alt = "";
  image.src = URL.createObjectURL(file);
  image.onload = () => URL.revokeObjectURL(image.src);
  image.onerror = () => image.remove(); // a format that this browser does not show
  return image;
}

function bars(probabilities) {
  const sorted = Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
  const grid = element("div", "bars");
  for (const [name, p] of sorted.slice(0, SHOWN)) {
    grid.append(element("div", "name", name), bar(p), element("div", "value", percent(p)));
  }
  return [grid, sorted.length];
}

function card(file, prediction) {
  const article = element("article", "card" + (prediction.error ? " wrong" : ""));
  if (prediction.error) {
    article.append(element("p", "file", file.name), element("p", "error", prediction.error));
    return article;
  }
  const left = element("div");
  left.append(picture(file));
  const right = element("div");
  article.append(left, right);
  const label = prediction.labels ? prediction.labels.join(", ") || "none of the labels" : prediction.label;
  right.append(element("h3", "label", label), element("p", "file", file.name));
  right.append(bar(prediction.confidence, "top"));
  right.append(element("div", "confidence", percent(prediction.confidence) + " confidence"));
  const tags = element("div", "tags");
  if (prediction.verdict) tags.append(element("span", "mark " + prediction.verdict, prediction.verdict));
  if (prediction.decision) tags.append(element("span", "decision " + prediction.decision, prediction.decision));
  right.append(tags);
  const [grid, classes] = bars(prediction.probabilities);
  right.append(grid);
  const rest = classes > SHOWN ? `the ${SHOWN} most probable of ${classes} classes; ` : "";
  right.append(element("p", "more", `${rest}entropy ${prediction.entropy.toPrecision(3)}, novelty ${prediction.novelty.toPrecision(4)}`));
  return article;
}

async function showShift() {
  const { shift } = await (await fetch("health")).json();
  const box = document.getElementById("shift");
  box.className = shift.state === "shift detected" ? "shifted" : "";
  box.replaceChildren(...shift.verdict.map((sentence) => element("p", "", sentence)));
  const checks = document.getElementById("checks");
  const at = (shift.last_alarm || "").replace("T", " ").replace("+00:00", " UTC");
  const last = at ? `, the last at ${at}` : "";
  if (checks) checks.textContent = `Checks: ${shift.checks}, alarms: ${shift.alarms}${last}.`;
}

async function predict(files) {
  if (!files.length) return showStatus("There is no image file.", true);
  const request = ++latest;
  showStatus(files.length === 1 ? "Predicting …" : `Predicting ${files.length} images …`);
  results.setAttribute("aria-busy", "true");
  const form = new FormData();
  for (const file of files) form.append("image", file, file.name);
  let response, result;
  try {
    response = await fetch("predict", { method: "POST", body: form });
    result = await response.json();
  } catch {
    if (request === latest) showStatus("The server did not respond. Is it still running?", true);
    return;
  } finally {
    if (request === latest) results.removeAttribute("aria-busy");
  }
  if (request !== latest) return; // a newer request has replaced this one
  const predictions = result.predictions || files.map(() => ({ error: result.error }));
  results.replaceChildren(...files.map((file, i) => card(file, predictions[i])));
  if (!response.ok) return showStatus(result.error, true);
  const failed = predictions.filter((each) => each.error).length;
  const done = predictions.length - failed;
  showStatus(`${done === 1 ? "1 image" : done + " images"} predicted${failed ? `, ${failed} failed` : ""}.`);
  showShift().catch(() => {}); // the page has the state of its loading
}

input.addEventListener("change", () => {
  predict([...input.files]);
  input.value = ""; // so that the same file can be chosen again
});
for (const name of ["dragenter", "dragover"]) {
  window.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
window.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) drop.classList.remove("over");
});
window.addEventListener("drop", (event) => {
  event.preventDefault(); // anywhere on the page; otherwise the browser would open the file
  drop.classList.remove("over");
  predict([...event.dataTransfer.files]);
});
window.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (files.length) predict(files);
});
