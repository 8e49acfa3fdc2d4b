"""``gpu`` of a profile: parts of a card, several requests, and which of them are never reached."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.checks import Where
from gpuspawner.errors import ConfigError
from gpuspawner.gpu_requests import MAX_DENOMINATOR, read_requests, read_share
from gpuspawner.profiles import parse_profile_list
from gpuspawner.request import Card, Request, covers, has_room, suits

HERE = Where("share")
FRACTIONS = sorted({Fraction(n, d) for d in range(1, MAX_DENOMINATOR + 1) for n in range(1, d + 1)})


def read(gpu: Any) -> tuple[tuple[Request, ...], list[str]]:
    warnings: list[str] = []
    return read_requests(Where("gpu"), gpu, warnings), warnings


# -- shares ---------------------------------------------------------------------------------------


def test_every_fraction_is_read_as_text_as_float_and_as_itself() -> None:
    for share in FRACTIONS:
        for written in (str(share), f" {share.numerator} / {share.denominator} ", share):
            assert read_share(HERE, written) == share
        assert read_share(HERE, share.numerator / share.denominator) == share


def test_no_two_fractions_are_one_float() -> None:
    assert len({float(share) for share in FRACTIONS}) == len(FRACTIONS)


@pytest.mark.parametrize(
    ("written", "share"),
    [("1", 1), (1, 1), (1.0, 1), ("0.25", "1/4"), (".5", "1/2"), (0.2, "1/5"), (1 / 3, "1/3"),
     ("2/4", "1/2"), (0.33, "33/100"), ("0.50", "1/2")],
)  # fmt: skip
def test_what_people_write(written: Any, share: Any) -> None:
    assert read_share(HERE, written) == Fraction(share)


@given(st.floats(min_value=0, max_value=1, exclude_min=True) | st.sampled_from(FRACTIONS))
def test_a_float_is_what_it_prints_as_or_the_text_to_write_is_named(value: float) -> None:
    value = float(value)
    try:
        share = read_share(HERE, value)
    except ConfigError as error:
        text = str(error)
        advice = text.split('write "')[1].removesuffix('"')
        assert repr(value) in text
        named = read_share(HERE, advice)
        assert str(named) == advice
        # Nothing that could have been written is nearer.
        assert abs(named - Fraction(value)) == min(abs(f - Fraction(value)) for f in FRACTIONS)
    else:
        assert repr(float(share)) == repr(value)


@given(st.text(alphabet="0123456789/. e-+", max_size=12))
def test_a_text_is_exactly_what_it_says_or_refused(text: str) -> None:
    try:
        share = read_share(HERE, text)
    except ConfigError:
        return
    parts = [Fraction(part) for part in text.split("/")]
    assert share == (parts[0] / parts[1] if len(parts) == 2 else parts[0])
    assert 0 < share <= 1
    assert share.denominator <= MAX_DENOMINATOR


# -- requests -------------------------------------------------------------------------------------


def test_every_key_is_read() -> None:
    gpu = {"count": 2, "min_memory_gib": 1.5, "models": ["*A100*"], "linked": "require"}
    assert read(gpu) == ((Request(2, Fraction(1), 1536, ("*A100*",), "", "require"),), [])
    assert read({"share": "1/5"}) == ((Request(1, Fraction(1, 5)),), [])
    assert read({"mig_profile": "1G.10GB"}) == ((Request(mig_profile="1g.10gb"),), [])
    for name in ("1g.5gb+me", "7g.80gb", "1c.3g.20gb", "1g.24gb+me.all", "1g.24gb-me"):
        assert read({"mig_profile": name})[0][0].mig_profile == name


def test_a_list_is_tried_in_its_order() -> None:
    (first, second), warnings = read([{"models": ["*A100*"]}, {"min_memory_gib": 24}])
    assert first == Request(models=("*A100*",))
    assert second == Request(min_memory_mib=24 * 1024)
    assert warnings == []
    assert read([{"count": 1}]) == ((Request(),), [])


def test_needs_gpu_and_requests_of_a_profile() -> None:
    value = [{"display_name": "A", "gpu": [{"count": 2}, {}]}, {"display_name": "B"}]
    several, none = parse_profile_list(value).profiles
    assert (several.requests, several.needs_gpu) == ((Request(2), Request(1)), True)
    assert (none.requests, none.needs_gpu) == ((Request(0),), False)


@pytest.mark.parametrize("model", ["A100", "H200", "rtx4090"])
def test_a_name_that_no_card_has_is_warned_of(model: str) -> None:
    (warning,) = read({"models": [model]})[1]
    assert f"'*{model}*'" in warning
    assert read({"models": [f"*{model}*", f"NVIDIA {model}", f"{model}-SXM4-40GB"]})[1] == []


# -- never reached --------------------------------------------------------------------------------


def test_a_number_that_may_mean_another_is_warned_of() -> None:
    (warning,) = read({"share": 0.33})[1]
    assert 'read as "33/100"' in warning
    assert '"1/3" if you mean it' in warning
    for plain in (0.25, 1 / 3, 0.05, "0.33", "33/100"):
        assert read({"share": plain})[1] == []


@pytest.mark.parametrize(
    "gpu",
    [
        [{}, {}],
        [{"count": 1}, {"count": 2}],
        [{"min_memory_gib": 24}, {"models": ["*A100*"], "min_memory_gib": 40}],
        [{"models": ["*A100*"]}, {"models": ["NVIDIA A100-PCIE-40GB"]}],
        [{"models": ["*A100*", "*H100*"]}, {"models": ["*h100*80GB*"]}],
        [{"share": "1/2"}, {"share": "1"}],
        [{"share": "1/2", "min_memory_gib": 10}, {"share": "1", "min_memory_gib": 20}],
        [{"count": 2, "linked": "prefer"}, {"count": 2, "linked": "require"}],
        [{"count": 2, "linked": "require"}, {"count": 2, "linked": "require"}],
    ],
)
def test_what_is_never_reached_is_warned_of(gpu: Any) -> None:
    (warning,) = read(gpu)[1]
    assert warning.startswith("gpu[1]: it is never reached")
    assert "gpu[0]" in warning


@pytest.mark.parametrize(
    "gpu",
    [
        [{"count": 2}, {"count": 1}],
        [{"models": ["*A100*"]}, {"min_memory_gib": 24}],
        [{"min_memory_gib": 24}, {"models": ["*A100*"]}],
        [{"models": ["*A100*80*"]}, {"models": ["*A100*"]}],
        [{"models": ["*A?00*"]}, {"models": ["*A*00*"]}],
        [{"models": ["?????"]}, {"models": ["[ab]x"]}],
        [{"models": ["*b]*"]}, {"models": ["[ab]"]}],
        [{"share": "1/2", "min_memory_gib": 20}, {"share": "1", "min_memory_gib": 20}],
        [{"mig_profile": "1g.10gb"}, {"min_memory_gib": 24}],
        [{"count": 2, "linked": "require"}, {"count": 2}],
        [{"share": "1"}, {"share": "1/2"}],
    ],
)
def test_what_can_be_reached_is_not(gpu: Any) -> None:
    assert read(gpu)[1] == []


MODELS = ["NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "NVIDIA H100", "Tesla T4"]
PATTERNS = ["*A100*", "*A100*80*", "NVIDIA *", "*H?00*", "*[AH]100*", "Tesla T4", "*", "*SXM*"]
shares = st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(2, 3)])
requests = st.builds(
    Request,
    count=st.integers(1, 2),
    share=shares,
    min_memory_mib=st.sampled_from([0, 10_000, 20_000, 40_000]),
    models=st.lists(st.sampled_from(PATTERNS), max_size=2).map(tuple),
    mig_profile=st.sampled_from(["", "", "1g.10gb"]),
)
machines = st.lists(
    st.builds(
        Card,
        uuid=st.just("u"),
        index=st.just(0),
        model=st.sampled_from(MODELS),
        memory_mib=st.sampled_from([None, 15_360, 40_960, 81_920]),
        load=st.sampled_from([Fraction(0), Fraction(1, 3), Fraction(1, 2), Fraction(1)]),
        mig_profile=st.sampled_from(["", "", "1g.10gb"]),
    ),
    max_size=4,
)


def can_be_met(request: Request, cards: list[Card]) -> bool:
    return sum(suits(c, request) and has_room(c, request) for c in cards) >= request.count


@given(requests, requests, machines)
def test_what_covers_another_can_be_met_wherever_that_one_can(
    wide: Request, narrow: Request, cards: list[Card]
) -> None:
    if covers(wide, narrow) and can_be_met(narrow, cards):
        assert can_be_met(wide, cards)


@given(requests)
def test_every_request_covers_itself(request: Request) -> None:
    assert covers(request, request)
