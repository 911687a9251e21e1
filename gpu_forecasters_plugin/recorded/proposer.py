"""Plays the language model of a search over a recorded task.

A real model looks at a program and answers with a changed one. Here the change is a step in the recorded
edit graph, so that every proposal is a kernel whose time is known. The proposer itself knows sources and
edges only: never a time, never an outcome.

``python -m gpu_forecasters_plugin.recorded.proposer --task NAME --port P`` serves it to any host that can
use an OpenAI-compatible endpoint.
"""

from __future__ import annotations

import argparse
import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.errors import GpuForecastersError, ProposalError
from gpu_forecasters_plugin.recorded.answers import AnswerFormat, write_answer
from gpu_forecasters_plugin.recorded.server import ProposerServer, serve

if TYPE_CHECKING:
    from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["ProposalError", "ProposalGraph", "ProposerServer", "RecordedProposer", "main", "serve"]

TWO_EDITS = 0.15
"""Share of the steps that go two edits away: models do not only make the smallest change."""

_MAX_DRAWS = 16
_FARTHEST = 6


class ProposalGraph:
    """Sources of a recorded task and the edits between them, without anything that was measured.

    Immutable after construction, but for what it remembers of its sources; safe to share between threads.
    """

    def __init__(self, codes: Mapping[str, str], edges: Mapping[str, Sequence[str]]) -> None:
        if not codes:
            raise ValueError("a proposal graph needs at least one source")
        unknown = sorted({other for others in edges.values() for other in others} | set(edges) - set(codes))
        unknown = [name for name in unknown if name not in codes]
        if unknown:
            raise ValueError(f"edges name {unknown[0]!r}, which has no source")
        self._codes = dict(codes)
        # Sorted: a step must not depend on the order in which a file lists neighbours.
        self._edges = {name: tuple(sorted(set(edges.get(name, ())) - {name})) for name in codes}
        self._id_by_text = {code.strip(): name for name, code in reversed(self._codes.items())}
        self._id_by_key: dict[str, str] | None = None
        self._find_by_key = lru_cache(maxsize=4096)(self._lookup_key)
        self._round = lru_cache(maxsize=4096)(_shuffled_round)
        # Searches of a comparison with the same seed draw the same children, and a search often draws in vain.
        self._kept_child = lru_cache(maxsize=1 << 18)(self._drawn_child)
        self._keys: dict[str, str] = {}

    @classmethod
    def from_pool(cls, pool: RecordedPool) -> ProposalGraph:
        """The graph of a pool; outcomes and times are left behind here."""
        return cls(
            {name: candidate.code for name, candidate in pool.candidates.items()},
            {name: pool.neighbours(name) for name in pool.candidates},
        )

    def code(self, candidate_id: str) -> str:
        """Source text of a candidate."""
        return self._codes[candidate_id]

    def key(self, candidate_id: str) -> str:
        """Identity of a candidate by normalised source; computed on first use."""
        if candidate_id not in self._keys:
            self._keys[candidate_id] = source_key(self._codes[candidate_id])
        return self._keys[candidate_id]

    def neighbours(self, candidate_id: str) -> tuple[str, ...]:
        """Ids one edit away, sorted."""
        return self._edges[candidate_id]

    def _lookup_key(self, code: str) -> str | None:
        if self._id_by_key is None:
            self._id_by_key = {source_key(text): name for name, text in reversed(self._codes.items())}
        return self._id_by_key.get(source_key(code))

    def find(self, code: str) -> str | None:
        """Id of the candidate with this source, comments and formatting apart; ``None`` if unknown."""
        return self._id_by_text.get(code.strip()) or self._find_by_key(code)

    def child(self, parent_id: str, asked: int, seed: int, request_seed: int | None = None) -> str:
        """What a proposer of this seed makes of a parent when it has been asked about it so many times before.

        Raises:
            KeyError: no such parent.
            ProposalError: it has no neighbours.
        """
        return self._kept_child(parent_id, asked, seed, request_seed)

    def step(self, parent_id: str, rng: random.Random, near_index: int | None = None) -> str:
        """A candidate mostly one, sometimes two edits from the parent, and never the parent itself.

        Args:
            parent_id: where to start.
            rng: draws the step.
            near_index: take this neighbour, in sorted order and counted round, in place of a random one.

        Raises:
            KeyError: no such parent.
            ProposalError: it has no neighbours.
        """
        near = self._edges[parent_id]
        if not near:
            raise ProposalError(f"candidate {parent_id!r} has no neighbours in the edit graph")
        far = rng.random() < TWO_EDITS
        child = near[rng.randrange(len(near)) if near_index is None else near_index % len(near)]
        if far:
            beyond = [name for name in self._edges[child] if name != parent_id and name not in near]
            child = beyond[rng.randrange(len(beyond))] if beyond else child
        return child

    def _drawn_child(self, parent_id: str, asked: int, seed: int, request_seed: int | None) -> str:
        key = self.key(parent_id)
        rng = random.Random(f"{seed}/{key}/{request_seed}/{asked}")
        near = len(self._edges[parent_id]) or 1
        turn, place = divmod(asked, near)
        child_id = self.step(parent_id, rng, self._round(key, turn, near, seed)[place])
        for _ in range(min(turn, _FARTHEST)):
            if self._edges[child_id]:
                child_id = self.step(child_id, rng)
        return child_id


def _shuffled_round(key: str, turn: int, neighbours: int, seed: int) -> tuple[int, ...]:
    """The order in which a round takes the neighbours of a parent."""
    order = list(range(neighbours))
    random.Random(f"{seed}/{key}/round {turn}").shuffle(order)
    return tuple(order)


class RecordedProposer:
    """Answers prompts with steps in a proposal graph.

    A parent's neighbours come in a shuffled round, none a second time before all have been; later rounds go one edit
    farther each. A model that is asked again about the same program rarely repeats itself to the letter.

    Seeded: an answer depends on the seed, the parent's identity, the request's own seed if it has one, and
    how often this proposer was asked about this parent before; never on the clock or on what happened to
    other parents in between. Thread-safe.
    """

    def __init__(self, graph: ProposalGraph, *, seed: int = 0) -> None:
        self.graph = graph
        self.seed = seed
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def propose(
        self,
        parent_code: str,
        fmt: AnswerFormat,
        request_seed: int | None = None,
        *,
        language: str = "python",
    ) -> tuple[str, str]:
        """A child of the parent: its id, and the answer that makes a host write it.

        Args:
            parent_code: the program to change, as the host holds it.
            fmt: ``diff`` for SEARCH/REPLACE blocks, ``full`` for a whole program in a fence.
            request_seed: the request's own seed.
            language: what the fence is labelled with.

        Raises:
            ProposalError: the parent is not in the graph, or no neighbour of it can be written.
        """
        parent_id = self.graph.find(parent_code)
        if parent_id is None:
            raise ProposalError("the program to change is not in this recorded task")
        for _ in range(_MAX_DRAWS):
            child_id = self.next_child(parent_id, request_seed)
            if child_id == parent_id:
                continue
            text = write_answer(parent_code, self.graph.code(child_id), fmt, language)
            if text is not None:
                return child_id, text
        raise ProposalError(f"no neighbour of {parent_id!r} can be written as a {fmt} answer")

    def next_child(self, parent_id: str, request_seed: int | None = None) -> str:
        """What it makes of a parent this time; sometimes the parent itself, where later rounds lead back to it.

        Raises:
            KeyError: no such parent.
            ProposalError: it has no neighbours.
        """
        with self._lock:
            asked = self._asked[parent_id]
            self._asked[parent_id] += 1
        return self.graph.child(parent_id, asked, self.seed, request_seed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a recorded task's proposer until interrupted."""
    from gpu_forecasters_plugin.recorded.pool import load_pool, open_pool

    parser = argparse.ArgumentParser(
        prog="python -m gpu_forecasters_plugin.recorded.proposer",
        description="OpenAI-compatible endpoint that proposes kernels of a recorded task.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--task", help="name of a recorded task")
    source.add_argument("--pool", help="path of a pool file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        pool = open_pool(options.task) if options.task else load_pool(options.pool)
        proposer = RecordedProposer(ProposalGraph.from_pool(pool), seed=options.seed)
        server = serve(proposer, options.host, options.port)
    except (GpuForecastersError, OSError, OverflowError) as error:
        parser.exit(2, f"error: {error}\n")
    with server:
        print(f"{pool.task}: {len(pool.candidates)} kernels at {server.base_url}", flush=True)
        try:
            server.wait()
        except KeyboardInterrupt:
            pass
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
