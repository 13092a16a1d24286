"use strict";
window.addEventListener("load", () => {  // wait until pictures have their sizes
  // Make everything that scrolls sideways reachable by keyboard.
  for (const region of document.querySelectorAll("pre, .table-wrapper, .math-wrapper, div.math, p:has(> img)")) {
    if (region.scrollWidth > region.clientWidth) region.tabIndex = 0;
  }
  // Sphinx marks the captions of the table of contents as headings, but sets no heading level.
  for (const caption of document.querySelectorAll('.caption[role="heading"]')) caption.ariaLevel = "2";
  // Sphinx lays out the parameters of a long signature as a <dl> without terms, which is not a valid description list.
  for (const list of document.querySelectorAll(".sig > dl")) list.setAttribute("role", "presentation");
});
