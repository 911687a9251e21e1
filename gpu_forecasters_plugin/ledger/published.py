"""The columns that measured kernels are published in, as rows of a ledger.

Three kinds are told apart by their columns: pairs files (``device`` for ``hardware``), the published evaluation set and
its discovery pairs, whose speed-ups are those of a child over its parent. Bins are computed anew from the raw speed-up:
a stored bin is never read. Further columns are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import RowFileError
from gpu_forecasters_plugin.language import source_language
from gpu_forecasters_plugin.ledger.exchange import PairRow

__all__ = ["FORMATS", "from_pairs", "from_published"]

Row = dict[str, Any]

_EVALUATION = {
    "comparison_id": "id",
    "pack": "task",
    "anchor_code": "reference_code",
    "candidate_code": "candidate_code",
    "hardware": "hardware",
    "aggregated_speedup": "speedup",
}
_DISCOVERY = {
    "pair_id": "id",
    "problem_id": "task",
    "parent_code": "reference_code",
    "child_code": "candidate_code",
    "hardware": "hardware",
    "g_speedup": "speedup",
}


def from_published(row: Mapping[str, Any], where: str) -> Row:
    """A row of the published evaluation set or of its discovery pairs.

    A row without a speed-up is one that nothing was measured for.

    Args:
        row: as it was read.
        where: what an error calls it.

    Raises:
        RowFileError: it has neither set of columns; names the first that is missing.
    """
    columns = _DISCOVERY if "child_code" in row or "pair_id" in row else _EVALUATION
    missing = [name for name in columns if name not in row]
    if missing:
        raise RowFileError(
            f"{where}: no column {missing[0]!r}; published rows have {', '.join(_EVALUATION)}, "
            f"or {', '.join(_DISCOVERY)}"
        )
    found = {ours: row[theirs] for theirs, ours in columns.items()}
    found |= {name: str(found[name]) for name in ("id", "task")}
    speedup, code = found["speedup"], found["candidate_code"]
    found["outcome"] = Outcome.INFRASTRUCTURE if speedup is None else Outcome.OK
    found["language"] = source_language(code) if isinstance(code, str) else "other"
    return found


def from_pairs(row: Mapping[str, Any], where: str) -> Row:
    """A row of a pairs file: as :func:`from_published` reads them, or ``task, reference_code, candidate_code, ...``.

    ``device`` is ``hardware``; ``language`` is read from the source where it is missing, and a row without ``outcome``
    is ``ok``.
    """
    if any(name in row for name in ("comparison_id", "anchor_code", "pair_id", "child_code")):
        return from_published(row, where)
    found = {name: row[name] for name in PairRow.model_fields if name in row}
    if "hardware" not in found:
        found["hardware"] = row.get("device", "")
    code = found.get("candidate_code")
    if found.get("language") is None and isinstance(code, str):
        found["language"] = source_language(code)
    found.setdefault("speedup", None)
    if found.get("outcome") is None and found["speedup"] is not None:
        found["outcome"] = Outcome.OK
    return found


FORMATS: Mapping[str, Callable[[Row, str], Row] | None] = {"ledger": None, "gpu-forecasters": from_published}
"""What ``ledger import --format`` reads, by name."""
