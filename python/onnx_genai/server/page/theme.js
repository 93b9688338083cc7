// Runs before the page is drawn, so that it never shows the wrong colours first. Not a module: those run late.

(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function wanted() {
    try {
      return localStorage.getItem("onnx-genai/theme") || "";
    } catch {
      return "";
    }
  }

  function apply() {
    document.documentElement.dataset.theme = wanted() || (dark.matches ? "dark" : "light");
  }

  apply();
  dark.addEventListener("change", apply);
  addEventListener("storage", apply);
  addEventListener("themechange", apply);
})();
