// What pages cannot do by themselves: the switch of themes, the box that selects all, and details that stay open when
// a part of a page is fetched anew. All else works without this.
"use strict";
(() => {
  const themes = ["automatic", "light", "dark"];
  const root = document.documentElement;

  function label(button) {
    const theme = root.dataset.theme || "automatic";
    button.textContent = `Theme: ${theme}`;
    button.hidden = false;
  }

  function prepare() {
    const button = document.getElementById("theme");
    if (button) label(button);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("#theme");
    if (!button) return;
    const next = themes[(themes.indexOf(root.dataset.theme || "automatic") + 1) % themes.length];
    if (next === "automatic") {
      delete root.dataset.theme;
      localStorage.removeItem("holdfast-theme");
    } else {
      root.dataset.theme = next;
      localStorage.setItem("holdfast-theme", next);
    }
    label(button);
  });

  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-selects]");
    if (!form) return;
    const all = form.querySelector("input[data-all]");
    const boxes = Array.from(form.querySelectorAll("input[name=id]"));
    if (event.target === all) for (const box of boxes) box.checked = all.checked;
    const checked = boxes.filter((box) => box.checked).length;
    all.checked = checked === boxes.length;
    all.indeterminate = checked > 0 && checked < boxes.length;
  });

  let opened = [];
  document.addEventListener("htmx:beforeSwap", (event) => {
    opened = Array.from(event.target.querySelectorAll("details[id][open]"), (each) => each.id);
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
    opened = [];
  });

  document.addEventListener("htmx:load", prepare);
  prepare();
})();
