"""The page of a report: records of an analysis in, one HTML file out."""
