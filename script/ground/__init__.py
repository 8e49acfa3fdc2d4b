"""The ground the product stands on: engines, images, the proxy and hubs for tests and the demo.

Nothing here is part of the installed package. ``script/server`` and the tests share it, so that
what a person tries by hand is what the tests run.
"""
