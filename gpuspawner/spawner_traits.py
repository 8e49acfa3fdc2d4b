"""The settings of ``c.GPUSpawner``, beside all of DockerSpawner's own."""

from __future__ import annotations

from typing import Any

from dockerspawner import DockerSpawner
from jupyterhub.traitlets import ByteSpecification, Callable
from traitlets import Any as AnyTrait
from traitlets import (
    Bool,
    Dict,
    Float,
    Integer,
    List,
    TraitError,
    Unicode,
    Union,
    default,
    validate,
)

from .errors import ConfigError
from .limits import check_per_group, check_per_user


class SpawnerTraits(DockerSpawner):
    """Settings of a server; see :class:`gpuspawner.spawner.GPUSpawner`."""

    profile_list = AnyTrait(
        None,
        allow_none=True,
        help="""
        What users may choose on the spawn form: a list in KubeSpawner's schema, with ``gpu`` for
        what is asked of the GPUs and ``spawner_override`` for settings of the spawner; or a
        callable (may be async) that takes the spawner and returns its user's list. Default: two
        profiles, ``one-gpu`` and ``cpu``.

        Example::

            c.GPUSpawner.profile_list = [
                {"display_name": "One GPU", "slug": "one-gpu", "gpu": {"count": 1}},
                {"display_name": "Half a GPU", "slug": "half", "gpu": {"share": "1/2"}},
                {"display_name": "CPU only", "slug": "cpu", "default": True},
            ]
        """,
    ).tag(config=True)

    additional_profile_form_template_paths = List(
        Unicode(),
        help="""
        Folders with a ``form.html`` made for KubeSpawner's list of profiles, to be shown in place
        of the spawn form. Default: none. ``c.KubeSpawner.additional_profile_form_template_paths``
        is taken over, so that ``setup_ui(c)`` of jupyterhub-fancy-profiles works as it is.

        Example::

            c.GPUSpawner.additional_profile_form_template_paths = ["/etc/jupyterhub/form"]
        """,
    ).tag(config=True)

    max_gpus_per_user = Union(
        [Integer(), Dict()],
        default_value=1,
        help="""
        Most GPUs that one user's servers, named ones included, may hold together; a share counts
        as its part of a GPU. Either a number, or a dict of numbers by group, of which the highest
        that applies to the user counts; ``"*"`` stands for everybody. Default: 1; 0 sets no limit.

        Example::

            c.GPUSpawner.max_gpus_per_user = {"*": 1, "research": 4}
        """,
    ).tag(config=True)

    max_gpus_per_group = Dict(
        default_value={},
        help="""
        Most GPUs that the servers of all members of a group may hold together, by the name of the
        group. A user in several of these groups must keep within each. Default: none.

        Example::

            c.GPUSpawner.max_gpus_per_group = {"students": 6}
        """,
    ).tag(config=True)

    memory_fraction = AnyTrait(
        None,
        allow_none=True,
        help="""
        Part of each GPU's memory, above 0 and at most 1, that frameworks in the server may take.
        Advisory: honoured by PyTorch, JAX and CuPy, per process; no wall. Default: the share of
        the GPU that the profile gives. At 1 no framework is told anything.

        Example::

            c.GPUSpawner.memory_fraction = 0.9
        """,
    ).tag(config=True)

    uid = Union(
        [Integer(), Callable()],
        default_value=1000,
        help="""
        User id under which the server runs: a number, or a callable (may be async) that takes the
        spawner and returns one. Default: 1000.

        Example::

            c.GPUSpawner.uid = lambda spawner: 20000 + spawner.user.id
        """,
    ).tag(config=True)

    gid = Union(
        [Integer(), Callable()],
        default_value=100,
        help="""
        Group id under which the server runs: a number, or a callable like ``uid``. Default: 100
        (``users`` on Debian and in the Jupyter images).

        Example::

            c.GPUSpawner.gid = 1000
        """,
    ).tag(config=True)

    supplemental_gids = Union(
        [List(Integer()), Callable()],
        default_value=[],
        help="""
        Further group ids of the server's processes: a list of numbers, or a callable like
        ``uid``. Default: none.

        Example::

            c.GPUSpawner.supplemental_gids = [4000, 4001]
        """,
    ).tag(config=True)

    identity_from = Union(
        [Unicode(), Dict()],
        default_value="",
        help="""
        Where uid, gid and groups come from instead of the three settings: ``"passwd"`` for the
        hub host's user of the same name, or the names of keys in the user's ``auth_state``.
        Default: empty, the settings ``uid``, ``gid`` and ``supplemental_gids``.

        Example::

            c.GPUSpawner.identity_from = {"auth_state": {"uid": "uidNumber", "gid": "gidNumber"}}
        """,
    ).tag(config=True)

    nb_user = Unicode(
        "jovyan",
        help="""
        Name of the server's user inside the container (``NB_USER``). Default: ``jovyan``, as in
        the Jupyter images.

        Example::

            c.GPUSpawner.nb_user = "student"
        """,
    ).tag(config=True)

    nb_umask = Unicode(
        "0022",
        help="""
        File mode creation mask, in octal, passed on as ``NB_UMASK``; the Jupyter images apply it.
        Default: ``0022``.

        Example::

            c.GPUSpawner.nb_umask = "0002"
        """,
    ).tag(config=True)

    home = Unicode(
        "/home/jovyan",
        help="""
        Home folder inside the container (``HOME``). If a volume is mounted there and its top
        folder belongs to root, it is given to the server's user; if it belongs to another user,
        the server is refused. Default: ``/home/jovyan``.

        Example::

            c.GPUSpawner.home = "/home/student"
        """,
    ).tag(config=True)

    drop_from_root = Bool(
        False,
        help="""
        Start the container's first process as root with the capabilities CHOWN, SETUID and SETGID
        only, and leave it to the image to become ``NB_UID``, as the start script of the Jupyter
        Docker Stacks does. Default: False, the container runs under the user's id throughout.

        Example::

            c.GPUSpawner.drop_from_root = True
        """,
    ).tag(config=True)

    allow_root = Bool(
        False,
        help="""
        Accept 0 as a uid or gid. Default: False, such a server is refused.

        Example::

            c.GPUSpawner.allow_root = True
        """,
    ).tag(config=True)

    allow_privileged = Bool(
        False,
        help="""
        Accept what breaks a container open in the merged config: ``privileged``, the host's
        namespaces, an unconfined security profile. Default: False, such a server is refused.

        Example::

            c.GPUSpawner.allow_privileged = True
        """,
    ).tag(config=True)

    allow_devices = List(
        Unicode(),
        help="""
        Host devices, by path, that the admin's config may put into servers. NVIDIA's are never
        accepted: GPUs come from the pool. Default: none.

        Example::

            c.GPUSpawner.allow_devices = ["/dev/fuse"]
        """,
    ).tag(config=True)

    allow_capabilities = List(
        Unicode(),
        help="""
        Linux capabilities that the admin's config may add; all others are dropped. Default: none.

        Example::

            c.GPUSpawner.allow_capabilities = ["NET_BIND_SERVICE"]
        """,
    ).tag(config=True)

    shm_size = ByteSpecification(
        0,
        help="""
        Size of ``/dev/shm`` in bytes, with the suffixes K, M, G, T; data loaders need it. Default:
        0, which means half of ``mem_limit``, or 8G where there is no limit.

        Example::

            c.GPUSpawner.shm_size = "16G"
        """,
    ).tag(config=True)

    pull_timeout = Float(
        1800.0,
        min=1,
        help="""
        Seconds that pulling an image may take. It happens before a GPU is taken and does not count
        as start time. Default: 1800.

        Example::

            c.GPUSpawner.pull_timeout = 3600
        """,
    ).tag(config=True)

    form_notice = Unicode(
        "",
        help="""
        A line of plain text above the profiles on the spawn form. Default: none.

        Example::

            c.GPUSpawner.form_notice = "GPUs are for course work until Friday."
        """,
    ).tag(config=True)

    hide_forbidden_profiles = Bool(
        False,
        help="""
        Leave profiles of groups that a user is not in off their form. Default: False, they are
        shown as "Open to other groups only", so that a student sees what to ask for. Profiles that
        name users only are never shown to others.

        Example::

            c.GPUSpawner.hide_forbidden_profiles = True
        """,
    ).tag(config=True)

    # The hub's own trait takes a dict only: on JupyterHub 5 a REST body of "[1]" is then a fault of
    # the hub (500, counted as a failure) where it should be the sender's (400).
    user_options = AnyTrait({})

    @validate("max_gpus_per_user", "max_gpus_per_group")
    def _check_limits(self, proposal: Any) -> Any:
        per_user = proposal["trait"].name == "max_gpus_per_user"
        try:
            (check_per_user if per_user else check_per_group)(proposal["value"])
        except ConfigError as error:
            raise TraitError(str(error)) from error
        return proposal["value"]

    @default("remove")
    def _default_remove(self) -> bool:
        # Stale containers keep device requests; DockerSpawner's own default keeps them.
        return True

    @default("start_timeout")
    def _default_start_timeout(self) -> int:
        return 300

    @default("http_timeout")
    def _default_http_timeout(self) -> int:
        # JupyterHub's own 30 s are short for a notebook server on a busy machine or a slow home.
        return 120
