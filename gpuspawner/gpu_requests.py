"""The ``gpu`` of a profile: one request for cards, or several that are tried in order. Pure.

Part of :mod:`gpuspawner.profiles`, which reads the list around it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from .checks import MOST, Where, shown
from .request import Linked, Request, covers

MIB_PER_GIB = 1024

#: Finest part of a card: percent. Programs need about half a GiB of a card before they compute
#: anything, so a hundredth is of no use even of the largest; and small numbers keep what users and
#: admins read short, and every fraction apart from its neighbours.
MAX_DENOMINATOR = 100

#: Beyond this a number is seldom meant as it stands: 0.33 is 33/100, and no third.
_PLAIN_DENOMINATOR = 20

GPU_KEYS = ("count", "share", "min_memory_gib", "models", "mig_profile", "linked")
_SHARE = re.compile(r"[0-9]{1,9}(/[0-9]{1,9})?|[0-9]{0,9}\.[0-9]{1,30}")
_SHARE_ALLOWED = "a fraction above 0 and at most 1, written as text, such as '1/2'"
_MIG = re.compile(r"([1-9]c\.)?[1-9]g\.[1-9][0-9]*gb([+-][a-z0-9.]+)*")
_MIG_ALLOWED = "a name as nvidia-smi has it, such as '1g.10gb'"
_MODELS_ALLOWED = "card names or patterns, such as ['*A100*']"


def read_requests(where: Where, gpu: Any, warnings: list[str]) -> tuple[Request, ...]:
    """The requests of a profile's ``gpu``: a dict, or a list of dicts tried in order."""
    if not isinstance(gpu, (list, tuple)):
        return (_request(where, gpu, warnings),)
    if not gpu:
        raise where.error(
            "the list is empty; write what the profile asks for, such as [{'count': 1}], or remove "
            "it for a server without a GPU"
        )
    requests: list[Request] = []
    for number, one in enumerate(gpu):
        here = Where(f"{where}[{number}]")
        request = _request(here, one, warnings)
        if request.count == 0:
            raise here.at("count").error(
                "0 (no GPU) can't be one of several; make it a profile of its own, without 'gpu', "
                "so that users see what they get"
            )
        for earlier, before in enumerate(requests):
            if covers(before, request):
                warnings.append(
                    f"{here}: it is never reached: whenever it could be met, {where.last}"
                    f"[{earlier}] could be, and that is tried first; remove it, or put it before"
                )
                break
        requests.append(request)
    return tuple(requests)


def _request(where: Where, gpu: Any, warnings: list[str]) -> Request:
    where.keys(gpu, GPU_KEYS)
    count = gpu.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int):
        raise where.at("count").wrong_type(count, "a whole number of cards, such as 1; 0 for none")
    if not 0 <= count < MOST:
        wrong = "negative" if count < 0 else "more than any machine has"
        raise where.at("count").error(f"{shown(count)} is {wrong}; use 0 (no GPU) or more")
    if count == 0 and len(gpu) > 1:
        others = ", ".join(repr(k) for k in gpu if k != "count")
        raise where.error(f"count is 0 (no GPU), so {others} can mean nothing; remove it")
    request = Request(
        count=count,
        share=read_share(where.at("share"), gpu.get("share", 1)),
        min_memory_mib=_memory_mib(where.at("min_memory_gib"), gpu.get("min_memory_gib", 0)),
        models=_models(where, gpu, warnings),
        mig_profile=_mig_profile(where, gpu),
        linked=_linked(where, gpu),
    )
    _together(where, request)
    if isinstance(gpu.get("share"), float) and request.share.denominator > _PLAIN_DENOMINATOR:
        third = request.share.limit_denominator(_PLAIN_DENOMINATOR)
        warnings.append(
            f'{where.at("share")}: {gpu["share"]!r} is read as "{request.share}"; write that as '
            f'text, or "{third}" if you mean it'
        )
    return request


def _together(where: Where, request: Request) -> None:
    """Refuse what means nothing together, naming both."""
    if request.mig_profile and request.share != 1:
        raise where.error(
            "'share' and 'mig_profile' are both there, but a slice is given out whole; remove one"
        )
    if request.mig_profile and request.linked:
        raise where.error(
            "'linked' and 'mig_profile' are both there, but slices are not linked; remove one"
        )
    if request.linked and request.share != 1:
        raise where.error(
            "'linked' and 'share' are both there, but links are for whole cards; remove one"
        )
    if request.linked and request.count < 2:
        raise where.error(
            f"'linked' is there and 'count' is {request.count}, but one card has nothing to be "
            "linked to; remove 'linked', or ask for 2 or more"
        )


def read_share(where: Where, value: Any) -> Fraction:
    """A part of a card.

    A text is a fraction or a decimal number. A float is taken where it is what Python makes of a
    fraction (``0.25``, ``1 / 3``), and of one only; else the error has the text to write.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Fraction)):
        raise where.wrong_type(value, _SHARE_ALLOWED)
    if isinstance(value, str):
        text = re.sub(r"\s*/\s*", "/", value.strip())
        share = Fraction(text) if _SHARE.fullmatch(text) and not _over_zero(text) else None
    else:
        finite = not isinstance(value, float) or math.isfinite(value)
        share = Fraction(value) if finite else None
    if share is None:
        raise where.error(f"{shown(value)} is not a fraction; use {_SHARE_ALLOWED}")
    if not 0 < share <= 1:
        raise where.error(
            f"{shown(value)} is not a part of a card; use {_SHARE_ALLOWED}. How many cards is said "
            "by 'count'"
        )
    near = max(share.limit_denominator(MAX_DENOMINATOR), Fraction(1, MAX_DENOMINATOR))
    if near == share or (isinstance(value, float) and float(near) == value):
        return near
    raise where.error(
        f'{shown(value)} is finer than hundredths, or not exactly a fraction; write "{near}"'
    )


def _over_zero(text: str) -> bool:
    return "/" in text and not int(text.partition("/")[2])


def _memory_mib(where: Where, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise where.wrong_type(value, "a number of GiB, such as 24")
    if not 0 <= value < MOST:
        raise where.error(
            f"{shown(value)} is not an amount of memory; use a number of GiB, such as 24"
        )
    return math.ceil(value * MIB_PER_GIB)


def _models(where: Where, gpu: Mapping[str, Any], warnings: list[str]) -> tuple[str, ...]:
    models = where.name_list(gpu, "models", _MODELS_ALLOWED) or ()
    for model in models:
        # The driver's names have several words, or parts: "NVIDIA A100-SXM4-80GB", "Tesla T4".
        if not re.search(r"[\s*?\[-]", model.strip()):
            warnings.append(
                f"{where.at('models')}: {shown(model)} is compared with the whole name of a card, "
                f"such as 'NVIDIA A100-SXM4-80GB'; write {shown(f'*{model.strip()}*')} for any "
                "that has it in its name"
            )
    return models


def _mig_profile(where: Where, gpu: Mapping[str, Any]) -> str:
    text = where.text(gpu, "mig_profile", default="").lower()
    if text and not _MIG.fullmatch(text):
        raise where.at("mig_profile").error(
            f"{shown(gpu['mig_profile'])} is not the name of a MIG profile; use {_MIG_ALLOWED}"
        )
    return text


def _linked(where: Where, gpu: Mapping[str, Any]) -> Linked:
    if "linked" not in gpu:
        return ""
    value = gpu["linked"]
    if value == "require" or value == "prefer":  # noqa: PLR1714 - so that the type is known
        return value  # type: ignore[no-any-return]
    here = where.at("linked")
    if value is True:
        raise here.error(
            'True leaves open what to do where no linked cards are free; write "require" (then '
            'nothing starts) or "prefer" (then any will do)'
        )
    if value is False:
        raise here.error("False is what holds without it; remove it")
    raise here.error(f'{shown(value)} is not known; use "require" or "prefer", or remove it')
