"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const makePath = () => document.createElementNS($("lines").namespaceURI, "path");

/** A new element; text becomes text, never markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const text = (content, tag = "bdi") => make(tag, { dir: "auto" }, content);
const number = (value, digits = 2) => (value === null ? "none" : value.toFixed(digits).replace("-", "\u2212"));
const percent = (value) => (value >= 0.9995 ? "100" : (100 * value).toPrecision(value < 0.1 ? 2 : 3)) + "\u00a0%";
/** A token with its leading space, as it can be seen. */
const shown = (token) => (token.startsWith(" ") ? token.slice(1) : token) || "\u2423";
const pressed = (group, chosen) => {
  for (const button of group.children) button.setAttribute("aria-pressed", String(button === chosen));
};

/** Lets arrow keys move among the items of a list, which is one stop of the tab key. */
function roving(list, previous, next) {
  list.addEventListener("keydown", (event) => {
    const step = { [previous]: -1, [next]: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const items = [...list.children];
    const place = Math.min(Math.max(items.indexOf(document.activeElement) + step, 0), items.length - 1);
    items[place].focus();
  });
  list.addEventListener("focusin", (event) => {
    for (const item of list.children) item.tabIndex = item.contains(event.target) ? 0 : -1;
  });
}

// Translation and alternatives

function showWords() {
  const words = $("words");
  data.words.forEach((word, place) => {
    const name = word.text || "\u00b7";
    const button = make("button", { type: "button", "aria-pressed": "false", tabindex: place ? "-1" : "0" }, text(name));
    button.setAttribute("aria-label", `${name}, ${percent(word.probability)}`);
    const bar = make("span", { class: "bar" }, make("i"));
    bar.firstChild.style.width = `${100 * word.probability}%`;
    button.append(bar);
    button.addEventListener("click", () => {
      pressed(words, button);
      showAlternatives(word);
    });
    words.append(button);
  });
  roving(words, "ArrowLeft", "ArrowRight");
}

/** The alternatives to each token of a word, as the words that they begin or continue. */
function showAlternatives(word) {
  const panel = $("alternatives");
  panel.replaceChildren();
  for (const choice of word.choices) {
    panel.append(make("p", {}, text(shown(choice.text), "b"), ` has probability ${percent(choice.probability)} here.`,
      choice.alternatives.length ? " Instead of it:" : " No alternatives were computed."));
    for (const other of choice.alternatives) {
      const name = make("div", {}, text(other.text || "\u00b7", "b"), make("small", {}, percent(other.probability)));
      panel.append(make("div", { class: "other" }, name, difference(other.translation)));
    }
  }
}

/** A translation, with what it shares with the one on top in grey. */
function difference(translation) {
  const before = data.translation.split(" "), after = translation.split(" ");
  let start = 0, end = 0;
  while (start < after.length && after[start] === before[start]) start++;
  while (end < Math.min(after.length, before.length) - start && after.at(-1 - end) === before.at(-1 - end)) end++;
  const stop = after.length - end;
  const parts = [after.slice(0, start), after.slice(start, stop), after.slice(stop)].map((words) => words.join(" "));
  const line = make("div", { dir: "auto" });
  parts.forEach((part, index) => {
    if (part) line.append(make("span", { class: index === 1 ? "new" : "same" }, part), " ");
  });
  return line;
}

// Attention

const KINDS = { cross: "Translation to source", encoder: "Source to itself", decoder: "Translation to itself" };
const FAINTEST = 20; // weights below 20 / 255 are drawn for the chosen word only
const ROW = 26; // pixels, as in the style sheet
const view = { kind: "cross", layer: 0, heads: new Set(), side: null, place: 0 };
const decoded = {};

function weightsOf(kind) {
  decoded[kind] ??= Uint8Array.from(atob(data.attention[kind].weights), (byte) => byte.charCodeAt(0));
  return decoded[kind];
}

function weight(kind, layer, head, row, column) {
  const { rows, columns, heads } = data.attention[kind];
  return weightsOf(kind)[((layer * heads + head) * rows.length + row) * columns.length + column];
}

/** Marks an element as a head's: the style sheet makes a colour of the hue. */
function paint(element, head, heads) {
  element.classList.add("head");
  element.style.setProperty("--hue", Math.round((360 * head) / heads + 210) % 360);
  element.dataset.head = head;
}

function showKinds() {
  for (const [kind, name] of Object.entries(KINDS)) {
    const button = make("button", { type: "button", "data-kind": kind }, name);
    button.addEventListener("click", () => chooseKind(kind));
    $("kinds").append(button);
  }
  for (const [side, list] of [["row", $("rows")], ["column", $("columns")]]) {
    roving(list, "ArrowUp", "ArrowDown");
    const choose = (event) => {
      const item = event.target.closest("[role=option]");
      if (item) choosePlace(side, [...list.children].indexOf(item));
    };
    list.addEventListener("pointerover", choose);
    list.addEventListener("focusin", choose);
  }
  $("attention").addEventListener("pointerleave", () => choosePlace(null, 0));
  $("attention").addEventListener("focusout", (event) => {
    if (!$("attention").contains(event.relatedTarget)) choosePlace(null, 0);
  });
  chooseKind("cross");
}

function chooseKind(kind) {
  const { rows, columns, layers, heads } = data.attention[kind];
  const known = decoded[kind] && view.kind === kind;
  Object.assign(view, { kind, side: null });
  view.layer = known ? view.layer : layers - 1;
  view.heads = new Set(Array.from({ length: heads }, (_, head) => head));
  pressed($("kinds"), $("kinds").querySelector(`[data-kind=${kind}]`));
  $("layers").replaceChildren(...Array.from({ length: layers }, (_, layer) => {
    const button = make("button", { type: "button" }, String(layer + 1));
    button.addEventListener("click", () => chooseLayer(layer));
    return button;
  }));
  $("heads").replaceChildren(...Array.from({ length: heads }, (_, head) => headButton(head, heads)));
  $("heads").append(...[["All", true], ["None", false]].map(([name, all]) => {
    const button = make("button", { type: "button" }, name);
    button.addEventListener("click", () => {
      view.heads = new Set(all ? Array.from({ length: heads }, (_, head) => head) : []);
      drawAttention();
    });
    return button;
  }));
  for (const [list, words] of [[$("rows"), rows], [$("columns"), columns]]) {
    list.replaceChildren(...words.map((word, place) => make(
      "div",
      { role: "option", "aria-selected": "false", tabindex: place ? "-1" : "0", title: word },
      make("span", { class: "shade" }), text(word || "\u00b7"),
    )));
  }
  chooseLayer(view.layer);
}

function headButton(head, heads) {
  const button = make("button", { type: "button", "aria-label": `Head ${head + 1}` }, String(head + 1));
  paint(button, head, heads);
  button.addEventListener("click", () => {
    view.heads.delete(head) || view.heads.add(head);
    drawAttention();
  });
  return button;
}

function chooseLayer(layer) {
  view.layer = layer;
  pressed($("layers"), $("layers").children[layer]);
  drawAttention();
}

function choosePlace(side, place) {
  if (view.side === side && view.place === place) return;
  Object.assign(view, { side, place });
  drawAttention();
}

/** The mean over the chosen heads, 0 to 1, of what the chosen word attends to or is attended by. */
function meanWeights() {
  const { rows, columns } = data.attention[view.kind];
  const others = view.side === "row" ? columns : rows;
  return others.map((_, other) => {
    const [row, column] = view.side === "row" ? [view.place, other] : [other, view.place];
    let sum = 0;
    for (const head of view.heads) sum += weight(view.kind, view.layer, head, row, column);
    return view.heads.size ? sum / view.heads.size / 255 : 0;
  });
}

function drawAttention() {
  const { rows, columns } = data.attention[view.kind];
  for (const button of $("heads").querySelectorAll("[data-head]")) {
    button.setAttribute("aria-pressed", String(view.heads.has(Number(button.dataset.head))));
  }
  const height = ROW * Math.max(rows.length, columns.length);
  $("lines").setAttribute("viewBox", `0 0 100 ${height}`);
  $("lines").style.height = `${height}px`;
  $("lines").replaceChildren(...attentionLines());
  const means = view.side ? meanWeights() : [];
  for (const [side, list] of [["row", $("rows")], ["column", $("columns")]]) {
    [...list.children].forEach((item, place) => {
      const isChosen = view.side === side && view.place === place;
      item.setAttribute("aria-selected", String(isChosen));
      item.firstChild.style.opacity = view.side && view.side !== side ? 0.6 * means[place] : 0;
    });
  }
  tellAttention(means);
}

/** One path for each head and tenth of weight, so that thousands of lines stay a few elements. */
function attentionLines() {
  const { rows, columns, heads } = data.attention[view.kind];
  const paths = [];
  for (const head of view.heads) {
    const tenths = Array.from({ length: 10 }, () => []);
    const shift = ROW * (0.5 + (0.6 * (head + 0.5 - heads / 2)) / heads); // heads side by side
    for (let row = 0; row < rows.length; row++) {
      if (view.side === "row" && row !== view.place) continue;
      for (let column = 0; column < columns.length; column++) {
        if (view.side === "column" && column !== view.place) continue;
        const value = weight(view.kind, view.layer, head, row, column);
        if (value < (view.side ? 3 : FAINTEST)) continue;
        tenths[Math.min(9, Math.floor((value * 10) / 255))].push(`M0 ${column * ROW + shift}L100 ${row * ROW + shift}`);
      }
    }
    tenths.forEach((lines, tenth) => {
      if (!lines.length) return;
      const path = makePath();
      path.setAttribute("d", lines.join(""));
      paint(path, head, heads);
      path.setAttribute("stroke-opacity", (0.08 + 0.09 * tenth).toFixed(2));
      paths.push(path);
    });
  }
  return paths;
}

function tellAttention(means) {
  const line = $("attention-told");
  if (!view.side) {
    line.replaceChildren("Words on the right attend to those on the left. Point at one, or move to it with the arrow keys, to see its attention alone.");
    return;
  }
  const { rows, columns } = data.attention[view.kind];
  const [own, others] = view.side === "row" ? [rows, columns] : [columns, rows];
  const best = means.map((mean, place) => [mean, place]).sort((a, b) => b[0] - a[0]).slice(0, 4);
  line.replaceChildren(text(own[view.place] || "\u00b7"), view.side === "row" ? " attends to " : " is attended to by ");
  best.forEach(([mean, place], index) => line.append(index ? ", " : "", text(others[place] || "\u00b7"), ` ${percent(mean)}`));
  line.append(" (mean of the chosen heads).");
}

// Beam search

const search = data.search;
const COLUMN = 148, LINE = 46, TOP = 30, MARGIN = 12, NODE_WIDTH = 112;
const LOOKS = {
  live: ["live", "", "live: extended in the next step"],
  finished: ["finished", "\u2713", "finished, and kept"],
  unfinished: ["live", "", ""],
  beaten: ["dropped", "\u00d7", "dropped: beaten by better candidates, or by better finished ones"],
  worse: ["dropped", "\u00d7", ""],
  displaced: ["dropped", "\u00d7", ""],
  outside_beam: ["dropped", "\u00d7", ""],
  stopped: ["stopped", "\u25a0", "dropped: the search stopped"],
  length_limit: ["stopped", "\u25a0", ""],
};
const steps = search.steps;
const tree = { chosen: null, from: -1, to: -1 };
const nodeAt = (step, index) => steps[step - 1].candidates[index];
const key = (step, index) => `${step}/${index}`;

/** The places of a candidate and of those that it extends, from the last to the first. */
function ancestry(step, index) {
  const places = [];
  for (; step >= 1; step--) {
    places.push([step, index]);
    index = nodeAt(step, index).parent;
  }
  return places;
}
const bestPath = new Set(ancestry(...search.hypotheses[0].place).map((place) => key(...place)));
const sentence = (step, index) => ancestry(step, index).reverse().map((place) => nodeAt(...place).text).join("").trim();

function whyItStopped() {
  const last = steps.at(-1), count = `${steps.length} ${steps.length === 1 ? "step" : "steps"}`;
  return {
    bound: `It stopped after ${count}: the deciding finished hypothesis has ${number(last.deciding_score, 3)}, and the bound of the live ones is ${number(last.bound, 3)}.`,
    enough_finished: `It stopped after ${count}: ${search.num_beams} hypotheses had finished.`,
    length_limit: `It stopped at the length limit, ${search.length_limit} tokens.`,
    none_live: `It stopped after ${count}: no candidate was left to extend.`,
  }[search.reason];
}

function why(step, index) {
  const node = nodeAt(step, index), kept = steps[step - 1].finished.map((place) => nodeAt(...place).normalized_score);
  const continues = step < steps.length && steps[step].candidates.some((next) => next.parent === index);
  const place = steps.at(-1).finished.findIndex(([at, which]) => at === step && which === index) + 1;
  return {
    live: continues ? `Live: extended in step ${step + 1}.` : `Live, but none of its extensions is a candidate of step ${step + 1}.`,
    finished: `Finished in step ${step}, and number ${place} of the finished hypotheses when the search stopped.`,
    unfinished: "Live when the search stopped, and returned because too few hypotheses had finished.",
    beaten: `Dropped: ${search.num_beams} candidates that go on are better.`,
    worse: `Dropped: it ended, but the ${search.num_beams} best finished hypotheses score at least ${number(Math.min(...kept), 3)}.`,
    displaced: `Finished in step ${step}, dropped in step ${node.until}: ${search.num_beams} finished hypotheses were better by then.`,
    outside_beam: `Dropped: it ended, but is not among the ${search.num_beams} best candidates of its step.`,
    stopped: `Dropped when the search stopped. ${whyItStopped()}`,
    length_limit: `Dropped at the length limit, ${search.length_limit} tokens, without an end.`,
  }[node.fate];
}

function showSearch() {
  const penalty = search.penalty_type === "gnmt" ? `((5 + length) / 6)^${search.length_penalty}` : `length^${search.length_penalty}`;
  $("search-told").textContent = `Beam ${search.num_beams}. Each step adds a token, a word or a part of one. Its candidates, best first, with log-probability divided by ${penalty}. ${whyItStopped()}`;
  for (const [look, sign, meaning] of Object.values(LOOKS)) {
    if (meaning) $("legend").append(make("li", {}, make("span", { class: look, "aria-hidden": "true" }, sign || "\u00a0"), meaning));
  }
  const most = Math.max(...steps.map((step) => step.candidates.length));
  const width = MARGIN * 2 + COLUMN * steps.length, height = TOP + LINE * most + 44;
  $("canvas").style.width = `${width}px`;
  $("canvas").style.height = `${height}px`;
  $("edges").setAttribute("width", width);
  $("edges").setAttribute("height", height);
  $("tree").addEventListener("scroll", () => requestAnimationFrame(() => drawTree()), { passive: true });
  new ResizeObserver(() => drawTree()).observe($("tree"));
  $("canvas").addEventListener("keydown", moveInTree);
  for (const hypothesis of search.hypotheses) {
    $("hypotheses").append(make("li", {}, text(hypothesis.text), " ", make("small", {}, number(hypothesis.score, 3))));
  }
  chooseCandidate(1, 0);
}

/** Draw only the steps in view: a search may have hundreds. */
function drawTree() {
  const box = $("tree");
  const from = Math.max(1, Math.floor((box.scrollLeft - MARGIN) / COLUMN));
  const to = Math.min(steps.length, Math.ceil((box.scrollLeft + box.clientWidth) / COLUMN) + 1);
  if (from === tree.from && to === tree.to) return;
  Object.assign(tree, { from, to });
  const hadFocus = $("canvas").contains(document.activeElement);
  const nodes = [];
  for (let step = from; step <= to; step++) {
    nodes.push(...stepLabels(step), ...steps[step - 1].candidates.map((_, index) => nodeButton(step, index)));
  }
  $("canvas").replaceChildren($("edges"), ...nodes);
  markChosen();
  if (hadFocus) $("canvas").querySelector("[tabindex='0']")?.focus({ preventScroll: true });
}

function stepLabels(step) {
  const { deciding_score: deciding, bound } = steps[step - 1];
  const label = make("div", { class: "step" });
  label.textContent = `Step ${step}`;
  label.style.left = `${MARGIN + COLUMN * (step - 1)}px`;
  label.style.top = "6px";
  const foot = make("div", { class: "step" });
  foot.textContent = `finished ${number(deciding, 3)}\nbound ${number(bound, 3)}`;
  foot.style.left = label.style.left;
  foot.style.bottom = "4px";
  return [label, foot];
}

function nodeButton(step, index) {
  const node = nodeAt(step, index), [look, sign] = LOOKS[node.fate], name = key(step, index);
  const button = make("button", { type: "button", class: `node ${look}`, "data-place": name });
  button.classList.toggle("best", bestPath.has(name));
  button.setAttribute("aria-label", `Step ${step}, candidate ${index + 1}: ${node.text}. ${why(step, index)}`);
  button.append(text(shown(node.text), "b"), make("small", {}, `${number(node.normalized_score)} ${sign}`));
  button.style.left = `${MARGIN + COLUMN * (step - 1)}px`;
  button.style.top = `${TOP + LINE * index}px`;
  const choose = () => chooseCandidate(step, index);
  button.addEventListener("pointerenter", choose);
  button.addEventListener("focus", choose);
  button.addEventListener("click", choose);
  return button;
}

function edge(step, index, node, chain) {
  const path = makePath(), name = key(step, index);
  const x = MARGIN + COLUMN * (step - 1), y = TOP + LINE * index + 19;
  const start = x - COLUMN + NODE_WIDTH, from = TOP + LINE * node.parent + 19, middle = (start + x) / 2;
  path.setAttribute("d", `M${start} ${from}C${middle} ${from} ${middle} ${y} ${x} ${y}`);
  const look = chain.has(name) ? "chain" : bestPath.has(name) ? "best" : LOOKS[node.fate][0];
  path.setAttribute("class", look);
  path.dataset.order = { chain: 3, best: 2, dropped: 0 }[look] ?? 1;
  return path;
}

function chooseCandidate(step, index) {
  if (tree.chosen && tree.chosen[0] === step && tree.chosen[1] === index) return;
  tree.chosen = [step, index];
  if (tree.from < 0) drawTree();
  else markChosen(); // new nodes would lose the pointer
  const node = nodeAt(step, index);
  $("candidate").replaceChildren(
    make("p", { class: "text", dir: "auto" }, sentence(step, index)),
    make("p", {}, why(step, index)),
    make("p", { class: "note" }, `Step ${step}, candidate ${index + 1}: log-probability of the token ${number(node.log_probability, 3)}, ` +
      `of the hypothesis ${number(node.score, 3)}, with the length penalty ${number(node.normalized_score, 3)}.`),
  );
}

/** Mark the chosen candidate and its ancestors among the nodes in view, and draw the edges between them. */
function markChosen() {
  const chain = new Set(ancestry(...tree.chosen).map((place) => key(...place))), chosen = key(...tree.chosen);
  for (const button of $("canvas").querySelectorAll(".node")) {
    button.classList.toggle("chain", chain.has(button.dataset.place));
    button.tabIndex = button.dataset.place === chosen ? 0 : -1;
  }
  const edges = [];
  for (let step = Math.max(2, tree.from); step <= tree.to; step++) {
    steps[step - 1].candidates.forEach((node, index) => edges.push(edge(step, index, node, chain)));
  }
  $("edges").replaceChildren(...edges.sort((a, b) => a.dataset.order - b.dataset.order));
}

function moveInTree(event) {
  const [step, index] = tree.chosen, children = step < steps.length ? steps[step].candidates : [];
  const child = children.findIndex((next) => next.parent === index);
  const target = {
    ArrowUp: [step, index - 1],
    ArrowDown: [step, index + 1],
    ArrowLeft: [step - 1, nodeAt(step, index).parent],
    ArrowRight: [step + 1, child],
    Home: [1, 0],
    End: search.hypotheses[0].place,
  }[event.key];
  if (!target) return;
  event.preventDefault();
  if (target[0] < 1 || target[1] < 0 || target[1] === null || !steps[target[0] - 1]?.candidates[target[1]]) return;
  const box = $("tree"), left = MARGIN + COLUMN * (target[0] - 1);
  if (left < box.scrollLeft || left + COLUMN > box.scrollLeft + box.clientWidth) {
    box.scrollLeft = left - box.clientWidth / 2;
  }
  chooseCandidate(...target);
  drawTree();
  $("canvas").querySelector("[tabindex='0']")?.focus({ preventScroll: true });
}

$("source").textContent = data.source;
$("translation").textContent = data.translation;
$("words").dir = getComputedStyle($("translation")).direction; // dir="auto" would ignore its tokens, which are isolated
$("summary").textContent = data.isGiven
  ? "Attention and alternatives are of this given translation; the beam search is the model's own."
  : `The model's translation, by beam search over ${steps.length} steps.`;
showWords();
showKinds();
showSearch();
document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
