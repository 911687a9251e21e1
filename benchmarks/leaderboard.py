"""The arms of every search benchmark in one table, best first, with where and with what the figures were made.

``python -m benchmarks.leaderboard`` reads ``results/search_*.json``, which ``benchmarks.search`` writes, and writes
``results/leaderboard``. It runs nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, write_result
from gpu_forecasters_plugin.compare.significance import LEVEL
from gpu_forecasters_plugin.compare.statistics import gap_closed_over_tasks, mean_over_tasks

Result = Mapping[str, Any]
"""What ``benchmarks.search`` has written for one host."""


def load_results(folder: Path) -> tuple[list[Result], list[str]]:
    """Every search result in a folder, by host, and the files that are left out: they do not say where they were made.

    Raises:
        SystemExit: there is none that does.
    """
    found, left_out = [], []
    for path in sorted(folder.glob("search_*.json")):
        document = json.loads(path.read_text())
        if isinstance(document, dict) and {"host", "seeds", "made", "rows"} <= document.keys():
            found.append(document)
        else:
            left_out.append(path.name)
    if not found:
        raise SystemExit(
            f"no search_*.json that says where it was made in {folder}: run benchmarks.search first"
        )
    return found, left_out


def _mean_ratio(rows: Sequence[Mapping[str, Any]]) -> float:
    """Geometric mean over tasks."""
    return statistics.geometric_mean([row["mean_ratio"] for row in rows])


def standing(rows: Sequence[Mapping[str, Any]], oracle: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One arm's figures over the tasks of a host and budget, beside the oracle's rows (none where it was not run)."""
    shown = [row for row in rows if row.get("p_value_holm", 1.0) <= LEVEL]
    mean_ratio = _mean_ratio(rows)
    return {
        "arm": rows[0]["arm"],
        "mean_ratio": mean_ratio,
        "gap_closed": gap_closed_over_tasks(mean_ratio, _mean_ratio(oracle) if oracle else None),
        "measurements_to_match_ratio": mean_over_tasks([row["measurements_to_match_ratio"] for row in rows]),
        "share_of_pool_best": sum(row["share_of_pool_best"] for row in rows) / len(rows),
        "smallest_mean_ratio": min(row["mean_ratio"] for row in rows),
        "better": [row["task"] for row in shown if row["mean_ratio"] > 1.0],
        "worse": [row["task"] for row in shown if row["mean_ratio"] < 1.0],
        "tasks": [row["task"] for row in rows],
    }


def boards(result: Result) -> list[dict[str, Any]]:
    """A board per budget: the arms by their mean ratio to the baseline, best first."""
    found = []
    for budget in sorted({row["budget"] for row in result["rows"]}):
        rows = [row for row in result["rows"] if row["budget"] == budget]
        arms = dict.fromkeys(row["arm"] for row in rows)
        by_arm = {arm: [row for row in rows if row["arm"] == arm] for arm in arms}
        arms_standing = [standing(of_arm, by_arm.get("oracle", [])) for of_arm in by_arm.values()]
        arms_standing.sort(key=lambda arm: -arm["mean_ratio"])
        setting = {"host": result["host"], "seeds": result["seeds"], "budget": budget}
        found.append(setting | {"made": result["made"], "arms": arms_standing})
    return found


def _cells(place: int, arm: Mapping[str, Any]) -> str:
    ratio, gap = arm["measurements_to_match_ratio"], arm["gap_closed"]
    cells = [
        str(place),
        arm["arm"],
        f"{arm['mean_ratio']:.3f}",
        f"{arm['smallest_mean_ratio']:.3f}",
        "-" if ratio is None else f"{ratio:.2f}",
        "-" if gap is None else f"{gap:.0%}",
        f"{arm['share_of_pool_best']:.3f}",
        f"{len(arm['better'])} of {len(arm['tasks'])}",
        f"{len(arm['worse'])} of {len(arm['tasks'])}",
    ]
    return "| " + " | ".join(cells) + " |"


_HEAD = (
    "| place | arm | best over baseline's | on the worst task | times fewer measurements to match | gap closed "
    "| share of the pool's best | shown better | shown worse |\n|---|---|---|---|---|---|---|---|---|\n"
)

_LEGEND = """\
Best over baseline's: geometric mean over tasks and paired seeds at the same number of measurements. Times fewer to
match: geometric mean over tasks; `-` where an arm never reached the baseline's final mean on one of them. Gap closed:
of the oracle's gain over the baseline, both as logarithms of the mean over tasks. Shown better or worse: tasks whose
paired permutation test, corrected for all arms and tasks of the board (Holm), is at most 5 %. `random` is the floor,
`oracle` the limit.
"""


def _text(found: Sequence[Mapping[str, Any]], left_out: Sequence[str]) -> str:
    parts = ["# Leaderboard\n", _LEGEND]
    if left_out:
        parts.append(f"Left out, since they do not say where they were made: {', '.join(left_out)}.\n")
    for board in found:
        made = board["made"]
        versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
        parts.append(
            f"## {board['host']}, {board['budget']} measurements\n\n"
            f"{', '.join(board['arms'][0]['tasks'])}; {board['seeds']} paired seeds. Made {made['date']} on "
            f"{made['machine']}, commit {made['commit']}; {versions}.\n"
        )
        rows = [_cells(place, arm) for place, arm in enumerate(board["arms"], start=1)]
        parts.append(_HEAD + "\n".join(rows) + "\n")
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the search results and write ``results/leaderboard``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the search results")
    options = parser.parse_args(arguments)
    results, left_out = load_results(options.results)
    found = [board for result in results for board in boards(result)]
    write_result("leaderboard", found, _text(found, left_out))


if __name__ == "__main__":
    main()
