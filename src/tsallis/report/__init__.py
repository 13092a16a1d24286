"""The page of a report: turn the results of an analysis into one HTML file."""
