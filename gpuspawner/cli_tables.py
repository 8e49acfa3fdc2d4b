"""Reports as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Into a file or a pipe nothing is cut.
_PIPED_WIDTH = 200


def devices_table(report: dict[str, Any]) -> None:
    """Print :func:`gpuspawner.cli_report.devices_report`."""
    table = _table("GPU", "UUID", "Model", "Memory", "MIG", "Processes", "State", "Holder")
    for device in report["devices"]:
        _device_row(table, device, device["model"], _memory(device), device["mig"])
        for one in device["slices"]:
            size = "?" if one["memory_mib"] is None else f"{one['memory_mib']} MiB"
            _device_row(table, {**one, "index": ""}, "", size, one["profile"])
    console = _print(table)
    console.print(_versions(report), highlight=False)


def _device_row(
    table: Table, device: dict[str, Any], model: str, memory: str, mig: bool | str | None
) -> None:
    """One row for a card, or for a slice below its card."""
    _row(
        table,
        device["index"],
        device["uuid"] or "?",
        model or ("?" if "model" in device else ""),
        memory,
        mig if isinstance(mig, str) else {True: "on", False: "off", None: "-"}[mig],
        len(device["processes"]),
        device["state"] + (f": {device['why']}" if device["why"] else ""),
        ", ".join(_holder(claim) for claim in device["holders"]) or "-",
    )


def leases_table(report: dict[str, Any]) -> None:
    """Print :func:`gpuspawner.cli_report.leases_report`."""
    table = _table(
        "Holder",
        "Whose",
        "Profile",
        "State",
        "Age",
        "Left",
        "Share",
        "GPUs",
        "Container",
        "Found by",
    )
    for lease in report["leases"]:
        _row(
            table,
            _holder(lease),
            lease["whose"],
            lease["profile"] or "-",
            lease["state"],
            _age(lease["age_seconds"]),
            "-" if lease["seconds_left"] is None else _age(lease["seconds_left"]),
            lease["share"],
            "\n".join(lease["devices"]),
            lease["container"][:12],
            lease["why"] or "label",
        )
    console = _print(table)
    if not report["leases"]:
        console.print("No container holds a GPU.", highlight=False)
    for entry in report["dangling"]:
        text = f"{entry['name']} ({entry['container'][:12]}) asks for {', '.join(entry['ids'])}"
        console.print(Text(_printable(f"{text}, which no GPU answers to; it blocks nothing.")))
    if not report["hub"]:
        console.print(
            "This hub's id was not found, so its servers are shown as another hub's. Run the "
            "command in the hub's folder, or set c.GPUPool.hub_id_file.",
            highlight=False,
        )


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _row(table: Table, *cells: object) -> None:
    # Names come from other people's containers: no markup, no control characters.
    table.add_row(*(Text(_printable(str(cell))) for cell in cells))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _print(table: Table) -> Console:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPED_WIDTH)
    console.print(table)
    return console


def _memory(device: dict[str, Any]) -> str:
    total, used = device["memory_mib"], device["used_mib"]
    if total is None:
        return "?"
    reserved = device["reserved_mib"]
    return f"{'?' if used is None else used}/{total} MiB" + (
        f" ({reserved} reserved)" if reserved else ""
    )


def _holder(claim: dict[str, Any]) -> str:
    if claim["whose"] == "outside":
        return f"container {claim['name'] or claim['container'][:12]}"
    return f"{claim['user']}/{claim['server']}" if claim["server"] else str(claim["user"])


def _age(seconds: int) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _versions(report: dict[str, Any]) -> str:
    parts = [f"Source: {report['source']}"]
    for key, name in (("driver_version", "driver"), ("cuda_version", "CUDA up to")):
        if report[key]:
            parts.append(f"{name} {report[key]}")
    text = ", ".join(parts) + "."
    return text if report["complete"] else text + " The list is not complete: see the ill GPUs."
