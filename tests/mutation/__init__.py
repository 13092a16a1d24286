"""Mutation tests: insert faults into the code and measure how many of them the tests notice.

mutants.py   faults: small changes in the syntax tree of a module
score.py     runs the tests that reach each fault, and prints the share of noticed faults and all unnoticed faults

    python -m mutation.score --count 200 --seed 0 ops/eager search
    python -m mutation.score --only ops/eager/maps.py:117:8    only the faults at one place
"""
