// Settings that the drawings shared with reports need.

const DATA = { units: 1000 }; // of a weight; the smallest above zero is one unit
