"""A hub that is killed at any line of spawn and stop, and what the next one finds.

The engine is a fake one in the test's process, served on a socket, so that it outlives the hub. The
hub is the real spawner under JupyterHub's own user with a database on disk, in a child process that
counts the product's lines as it executes them and sends itself SIGKILL before one of them.

Some lines are tried with the tests; ``python -m crash`` tries them all.
"""
