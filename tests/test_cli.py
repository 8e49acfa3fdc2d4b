"""The commands: what they tell, from the same configuration as the hub, and errors in words."""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fakes.rows import claim, sliced
from gpuspawner import __version__, cli, names
from gpuspawner.claims import Claims, Listing, Survey
from gpuspawner.cli_report import devices_report, leases_report
from gpuspawner.cli_tables import devices_table
from gpuspawner.devices import Device, Inventory
from gpuspawner.health import WELL, Condition
from gpuspawner.simulated_inventory import simulated_inventory
from gpuspawner.states import CardState
from gpuspawner.view import View
from ground.engine import Engine

CARDS = [device.uuid for device in simulated_inventory(4).devices]
HUB = "0123456789abcdef0123456789abcdef"
NOW = 1_800_000_000
CONFIG = """\
import gpuspawner
print("a configuration may print")
c.GPUPool.inventory = "simulated"
{}
gpuspawner.configure(c)
"""


def row(number: int, state: str = "running", labels: dict[str, str] | None = None) -> Any:
    return {
        "Id": f"{number:064x}",
        "Names": [f"/name-{number}"],
        "Created": NOW - 60 * number,
        "ImageID": "sha256:1",
        "Image": "image",
        "State": state,
        "Labels": labels or {},
    }


def ours(number: int, hub: str, user: str, devices: str, server: str = "") -> Any:
    return row(
        number,
        labels={
            names.LABEL_HUB: hub,
            names.LABEL_IMAGE: "sha256:1",
            names.LABEL_LEASE: f"lease-{number}",
            names.LABEL_USER: user,
            names.LABEL_SERVER: server,
            names.LABEL_PROFILE: "one-gpu",
            names.LABEL_DEVICES: devices,
            **({names.LABEL_MAX_SECONDS: "7260"} if server else {}),
        },
    )


class StandInEngine(socketserver.ThreadingUnixStreamServer):
    """Answers what a listing asks of an engine."""

    daemon_threads = True

    def __init__(self, path: Path, rows: list[Any], host_configs: dict[str, Any]) -> None:
        self.rows, self.host_configs, self.asked = rows, host_configs, list[tuple[str, str]]()
        super().__init__(str(path), Handler)
        self.url = f"unix://{path}"

    def get_request(self) -> tuple[Any, Any]:
        return super().get_request()[0], ("local", 0)

    def answer(self, path: str) -> Any:
        if path.endswith("/version"):
            return {"ApiVersion": "1.41"}
        if path.endswith("/info"):
            return {"ServerVersion": "28.5", "Runtimes": {"runc": {}}, "DefaultRuntime": "runc"}
        if "/containers/json" in path:
            return self.rows
        identity = path.split("/")[-2]
        return {
            "Id": identity,
            "Config": {},
            "HostConfig": self.host_configs.get(identity, {}),
            "NetworkSettings": {},
            "State": {},
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandInEngine

    def do_GET(self) -> None:
        self.server.asked.append((self.command, self.path))
        body = json.dumps(self.server.answer(self.path)).encode()
        self.send_response_only(200)
        self.send_header("Date", formatdate(NOW, usegmt=True))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_PUT = do_GET

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's folder, as the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    (tmp_path / "jupyterhub_config.py").write_text(CONFIG.format(""))
    return tmp_path


@pytest.fixture
def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInEngine]:
    """An engine on which this hub, another and an outsider hold a card each."""
    rows = [
        ours(1, HUB, "amelie", CARDS[0], server="training"),
        ours(2, "f" * 32, "[bold]bo\x1b[31m", CARDS[1]),
        row(3),
        ours(4, HUB, "cpu-user", ""),
        row(5),
    ]
    wanted = {"Driver": "nvidia", "DeviceIDs": [CARDS[2]], "Capabilities": [["gpu"]]}
    lost = {"Driver": "nvidia", "DeviceIDs": ["GPU-gone"], "Capabilities": [["gpu"]]}
    configs = {
        rows[2]["Id"]: {"DeviceRequests": [wanted]},
        rows[4]["Id"]: {"DeviceRequests": [lost]},
    }
    (folder / "gpuspawner_hub_id").write_text(HUB + "\n")
    server = StandInEngine(folder / "docker.sock", rows, configs)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("DOCKER_HOST", server.url)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command in this process: status, stdout, stderr."""
    status = 0
    try:
        cli.main(words)
    except SystemExit as end:
        status = int(end.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


# -- what is told ---------------------------------------------------------------------------------


def test_leases_as_json(stand_in: StandInEngine, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "leases", "--json")
    assert (status, err) == (0, "a configuration may print\n")
    report = json.loads(out)
    assert report["hub"] == HUB
    assert report["at"] == "2027-01-15T08:00:00+00:00"
    mine, sibling, outsider = report["leases"]
    assert mine["whose"] == "this hub"
    assert (mine["user"], mine["server"], mine["profile"]) == ("amelie", "training", "one-gpu")
    assert mine["devices"] == [CARDS[0]]
    assert mine["age_seconds"] == 60
    assert mine["lease"] == "lease-1"
    assert mine["seconds_left"] == 7200
    assert (sibling["seconds_left"], outsider["seconds_left"]) == (None, None)
    assert sibling["whose"] == "another hub"
    assert (outsider["whose"], outsider["name"]) == ("outside", "name-3")
    assert outsider["why"] == "device request"
    assert report["dangling"] == [{"container": f"{5:064x}", "name": "name-5", "ids": ["GPU-gone"]}]


def test_devices_as_json(stand_in: StandInEngine, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "devices", "--json")
    assert status == 0
    report = json.loads(out)
    assert report["source"] == "simulated"
    assert [d["uuid"] for d in report["devices"]] == CARDS
    assert [d["state"] for d in report["devices"]] == ["held", "held", "foreign", "free"]
    assert report["devices"][0]["holders"][0]["user"] == "amelie"
    assert report["devices"][3]["holders"] == []
    assert report["devices"][0]["memory_mib"] == 40960
    assert {link["nvlinks"] for link in report["links"]} == {12}


def test_tables_name_everybody_and_cut_nothing(
    stand_in: StandInEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    _, devices, _ = run(capsys, "devices")
    for uuid in CARDS:
        assert uuid in devices
    assert "amelie/training" in devices
    assert "container name-3" in devices
    assert "foreign: device request" in devices
    assert "Source: simulated." in devices
    _, leases, _ = run(capsys, "leases")
    [line] = [line for line in leases.splitlines() if "amelie/training" in line]
    told = ["this", "hub", "one-gpu", "running", "1", "min", "2", "h"]
    assert line.split()[1:9] == told
    assert "name-5 (000000000000) asks for GPU-gone" in leases
    # A name is never taken for markup or for the terminal's own codes.
    assert "[bold]bo?[31m" in leases
    assert "\x1b" not in leases


def test_no_lease_is_said_in_words(
    stand_in: StandInEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.rows.clear()
    assert "No container holds a GPU." in run(capsys, "leases")[1]


def test_commands_only_read(
    stand_in: StandInEngine, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "gpuspawner_hub_id").unlink()
    before = sorted(p.name for p in folder.iterdir())
    for command in cli.COMMANDS:
        assert run(capsys, command)[0] == 0
    assert {method for method, _ in stand_in.asked} == {"GET"}
    assert sorted(p.name for p in folder.iterdir()) == before


def test_without_the_hubs_id_the_table_says_so(
    stand_in: StandInEngine, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "gpuspawner_hub_id").unlink()
    assert "This hub's id was not found" in run(capsys, "leases")[1]
    assert json.loads(run(capsys, "leases", "--json")[1])["hub"] is None


@pytest.mark.parametrize(
    "lines",
    [
        "c.GPUPool.hub_id_file = 'kept/id'",
        "c.JupyterHub.db_url = 'sqlite:///kept/hub.sqlite'",
        "c.JupyterHub.db_url = 'postgresql://hub@db/hub'",
    ],
)
def test_the_hubs_id_is_found_where_the_hub_keeps_it(
    stand_in: StandInEngine, folder: Path, capsys: pytest.CaptureFixture[str], lines: str
) -> None:
    (folder / "jupyterhub_config.py").write_text(CONFIG.format(lines))
    if "kept" in lines:
        (folder / "kept").mkdir()
        target = "id" if "id'" in lines else "gpuspawner_hub_id"
        (folder / "gpuspawner_hub_id").rename(folder / "kept" / target)
    assert json.loads(run(capsys, "leases", "--json")[1])["hub"] == HUB


def test_a_configuration_elsewhere_is_named_with_f(
    stand_in: StandInEngine,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    path = str(folder / "jupyterhub_config.py")
    # Also the hub's id is found beside it.
    assert json.loads(run(capsys, "leases", "--json", "-f", path)[1])["hub"] == HUB


def test_the_engine_is_the_one_the_hub_would_use(
    stand_in: StandInEngine,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    lines = f"c.DockerSpawner.client_kwargs = {{'base_url': {stand_in.url!r}}}"
    (folder / "jupyterhub_config.py").write_text(CONFIG.format(lines))
    assert run(capsys, "leases")[0] == 0
    assert stand_in.asked


def test_states_of_devices() -> None:
    devices = (
        Device("GPU-1", 0),
        Device("GPU-2", 1, mig=True),
        Device("GPU-3", 2, recovery_action="gpu-reset"),
        Device("", 3, error="GPU is lost"),
    )
    view = View(Inventory(devices, complete=False), Survey(Listing((), 0.0)), Claims())
    report = devices_report(view, HUB)
    assert [d["state"] for d in report["devices"]] == ["free", "sliced", "ill", "ill"]
    assert "gpu-reset" in report["devices"][2]["why"]
    assert report["devices"][3]["why"] == "GPU is lost"
    assert report["complete"] is False
    json.dumps([report, leases_report(view, "")])


def test_states_of_devices_that_were_looked_at() -> None:
    devices = tuple(Device(f"GPU-{number}", number) for number in range(4))
    conditions = {
        "GPU-0": Condition(CardState.DIRTY, "process 7 is at work on it"),
        "GPU-1": Condition(CardState.DIRTY, "process 8 is at work on it"),
        "GPU-2": Condition(CardState.SETTLING, "its last holder has just ended"),
        "GPU-9": Condition(CardState.GONE, "not named"),
    }
    view = View(
        Inventory(devices),
        Survey(Listing((), 0.0)),
        Claims((claim("c1", ["GPU-1"], state="running"),)),
        gone=(Device("GPU-9", 9),),
        conditions=conditions,
    )
    told = {d["uuid"]: (d["state"], d["why"]) for d in devices_report(view, HUB)["devices"]}
    assert told == {
        "GPU-0": ("dirty", "process 7 is at work on it"),
        "GPU-1": ("held", "process 8 is at work on it"),
        "GPU-2": ("settling", "its last holder has just ended"),
        "GPU-3": ("free", ""),
        "GPU-9": ("gone", "not named"),
    }


def test_slices_are_told_below_their_card(capsys: pytest.CaptureFixture[str]) -> None:
    conditions = {
        "GPU-0": Condition(CardState.DIRTY, "process 7 is at work on it"),
        "MIG-a": WELL,
        "MIG-b": Condition(CardState.DIRTY, "process 7 is at work on it"),
    }
    view = View(
        sliced(),
        Survey(Listing((), 0.0)),
        Claims((claim("c1", ["MIG-a"], state="running"),)),
        conditions=conditions,
    )
    report = devices_report(view, HUB)
    card, whole = report["devices"]
    assert [(s["uuid"], s["state"], len(s["holders"])) for s in card["slices"]] == [
        ("MIG-a", "held", 1),
        ("MIG-b", "dirty", 0),
    ]
    assert whole["slices"] == []
    devices_table(report)
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split() for line in lines]
    assert [words[0] for words in shown[1:5]] == ["0", "MIG-a", "MIG-b", "1"]
    assert shown[2][1:5] == ["9856", "MiB", "1g.10gb", "0"]


# -- errors in words ------------------------------------------------------------------------------


BAD = {
    "def f(:": ("jupyterhub_config.py, line 1: SyntaxError", "config"),
    "x = 1\n1 / 0": ("jupyterhub_config.py, line 2: ZeroDivisionError: division by zero", "config"),
    CONFIG.format("c.GPUSpawner.uid = 0"): ("c.GPUSpawner.uid is 0", "config"),
    CONFIG.replace("gpuspawner.configure(c)", "").format("c.GPUPool.inventory = 3"): (
        "c.GPUPool.inventory is 3",
        "config",
    ),
    CONFIG.format(""): ("the container engine gave no usable answer", "engine"),
}


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("command", cli.COMMANDS)
def test_what_goes_wrong_is_said_in_words(
    text: str,
    command: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/nowhere.sock")
    (folder / "jupyterhub_config.py").write_text(text)
    words, kind = BAD[text]
    status, out, err = run(capsys, command)
    assert (status, out) == (1, "")
    assert f"gpuspawner {command}: " in err
    assert words in err
    assert "Traceback" not in err
    status, out, _ = run(capsys, command, "--json")
    error = json.loads(out)["error"]
    assert (status, error["kind"]) == (1, kind)
    assert words in error["message"]


def test_no_driver_is_said_in_words(
    stand_in: StandInEngine,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = {"ok": False, "kind": "no-driver", "message": "no driver is loaded"}
    probe = [sys.executable, "-c", f"print({json.dumps(answer)!r})"]
    monkeypatch.setattr("gpuspawner.inventory._command", lambda _: probe)
    (folder / "jupyterhub_config.py").write_text("")
    status, out, err = run(capsys, "devices", "--json")
    error = {"kind": "driver: no-driver", "message": "no driver is loaded"}
    assert (status, json.loads(out), err) == (1, {"error": error}, "")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["devices", "-f", "nowhere.py"], "there is no file 'nowhere.py'"),
        (["devices", "-f"], "argument -f: expected one argument"),
        (["devices", "--colour"], "--colour"),
        (["devices", "all"], "what is 'all'?"),
    ],
)
def test_a_wrong_command_line(
    words: list[str], complaint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, *words)
    assert (status, out) == (1, "")
    assert complaint in err
    status, out, _ = run(capsys, *words[:1], "--json", *words[1:])
    assert complaint in json.loads(out)["error"]["message"]


def test_only_what_is_built_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert [line.split()[1] for line in out.splitlines() if line.startswith("  ")] == [
        "devices",
        "leases",
    ]
    status, out, err = run(capsys, "doctor")
    assert (status, out) == (2, "")
    assert "there is no command 'doctor'" in err
    assert run(capsys)[0] == 2
    assert run(capsys, "--version")[1] == __version__ + "\n"
    assert "-f" in run(capsys, "leases", "--help")[1]


# -- a real engine --------------------------------------------------------------------------------


def test_on_a_real_engine(clean_engine: Engine, tiny_image: str, folder: Path) -> None:
    client = clean_engine.client
    request = {"Driver": "nvidia", "DeviceIDs": [CARDS[3]], "Capabilities": [["gpu"]]}
    host = client.create_host_config(device_requests=[request])
    client.create_container(tiny_image, name="somebody", host_config=host)
    image = client.inspect_image(tiny_image)["Id"]
    labels = {
        names.LABEL_HUB: HUB,
        names.LABEL_IMAGE: image,
        names.LABEL_USER: "amelie",
        names.LABEL_DEVICES: CARDS[0],
    }
    client.create_container(tiny_image, labels=labels)
    (folder / "gpuspawner_hub_id").write_text(HUB)
    answer = subprocess.run(
        [sys.executable, "-m", "gpuspawner.cli", "leases", "--json"],
        cwd=folder,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            "DOCKER_HOST": clean_engine.url,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    leases = {lease["devices"][0]: lease for lease in json.loads(answer.stdout)["leases"]}
    assert leases[CARDS[0]]["user"] == "amelie"
    assert leases[CARDS[0]]["whose"] == "this hub"
    assert leases[CARDS[3]]["name"] == "somebody"
    assert leases[CARDS[3]]["state"] == "created"
