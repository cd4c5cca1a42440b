// `element`, `trigger` and `watch` are gradio's: the component, its events, and a callback after it is rendered.
let pressed; // selector of the word that was clicked or changed, which gets the focus again

/** Mark a word and those that it is linked to in its sentence; without one, the open word. */
function mark(word = element.querySelector("[aria-expanded=true]")) {
  const linked = word?.closest(".sentence").querySelectorAll(`[data-link="${word.dataset.link}"]`) ?? [];
  for (const each of element.querySelectorAll(".linked")) each.classList.remove("linked");
  for (const each of linked) each.classList.add("linked");
}
for (const name of ["pointerover", "focusin"]) {
  element.addEventListener(name, (event) => mark(event.target.closest("[data-link]") ?? undefined));
}
element.addEventListener("pointerleave", () => mark());
element.addEventListener("keydown", (event) => {
  if (event.target.role !== "button" || !["Enter", " "].includes(event.key)) return;
  event.preventDefault();
  event.target.click();
});
element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-sentence]");
  if (!button) return;
  const { sentence, word, choice = null } = button.dataset;
  if (word === undefined) return trigger("select", { sentence });
  pressed = `[role=button][data-sentence="${sentence}"][data-word="${word}"]`;
  trigger("click", { sentence, word, choice });
});
/** Hide the translations while another text is typed, and an error when any is; a tag may precede the text. */
function hideStale(event) {
  const typed = document.querySelector("#source textarea").value;
  const shown = [...element.querySelectorAll(".sentence")].map((each) => each.dataset.source).join("");
  const [text, end] = [typed, shown].map((each) => each.replace(/\s/g, ""));
  element.toggleAttribute("data-stale", !text.endsWith(end) || Boolean(event && !end));
}
document.addEventListener("input", hideStale);
watch("value", () => {
  hideStale();
  if (pressed) element.querySelector(pressed)?.focus({ preventScroll: true });
  else element.querySelector(".sentence")?.scrollIntoView({ block: "nearest" }); // on a phone it is below the text
  pressed = undefined;
  mark();
});
