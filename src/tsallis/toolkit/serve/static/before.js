// Settings for the drawing code that this page shares with the report.

const DATA = { units: 1000 }; // units in a weight of 1; the smallest weight above zero is one unit
