"""What an error of the container engine means: short words for the user, the fix for the log.

``engine_fault(status, text)`` knows the engine's own sentences, from 20.10 to 29. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import messages
from .names import REASON_ENGINE, REASON_IMAGE

_TEXT_CHARS = 2000


@dataclass(frozen=True)
class EngineFault:
    """One classified error.

    Attributes:
        kind: a short name for it, such as ``no-gpu-driver``; stable, for tests and the log.
        reason: a refusal reason, ``gpu-engine`` or ``gpu-image``.
        user_message: for the person at the form.
        admin_message: the engine's own words and the fix.
        status: HTTP status of the refusal.
    """

    kind: str
    reason: str
    user_message: str
    admin_message: str
    status: int = 503


@dataclass(frozen=True)
class _Rule:
    kind: str
    pattern: re.Pattern[str]
    fix: str


def _rule(kind: str, pattern: str, fix: str) -> _Rule:
    return _Rule(kind, re.compile(pattern, re.IGNORECASE), fix)


# The first that matches counts: the narrow ones stand before the wide ones.
_RULES = (
    _rule(
        "no-gpu-driver",
        r"could not select device driver",
        "the engine found no NVIDIA hook on its PATH when it started. Install "
        "nvidia-container-toolkit and restart the engine, or use CDI: 'nvidia-ctk cdi generate' "
        "and GPUPool.device_driver = 'cdi'",
    ),
    _rule(
        "cdi-unresolved",
        r"unresolvable CDI devices|CDI device injection failed",
        "the engine has no such CDI device. Run 'nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml' (again after each driver update), and see that "
        "DiscoveredDevices in 'docker info' lists it",
    ),
    _rule(
        "cuda-too-new",
        r"unsatisfied condition:",
        "the image needs a newer driver. Update the driver, or offer an image for an older CUDA",
    ),
    _rule(
        "card-gone",
        r"nvidia-container-cli:.*(unknown device|device error)|no such device.*nvidia",
        "the card is not there any more. Look at 'nvidia-smi -L' and the kernel's log for Xid "
        "errors",
    ),
    _rule(
        "nvidia-hook",
        r"nvidia-container-cli:|nvidia-container-runtime|libnvidia-ml",
        "NVIDIA's container tools failed. See that 'nvidia-smi' works on the host; under a "
        "rootless engine set no-cgroups in /etc/nvidia-container-runtime/config.toml",
    ),
    _rule(
        "no-space",
        r"no space left on device|disk quota exceeded",
        "free some disk: 'docker system df' shows what takes it",
    ),
    _rule(
        "pull-denied",
        r"pull access denied|requested access to the resource is denied|unauthorized|"
        r"authentication required",
        "check the image's name, and log the engine in to its registry",
    ),
    _rule(
        "rate-limited",
        r"toomanyrequests|rate limit",
        "the registry limits pulls. Log in to it, or pull the image on the host beforehand",
    ),
    _rule(
        "no-image",
        r"no such image|manifest.*(unknown|not found)|repository.*(does not exist|not found)|"
        r"not found: manifest|no matching manifest|invalid reference format",
        "check the image's name and tag, and pull or build it on the engine's host",
    ),
    _rule(
        "registry-unreachable",
        r"(https?://|registry|lookup ).*(timeout|no such host|connection refused|unreachable|"
        r"network is down|deadline exceeded|x509|EOF)",
        "the engine can't reach the registry. Check its network and proxy, or pull the image on "
        "the host beforehand",
    ),
    _rule(
        "name-conflict",
        r"name .* is already in use",
        "another container has this server's name. Remove it if nobody needs it, or change "
        "name_template",
    ),
    _rule(
        "no-network",
        r"network .*not found|could not find network|no such network",
        "network_name names a network that the engine does not have: 'docker network create'",
    ),
    _rule(
        "no-runtime",
        r"unknown or invalid runtime name|unknown runtime",
        "the runtime is not known to the engine. Register it in daemon.json, or remove it from "
        "the configuration",
    ),
    _rule(
        "memory-limit",
        r"minimum memory limit|memory limit (?:should|can ?not|must)|memoryswap limit",
        "mem_limit is too small or does not fit the other limits",
    ),
    _rule(
        "bad-mount",
        r"invalid mount|bind source path does not exist|invalid volume specification|"
        r"error while (?:creating mount source|mounting)|invalid bind|not a directory.*mount|"
        r"mounting .* caused|includes invalid characters for a local volume",
        "check volumes, mounts and that the paths exist on the engine's host",
    ),
    _rule(
        "no-command",
        r"executable file not found|exec format error|no such file or directory.*exec",
        "the image can't run the server's command. Install jupyterhub in it, or set cmd; an exec "
        "format error means an image for another processor",
    ),
    _rule(
        "port-taken",
        r"port is already allocated|address already in use",
        "a port is taken on the host. Use use_internal_ip, or another port",
    ),
)

#: Kinds that are about the image, not the engine.
_IMAGE_KINDS = frozenset(
    {"cuda-too-new", "pull-denied", "rate-limited", "no-image", "registry-unreachable",
     "no-command"}
)  # fmt: skip

_GONE = re.compile(
    r"connection (?:aborted|refused|reset)|read timed out|cannot connect|"
    r"error while fetching server API version|remote end closed|broken pipe|"
    r"No such file or directory.*\.sock|no such file or directory'?\)\)",
    re.IGNORECASE,
)
_GONE_FIX = (
    "the container engine does not answer. See that it runs ('systemctl status docker') and that "
    "the hub may open its socket (DOCKER_HOST)"
)
_NEEDS = re.compile(r"unsatisfied condition:\s*cuda\s*>=\s*([0-9][0-9.]*[0-9]|[0-9])")


def engine_fault(
    status: int | None, text: str, *, image: str = "", offers: str | None = None
) -> EngineFault:
    """Say what an error of the engine means.

    Args:
        status: HTTP status of the engine's answer; None if it gave none.
        text: the engine's explanation, or the connection's error.
        image: what the user knows the image as.
        offers: the driver's CUDA version, such as ``12.8``.
    """
    text = text[:_TEXT_CHARS]
    if status is None:
        # No answer: the words come from the connection, so none of the engine's rules apply.
        return _fault("engine-gone", text, _GONE_FIX, image, offers)
    for rule in _RULES:
        if rule.pattern.search(text):
            return _fault(rule.kind, text, rule.fix, image, offers)
    if _GONE.search(text):
        return _fault("engine-gone", text, _GONE_FIX, image, offers)
    fix = f"the engine answered {status}; its own log may say more"
    return _fault("other", text, fix, image, offers)


def _fault(kind: str, text: str, fix: str, image: str, offers: str | None) -> EngineFault:
    return EngineFault(
        kind=kind,
        reason=REASON_IMAGE if kind in _IMAGE_KINDS else REASON_ENGINE,
        user_message=_user_message(kind, text, image or "The image", offers or ""),
        admin_message=f"{kind}: {text.strip() or 'no explanation'} (fix: {fix})",
    )


def _user_message(kind: str, text: str, image: str, offers: str) -> str:
    if kind == "cuda-too-new":
        needs = _NEEDS.search(text)
        return messages.image_too_new(image, needs.group(1) if needs else "", offers)
    if kind in _IMAGE_KINDS - {"no-command"}:
        return messages.image_missing(image)
    if kind == "engine-gone":
        return messages.engine_down()
    if kind == "no-space":
        return messages.out_of_space()
    if kind == "card-gone":
        return messages.card_gone()
    return messages.start_failed()
