"""Profiles on the terminal: a row per kernel launched, the reference's first."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpu_forecasters_plugin.printable import printable
from gpu_forecasters_plugin.screen.profile import LaunchProfile, SourceProfile
from gpu_forecasters_plugin.screen.verdict import Status, Verdict
from gpu_forecasters_plugin.terminal import table_console

__all__ = ["show"]

_STYLES = {Status.VALID: "green", Status.INVALID: "bold red", Status.UNDECIDED: "yellow"}
_COLUMNS = (
    "kernel",
    "times",
    "grid",
    "thr",
    "regs",
    "spill",
    "smem",
    "occ",
    "limit",
    "waves",
    "loads",
    "stores",
    "mma",
    "sfu",
    "bar",
    "atom",
)
_UNKNOWN = "?"
_WIDTH = 150
"""Columns that the table of kernels takes."""


def show(names: Sequence[str], verdicts: Sequence[Verdict], arch: str) -> None:
    """Print a block per source: its verdict, its kernels, and its bound beside the reference's."""
    console = table_console(_WIDTH)
    base = verdicts[0].profile.roofline_us if verdicts and verdicts[0].profile else None
    for place, (name, verdict) in enumerate(zip(names, verdicts, strict=True)):
        role = "reference" if place == 0 else "candidate"
        title = Text(f"{role} {printable(os.path.basename(name))}: ", style="bold")
        title.append(printable(verdict.headline()), style=_STYLES[verdict.status])
        console.print(title, soft_wrap=True)
        if verdict.status is not Status.VALID:
            _print_excerpt(console, verdict)
        if verdict.profile is not None:
            _print_profile(console, verdict.profile, base if place else None)
        console.print()
    console.print(Text(_legend(arch), style="dim"), soft_wrap=True)


def _print_excerpt(console: Console, verdict: Verdict) -> None:
    """The last lines of what the compiler said, above the one that the headline shows."""
    for line in [line for line in verdict.message.splitlines() if line.strip()][-6:-1]:
        console.print(Text(f"    {printable(line)}", style="dim"), soft_wrap=True)


def _print_profile(console: Console, profile: SourceProfile, base_us: float | None) -> None:
    if profile.launches:
        table = Table(pad_edge=False, box=None, header_style="dim")
        for column in _COLUMNS:
            left = column in ("kernel", "limit")
            table.add_column(column, justify="left" if left else "right", no_wrap=True)
        for launch in profile.launches:
            table.add_row(*_row(launch))
        console.print(table)
    if profile.library:
        calls = ", ".join(f"{call.count} x {call.name}" for call in profile.library)
        console.print(printable(f"  library: {calls}"), soft_wrap=True)
    console.print(f"  {_totals(profile, base_us)}", soft_wrap=True)


def _row(launch: LaunchProfile) -> list[str]:
    mix = launch.instructions
    grid = _UNKNOWN if launch.grid is None else "x".join(map(str, _trimmed(launch.grid)))
    counts = [_UNKNOWN] * 6 if mix is None else [
        _widths(mix.global_loads) + (f"+{mix.async_copies}a" if mix.async_copies else ""),
        _widths(mix.global_stores),
        str(mix.tensor_core),
        str(mix.special_functions),
        str(mix.barriers),
        str(mix.atomics),
    ]  # fmt: skip
    return [
        printable(launch.kernel)[:40],
        str(launch.count) if launch.count else _UNKNOWN,
        grid,
        _or_unknown(launch.threads),
        str(launch.registers),
        f"{launch.spill_bytes} B" if launch.spill_bytes else "-",
        _size(launch.shared_bytes),
        _UNKNOWN if launch.occupancy is None else f"{launch.occupancy:.0%}",
        launch.limited_by or _UNKNOWN,
        _UNKNOWN if launch.waves is None else f"{launch.waves:.2f}",
        *counts,
    ]


def _trimmed(grid: tuple[int, int, int]) -> list[int]:
    sizes = list(grid)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return sizes


def _widths(widths: object) -> str:
    entries = sorted(dict(widths).items(), key=lambda entry: -int(entry[0]))  # type: ignore[call-overload]
    return " ".join(f"{count}x{bits}" for bits, count in entries) or "-"


def _or_unknown(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"


def _totals(profile: SourceProfile, base_us: float | None) -> str:
    parts = [
        f"{profile.launch_count} launches, {profile.library_count} library calls in {profile.calls} call(s)"
    ]
    parts.append(f"{_size(profile.moved_bytes)} of arguments")
    if profile.roofline_us is not None:
        bound = f"at least {profile.roofline_us:,.1f} us"
        if base_us and profile.complete:
            bound += f" ({base_us / profile.roofline_us:.2f}x the reference's bound)"
        parts.append(bound)
    if not profile.complete:
        parts.append("more may follow")
    return "; ".join(parts)


def _legend(arch: str) -> str:
    return (
        f"{arch}. thr: threads per block; regs: per thread; spill: local memory per thread; smem: per block;\n"
        "occ: warps on an SM of those possible, and what limits them; waves: grid over the blocks that the device\n"
        "holds at once; loads, stores: global, count x bits per thread, in the text of the kernel (a: asynchronous);\n"
        "mma: tensor core; sfu: special functions; bar: barriers; atom: atomics; ?: out of sight"
    )
