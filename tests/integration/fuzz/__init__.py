"""Bad input of every kind: what reads it must end with its results or with one clear line.

mutations.py   how good input is spoilt
samples.py     good input: data, configurations and a small trained run of every task
readers.py     functions that read one file; a new one is an entry in the table at its end
targets.py     commands and all else that reads input; a new command is an entry in the table at its end
runner.py      runs cases in children with limits, and says which ones fail:

    python -m integration.fuzz.runner 5000                   so many cases of all targets
    python -m integration.fuzz.runner yaml-config:17         one case again, with all it printed

guided.py      searches files that reach lines of a reader that no other file reaches, with atheris:

    python -m integration.fuzz.guided --seconds 60           all readers, a minute in all, beginning with corpus/
    python -m integration.fuzz.guided --seconds 3600 --save  and corpus/ gets what was new
    python -m integration.fuzz.guided                        only corpus/ again, without atheris
"""
