"""Options of a profile: the questions it asks, their choices, and the traits these set.

Part of :mod:`gpuspawner.profiles`, which reads the list around them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from .checks import Where, shown
from .kube_words import instead_of
from .names import ENV_NVIDIA_VISIBLE

OPTION_RULE = "letters, digits, '_', '.' and single dashes, starting with a letter"
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_.]*(-[A-Za-z0-9_.]+)*")

#: Names that mean something else in ``user_options``, in form data or in a hub's URL.
RESERVED_OPTIONS = frozenset(
    {"profile", "next", "display_name", "unlisted-choice", "select-profile"}
)
#: Choices that forms send where a text was given instead: ours, and other forms.
_RESERVED_CHOICES = ("unlisted-choice", "unlisted_choice")

#: What the value of an ``unlisted_choice`` is put in place of. Only this, literally.
PLACEHOLDER = "{value}"

OPTION_KEYS = ("display_name", "choices", "unlisted_choice")
CHOICE_KEYS = ("display_name", "default", "spawner_override", "kubespawner_override")
UNLISTED_KEYS = (
    "enabled", "display_name", "display_name_in_choices", "validation_regex", "validation_message",
    "spawner_override", "kubespawner_override",
)  # fmt: skip
#: Spawner attributes that a profile can't set: they say who is served and how much, what profiles
#: are, hold for all servers alike, or count before a profile is known.
_NOT_FOR_PROFILES = frozenset(
    {
        "profile_list", "user_options", "options_form", "options_from_form", "apply_user_options",
        "additional_profile_form_template_paths", "form_notice", "hide_forbidden_profiles",
        "max_gpus_per_user", "max_gpus_per_group", "allowed_images", "remove",
        "client_kwargs", "use_docker_client_env", "tls", "tls_assert_hostname", "tls_ca",
        "tls_cert", "tls_config", "tls_key", "tls_verify", "consecutive_failure_limit",
        "auth_state_hook", "group_overrides", "server_token_scopes", "name_template",
        "oauth_client_allowed_scopes", "oauth_roles",
        "post_stop_hook",  # a restarted hub would not know it
    }
)  # fmt: skip
#: DockerSpawner's old names, under which a setting would pass unseen.
_OLD_NAMES = {
    "container_image": "image", "container_ip": "host_ip", "container_port": "port",
    "container_name_template": "name_template", "container_prefix": "prefix",
    "image_whitelist": "allowed_images", "remove_containers": "remove",
}  # fmt: skip
#: Settings in which a user's own words can widen nothing.
_HARMLESS = frozenset({"environment", "default_url"})


@dataclass
class Reading:
    """What one reading of a list knows and finds.

    Attributes:
        traits: names that an override may set; None skips that check.
        try_override: looks at the values of an override that comes on top of another, and raises
            ConfigError; None skips that.
        base: the override of the profile whose options are being read.
        warnings: for the log.
    """

    traits: Collection[str] | None = None
    try_override: Callable[[Where, Mapping[str, Any], Mapping[str, Any]], None] | None = None
    base: Mapping[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class OptionChoice:
    """One listed choice of an option."""

    key: str
    display_name: str
    override: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class UnlistedChoice:
    """A free text that a user may give instead of a listed choice.

    Attributes:
        pattern: must match the whole text; None allows any printable text.
        message: what the user is told if the text does not match; empty for our own words.
        override: traits in which ``{value}`` stands for the text.
    """

    display_name: str
    display_name_in_choices: str
    pattern: re.Pattern[str] | None = None
    message: str = ""
    override: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ProfileOption:
    """A question within a profile.

    Attributes:
        default: key of the choice taken when the user gives none; empty if there are no choices.
    """

    key: str
    display_name: str
    choices: tuple[OptionChoice, ...]
    default: str
    unlisted: UnlistedChoice | None = None

    def choice(self, key: str) -> OptionChoice | None:
        """The listed choice of that key, None if there is none."""
        return next((c for c in self.choices if c.key == key), None)


def read_options(
    where: Where, entry: Mapping[str, Any], reading: Reading
) -> tuple[ProfileOption, ...]:
    """The ``profile_options`` of a profile's entry."""
    value = entry.get("profile_options", {})
    where.mapping(value, "a dict of options")
    options = []
    for key, spec in value.items():
        here = where.at(key)
        if not isinstance(key, str) or not _OPTION.fullmatch(key):
            raise where.error(f"{shown(key)} is not a name for an option; use {OPTION_RULE}")
        if key in RESERVED_OPTIONS or key.startswith(("opt-", "profile-option-")):
            raise where.error(f"{key!r} means something else in forms and links; rename the option")
        here.keys(spec, OPTION_KEYS)
        choices, default = _choices(here.at("choices"), spec, reading)
        unlisted = _unlisted(here.at("unlisted_choice"), spec, reading)
        if not choices and unlisted is None:
            raise here.error("there is nothing to choose; add 'choices' or an 'unlisted_choice'")
        options.append(
            ProfileOption(
                key=key,
                display_name=here.text(spec, "display_name", default=key),
                choices=choices,
                default=default,
                unlisted=unlisted,
            )
        )
    return tuple(options)


def _choices(
    where: Where, spec: Mapping[str, Any], reading: Reading
) -> tuple[tuple[OptionChoice, ...], str]:
    value = spec.get("choices", {})
    where.mapping(value, "a dict of choices")
    choices = []
    defaults = []
    for key, choice in value.items():
        if not isinstance(key, str) or not key or not key.isprintable() or len(key) > 200:
            raise where.error(f"{shown(key)} is not a key for a choice; use a short text")
        if key in _RESERVED_CHOICES:
            raise where.error(f"{key!r} has a meaning of its own; rename this choice")
        here = where.at(key)
        here.keys(choice, CHOICE_KEYS)
        if here.flag(choice, "default"):
            defaults.append(key)
        choices.append(
            OptionChoice(
                key=key,
                display_name=here.text(choice, "display_name", default=key),
                override=read_override(here, choice, reading),
            )
        )
    if len(defaults) > 1:
        raise where.error(f"{defaults[0]!r} and {defaults[1]!r} are both the default; mark one")
    first = choices[0].key if choices else ""
    return tuple(choices), defaults[0] if defaults else first


def _unlisted(where: Where, spec: Mapping[str, Any], reading: Reading) -> UnlistedChoice | None:
    if "unlisted_choice" not in spec:
        return None
    value = spec["unlisted_choice"]
    where.keys(value, UNLISTED_KEYS)
    pattern = where.text(value, "validation_regex", default="", empty=True)
    try:
        compiled = re.compile(pattern) if pattern else None
    except re.error as error:
        raise where.at("validation_regex").error(
            f"{pattern!r} is not a regular expression: {error}"
        ) from None
    override = read_override(where, value, reading)
    filled = [key for key, text in override.items() if has_placeholder(text)]
    if compiled is None and not _HARMLESS.issuperset(filled):
        raise where.error(
            f"what users type would go into {', '.join(sorted({*filled} - _HARMLESS))} unchecked; "
            "add a 'validation_regex' that allows only what you mean"
        )
    choice = UnlistedChoice(
        display_name=where.text(value, "display_name", default="Another one"),
        display_name_in_choices=where.text(
            value, "display_name_in_choices", default="Another one…"
        ),
        pattern=compiled,
        message=where.text(value, "validation_message", default="", empty=True),
        override=override,
    )
    return choice if where.flag(value, "enabled") else None


def has_placeholder(value: Any) -> bool:
    """True if what a user types would go into this value, or into one within."""
    if isinstance(value, str):
        return PLACEHOLDER in value
    if isinstance(value, Mapping):
        return any(has_placeholder(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(has_placeholder(item) for item in value)


def read_override(where: Where, entry: Mapping[str, Any], reading: Reading) -> Mapping[str, Any]:
    """The traits of ``spawner_override``, or of KubeSpawner's own key with a warning."""
    key = "spawner_override"
    if "kubespawner_override" in entry:
        if key in entry:
            raise where.at("kubespawner_override").error(
                "'spawner_override' is there too; keep only that one"
            )
        key = "kubespawner_override"
        reading.warnings.append(
            f"{where.at(key)}: read as 'spawner_override'; rename it. Settings that only "
            "KubeSpawner has are refused."
        )
    here = where.at(key)
    value: Mapping[str, Any] = entry.get(key, {})
    here.mapping(value, "a dict of spawner traits")
    for name in value:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise here.error(f"{shown(name)} is not the name of a spawner trait")
        if name in _OLD_NAMES:
            raise here.error(f"{name!r} is an old name; write {_OLD_NAMES[name]!r}")
        if name in _NOT_FOR_PROFILES:
            raise here.error(f"{name!r} can't be set by a profile; set it on the spawner's class")
        instead = "" if reading.traits and name in reading.traits else instead_of(name, value[name])
        if instead:
            raise here.at(name).error(f"only KubeSpawner has it; {instead}")
        if reading.traits is not None and name not in reading.traits:
            raise here.error(
                f"{name!r} is not a trait of the spawner{here.hint(name, reading.traits)}"
            )
    _no_collisions(here, value)
    if reading.try_override is not None:
        # What users type, and what callables make, is not known yet.
        known = {
            name: given
            for name, given in value.items()
            if not callable(given) and not has_placeholder(given)
        }
        reading.try_override(here, known, reading.base)
    return value


def _no_collisions(where: Where, traits: Mapping[str, Any]) -> None:
    """Refuse what would set aside the choice of cards (and names what replaces it)."""
    environment = traits.get("environment")
    if isinstance(environment, Mapping) and ENV_NVIDIA_VISIBLE in environment:
        raise (
            where.at("environment")
            .at(ENV_NVIDIA_VISIBLE)
            .error(
                "which cards a server sees is decided at each start; remove it and write "
                "'gpu': {'count': 1} in the profile"
            )
        )
    host_config = traits.get("extra_host_config")
    if isinstance(host_config, Mapping):
        found = [key for key in ("runtime",) if key in host_config]
        # Requests for other kinds of devices are kept. As objects or dicts, in Docker's spelling
        # or docker-py's, those for GPUs all name the driver, the capability or the CDI kind.
        if re.search(
            "gpu|nvidia", shown(host_config.get("device_requests"), 10_000), re.IGNORECASE
        ):
            found.append("device_requests")
        for key in found:
            raise (
                where.at("extra_host_config")
                .at(key)
                .error(
                    "which cards a server gets is the pool's to decide; remove it and write "
                    "'gpu': {'count': 1} in the profile"
                )
            )
