"""What tests of the report share: runs that are quick to write, and what a page says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from helpers import Command, candidate, measured, open_gate, peaked, surrogate

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.decision import Measurement
from gpu_forecasters_plugin.forecast import FailureKind, ForecastFailure, Query
from gpu_forecasters_plugin.ledger import Ledger

Forecasting = Callable[[Query], Sequence[float]]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] not in ("style", "script"):
            self.texts.append(data)


class PageText:
    """A written page, taken apart.

    Attributes:
        html: as it was written.
        tags: its elements with their attributes.
        text: what people read.
        data: its data block.
    """

    def __init__(self, path: Path) -> None:
        self.html = path.read_text(encoding="utf-8")
        reader = _Reader()
        reader.feed(self.html)
        self.tags = reader.tags
        self.text = " ".join(" ".join(reader.texts).split())
        block = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', self.html, re.S)
        assert block is not None
        self.data: dict[str, Any] = json.loads(block.group(1))


def write_report(run: Command, target: Path | str, page: Path, *options: str) -> PageText:
    """The page that the command writes."""
    said = run("report", target, "--out", page, *options)
    assert (said.code, said.err) == (0, "")
    return PageText(page)


def write_run(
    ledger: Ledger,
    pools: int,
    result: Callable[[int], Measurement] = lambda number: measured(1.0 + number % 7),
    forecast: Any = lambda query: peaked(5),
    **section: Any,
) -> None:
    """A reference, then pools of eight candidates each, numbered from 100, half of them measured."""
    config = surrogate(
        **{"anchor": "reference", "keep_fraction": 0.5, "audit_fraction": 0.5, "task": "toy"} | section
    )
    gate = open_gate(ledger, forecast, config=config)
    gate.tell(gate.ask([candidate(0)])[0].id, measured(1.0))
    for pool in range(pools):
        for decision in gate.ask([candidate(100 + 8 * pool + i) for i in range(8)]):
            if decision.measure and gate.start(decision.id):
                gate.tell(decision.id, result(int(decision.candidate_id[1:])))


HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>{{ 7 * 7 }}&lt;b&gt; "
    "\x1b[31mred\x07 \u202egnp.exe\u2066 \x00 ]]> <!-- <style>*{display:none}</style>"
)


def hostile_run(ledger: Ledger) -> None:
    """Kernels, names and complaints that would do something on a page, were they let."""
    config = surrogate(task=HOSTILE.replace("\x00", ""), anchor="reference", keep_fraction=0.5)
    long_line = "x = '" + "A" * 400_000 + "'"

    def forecast(query: Query) -> Any:
        if "BLOCK" in query.candidate_code:
            return ForecastFailure(FailureKind.INVALID, HOSTILE)
        return peaked(2)

    gate = open_gate(ledger, forecast, config=config)
    gate.tell(gate.ask([candidate(0)])[0].id, measured(1.0))
    kernels = [
        Candidate(f"{HOSTILE}{n}", f"n = {n}\n# {HOSTILE}\ns = '''{HOSTILE}'''\n{long_line}\n")
        for n in range(8)
    ]
    for decision in gate.ask([*kernels, *map(candidate, range(1, 5))]):
        if decision.measure:
            gate.tell(decision.id, measured(5.0))
