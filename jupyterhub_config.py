"""A JupyterHub that gives each user a GPU of their own, on one machine with Docker and NVIDIA."""

import gpuspawner

c = get_config()

# Who may log in is yours to say. As it is, JupyterHub asks this machine's own accounts (PAM) and
# lets in the admins only. See JupyterHub's documentation, "Authenticators".
# c.JupyterHub.authenticator_class = "…"
# c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"admin"}

# Containers reach the hub through Docker's own bridge, which no other machine can. If yours has
# another address ("ip address show docker0"), write that.
c.JupyterHub.hub_ip = "172.17.0.1"
c.DockerSpawner.network_name = "bridge"
c.DockerSpawner.use_internal_ip = True

# What runs: any image that JupyterHub can start. It brings CUDA; the machine brings the driver.
c.DockerSpawner.image = "quay.io/jupyter/pytorch-notebook:cuda12-python-3.12"

# Each user's home outlives the server. It belongs to 1000:100, as whom servers run.
c.DockerSpawner.volumes = {"jupyterhub-user-{username}": "/home/jovyan"}

# Main memory of each server. Half of it may be shared memory, for data loaders.
c.DockerSpawner.mem_limit = "32G"

# What users may choose. Without this line: "One GPU" and "Without a GPU".
# c.GPUSpawner.profile_list = [
#     {"display_name": "One GPU", "slug": "one-gpu", "gpu": {"count": 1}},
#     {"display_name": "Half a GPU", "slug": "half-gpu", "gpu": {"share": "1/2"}},
#     {
#         "display_name": "One large GPU",
#         "slug": "large-gpu",
#         "description": "An A100 if one is free, else any with 40 GB or more.",
#         "gpu": [{"models": ["*A100*"]}, {"min_memory_gib": 40}],
#         "groups": ["research"],
#         "max_hours": 8,
#     },
#     {"display_name": "Without a GPU", "slug": "cpu", "spawner_override": {"mem_limit": "8G"}},
# ]
# c.GPUSpawner.max_gpus_per_user = 1

# Keep this line last: it fills in what is not set above, and checks all of it.
gpuspawner.configure(c)
