"""A storm over a real engine: two hubs, eight cards, forty users, and much that goes wrong.

Two hubs with the same user names share one engine. Users start, cancel and stop servers while hubs
and the engine are killed, the line between them breaks, outsiders take cards, and strange hands do
to containers what ``docker`` allows. An oracle that reads the engine, never our code, watches.

Run it for longer with ``PYTHONPATH=.:script:tests python -m chaos --minutes 30``.
"""
