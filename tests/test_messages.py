"""The words: every branch by table, and the laws that hold for all of them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.demands import over
from gpuspawner import limit_words, messages, replies, shortage_words
from gpuspawner.placement import place, place_first
from gpuspawner.request import Card, Kept, Placement, Request, Shortage, suits
from gpuspawner.shortage_report import admin_shortage

HALF = Fraction(1, 2)

#: Never on a student's screen: our own words, the engine's, device ids.
FORBIDDEN = re.compile(
    r"\blease|advisory|docker|container|daemon|cgroup|\bCDI\b|NVML|\bXid\b|NVIDIA_|GPU-[0-9a-f]{4}|"
    r"MIG-|traceback|exception|(?-i:\bNone\b)",
    re.IGNORECASE,
)


def check(text: str) -> None:
    """The laws of a text for users."""
    assert len(text.split()) < 40, text
    assert text.endswith("."), text
    assert not FORBIDDEN.search(text), text
    assert "  " not in text, text
    assert text.isprintable(), text
    assert not text[0].islower(), text


def shortage(
    count: int = 1,
    *,
    total: int = 8,
    suitable: int | None = None,
    free: int = 0,
    free_suitable: int = 0,
    unavailable: int = 0,
    settling: int = 0,
    gib: int = 0,
    models: tuple[str, ...] = (),
    share: Fraction = Fraction(1),
    mig: str = "",
    **more: Any,
) -> Shortage:
    suitable = total if suitable is None else suitable
    return Shortage(
        request=Request(count, share, gib * 1024, models, mig, more.pop("linked", "")),
        total=total,
        suitable=suitable,
        free=free,
        free_suitable=free_suitable,
        held=suitable - unavailable - settling - free_suitable - more.get("kept", 0),
        foreign=0,
        unavailable=unavailable,
        settling=settling,
        **more,
    )


TUESDAY = datetime(2030, 1, 1, 12, 0, tzinfo=timezone.utc)


NONE_FREE = [
    (shortage(), "All 8 GPUs are in use just now."),
    (shortage(total=2), "Both GPUs are in use just now."),
    (shortage(total=1), "The only GPU is in use just now."),
    (shortage(total=4, suitable=2, closed=2), "Both GPUs that you may use are in use just now."),
    (shortage(suitable=2, gib=80), "Both GPUs with 80 GB are in use just now."),
    (shortage(suitable=1, gib=80), "The only GPU with 80 GB is in use just now."),
    (shortage(unavailable=1), "7 GPUs are in use just now, 1 is out of service."),
    (shortage(total=3, unavailable=2), "1 GPU is in use just now, 2 are out of service."),
    (
        shortage(total=4, unavailable=4),
        "All 4 GPUs are out of service just now, and the admins can see why.",
    ),
    (
        shortage(total=4, settling=1),
        "3 GPUs are in use just now, 1 is being made ready.",
    ),
    (
        shortage(total=4, unavailable=2, settling=1),
        "1 GPU is in use just now, 2 are out of service, 1 is being made ready.",
    ),
    (
        shortage(total=2, unavailable=1, settling=1),
        "1 GPU is out of service, 1 is being made ready.",
    ),
    (
        shortage(total=1, settling=1),
        "The only GPU is being made ready and free in a moment.",
    ),
    (shortage(suitable=4, free=2, gib=40), "2 GPUs are free, none of them with 40 GB."),
    (shortage(suitable=4, free=1, gib=40), "1 GPU is free, but not one with 40 GB."),
    (
        shortage(suitable=4, free=3, models=("*A100*",)),
        "3 GPUs are free, none of them of the kind you asked for.",
    ),
    (shortage(2, free=1, free_suitable=1), "1 GPU is free, you asked for 2."),
    (shortage(4, free=2, free_suitable=2), "2 GPUs are free, you asked for 4."),
    (
        shortage(2, suitable=4, free=3, free_suitable=1, gib=40),
        "1 GPU with 40 GB is free, you asked for 2.",
    ),
    (shortage(share=HALF, total=4), "No GPU has room for half a GPU just now."),
    (
        shortage(2, share=HALF, total=4, free=1, free_suitable=1),
        "1 GPU has room for half a GPU, you asked for 2.",
    ),
    (
        shortage(share=Fraction(1, 5), total=4, suitable=2, free=2, gib=8),
        "2 GPUs have room for 1/5 of a GPU, none of them with 8 GB.",
    ),
    (
        shortage(share=Fraction(1, 4), total=4, unavailable=1),
        "No GPU has room for a quarter of a GPU just now, 1 is out of service.",
    ),
    (
        shortage(share=HALF, total=2, settling=2),
        "Both GPUs are being made ready and free in a moment.",
    ),
    (shortage(mig="1g.10gb", total=7), "All 7 GPU slices are in use just now."),
    (
        shortage(mig="1g.10gb", total=7, suitable=2),
        "Both GPU slices of the kind you asked for are in use just now.",
    ),
    (
        shortage(2, mig="1g.10gb", total=4, suitable=2, free=3, free_suitable=1),
        "1 GPU slice of the kind you asked for is free, you asked for 2.",
    ),
    (
        shortage(2, total=4, free=2, free_suitable=2, linked="require", unlinked=True),
        "2 GPUs are free, but they are not linked.",
    ),
    (
        shortage(2, total=4, free=3, free_suitable=3, linked="require", unlinked=True, gib=40),
        "3 GPUs with 40 GB are free, but no 2 of them are linked.",
    ),
    (shortage(total=3, kept=1), "2 GPUs are in use just now, 1 is kept for other groups just now."),
    (
        shortage(3, total=4, free=1, free_suitable=1, kept=2),
        "1 GPU is free and 2 are kept for other groups just now, you asked for 3.",
    ),
    (
        shortage(total=4, free=1, suitable=2, kept=1, gib=40),
        "1 GPU with 40 GB is in use just now, 1 is kept for other groups just now.",
    ),
    (
        shortage(total=5, kept=1, unavailable=1, settling=1, kept_until=TUESDAY),
        "2 GPUs are in use just now, 1 is kept for other groups, 2 are out of service.",
    ),
    (
        shortage(total=3, kept=1, kept_until=TUESDAY),
        "2 GPUs are in use just now, 1 is kept for other groups until 12:00.",
    ),
]
#: Those where something else can be done than waiting a few minutes.
LATER = [
    (
        shortage(total=2, kept=2, kept_until=TUESDAY),
        "Both GPUs are kept for other groups until 12:00.",
        "try again after 12:00",
    ),
    (
        shortage(total=2, kept=2, kept_from=TUESDAY),
        "Both GPUs are kept for other groups from Tuesday 12:00.",
        "choose a profile that ends before then",
    ),
    (
        shortage(total=3, kept=1, kept_from=TUESDAY),
        "2 GPUs are in use just now, 1 is kept for other groups from Tuesday 12:00.",
        "choose a profile that ends before then",
    ),
]
NEVER = [
    (shortage(total=0), "This machine has no GPU that can be used just now."),
    (shortage(4, total=2), "This machine has only 2 GPUs, you asked for 4."),
    (
        shortage(2, total=1, free=1, free_suitable=1),
        "This machine has only 1 GPU, you asked for 2.",
    ),
    (shortage(suitable=0, gib=40), "This machine has no GPU with 40 GB."),
    (shortage(suitable=0, models=("H100",)), "This machine has no GPU of the kind you asked for."),
    (
        shortage(2, suitable=1, gib=40),
        "This machine has only 1 GPU with 40 GB, you asked for 2.",
    ),
    (shortage(total=0, mig="1g.10gb"), "This machine has no GPU slices."),
    (
        shortage(total=4, suitable=0, mig="3g.40gb"),
        "This machine has no GPU slice of the kind you asked for.",
    ),
    (shortage(total=2, suitable=0, closed=2), "Both GPUs are kept for other groups."),
    (
        shortage(total=4, suitable=0, closed=1, gib=80),
        "The only GPU with 80 GB is kept for other groups.",
    ),
    (shortage(2, total=4, suitable=1, closed=3), "You may use only 1 GPU, you asked for 2."),
    (
        shortage(2, total=4, linked="require", unlinked=True, never_linked=True),
        "This machine has no 2 GPUs that are linked.",
    ),
]


@pytest.mark.parametrize(("given_shortage", "words"), NONE_FREE)
def test_none_free(given_shortage: Shortage, words: str) -> None:
    text = shortage_words.none_free(given_shortage, cpu_available=True)
    assert text == (
        f"{words} You can start without a GPU, or try again in a few minutes. Your files are safe."
    )
    assert shortage_words.none_free(given_shortage, cpu_available=False) == (
        f"{words} Please try again in a few minutes. Your files are safe."
    )
    assert shortage_words.disabled(given_shortage) == words.replace("you asked for", "this needs")


@pytest.mark.parametrize(("given_shortage", "words", "advice"), LATER)
def test_what_is_kept_for_others_may_be_had_at_another_time(
    given_shortage: Shortage, words: str, advice: str
) -> None:
    for cpu, begins in ((True, "You can start without a GPU, or"), (False, "Please")):
        text = shortage_words.none_free(given_shortage, cpu_available=cpu)
        assert text == f"{words} {begins} {advice}. Your files are safe."
    assert shortage_words.disabled(given_shortage) == words


def test_where_much_is_to_be_said_the_least_needed_goes_first() -> None:
    more: dict[str, Any] = {"free_suitable": 1, "kept": 2, "kept_from": TUESDAY, "models": ("*",)}
    given_shortage = shortage(3, mig="1g.10gb", total=4, **more)
    text = shortage_words.none_free(given_shortage, cpu_available=True)
    check(text)
    assert text.endswith("or choose a profile that ends before then.")
    given_shortage = shortage(3, share=Fraction(2, 7), total=4, **more)
    for cpu, advice in ((True, "You can start without a GPU."), (False, "ends before then.")):
        text = shortage_words.none_free(given_shortage, cpu_available=cpu)
        check(text)
        assert text.endswith(advice)


@pytest.mark.parametrize(("given_shortage", "words"), NEVER)
def test_never_does_not_tell_anyone_to_wait(given_shortage: Shortage, words: str) -> None:
    for cpu in (True, False):
        text = shortage_words.none_free(given_shortage, cpu_available=cpu)
        assert text.startswith(words)
        assert "minutes" not in text
        assert ("without a GPU" in text) is cpu
    assert shortage_words.disabled(given_shortage) == words.replace("you asked for", "this needs")


@st.composite
def requests(draw: st.DrawFn) -> Request:
    return Request(
        count=draw(st.integers(1, 20)),
        share=draw(st.sampled_from([Fraction(1), HALF, Fraction(1, 4), Fraction(2, 7)])),
        min_memory_mib=draw(st.sampled_from([0, 1, 1536, 40 * 1024, 141 * 1024])),
        models=draw(st.sampled_from([(), ("*A100*",), ("H200", "L4")])),
        mig_profile=draw(st.sampled_from(["", "", "1g.10gb"])),
        linked=draw(st.sampled_from(["", "", "prefer", "require"])),
    )


#: What a card may be kept for, as somebody else sees it.
KEPT = [
    None,
    None,
    Kept("reserved for research", always=True),
    Kept("booked for ml-class (mon 10:00 to 12:00)", until=TUESDAY),
    Kept("booked for ml-class (mon 10:00 to 12:00)", begins=TUESDAY),
]
cards = st.lists(
    st.builds(
        Card,
        uuid=st.uuids().map(lambda u: f"GPU-{u}"),
        index=st.integers(0, 15),
        model=st.sampled_from(["NVIDIA A100-SXM4-40GB", "H200", "L4"]),
        memory_mib=st.sampled_from([None, 23_034, 40_960, 143_771]),
        load=st.sampled_from([Fraction(0), HALF, Fraction(1), Fraction(2)]),
        unavailable=st.sampled_from(["", "", "lost"]),
        foreign=st.booleans(),
        settling=st.booleans(),
        sliced=st.sampled_from([False, False, False, True]),
        mig_profile=st.sampled_from(["", "", "1g.10gb", "3g.40gb"]),
        kept=st.sampled_from(KEPT),
    ).map(lambda c: replace(c, settling=c.settling and bool(c.unavailable))),
    max_size=10,
    unique_by=lambda c: c.uuid,
)


@given(st.lists(requests(), min_size=1, max_size=3), cards, st.booleans())
def test_laws_hold_for_every_shortage(tried: list[Request], machine: list[Card], cpu: bool) -> None:
    found = place_first(tried, machine)
    if isinstance(found, Placement):
        return
    text = shortage_words.none_free(found, cpu_available=cpu)
    check(text)
    check(shortage_words.disabled(found))
    assert ("without a GPU" in text) is cpu
    assert not re.search(r"\b1 GPUs|\b(?!1\b)\d+ GPU\b(?! slices)|\b0 GPU", text), text
    admin = admin_shortage(found, machine)
    assert all(card.uuid in admin for card in machine)
    assert all(card.kept.why in admin for card in machine if card.kept)
    foreign = any(c.foreign and suits(c, r) for c in machine for r in tried)
    assert ("GPUPool.observers" in admin) is foreign


def test_the_admin_reads_what_the_largest_card_has() -> None:
    """A card of 24 GB has less than 24 GiB, so nothing would ever fit."""
    machine = [Card(f"GPU-{n}", n, "NVIDIA L4", mib) for n, mib in ((0, 23_034), (1, 15_360))]
    found = place(Request(min_memory_mib=24 * 1024), machine)
    assert isinstance(found, Shortage)
    text = admin_shortage(found, machine)
    assert "gives 23034 MiB, less than the 24576 MiB asked for" in text
    assert "min_memory_gib of 22 would fit" in text
    found = place(Request(2, min_memory_mib=20 * 1024), machine)
    assert isinstance(found, Shortage)
    assert "would fit" not in admin_shortage(found, machine)


def test_the_admin_reads_why_a_card_is_kept_and_what_else_was_tried() -> None:
    booked = Kept("booked for ml-class (tue 10:00 to 12:00)", until=TUESDAY)
    machine = [
        Card("GPU-0", 0, "NVIDIA L4", 23_034, kept=booked),
        Card("GPU-1", 1, "NVIDIA L4", 23_034, load=Fraction(1), own=True),
    ]
    found = place_first([Request(models=("*H100*",)), Request()], machine)
    assert isinstance(found, Shortage)
    text = admin_shortage(found, machine)
    assert "no placement for 1 card(s): 2 of the kind, 2 suitable" in text
    assert "also tried: 1 card(s), model in ['*H100*']" in text
    assert "free; booked for ml-class (tue 10:00 to 12:00) until Tue 12:00" in text
    assert "load 1; kept for the groups of this user" in text
    assert "Waiting can't help" not in text


QUOTA = [
    (
        limit_words.refused(over(1, 1, ["training"])),
        (
            'You may use 1 GPU at a time, and your server "training" has it. '
            "Stop that server first, or start this one without a GPU."
        ),
    ),
    (
        limit_words.refused(over(1, 1, [""]), cpu_available=False),
        "You may use 1 GPU at a time, and your default server has it. Stop that server first.",
    ),
    (
        limit_words.refused(over(2, 2, ["a", "b"])),
        (
            "You may use 2 GPUs at a time, and 2 of your servers have 2. "
            "Stop one of them first, or start this one without a GPU."
        ),
    ),
    (
        limit_words.refused(over(3, 2, ["a"], asked=2)),
        (
            'You may use 3 GPUs at a time, and your server "a" has 2; this one asks for 2. '
            "Stop that server first, or start this one without a GPU."
        ),
    ),
    (
        limit_words.refused(over(1, 0, [], asked=2)),
        "You may use 1 GPU at a time, this profile asks for 2. Please choose another profile.",
    ),
]


def test_quota_on_the_form() -> None:
    for text, words in (
        (
            limit_words.disabled(over(1, 1, ["a"], asked=1)),
            'You may use 1 GPU at a time, and your server "a" has it.',
        ),
        (
            limit_words.disabled(over(1, 0, [], asked=2)),
            "You may use 1 GPU at a time; this needs 2.",
        ),
        (
            limit_words.disabled(over(3, 2, ["a", "b"], asked=2)),
            "You may use 3 GPUs at a time, and 2 of your servers have 2; this needs 2.",
        ),
    ):
        assert text == words


@pytest.mark.parametrize(("text", "words"), QUOTA)
def test_quota(text: str, words: str) -> None:
    assert text == words
    check(text)


def test_words_of_the_table() -> None:
    assert messages.forbidden("A whole GPU") == (
        '"A whole GPU" is open to other groups only. Please choose another profile. '
        "If your course needs this one, ask your teacher or the hub's admins."
    )
    assert messages.image_too_new("PyTorch", "13.0", "12.8") == (
        '"PyTorch" needs CUDA 13.0; this machine\'s driver offers 12.8. Choose another image, '
        "or start without a GPU. The admins can update the driver."
    )
    assert messages.engine_down() == (
        "The hub can't reach the system that starts servers, so nothing new can start. "
        "Please try again in a few minutes; admins can see the cause in the log."
    )
    assert messages.card_ill() == (
        "Your GPU has reported a fault. Please save your work now, then stop and start your "
        "server: you'll get another GPU if one is free. The admins have been told."
    )
    assert messages.gpu_lost() == (
        "Your notebook can no longer see its GPU. Please save, then stop and start your server. "
        "Files are kept; variables are lost. This wasn't your mistake."
    )


FIXED = [
    messages.engine_down(), messages.all_disabled(), messages.start_failed(),
    messages.still_stopping(), messages.card_ill(), messages.gpu_lost(), messages.start_slow(),
    messages.gpu_not_given(),
    messages.out_of_space(),
    messages.card_gone(), messages.cancelled(), messages.home_refused(),
    messages.settings_refused(), messages.nothing_allowed(), replies.choose_profile(),
    replies.text_missing(), replies.bad_image(), replies.too_many_options(),
    messages.cards_unknown(cpu_available=True), messages.cards_unknown(cpu_available=False),
    messages.image_too_new("a", "", ""), replies.not_one_text(7),
]  # fmt: skip


@pytest.mark.parametrize("text", FIXED)
def test_laws_hold_for_fixed_texts(text: str) -> None:
    check(text)


anything = st.text(max_size=300) | st.sampled_from(["x" * 10_000_000, "a b c d e f g h " * 50])


@given(anything, st.lists(st.text(max_size=80), max_size=12))
def test_what_a_user_sends_comes_back_short_and_printable(sent: str, allowed: list[str]) -> None:
    for text in (
        replies.unknown_profile(sent, allowed),
        replies.unknown_option(sent, allowed),
        replies.unknown_choice(sent, sent, allowed),
        replies.text_does_not_fit(sent, sent),
        replies.not_one_text(sent),
        replies.both_given(sent),
        messages.forbidden(sent),
        messages.image_missing(sent),
        messages.image_slow(sent),
        messages.image_too_new(sent, "13.0", "12.8"),
        limit_words.refused(over(2, 1, [sent], asked=2)),
    ):
        assert text.isprintable()
        assert len(text) < 400
        assert len(text.split()) < 40, text
    assert len(messages.echo(sent)) <= messages.ECHO_CHARS


def test_echo_and_name() -> None:
    assert messages.echo("cpu") == "'cpu'"
    assert messages.echo([1]) == "a list"
    assert messages.echo("\u202e\x00\ud800") == r"'\u202e\x00\ud800'"
    assert messages.name("A whole GPU") == '"A whole GPU"'
    assert messages.name("one two three four five") == '"one two three four…"'
    assert messages.name("a\nb") == '"a b"'
    assert messages.gigabytes(40 * 1024) == "40 GB"
    assert messages.gigabytes(1536) == "1.5 GB"
