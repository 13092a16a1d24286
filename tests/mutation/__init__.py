"""How many faults put into the code on purpose the tests notice.

mutants.py   faults: a place in a module's syntax tree and what stands there instead
score.py     runs the tests that reach each of them, and prints the share that fails and the faults that none notices:

    python -m mutation.score --count 200 --seed 0 ops/eager search
    python -m mutation.score --only ops/eager/maps.py:117:8    faults of one place again
"""
