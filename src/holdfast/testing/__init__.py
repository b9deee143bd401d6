"""What Holdfast proves itself with, shipped so that others can: a clock that tests move, and the suite of every store.

`conformance` and `races` are lists of cases that run unchanged on any store; `machine` compares a store with the
reference after every random step. They need pytest and Hypothesis; `clock` needs nothing.
"""
