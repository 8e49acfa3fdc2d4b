"""Hypothesis state machines over the product: whatever the order of things, the laws hold.

The short form runs with the tests; ``python -m machines --help`` runs as many steps as wanted.
"""
