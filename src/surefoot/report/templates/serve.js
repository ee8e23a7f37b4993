"use strict";
// Whatever comes from the server or from a file is set as text, never as markup.
const drop = document.getElementById("drop");
const input = document.getElementById("file");
const status = document.getElementById("status");
const results = document.getElementById("results");
const SHOWN = 5;
let turn = 0;

function made(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function say(text, wrong) {
  status.textContent = text;
  status.className = wrong ? "wrong" : "";
}

function percent(p) {
  if (p > 0.999 && p < 1) return "> 99.9%";
  if (p > 0 && p < 0.001) return "< 0.1%";
  return (100 * p).toFixed(1) + "%";
}

function bar(p, className) {
  const outer = made("div", "bar " + (className || ""));
  outer.setAttribute("aria-hidden", "true"); // the number stands beside it
  const inner = made("i");
  inner.style.width = 100 * p + "%";
  outer.append(inner);
  return outer;
}

function picture(file) {
  const image = made("img");
  image.alt = "";
  image.src = URL.createObjectURL(file);
  image.onload = () => URL.revokeObjectURL(image.src);
  image.onerror = () => image.remove(); // of a kind that this browser does not show
  return image;
}

function bars(probabilities) {
  const sorted = Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
  const grid = made("div", "bars");
  for (const [name, p] of sorted.slice(0, SHOWN)) {
    grid.append(made("div", "name", name), bar(p), made("div", "value", percent(p)));
  }
  return [grid, sorted.length];
}

function card(file, said) {
  const article = made("article", "card" + (said.error ? " wrong" : ""));
  if (said.error) {
    article.append(made("p", "file", file.name), made("p", "error", said.error));
    return article;
  }
  const left = made("div");
  left.append(picture(file));
  const right = made("div");
  article.append(left, right);
  const label = said.labels ? said.labels.join(", ") || "none of the labels" : said.label;
  right.append(made("h3", "label", label), made("p", "file", file.name));
  right.append(bar(said.confidence, "top"));
  right.append(made("div", "confidence", percent(said.confidence) + " confidence"));
  const tags = made("div", "said");
  if (said.verdict) tags.append(made("span", "mark " + said.verdict, said.verdict));
  if (said.decision) tags.append(made("span", "decision " + said.decision, said.decision));
  right.append(tags);
  const [grid, classes] = bars(said.probabilities);
  right.append(grid);
  const rest = classes > SHOWN ? `the ${SHOWN} likeliest of ${classes} classes; ` : "";
  right.append(made("p", "more", `${rest}entropy ${said.entropy.toPrecision(3)}, novelty ${said.novelty.toPrecision(4)}`));
  return article;
}

async function predict(files) {
  if (!files.length) return say("That holds no image file.", true);
  const mine = ++turn;
  say(files.length === 1 ? "Predicting …" : `Predicting ${files.length} images …`);
  results.setAttribute("aria-busy", "true");
  const form = new FormData();
  for (const file of files) form.append("image", file, file.name);
  let answer, document_;
  try {
    answer = await fetch("predict", { method: "POST", body: form });
    document_ = await answer.json();
  } catch {
    if (mine === turn) say("The server did not answer. Is it still running?", true);
    return;
  } finally {
    if (mine === turn) results.removeAttribute("aria-busy");
  }
  if (mine !== turn) return; // others were dropped meanwhile
  const said = document_.predictions || files.map(() => ({ error: document_.error }));
  results.replaceChildren(...files.map((file, i) => card(file, said[i])));
  if (!answer.ok) return say(document_.error, true);
  const wrong = said.filter((each) => each.error).length;
  const done = said.length - wrong;
  say(`${done === 1 ? "1 image" : done + " images"} predicted${wrong ? `, ${wrong} not` : ""}.`);
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
  event.preventDefault(); // anywhere on the page; else the browser would leave it to show the file
  drop.classList.remove("over");
  predict([...event.dataTransfer.files]);
});
window.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (files.length) predict(files);
});
