"""Analysis of runs: summaries on a corpus, training logs, and sweeps."""

from tsallis.toolkit.analysis_options import Options
from tsallis.toolkit.run_analysis.densities import summarize_densities
from tsallis.toolkit.run_analysis.logs import alpha_history, density_history, value_history
from tsallis.toolkit.run_analysis.summary import RunInput, empty_rate, summarize, summarize_runs
from tsallis.toolkit.run_analysis.sweep import SweepRun, sweep

__all__ = [
    "Options",
    "RunInput",
    "SweepRun",
    "alpha_history",
    "density_history",
    "empty_rate",
    "summarize",
    "summarize_densities",
    "summarize_runs",
    "sweep",
    "value_history",
]
