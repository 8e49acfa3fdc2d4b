"""What ``script/server`` adds to ``jupyterhub_config.py``: a login for trying out, and its cards.

Not for a real hub: everybody knows this password. Copy ``jupyterhub_config.py`` instead.
"""

import json
import os
from pathlib import Path

import gpuspawner

c = get_config()  # noqa: F821 - given by the hub

load_subconfig("jupyterhub_config.py", path=str(Path(__file__).resolve().parents[1]))  # noqa: F821

# What script/server found out about this machine. The gpuspawner command reads this file too.
state = Path(__file__).resolve().parents[1] / ".server" / "demo.json"
state = Path(os.environ.get("GPUSPAWNER_DEMO", state)).resolve()
demo = json.loads(state.read_text())

c.JupyterHub.bind_url = demo["url"]
c.JupyterHub.hub_ip = demo["gateway"]  # the bridge's address: for containers, not for the network
c.JupyterHub.hub_port = demo["hub_port"]
c.JupyterHub.db_url = "sqlite:///jupyterhub.sqlite"
c.GPUPool.hub_id_file = str(state.parent / "gpuspawner_hub_id")
c.ConfigurableHTTPProxy.command = demo["proxy"]
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{demo['proxy_port']}"

c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = demo["password"]
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"admin"}

c.DockerSpawner.image = demo["image"]
c.DockerSpawner.pull_policy = "never"  # built here, in no registry
c.DockerSpawner.mem_limit = "4G"
c.DockerSpawner.network_name = "bridge"
c.DockerSpawner.use_internal_ip = True

if demo["docker_host"]:
    c.DockerSpawner.client_kwargs = {"base_url": demo["docker_host"]}
if demo["simulated"]:
    c.GPUPool.inventory = {"simulated": demo["simulated"]}

c.GPUSpawner.max_gpus_per_user = 2
c.GPUSpawner.profile_list = [
    {
        "display_name": "One GPU",
        "slug": "one-gpu",
        "description": "A whole GPU for you alone.",
        "gpu": {"count": 1},
    },
    {
        "display_name": "Two GPUs",
        "slug": "two-gpus",
        "description": "Two whole GPUs, for work that is split over both.",
        "gpu": {"count": 2},
    },
    {
        "display_name": "Without a GPU",
        "slug": "cpu",
        "description": "For writing, reading and lighter work.",
    },
]

gpuspawner.configure(c)
