"""Through which door a start came: whether options were sent with it, or the hub took the stored.

JupyterHub hands the last options to a start that names none, and does not say so.
"""

from __future__ import annotations

from typing import Any


def options_were_sent(options: object, handler: Any, from_page: object) -> bool:
    """True if the options of a start came with its request.

    Args:
        options: as the spawner has them.
        handler: the hub's handler of the request; None for a start that no request asked for.
        from_page: the options last read from a form or a link, the very object.
    """
    if options is from_page or handler is None:
        return True
    if hasattr(handler, "get_server_json_body"):  # REST, JupyterHub 6
        return handler.get_server_json_body()["user_options"] is not None
    if hasattr(handler, "get_json_body"):  # REST, JupyterHub 5: the body is the options
        return handler.get_json_body() is not None
    return False  # a page without a form
