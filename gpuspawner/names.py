"""The names other tools rely on: container labels, environment variables, refusal reasons.

Pure constants, kept in one place so that a rename is one visible change.
"""

from __future__ import annotations

from typing import Final

# -- container labels -------------------------------------------------------------------------
LABEL_HUB: Final = "gpuspawner.hub"  # random id of the hub, kept beside its database
LABEL_LEASE: Final = "gpuspawner.lease"  # random, one per attempt
LABEL_IMAGE: Final = "gpuspawner.image"  # the image's id; tells ours from a `docker commit` copy
LABEL_USER: Final = "gpuspawner.user"
LABEL_SERVER: Final = "gpuspawner.server"
LABEL_PROFILE: Final = "gpuspawner.profile"
LABEL_DEVICES: Final = "gpuspawner.devices"  # UUIDs joined by commas; empty for a CPU server
LABEL_OPTIONS: Final = "gpuspawner.options"  # validated user_options as JSON
LABEL_SHARE: Final = "gpuspawner.share"  # "1" or a fraction such as "1/2"
LABEL_MAX_SECONDS: Final = "gpuspawner.max_seconds"  # it may run; left out without a limit
LABEL_ROLE: Final = "gpuspawner.role"  # left out for a server

ROLE_MPS: Final = "mps"
ROLE_PROBE: Final = "probe"
ROLE_OBSERVER: Final = "observer"

# -- container environment --------------------------------------------------------------------
ENV_DEVICES: Final = "GPUSPAWNER_DEVICES"
ENV_MEMORY_FRACTION: Final = "GPUSPAWNER_MEMORY_FRACTION"
ENV_MEMORY_LIMIT_MIB: Final = "GPUSPAWNER_MEMORY_LIMIT_MIB"
ENV_NVIDIA_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"

# -- refusal reasons (``SpawnException.reason``, a label in the hub's metrics) -------------------
REASON_NO_FREE_GPU: Final = "no-free-gpu"
REASON_QUOTA: Final = "gpu-quota"
REASON_FORBIDDEN: Final = "profile-forbidden"
REASON_OPTIONS: Final = "invalid-options"
REASON_ENGINE: Final = "gpu-engine"
REASON_IMAGE: Final = "gpu-image"
REASON_WAIT_TIMEOUT: Final = "wait-timeout"
