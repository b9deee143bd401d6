// Applied before the first paint: the theme that was chosen here, if any; else the system's.
"use strict";
(() => {
  const chosen = localStorage.getItem("holdfast-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
