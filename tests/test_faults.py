"""The engine's own sentences, as 20.10, 28.5 and 29 write them, and what becomes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner import messages
from gpuspawner.faults import engine_fault
from gpuspawner.names import REASON_ENGINE, REASON_IMAGE

CASES = [
    (500, 'could not select device driver "nvidia" with capabilities: [[gpu]]', "no-gpu-driver",
     REASON_ENGINE, "nvidia-container-toolkit"),
    (500, ("failed to create task for container: CDI device injection failed: unresolvable CDI "
     "devices nvidia.com/gpu=GPU-1"), "cdi-unresolved", REASON_ENGINE, "nvidia-ctk cdi generate"),
    (500, "nvidia-container-cli: device error: GPU-77: unknown device: unknown", "card-gone",
     REASON_ENGINE, "nvidia-smi -L"),
    (500, ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please "
     "update your driver to a newer version, or use an earlier cuda container: unknown"),
     "cuda-too-new", REASON_IMAGE, "Update the driver"),
    (500, "nvidia-container-cli: initialization error: nvml error: driver not loaded",
     "nvidia-hook", REASON_ENGINE, "nvidia-smi"),
    (404, "No such image: lab/torch:latest", "no-image", REASON_IMAGE, "tag"),
    (404, "manifest for lab/torch:9 not found: manifest unknown: manifest unknown", "no-image",
     REASON_IMAGE, "tag"),
    (400, "invalid reference format", "no-image", REASON_IMAGE, "name and tag"),
    (404, ("pull access denied for lab/x, repository does not exist or may require 'docker login': "
     "denied: requested access to the resource is denied"), "pull-denied", REASON_IMAGE, "log the"),
    (500, "toomanyrequests: You have reached your pull rate limit.", "rate-limited", REASON_IMAGE,
     "limits pulls"),
    (500, 'Get "https://registry.example/v2/": dial tcp: lookup registry.example: no such host',
     "registry-unreachable", REASON_IMAGE, "proxy"),
    (500, ('Get "https://registry.example/v2/": net/http: request canceled while waiting for '
     "connection (Client.Timeout exceeded while awaiting headers)"), "registry-unreachable",
     REASON_IMAGE, "proxy"),
    (409, 'Conflict. The container name "/jupyter-a" is already in use by container "12ab".',
     "name-conflict", REASON_ENGINE, "name_template"),
    (500, "write /var/lib/docker/tmp/x: no space left on device", "no-space", REASON_ENGINE,
     "docker system df"),
    (404, "network lab-net not found", "no-network", REASON_ENGINE, "docker network create"),
    (404, 'could not find a network matching network mode lab: network lab not found',
     "no-network", REASON_ENGINE, "docker network create"),
    (400, 'invalid mount config for type "bind": bind source path does not exist: /srv/x',
     "bad-mount", REASON_ENGINE, "volumes"),
    (400, 'create a b: "a b" includes invalid characters for a local volume name', "bad-mount",
     REASON_ENGINE, "volumes"),
    (400, "Minimum memory limit allowed is 6MB", "memory-limit", REASON_ENGINE, "mem_limit"),
    (400, "Unknown runtime specified nvidia", "no-runtime", REASON_ENGINE, "daemon.json"),
    (400, "unknown or invalid runtime name: nvidia", "no-runtime", REASON_ENGINE, "daemon.json"),
    (400, ('failed to create task: runc create failed: exec: "jupyterhub-singleuser": executable '
     "file not found in $PATH"), "no-command", REASON_IMAGE, "Install jupyterhub"),
    (500, ("driver failed programming external connectivity: Bind for 0.0.0.0:80 failed: port is "
     "already allocated"), "port-taken", REASON_ENGINE, "use_internal_ip"),
    (None, "('Connection aborted.', ConnectionRefusedError(111, 'Connection refused'))",
     "engine-gone", REASON_ENGINE, "DOCKER_HOST"),
    (None, "('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))",
     "engine-gone", REASON_ENGINE, "DOCKER_HOST"),
    (500, "something new", "other", REASON_ENGINE, "its own log"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "text", "kind", "reason", "fix"), CASES)
def test_the_engines_sentences(
    status: int | None, text: str, kind: str, reason: str, fix: str
) -> None:
    fault = engine_fault(status, text, image="PyTorch", offers="12.6")
    assert (fault.kind, fault.reason, fault.status) == (kind, reason, 503)
    assert fix in fault.admin_message
    assert text in fault.admin_message
    assert len(fault.user_message.split()) < 40
    assert fault.user_message.endswith(".")
    for word in ("docker", "container", "nvidia", "cdi", "daemon", "registry"):
        assert word not in fault.user_message.lower()


def test_the_image_that_is_too_new_names_both_versions() -> None:
    fault = engine_fault(
        500, "requirement error: unsatisfied condition: cuda>=12.8, please", image="PyTorch",
        offers="12.6",
    )  # fmt: skip
    assert fault.user_message == messages.image_too_new("PyTorch", "12.8", "12.6")


def test_other_kinds_have_words_of_their_own() -> None:
    assert engine_fault(None, "").user_message == messages.engine_down()
    assert engine_fault(500, "no space left on device").user_message == messages.out_of_space()
    assert engine_fault(500, "").user_message == messages.start_failed()
    assert engine_fault(404, "No such image: x", image="Lab").user_message.startswith('"Lab"')


@given(st.none() | st.integers(), st.text())
def test_any_text_is_answered(status: int | None, text: str) -> None:
    fault = engine_fault(status, text)
    assert fault.reason in (REASON_ENGINE, REASON_IMAGE)
    assert fault.user_message
    assert "fix:" in fault.admin_message
