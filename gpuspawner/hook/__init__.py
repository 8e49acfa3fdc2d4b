"""The startup hook, as an archive to copy into a created container.

``sitecustomize.py`` runs in the user's Python, not in the hub's: see there for what it does.
"""

from __future__ import annotations

import io
import tarfile
from importlib.resources import files

from gpuspawner.memory import HOOK_PATH

#: Any fixed time will do: the same archive for the same hook.
_MTIME = 0


def hook_archive() -> bytes:
    """A tar to be put at ``/`` of a created container (Docker's ``put_archive``).

    Holds the folders of :data:`gpuspawner.memory.HOOK_PATH` (root, 0755) and ``sitecustomize.py``
    (root, 0444), so that the user can read but not change it.
    """
    source = files(__name__).joinpath("sitecustomize.py").read_bytes()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        path = ""
        for part in HOOK_PATH.strip("/").split("/"):
            path = f"{path}/{part}" if path else part
            archive.addfile(_entry(path, tarfile.DIRTYPE, 0o755))
        archive.addfile(
            _entry(f"{path}/sitecustomize.py", tarfile.REGTYPE, 0o444, len(source)),
            io.BytesIO(source),
        )
    return buffer.getvalue()


def _entry(name: str, kind: bytes, mode: int, size: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size, entry.mtime = kind, mode, size, _MTIME
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
