"""The lease protocol, searched through state by state, with the product's own deciding functions.

``python -m model`` searches larger scenes than the tests do; see README.md for what is proved.
"""
