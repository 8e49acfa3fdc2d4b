"""The words that users see, made from numbers.

Every text for a user is under 40 words, says what happened and what they can do now, and names no
other user, no device id and no system word. What a user sent is shown short and printable
(:func:`echo`); escaping for HTML is the business of whoever writes HTML. Pure.
"""

from __future__ import annotations

from fractions import Fraction

ECHO_CHARS = 60
_NAME_CHARS = 40
NAME_WORDS = 4

#: Ends many of them.
SAFE = "Your files are safe."


def echo(value: object) -> str:
    """A short, printable form of what somebody sent; anything but text is named by its kind."""
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    text = repr(value[:ECHO_CHARS])
    return text if len(text) <= ECHO_CHARS else text[: ECHO_CHARS - 1] + "…"


def name(text: str) -> str:
    """A display name in quotes, cut where it is long, with nothing unprintable in it."""
    words = "".join(c if c.isprintable() else " " for c in text[: 4 * _NAME_CHARS]).split()
    short = " ".join(words[:NAME_WORDS])[:_NAME_CHARS]
    cut = len(words) > NAME_WORDS or len(text) > len(short)
    return f'"{short}…"' if cut and short != text.strip() else f'"{short}"'


def gigabytes(mib: int) -> str:
    """``40 GB``: MiB as people say it, to one decimal where it is not whole."""
    amount = round(mib / 1024, 1)
    return f"{amount:g} GB" if amount < 10_000 else f"{round(amount)} GB"


def amount(count: Fraction | int) -> str:
    """``2``, ``1/2``, ``1 1/2``."""
    whole, part = divmod(Fraction(count), 1)
    if not part:
        return str(whole)
    return f"{whole} {part}" if whole else str(part)


def gpus(count: Fraction | int) -> str:
    """``1 GPU``, ``2 GPUs``, ``1/2 GPU``."""
    return f"{amount(count)} GPU" if count <= 1 else f"{amount(count)} GPUs"


# -- refusals ----------------------------------------------------------------------------


def all_disabled() -> str:
    """Every profile on the form is disabled."""
    return (
        "Nothing can be started just now. Please try again in a few minutes. Your files are safe."
    )


def forbidden(profile: str) -> str:
    """The profile is for others."""
    return (
        f"{name(profile)} is open to other groups only. Please choose another profile. "
        "If your course needs this one, ask your teacher or the hub's admins."
    )


def other_groups() -> str:
    """Beside a profile of groups that the user is not in."""
    return "Open to other groups only."


#: Above such profiles.
OTHERS_HEADING = "For other groups"


def others_folded(count: int) -> str:
    """In place of several such profiles, until they are unfolded."""
    return f"{count} more, open to other groups only"


def not_offered() -> str:
    """Beside a profile that was taken off the list while the form was open."""
    return "This is not offered any more."


def wait_here() -> str:
    """After the reason why the chosen profile can't be started, on a form that refreshes itself."""
    return "It opens here by itself when that changes, or choose another."


def choose_another() -> str:
    """The same, where waiting can't help."""
    return "Please choose another."


def open_again() -> str:
    """The chosen profile can be started after all; follows its name."""
    return "You can start it now."


def nothing_allowed() -> str:
    """No profile at all is open to this user."""
    return (
        "No profile on this hub is open to you yet. "
        "Please ask your teacher or the hub's admins to add you to a group."
    )


def engine_down() -> str:
    """The engine can't be asked."""
    return (
        "The hub can't reach the system that starts servers, so nothing new can start. "
        "Please try again in a few minutes; admins can see the cause in the log."
    )


def cards_unknown(*, cpu_available: bool) -> str:
    """The driver can't be asked, so nothing is given out."""
    advice = "You can start without a GPU, or try" if cpu_available else "Please try"
    return (
        "The hub can't read the state of its GPUs, so it gives none out. "
        f"{advice} again in a few minutes; admins can see the cause in the log."
    )


def start_failed() -> str:
    """Something in the system failed that the user can't mend."""
    return (
        "Your server could not be started. This wasn't your mistake. "
        "Please try again in a few minutes; admins can see the cause in the log."
    )


def still_stopping() -> str:
    """A former server of the same name has not ended yet."""
    return f"Your former server is still being stopped. Please try again in a minute. {SAFE}"


def gpu_not_given() -> str:
    """The server would have come up without its GPU."""
    return (
        "Your server would have started without its GPU, so the start was stopped. "
        "This wasn't your mistake. Please try again in a few minutes; "
        "admins can see the cause in the log."
    )


def gpu_lost() -> str:
    """A running server can't use its GPU any more."""
    return (
        "Your notebook can no longer see its GPU. Please save, then stop and start your server. "
        "Files are kept; variables are lost. This wasn't your mistake."
    )


def card_ill() -> str:
    """The card of a running server is ill or gone."""
    return (
        "Your GPU has reported a fault. Please save your work now, then stop and start your "
        "server: you'll get another GPU if one is free. The admins have been told."
    )


def start_slow() -> str:
    """The start took longer than it may."""
    return (
        "Your server took too long to start, so the start was given up. Please try again in a few "
        "minutes; if it happens again, tell the hub's admins. Your files are safe."
    )


def out_of_space() -> str:
    """The disk under the engine is full."""
    return (
        "The machine has no disk space left to start servers. "
        "Please tell the hub's admins; they can see the cause in the log."
    )


def image_missing(image: str) -> str:
    """The image is not there and could not be fetched."""
    return (
        f"{name(image)} could not be found or fetched. Please choose another image or profile, "
        "or tell the hub's admins; they can see the cause in the log."
    )


def image_slow(image: str) -> str:
    """Fetching the image took longer than it may."""
    return (
        f"{name(image)} is still being fetched, which can take long the first time. "
        "Please try again in a few minutes."
    )


def image_too_new(image: str, needs: str, offers: str) -> str:
    """The image needs a newer CUDA than the driver has; either may be empty."""
    what = f"needs CUDA {needs}" if needs else "needs a newer CUDA"
    than = f"this machine's driver offers {offers}" if offers else "this machine's driver has not"
    return (
        f"{name(image)} {what}; {than}. Choose another image, or start without a GPU. "
        "The admins can update the driver."
    )


def card_gone() -> str:
    """The card was lost between choice and start."""
    return (
        "The GPU chosen for you stopped working before your server could use it. "
        "Please try again; the admins can see the cause in the log."
    )


def cancelled() -> str:
    """The start was cancelled, by the user or the hub."""
    return "The start was cancelled. You can start your server again at any time."


def home_refused() -> str:
    """The home folder belongs to somebody else; nothing was changed."""
    return (
        "Your home folder can't be opened for your server, so it was not started. "
        "Nothing was changed. Please tell the hub's admins; they can see the cause in the log."
    )


def settings_refused() -> str:
    """The hub's own settings ask for what is not allowed (root, privileged…)."""
    return (
        "This hub's settings don't allow your server to start. "
        "Please tell the admins; they can see the cause in the log."
    )
