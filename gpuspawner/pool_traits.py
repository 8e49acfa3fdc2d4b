"""The settings of ``c.GPUPool``."""

from __future__ import annotations

from traitlets import Any as AnyTrait
from traitlets import Bool, CaselessStrEnum, Dict, Float, Integer, List, Unicode
from traitlets.config import LoggingConfigurable

from .policies import DEFAULT_POLICY, DEFAULT_SHARE_POLICY, POLICIES


class PoolTraits(LoggingConfigurable):
    """Settings of the pool; see :class:`gpuspawner.pool.GPUPool`."""

    inventory = AnyTrait(
        "nvml",
        help="""
        Where the list of GPUs comes from. Default: ``"nvml"``, the driver of the machine the hub
        runs on. Others: a list of GPUs, or GPUs that don't exist, to try things out: how many of
        which ``model`` and ``memory_mib``; ``mig``, the slices that each of them is cut into; and
        ``nvlink_groups``, the sizes of the groups that NVLinks join (else all are joined).

        Example::

            c.GPUPool.inventory = [
                {
                    "uuid": "GPU-5d2c4f1e-7b1a-4f0e-9c55-0d6b1f2a3c4d",
                    "model": "NVIDIA A100",
                    "memory_gib": 40,
                }
            ]
            c.GPUPool.inventory = {"simulated": 4, "model": "NVIDIA A100-SXM4-40GB"}
            c.GPUPool.inventory = {"simulated": 2, "mig": ["3g.20gb", "2g.10gb", "2g.10gb"]}
            c.GPUPool.inventory = {"simulated": 8, "nvlink_groups": [4, 4]}
        """,
    ).tag(config=True)

    device_driver = CaselessStrEnum(
        ["auto", "cdi", "nvidia", "none"],
        "auto",
        help="""
        How a GPU is put into a container. Default: ``auto``: by CDI where the engine lists the
        GPU, else by NVIDIA's container runtime hook. ``none`` asks the engine for nothing and only
        sets labels and variables.

        Example::

            c.GPUPool.device_driver = "cdi"
        """,
    ).tag(config=True)

    observers = List(
        Unicode(),
        help="""
        Image repositories (without tag) of containers that only monitor the GPUs and so block
        nothing. Well-known exporters are built in. Default: none more.

        Example::

            c.GPUPool.observers = ["registry.example.org/lab/gpu-exporter"]
        """,
    ).tag(config=True)

    policy = CaselessStrEnum(
        list(POLICIES),
        DEFAULT_POLICY,
        help="""
        Which of the whole cards that would do are given: ``smallest-that-fits`` keeps large cards
        free, ``pack`` fills groups of linked cards one after the other, ``spread`` goes from one
        group to the next. Default: ``smallest-that-fits``.

        Example::

            c.GPUPool.policy = "pack"
        """,
    ).tag(config=True)

    share_policy = CaselessStrEnum(
        list(POLICIES),
        DEFAULT_SHARE_POLICY,
        help="""
        Which of the cards with room for a share are given: ``spread`` takes the emptiest, ``pack``
        the fullest, ``smallest-that-fits`` the one with the least memory. Default: ``spread``.

        Example::

            c.GPUPool.share_policy = "pack"
        """,
    ).tag(config=True)

    reserved_for = Dict(
        help="""
        GPUs that only members of a group get: by group, a list of UUIDs and models (with ``*`` for
        any letters), or how many, which then are those with the highest index in service. A GPU may
        be reserved for several groups. Members get these first, then others. Default: none.

        Example::

            c.GPUPool.reserved_for = {"research": ["*H100*"], "theses": 2}
        """,
    ).tag(config=True)

    bookings = List(
        AnyTrait(),
        help="""
        GPUs that are kept for a group at some hours of the week, such as for a class: ``group`` (or
        ``groups``), ``cards`` as in ``reserved_for``, ``days``, ``from`` and ``to``, and
        ``timezone`` if it is not the hub's own. Ten minutes before it begins they must be free, so
        others get them only for profiles whose ``max_hours`` end by then. Default: none.

        Example::

            c.GPUPool.bookings = [
                {
                    "group": "ml-class",
                    "cards": 4,
                    "days": ["mon", "wed"],
                    "from": "10:00",
                    "to": "12:00",
                    "timezone": "Europe/Berlin",
                }
            ]
        """,
    ).tag(config=True)

    created_grace_seconds = Float(
        120.0,
        min=1,
        help="""
        Seconds for which a container of somebody else that was created but not started counts as
        holding its GPUs, and after which a never-started leftover is removed. Default: 120.

        Example::

            c.GPUPool.created_grace_seconds = 300
        """,
    ).tag(config=True)

    release_delay_seconds = Float(
        10.0,
        min=0,
        help="""
        Seconds after its end during which an exited container still holds its GPUs, so that the
        driver can clean up. Default: 10.

        Example::

            c.GPUPool.release_delay_seconds = 20
        """,
    ).tag(config=True)

    orphan_grace_seconds = Float(
        600.0,
        min=0,
        help="""
        Seconds after the hub's start before a running server that neither the hub nor its database
        knows is stopped. Default: 600.

        Example::

            c.GPUPool.orphan_grace_seconds = 3600
        """,
    ).tag(config=True)

    probe_max_age_seconds = Float(
        60.0,
        min=0,
        help="""
        Seconds for which the last answer of the driver is relied on if it can't be asked again.
        Default: 60.

        Example::

            c.GPUPool.probe_max_age_seconds = 30
        """,
    ).tag(config=True)

    look_inside = Bool(
        True,
        help="""
        Look into servers by a short script that the engine runs in them as root: right after the
        start, to prove that a server sees its own GPUs and no other, and with each poll, to notice
        that it lost them. Default: on. A look takes a tenth of a second, beside the rest of the
        start.

        Example::

            c.GPUPool.look_inside = False
        """,
    ).tag(config=True)

    foreign_memory_mib = Integer(
        500,
        min=0,
        help="""
        MiB of a GPU's memory, beyond the driver's own reserve, that may be in use without anybody
        accounting for it. A GPU with more is not offered. Default: 500.

        Example::

            c.GPUPool.foreign_memory_mib = 1000
        """,
    ).tag(config=True)

    clean_probes = Integer(
        3,
        min=1,
        help="""
        How many times in a row the driver must find nothing wrong with a GPU that was ill, or had
        work of somebody else on it, before it is offered again. Default: 3.

        Example::

            c.GPUPool.clean_probes = 5
        """,
    ).tag(config=True)

    hub_id_file = Unicode(
        "",
        help="""
        File that keeps the random id of this hub, which tells its containers from those of
        another hub on the same engine. It must survive restarts and must not be copied to a second
        hub. Default: ``gpuspawner_hub_id`` beside the hub's SQLite database, or in the hub's
        working directory where the database is elsewhere.

        Example::

            c.GPUPool.hub_id_file = "/srv/jupyterhub/gpuspawner_hub_id"
        """,
    ).tag(config=True)

    engine_threads = Integer(
        12,
        min=2,
        help="""
        How many calls of each kind to the container engine (questions, starts, commands inside…)
        may be under way at once; four times as many stops and removals. Default: 12.

        Example::

            c.GPUPool.engine_threads = 24
        """,
    ).tag(config=True)

    clean_interval_seconds = Float(
        30.0,
        min=0.1,
        help="""
        Seconds between two rounds of the cleaner, which removes containers of this hub that
        nobody owns any more. Default: 30.

        Example::

            c.GPUPool.clean_interval_seconds = 60
        """,
    ).tag(config=True)
