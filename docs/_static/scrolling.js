"use strict";
// What scrolls sideways can be reached and moved by the keyboard.
document.addEventListener("DOMContentLoaded", () =>
  document.querySelectorAll("pre, .table-wrapper, .math-wrapper").forEach((region) => {
    if (region.scrollWidth > region.clientWidth) region.tabIndex = 0;
  }),
);
