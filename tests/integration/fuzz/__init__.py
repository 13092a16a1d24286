"""Fuzzing: with any invalid input, commands and readers must end with results or with a one-line error.

mutations.py   functions that corrupt valid input
samples.py     valid input: data, configurations and a small trained run of every task
readers.py     functions that read one file; add new ones to the table at its end
targets.py     commands and other code that reads input; add new commands to the table at its end
runner.py      runs cases in child processes with limits, and prints those that fail:

    python -m integration.fuzz.runner 5000                   5000 cases of all targets
    python -m integration.fuzz.runner yaml-config:17         repeat one case and print its output

guided.py      searches with atheris for files that reach new lines of a reader:

    python -m integration.fuzz.guided --seconds 60           all readers together for a minute, starting with corpus/
    python -m integration.fuzz.guided --seconds 3600 --save  add new files to corpus/
    python -m integration.fuzz.guided                        only read corpus/, without atheris
"""
