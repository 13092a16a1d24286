"use strict";
document.addEventListener("DOMContentLoaded", () => {
  // What scrolls sideways can be reached and moved by the keyboard.
  for (const region of document.querySelectorAll("pre, .table-wrapper, .math-wrapper, div.math")) {
    if (region.scrollWidth > region.clientWidth) region.tabIndex = 0;
  }
  // Sphinx makes headings of the captions of the contents, and says not of which level.
  for (const caption of document.querySelectorAll('.caption[role="heading"]')) caption.ariaLevel = "2";
  // Sphinx lays out the parameters of a long signature as a list without terms, which is no list of definitions.
  for (const list of document.querySelectorAll(".sig > dl")) list.setAttribute("role", "presentation");
});
