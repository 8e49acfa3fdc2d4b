"""Who a server runs as."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.errors import ConfigError
from gpuspawner.identity import (
    MAX_ID,
    Identity,
    from_auth_state,
    from_passwd,
    resolve_identity,
    safe_user_name,
)


def test_default_identity() -> None:
    identity = resolve_identity(1000, 100)
    assert identity == Identity(uid=1000, gid=100)
    assert identity.container_user == "1000:100"
    assert identity.group_add == ()
    assert identity.capabilities == ()
    assert identity.env == {
        "NB_UID": "1000",
        "NB_GID": "100",
        "NB_USER": "jovyan",
        "NB_UMASK": "022",
        "HOME": "/home/jovyan",
    }


def test_digits_groups_and_umask() -> None:
    identity = resolve_identity("2001", "2000", ["30", 20, 2000, 20], umask="027", user_name="ada")
    assert identity.container_user == "2001:2000"
    assert identity.group_add == ("20", "30")
    assert identity.env["NB_UMASK"] == "027"
    assert identity.env["NB_USER"] == "ada"


def test_drop_from_root_hands_over_with_three_capabilities() -> None:
    identity = resolve_identity(1000, 100, drop_from_root=True)
    assert identity.container_user == "0:0"
    assert identity.capabilities == ("CHOWN", "SETGID", "SETUID")
    assert identity.env["NB_UID"] == "1000"
    assert "HOME" not in identity.env
    with pytest.raises(ConfigError, match=r"supplemental_gids.*drop_from_root"):
        resolve_identity(1000, 100, [5], drop_from_root=True)
    with pytest.raises(ConfigError, match="root"):
        resolve_identity(0, 100, drop_from_root=True)


BAD_IDS = [True, False, -1, MAX_ID + 1, 1.0, 1.5, None, "", "x", "-1", " 1", "١", "1" * 30, [1000]]


@pytest.mark.parametrize("value", BAD_IDS)
@pytest.mark.parametrize("field", ["uid", "gid", "supplemental_gids"])
def test_bad_numbers_name_the_value_and_the_trait(value: object, field: str) -> None:
    arguments: dict[str, Any] = {"uid": 1000, "gid": 100}
    arguments[field] = [value] if field == "supplemental_gids" else value
    with pytest.raises(ConfigError) as error:
        resolve_identity(**arguments, source="auth_state")
    text = str(error.value)
    assert f"GPUSpawner.{field}" in text
    assert repr(value) in text
    assert "auth_state" in text
    assert str(MAX_ID) in text


@pytest.mark.parametrize("value", ["12", 12, {"a": 1}])
def test_groups_must_be_a_list(value: object) -> None:
    with pytest.raises(ConfigError, match=r"supplemental_gids.*\[2000, 2001\]"):
        resolve_identity(1000, 100, value)


def test_no_groups() -> None:
    assert resolve_identity(1000, 100, None).group_add == ()


@pytest.mark.parametrize(
    ("uid", "gid", "groups", "field"),
    [
        (0, 100, (), "uid"),
        ("0", 100, (), "uid"),
        ("00", 100, (), "uid"),
        (1000, 0, (), "gid"),
        (1000, 100, (5, 0), "supplemental_gids"),
    ],
)
def test_root_only_where_allowed(uid: object, gid: object, groups: object, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"GPUSpawner\.{field} .*allow_root = True"):
        resolve_identity(uid, gid, groups)
    identity = resolve_identity(uid, gid, groups, allow_root=True)
    assert 0 in (identity.uid, identity.gid, *identity.supplemental_gids)


@given(
    uid=st.integers() | st.text(max_size=12),
    gid=st.integers() | st.text(max_size=12),
    groups=st.lists(st.integers() | st.text(max_size=12), max_size=3),
    drop_from_root=st.booleans(),
)
def test_never_root_whatever_comes_in(
    uid: object, gid: object, groups: object, drop_from_root: bool
) -> None:
    try:
        identity = resolve_identity(uid, gid, groups, drop_from_root=drop_from_root)
    except ConfigError:
        return
    assert 0 < identity.uid <= MAX_ID
    assert 0 < identity.gid <= MAX_ID
    assert all(0 < int(group) <= MAX_ID for group in identity.group_add)
    assert identity.container_user != "0:0" or drop_from_root


@pytest.mark.parametrize("name", ["ada", "_x", "a-b_c9", "a" * 32])
def test_good_user_names(name: str) -> None:
    assert safe_user_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "root", "Ada", "9a", "a b", "a\n", "ada@x", "é", "a" * 33, "../x", "-a", "a:b"]
)
def test_other_user_names_become_jovyan(name: str) -> None:
    assert safe_user_name(name) == "jovyan"


@pytest.mark.parametrize("value", [-1, 0o1000, True, "9", "8", "", "abc", None, 1.0])
def test_bad_umask(value: object) -> None:
    with pytest.raises(ConfigError, match="umask"):
        resolve_identity(1000, 100, umask=value)


@pytest.mark.parametrize("value", ["", "home", "/", "//", "/a/../b", "/a\0b"])
def test_bad_home(value: str) -> None:
    with pytest.raises(ConfigError, match="home folder"):
        resolve_identity(1000, 100, home=value)


def test_home_is_tidied() -> None:
    assert resolve_identity(1000, 100, home="//home/./ada/").home == "/home/ada"


def test_auth_state_keys() -> None:
    state = {"ldap": {"uidNumber": ["2001"], "groups": ["5", "6"]}, "gid": 7, "name": "ada"}
    values = from_auth_state(
        state,
        {
            "uid": "ldap.uidNumber",
            "gid": "gid",
            "supplemental_gids": "ldap.groups",
            "user_name": "name",
        },
    )
    identity = resolve_identity(**values, source="auth_state")
    assert (identity.uid, identity.gid, identity.group_add) == (2001, 7, ("5", "6"))
    assert identity.user_name == "ada"


@pytest.mark.parametrize(
    ("state", "keys", "message"),
    [
        (None, {"uid": "uid"}, "enable_auth_state"),
        ({}, {"uid": "uid"}, "has no 'uid'"),
        ({"a": 1}, {"uid": "a.b"}, "has no 'b'.*keys are a"),
        ({"a": 1}, {"allow_root": "a"}, "'allow_root' can't be read.*uid, gid"),
        ({"a": 1}, {"home": "a"}, "a text is needed"),
    ],
)
def test_auth_state_that_does_not_fit(state: Any, keys: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_auth_state(state, keys)


@pytest.mark.parametrize("argument", ["uid", "gid", "supplemental_gids"])
@pytest.mark.parametrize("value", ["sekrit-token", ["sekrit-token"], {"token": "sekrit"}, 1.5])
def test_a_wrong_key_puts_no_secret_into_the_log(argument: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"whole numbers? is needed") as error:
        from_auth_state({"access_token": value}, {argument: "access_token"})
    assert "sekrit" not in str(error.value)
    assert "auth_state['access_token']" in str(error.value)


def test_passwd_entry() -> None:
    values = from_passwd("ada", 2001, 2000, [2000, 27, 0])
    identity = resolve_identity(**values, source="passwd")
    assert identity.container_user == "2001:2000"
    assert identity.group_add == ("27",)
    assert identity.user_name == "ada"
    with pytest.raises(ConfigError, match="from passwd"):
        resolve_identity(**from_passwd("root", 0, 0), source="passwd")
