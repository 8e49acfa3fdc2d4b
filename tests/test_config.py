"""``gpuspawner.configure(c)``: what it sets, what it leaves, what it refuses and in which words."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import docker.types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyterhub._data import DATA_FILES_PATH
from jupyterhub.app import JupyterHub
from traitlets import TraitError
from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue, PyFileConfigLoader

from gpuspawner import GPUSpawner, configure
from gpuspawner.config_sections import BadConfigError, Sections
from gpuspawner.errors import ConfigError
from gpuspawner.hub_pages import TEMPLATES, VARIABLE
from gpuspawner.notices import notices_for
from gpuspawner.pool_traits import PoolTraits
from ground.hub import Hub

ROOT = Path(__file__).resolve().parents[1]


class OwnSpawner(GPUSpawner):
    """What an admin may write."""


def config(text: str) -> Config:
    """The ``c`` after some lines of a configuration."""
    c = Config()
    names = {"c": c, "docker": docker, "OwnSpawner": OwnSpawner}
    exec(dedent(text), names)
    return c


def refused(text: str) -> str:
    """The words with which a configuration is refused."""
    with pytest.raises(BadConfigError) as caught:
        configure(config(text))
    return str(caught.value)


# -- what is set ----------------------------------------------------------------------------------


def test_an_empty_configuration_gets_the_spawner_and_keeps_servers_over_restarts() -> None:
    c = Config()
    configure(c)
    assert c == {
        "JupyterHub": {
            "spawner_class": GPUSpawner,
            "cleanup_servers": False,
            "template_paths": [TEMPLATES],
            "template_vars": {VARIABLE: notices_for},
        }
    }


def test_an_admins_own_pages_come_first_and_the_hubs_last() -> None:
    own = str(Path(DATA_FILES_PATH) / "templates")

    def paths(*before: str, lazily: bool = False) -> list[str]:
        c = Config()
        if lazily:
            c.JupyterHub.template_paths.insert(0, before[0])
            c.JupyterHub.template_vars.update({"mine": 1})
        else:
            c.JupyterHub.template_paths = list(before)
            c.JupyterHub.template_vars = {"mine": 1}
        for _ in range(2):
            configure(c)
        hub = JupyterHub(config=c)
        assert set(hub.template_vars) == {"mine", VARIABLE}
        return list(hub.template_paths)

    assert paths("/theirs") == ["/theirs", TEMPLATES]  # the hub adds its own at its start
    assert paths("/theirs", own) == ["/theirs", TEMPLATES, own]
    assert paths("/theirs", lazily=True) == ["/theirs", TEMPLATES, own]


def test_what_is_set_is_left() -> None:
    text = """
        c.JupyterHub.spawner_class = OwnSpawner
        c.JupyterHub.cleanup_servers = True
        c.DockerSpawner.volumes = {"a": "/b"}
        c.DockerSpawner.environment.update({"A": "1"})
        c.GPUPool.observers.append("lab/exporter")
        c.GPUPool.inventory = "simulated"
    """
    c = config(text)
    configure(c)
    assert c.JupyterHub.spawner_class is OwnSpawner
    assert c.JupyterHub.cleanup_servers is True
    assert c.DockerSpawner.volumes == {"a": "/b"}
    # Not read yet, so that what another file has in it still counts.
    assert isinstance(c.DockerSpawner.environment, LazyConfigValue)
    assert c.DockerSpawner.environment.get_value({"B": "2"}) == {"A": "1", "B": "2"}
    assert c.GPUPool.observers.get_value([]) == ["lab/exporter"]


def test_twice_is_once() -> None:
    c = config("c.GPUPool.inventory = 'simulated'; c.Spawner.environment.update({'A': 'b'})")
    configure(c)
    before = repr(c)
    configure(c)
    assert repr(c) == before


def test_reading_a_setting_does_not_set_it() -> None:
    c = Config()
    assert not c.JupyterHub.cleanup_servers.to_dict()  # leaves an empty value behind
    assert not c.GPUSpawner.uid.to_dict()
    configure(c)
    assert c.JupyterHub.cleanup_servers is False


@pytest.mark.parametrize("value", ["gpu", f"{__name__}.OwnSpawner"])
def test_a_spawner_may_be_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[OwnSpawner.__module__])
    c = Config()
    c.JupyterHub.spawner_class = value
    configure(c)
    assert c.JupyterHub.spawner_class == value


def test_the_admin_is_warned_of_a_hub_that_stops_servers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuspawner.config.get_logger", lambda: logging.getLogger("hub"))
    configure(config("c.JupyterHub.cleanup_servers = True"))
    assert "c.JupyterHub.cleanup_servers is True" in caplog.text


def test_the_admin_is_warned_of_old_words(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuspawner.config.get_logger", lambda: logging.getLogger("hub"))
    text = 'c.GPUSpawner.profile_list = [{"display_name": "A", "kubespawner_override": {}}]'
    configure(config(text))
    assert "c.GPUSpawner.profile_list: entry 0 ('A')" in caplog.text


BOOKING = '{"group": "ml", "cards": 1, "days": ["mon"], "from": "10:00", "to": "12:00"}'


def test_the_admin_is_warned_of_bookings_that_shut_profiles_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuspawner.config.get_logger", lambda: logging.getLogger("hub"))
    for added in (f"c.GPUPool.bookings = [{BOOKING}]", f"c.GPUPool.bookings.append({BOOKING})"):
        caplog.clear()
        configure(config(added))
        assert "without max_hours" in caplog.text
        assert "for 'One GPU'; write how long" in caplog.text
    caplog.clear()
    configure(
        config(
            f"""
            c.GPUPool.bookings = [{BOOKING}]
            c.GPUSpawner.profile_list = [
                {{"display_name": "GPU", "gpu": {{}}, "max_hours": 2}},
                {{"display_name": "CPU"}},
            ]
            """
        )
    )
    configure(config("c.GPUPool.bookings = []"))
    assert "max_hours" not in caplog.text


def test_a_mistake_in_what_is_kept_names_the_line() -> None:
    assert refused("c.GPUPool.reserved_for = {'research': 0}").startswith(
        "c.GPUPool.reserved_for.research: 0 is no number of cards"
    )
    assert refused("c.GPUPool.bookings = [{'group': 'ml'}]").startswith(
        "c.GPUPool.bookings: entry 0"
    )


def test_the_admin_is_warned_of_a_profile_that_nobody_can_start(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuspawner.config.get_logger", lambda: logging.getLogger("hub"))
    text = 'c.GPUSpawner.profile_list = [{"display_name": "A", "gpu": {"count": 2}}]'
    configure(config(text))
    assert "'A' asks for 2 GPUs, but c.GPUSpawner.max_gpus_per_user is 1" in caplog.text
    caplog.clear()
    configure(config(text + "; c.GPUSpawner.max_gpus_per_user = 2"))
    configure(config(text + "; c.GPUSpawner.max_gpus_per_user = {'*': 1, 'research': 2}"))
    configure(config(text + "; c.GPUSpawner.max_gpus_per_user = {'*': 1, 'staff': 0}"))
    assert "asks for" not in caplog.text
    text += "; c.GPUSpawner.max_gpus_per_user = 0; c.GPUSpawner.max_gpus_per_group = {'class': 1}"
    configure(config(text))
    assert "asks for" not in caplog.text, "those of no group can start it"
    configure(config(text.replace('"A", ', '"A", "groups": ["class"], ')))
    assert "c.GPUSpawner.max_gpus_per_group is {'class': 1}, so nobody" in caplog.text
    configure(config(text.replace('"A", ', '"A", "max_gpus": 1, ')))
    assert "'A' asks for 2 GPUs, but its max_gpus is 1, so nobody can start it" in caplog.text


def test_the_file_at_the_top_is_right_as_it_is() -> None:
    c = PyFileConfigLoader("jupyterhub_config.py", path=str(ROOT)).load_config()
    assert c.JupyterHub.spawner_class is GPUSpawner


def test_the_examples_in_that_file_are_right() -> None:
    lines = (ROOT / "jupyterhub_config.py").read_text().splitlines()
    commented = [line[2:] for line in lines if line.startswith(("# c.GPU", "#     ", "# ]"))]
    c = config("\n".join(commented))
    configure(c)
    assert len(c.GPUSpawner.profile_list) == 4


# -- what is refused ------------------------------------------------------------------------------

PROFILE_START = 'c.GPUSpawner.profile_list = [{"display_name": "A"'

REFUSED = {
    # line: what the message must begin with, and contain
    "c.GPUSpawner.profle_list = []": (
        "c.GPUSpawner.profle_list: there is no such setting",
        "did you mean c.GPUSpawner.profile_list?",
    ),
    "c.GPUPool.max_gpus_per_user = 1": (
        "c.GPUPool.max_gpus_per_user: there is no such setting",
        "c.GPUSpawner.max_gpus_per_user",
    ),
    "c.GPUPool.xyz = 1": ("c.GPUPool.xyz: there is no such setting", "docs/reference"),
    "c.GpuSpawner.uid = 1": ("c.GpuSpawner:", "c.GPUSpawner?"),
    "c.GPUPool.clean_probes = 0": ("c.GPUPool.clean_probes", "1"),
    "c.GPUStatus.port = 1": ("c.GPUStatus:", "not in this version"),
    "c.GPUSwarmSpawner.uid = 1": ("c.GPUSwarmSpawner:", "not in this version"),
    'c.JupyterHub.spawner_class = "docker"': ("c.JupyterHub.spawner_class = 'docker'", "subclass"),
    'c.JupyterHub.spawner_class = "nowhere.Spawner"': (
        "c.JupyterHub.spawner_class = 'nowhere.Spawner': it can't be imported",
        "remove the line",
    ),
    "c.DockerSpawner.volumes = 3": ("c.DockerSpawner.volumes: it expected a dict", "int 3"),
    "c.Spawner.start_timeout = 'soon'": ("c.Spawner.start_timeout: it", "'soon'"),
    "c.GPUSpawner.uid = 0": ("c.GPUSpawner.uid is 0", "allow_root = True"),
    "c.GPUSpawner.uid = -1": ("c.GPUSpawner.uid is -1", "whole number"),
    "c.GPUSpawner.gid = 0": ("c.GPUSpawner.gid has group 0", "allow_root = True"),
    "c.GPUSpawner.uid = 'me'": ("c.GPUSpawner.uid: it", "'me'"),
    "c.GPUSpawner.supplemental_gids = [0]": ("c.GPUSpawner.supplemental_gids", "allow_root"),
    "c.GPUSpawner.nb_umask = '99'": ("c.GPUSpawner.nb_umask:", "octal"),
    "c.GPUSpawner.home = 'home'": ("c.GPUSpawner.home:", "absolute path"),
    "c.GPUSpawner.identity_from = 'ldap'": ("c.GPUSpawner.identity_from: 'ldap'", "'passwd'"),
    "c.GPUSpawner.identity_from = {'auth_state': {'id': 'x'}}": (
        "c.GPUSpawner.identity_from:",
        "uid",
    ),
    "c.GPUSpawner.memory_fraction = 1.5": ("c.GPUSpawner.memory_fraction is 1.5", "at most 1"),
    "c.GPUSpawner.memory_fraction = 'half'": ("c.GPUSpawner.memory_fraction is 'half'", "'1/3'"),
    "c.GPUSpawner.shm_size = '16X'": ("c.GPUSpawner.shm_size:", "16X"),
    "c.GPUSpawner.shm_size = -1": ("c.GPUSpawner.shm_size:", "'16G'"),
    "c.GPUSpawner.max_gpus_per_user = -1": ("c.GPUSpawner.max_gpus_per_user:", "-1"),
    "c.GPUSpawner.max_gpus_per_user = {'research': 4}": (
        "c.GPUSpawner.max_gpus_per_user: there is no entry '*'",
        "add '*': 1",
    ),
    "c.GPUSpawner.max_gpus_per_user = {'*': 'one'}": (
        "c.GPUSpawner.max_gpus_per_user: '*': 'one' is no limit",
        "0 for no limit",
    ),
    "c.GPUSpawner.max_gpus_per_user = {'*': 1, 2: 1}": (
        "c.GPUSpawner.max_gpus_per_user: 2",
        "string",
    ),
    "c.GPUSpawner.max_gpus_per_group = {'students': 0}": (
        "c.GPUSpawner.max_gpus_per_group: 'students': 0 is no limit",
        "leave the group out",
    ),
    "c.GPUSpawner.max_gpus_per_group = {'*': 4}": (
        "c.GPUSpawner.max_gpus_per_group: '*' is no group",
        "name groups",
    ),
    "c.GPUSpawner.max_gpus_per_group = 6": ("c.GPUSpawner.max_gpus_per_group:", "6"),
    "c.GPUPool.inventory = 'none'": ("c.GPUPool.inventory is 'none'", '"simulated": 8'),
    "c.GPUPool.inventory = [{'uuid': 'GPU-1'}]": ("c.GPUPool.inventory[0]", "nvidia-smi"),
    "c.GPUPool.inventory.append('x')": ("c.GPUPool.inventory: there is nothing to add to", "="),
    "c.GPUPool.device_driver = 'amd'": ("c.GPUPool.device_driver:", "'cdi'"),
    "c.GPUPool.created_grace_seconds = 0": ("c.GPUPool.created_grace_seconds:", "0"),
    "c.GPUSpawner.profile_list = []": ("c.GPUSpawner.profile_list: the list is empty", "add"),
    "c.GPUSpawner.profile_list = {}": ("c.GPUSpawner.profile_list: the list is empty", "add"),
    "c.GPUSpawner.profile_list.append({})": ("c.GPUSpawner.profile_list: there is nothing", "="),
    PROFILE_START + ', "gpu": {"count": "two"}}]': (
        "c.GPUSpawner.profile_list: entry 0 ('A'): gpu.count: 'two' is text",
        "a whole number of cards",
    ),
    PROFILE_START + ', "idle_minutes": 4}]': (
        "c.GPUSpawner.profile_list: entry 0 ('A'): idle_minutes",
        "not in this version",
    ),
    PROFILE_START + ', "spawner_override": {"imge": "x"}}]': (
        "c.GPUSpawner.profile_list: entry 0 ('A')",
        "did you mean 'image'?",
    ),
    # collisions: our replacement is named
    'c.DockerSpawner.extra_host_config = {"runtime": "nvidia"}': (
        'c.DockerSpawner.extra_host_config["runtime"]',
        "c.GPUPool.device_driver",
    ),
    'c.DockerSpawner.extra_host_config.update({"runtime": "nvidia"})': (
        'c.DockerSpawner.extra_host_config["runtime"]',
        "c.GPUPool.device_driver",
    ),
    "c.DockerSpawner.extra_host_config = {'device_requests': "
    "[docker.types.DeviceRequest(count=-1, capabilities=[['gpu']])]}": (
        'c.DockerSpawner.extra_host_config["device_requests"]',
        '"gpu": {"count": 1}',
    ),
    "c.GPUSpawner.extra_host_config = {'device_requests': "
    "({'Driver': 'cdi', 'DeviceIDs': ['nvidia.com/gpu=all']},)}": (
        'c.GPUSpawner.extra_host_config["device_requests"]',
        '"gpu": {"count": 1}',
    ),
    'c.DockerSpawner.extra_create_kwargs = {"runtime": "nvidia"}': (
        'c.DockerSpawner.extra_create_kwargs["runtime"]',
        "c.GPUPool.device_driver",
    ),
    'c.Spawner.environment = {"NVIDIA_VISIBLE_DEVICES": "all"}': (
        'c.Spawner.environment["NVIDIA_VISIBLE_DEVICES"]',
        '"gpu": {"count": 1}',
    ),
    'c.DockerSpawner.environment.update({"NVIDIA_VISIBLE_DEVICES": "all"})': (
        'c.DockerSpawner.environment["NVIDIA_VISIBLE_DEVICES"]',
        '"gpu": {"count": 1}',
    ),
    'c.Spawner.env_keep = ["PATH", "CUDA_VISIBLE_DEVICES"]': (
        "c.Spawner.env_keep ('CUDA_VISIBLE_DEVICES')",
        "remove",
    ),
    'c.DockerSpawner.options_form = "<input>"': (
        "c.DockerSpawner.options_form",
        "c.GPUSpawner.profile_list",
    ),
    "c.Spawner.options_from_form = lambda data: {}": (
        "c.Spawner.options_from_form",
        "c.GPUSpawner.profile_list",
    ),
    "c.Spawner.apply_user_options = {'image': 'image'}": (
        "c.Spawner.apply_user_options",
        "c.GPUSpawner.profile_list",
    ),
    'c.DockerSpawner.extra_host_config = {"privileged": True}': (
        "c.DockerSpawner.extra_host_config",
        "allow_privileged = True",
    ),
    "c.DockerSpawner.allowed_images = {'Small': 3}": (
        "c.DockerSpawner.allowed_images: 3 is neither a name nor an image",
        "{'PyTorch': 'lab/torch:2026'}",
    ),
    "c.GPUSpawner.allowed_images = ['img', None]": ("c.GPUSpawner.allowed_images", "None is"),
    "c.GPUSpawner.drop_from_root = True; c.DockerSpawner.allowed_images = '*'": (
        "c.GPUSpawner.drop_from_root",
        "list the images",
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_wrong_line_is_named_with_what_replaces_it(line: str) -> None:
    begins, contains = REFUSED[line]
    words = refused(line)
    assert words.startswith(begins)
    assert contains in words


@pytest.mark.parametrize("line", REFUSED)
def test_a_refused_configuration_tells_jupyterhub_and_our_own_code(line: str) -> None:
    with pytest.raises(TraitError):  # JupyterHub prints these without a traceback
        configure(config(line))
    with pytest.raises(ConfigError):
        configure(config(line))


def test_all_collisions_are_told_at_once() -> None:
    words = refused(
        """
        c.DockerSpawner.options_form = "<input>"
        c.Spawner.environment = {"NVIDIA_VISIBLE_DEVICES": "all"}
        """
    )
    assert len(words.splitlines()) == 2


def test_swarm_is_not_in_this_version() -> None:
    with pytest.raises(BadConfigError, match="not in this version"):
        configure(Config(), swarm=True)


def test_an_overridden_create_object_is_refused() -> None:
    class Mine(GPUSpawner):
        async def create_object(self) -> Any:
            return None

    c = Config()
    c.JupyterHub.spawner_class = Mine
    with pytest.raises(BadConfigError, match=r"^Mine\.create_object: .*extra_create_kwargs"):
        configure(c)


def test_settings_of_an_admins_subclass_are_checked_under_its_name() -> None:
    words = refused(
        """
        c.JupyterHub.spawner_class = OwnSpawner
        c.OwnSpawner.profle_list = []
        """
    )
    assert words.startswith("c.OwnSpawner.profle_list")


def test_callables_are_left_for_the_spawn() -> None:
    configure(
        config(
            """
            c.GPUSpawner.uid = lambda spawner: 0
            c.GPUSpawner.supplemental_gids = lambda spawner: [7]
            c.DockerSpawner.extra_host_config = lambda spawner: {"runtime": "nvidia"}
            c.Spawner.environment = {"A": lambda spawner: "b"}
            """
        )
    )


def test_requests_for_other_devices_are_kept() -> None:
    configure(
        config(
            "c.DockerSpawner.extra_host_config = "
            "{'device_requests': [{'Driver': 'cdi', 'DeviceIDs': ['vendor.com/nic=0']}]}"
        )
    )


# -- laws -----------------------------------------------------------------------------------------

SETTINGS = sorted(GPUSpawner.class_trait_names(config=True))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(
    section=st.sampled_from(["Spawner", "DockerSpawner", "GPUSpawner", "GPUPool"]),
    key=st.sampled_from([*SETTINGS, *PoolTraits.class_trait_names(config=True)]),
    value=VALUES,
)
def test_any_value_is_taken_or_refused_in_words(section: str, key: str, value: Any) -> None:
    c = Config()
    c[section][key] = value
    before = repr(c[section])
    error = None
    try:
        configure(c)
    except BadConfigError as caught:
        error = caught
    assert error is None or key in str(error)
    assert repr(c[section]) == before


def test_the_merged_settings_are_those_traitlets_would_give() -> None:
    text = """
        c.Spawner.environment = {"A": "1"}
        c.DockerSpawner.environment.update({"B": "2"})
        c.GPUSpawner.uid = 2000
        c.OwnSpawner.uid = 3000
    """
    for cls in (GPUSpawner, OwnSpawner):
        real = cls(config=config(text))
        merged = Sections(config(text), cls).spawner()
        assert (merged.uid, merged.environment) == (real.uid, real.environment)


# -- a real hub -----------------------------------------------------------------------------------


def start_hub(folder: Path, lines: str) -> subprocess.CompletedProcess[str]:
    """Start a JupyterHub that must not come up, and wait for its end."""
    path = folder / "jupyterhub_config.py"
    path.write_text(f"import gpuspawner\n{lines}\ngpuspawner.configure(c)\n")
    return subprocess.run(
        [sys.executable, "-m", "jupyterhub", "-f", str(path)],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            'c.GPUSpawner.profile_list = [{"display_name": "Big", "gpu": {"count": -1}}]',
            "c.GPUSpawner.profile_list: entry 0 ('Big'): gpu.count: -1 is negative",
        ),
        (
            'c.DockerSpawner.extra_host_config.update({"runtime": "nvidia"})',
            'c.DockerSpawner.extra_host_config["runtime"]',
        ),
    ],
)
def test_a_real_hub_stops_at_start_with_the_line_and_no_traceback(
    tmp_path: Path, lines: str, words: str
) -> None:
    ended = start_hub(tmp_path, lines)
    assert ended.returncode == 1
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout
    assert not (tmp_path / "jupyterhub.sqlite").exists()


def test_a_real_hub_starts_with_it_and_says_what_is_odd(make_hub: Callable[..., Hub]) -> None:
    hub = make_hub(
        """
        import gpuspawner
        c.GPUPool.inventory = "simulated"
        c.JupyterHub.cleanup_servers = True
        c.GPUSpawner.profile_list = [{"display_name": "A", "kubespawner_override": {}}]
        gpuspawner.configure(c)
        """.replace("\n        ", "\n")
    )
    spawner = hub.api("GET", "/info").json()["spawner"]
    assert spawner["class"] == "gpuspawner.spawner.GPUSpawner"
    assert "c.JupyterHub.cleanup_servers is True" in hub.log
    assert "rename it" in hub.log
