// Set light or dark colours, and handle the link that skips the controls.

function dark() {
  return document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function nameTheme() {
  document.getElementById("theme").textContent = dark() ? "Light" : "Dark";
  document.getElementById("theme").setAttribute("aria-label", dark() ? "Light colours" : "Dark colours");
}

document.getElementById("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  nameTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("view").focus();
});
nameTheme();
