"""Bad input of every kind: what reads it must end with its results or with one clear line.

mutations.py   how good input is spoilt
samples.py     good input: data, configurations and a small trained run of every task
targets.py     what reads it; a new reader or command is one entry in the table at its end
runner.py      runs cases in children with limits, and says which ones fail:

    python -m integration.fuzz.runner 5000                   so many cases of all targets
    python -m integration.fuzz.runner yaml-config:17         one case again, with all it printed
"""
