"""Ask/tell: the whole flow on one screen.

::

    decisions = gate.ask(candidates)        # forecast, rank, decide; written to the ledger
    for decision in decisions:
        if decision.measure and gate.start(decision.id):    # charges the budget
            gate.tell(decision.id, measurement)             # closes it
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_forecasters_plugin.budget import Budget
from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.choosing import Chooser
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.consulting import Consultant
from gpu_forecasters_plugin.decision import Action, Decision, Measurement, Outcome, Reason
from gpu_forecasters_plugin.deferring import DeferralInForce, Deferring
from gpu_forecasters_plugin.errors import GateError
from gpu_forecasters_plugin.forecasters import Forecaster
from gpu_forecasters_plugin.history import Anchor, History
from gpu_forecasters_plugin.ledger import DecisionDraft, Ledger, PoolDraft, RunIdentity, Worker
from gpu_forecasters_plugin.observers.observing import build_observers, observe_run
from gpu_forecasters_plugin.policies import RankingRule, SelectionPolicy
from gpu_forecasters_plugin.screen.pool_screen import Screen
from gpu_forecasters_plugin.screen.verdict import Verdict

__all__ = ["Gate"]


def _storable(config: SurrogateConfig) -> dict[str, Any]:
    """The configuration for the ledger, without the URL of the ledger itself, which may hold a password."""
    return config.model_dump(mode="json", exclude={"ledger"})


class Gate:
    """Decides which candidates of a pool the host's real evaluator measures.

    Promises: thread-safe; the same seed and the same pools give the same decisions, whatever the order within a
    pool; never more decisions to measure than the budget has left; everything is in the ledger before it takes
    effect, and a gate opened on the same ledger goes on where the last one stopped.
    """

    def __init__(
        self,
        reference: Candidate,
        forecaster: Forecaster,
        ledger: Ledger,
        config: SurrogateConfig | None = None,
        *,
        identity: RunIdentity | None = None,
        run_name: str = "run",
        policy: SelectionPolicy | None = None,
        rule: RankingRule | None = None,
        screen: Screen | None = None,
    ) -> None:
        """Open a gate, and resume the ledger's run of that name if there is one.

        Args:
            reference: the kernel that speed-ups are relative to.
            forecaster: whom to ask; belongs to this gate from now on.
            ledger: where everything is written.
            config: the ``surrogate:`` section; all defaults when left out.
            identity: what a resume must agree with; task, reference, device, forecaster and seed when left out.
            run_name: name of the run in the ledger.
            policy: selection policy instead of the configured one.
            rule: ranking rule instead of the configured one.
            screen: who tells which candidates cannot run, before any is forecast; belongs to this gate from now on.

        Raises:
            LedgerIdentityError: the ledger's run of that name has another identity.
            ConfigError, MissingExtraError, PluginError: rule, policy or an observer cannot be made.
        """
        self.config = config or SurrogateConfig()
        self.reference = reference
        self._ledger = ledger
        self._screen = screen
        limits = self.config.budget
        self._budget = Budget(limits.measurements, limits.gpu_seconds, limits.count_forecasting)
        self._asking = threading.Lock()
        self._lock = threading.RLock()
        self._reserved: dict[int, str] = {}
        identity = identity or RunIdentity(
            self.config.task or "",
            reference.key,
            device="" if self.config.device == "auto" else self.config.device,
            forecaster=forecaster.name,
            model=forecaster.model,
            prompt_hash=forecaster.prompt_hash,
            seed=self.config.seed,
        )
        self.identity = identity
        self._history = History(reference, ledger)
        self._chooser = Chooser(self._history, self.config, policy, rule)
        observers = build_observers(self.config)
        # Not before: a plugin that cannot be used leaves no run behind.
        self.resumed = ledger.begin_run(identity, name=run_name, config=_storable(self.config))
        self._consultant = Consultant(forecaster, reference, self._history, identity, self.config, ledger)
        self._deferring = Deferring(self.config, announced=self.resumed and ledger.was_miscalibrated())
        self._pools = ledger.pools()
        self._observing = observe_run(observers, ledger, resumed=self.resumed)

    # -- what the host may ask ------------------------------------------------------------------------------

    def remaining(self) -> int | None:
        """Measurements that may still be decided on; ``None`` without a limit."""
        with self._lock:
            return self._remaining()

    def _remaining(self, settled: int = 0, forecast_gpu_seconds: float = 0.0) -> int | None:
        use = self._ledger.budget_use(forecasts=self._budget.count_forecasting)
        reserved = len(self._reserved) + settled
        return self._budget.remaining(use, reserved, forecast_gpu_seconds=forecast_gpu_seconds)

    def budget_spent(self) -> bool:
        """Whether no measurement may be decided on any more."""
        return self.remaining() == 0

    def has_unstarted(self) -> bool:
        """Whether a decision to measure has not been started yet: it counts as spent, but nothing runs so far."""
        with self._lock:
            return bool(self._reserved)

    @property
    def best_speedup(self) -> float | None:
        """Largest measured speed-up over the reference so far; ``None`` before the first."""
        with self._lock:
            self._history.refresh()
            return self._history.best.speedup if self._history.best else None

    def close(self) -> None:
        """The run ends: give up forecasts under way, within two seconds, and make no further ones.

        From any thread, at any time. Who waits for a decision gets one, as without a forecaster.
        """
        self._consultant.close()  # without a lock: whoever waits for a forecast holds one
        if self._screen is not None:
            self._screen.close()

    def finish(self) -> None:
        """The run has ended, its measurements too: close, and let observers catch up, within a few seconds."""
        self.close()
        self._observing.close()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def reference_problem(self) -> str | None:
        """Why the reference has no measurement that is ``ok``, as far as anybody tried."""
        with self._lock:
            self._history.refresh()
            last = self._history.last_of(self.reference.key)
            return None if last is None or last.outcome is Outcome.OK else f"{last.outcome}: {last.error}"

    def reference_measurement(self) -> Measurement | None:
        """The reference's own measurement; ``None`` while there is none that is ``ok``."""
        with self._lock:
            self._history.refresh()
            return self._history.answer(self.reference.key)

    def answer(self, candidate_key: str) -> Measurement | None:
        """The measurement that answers for a source, if it was measured already."""
        with self._lock:
            self._history.refresh()
            return self._history.answer(candidate_key)

    def in_flight(self, candidate_key: str) -> bool:
        """Whether a source is about to be measured, or being measured right now."""
        with self._lock:
            return candidate_key in self._in_flight()

    def _in_flight(self) -> set[str]:
        return set(self._reserved.values()) | {c.candidate_key for c in self._ledger.open_charges()}

    def partial_answer(self, decision_id: int) -> Measurement | None:
        """The provisional result of a decision of which more stages may follow."""
        with self._lock:
            self._history.refresh()
            return self._history.provisional(decision_id)

    # -- ask ------------------------------------------------------------------------------------------------

    def ask(self, candidates: Sequence[Candidate], *, measure_all: bool = False) -> list[Decision]:
        """Decide on one pool.

        Args:
            candidates: proposals that are decided on together; ids must be distinct.
            measure_all: these are no proposals but programs that the search starts from: measured whatever a
                forecast would say, as far as the budget goes (reason ``warm_up``).

        Returns:
            One decision per candidate, in the same order, already in the ledger.

        Raises:
            GateError: two candidates have the same id.
            LedgerWriteError: the ledger could not be written; nothing was decided.
        """
        if not candidates:
            return []
        if len({candidate.id for candidate in candidates}) != len(candidates):
            raise GateError("two candidates of one pool have the same id")
        # Programs that the search starts from are measured anyway; once the budget is spent, nothing is.
        screening = self._screen is not None and not measure_all and self.remaining() != 0
        verdicts = self._screen.verdicts(candidates) if self._screen and screening else {}
        with self._asking:
            decisions = self._decide(candidates, verdicts, measure_all=measure_all)
        self._observing.wake()
        return decisions

    def _decide(
        self, candidates: Sequence[Candidate], verdicts: Mapping[str, Verdict], *, measure_all: bool
    ) -> list[Decision]:
        """Decide on one pool; results of earlier ones may come in while the forecaster is asked."""
        with self._lock:
            self._history.refresh()
            self._consultant.screened(verdicts)
            self._consultant.observe()
            drafts, fresh = self._settle_without_forecast(candidates, verdicts)
            settled = sum(draft.action is Action.MEASURE for draft in drafts.values())
            consult = not measure_all and self._remaining(settled) != 0
            anchor = self._history.anchor(self.config.anchor)
            queries = self._consultant.queries(fresh, anchor) if consult else []
        started = time.perf_counter()
        outcomes = self._consultant.forecast(queries)
        seconds = time.perf_counter() - started
        price = math.fsum(outcome.cost.gpu_seconds for outcome in outcomes.values())
        with self._lock:
            deferral = self._deferral_in_force()
            pool = self._pool_draft(len(candidates), anchor, seconds, deferral)
            drafts |= self._chooser.choose(
                fresh,
                outcomes,
                pool,
                self._pools,
                self._remaining(settled, price if self._budget.count_forecasting else 0.0),
                deferral=deferral.rules,
                measure_all=measure_all,
            )
            ordered = [drafts[candidate.id] for candidate in candidates]
            decisions = self._ledger.record_pool(pool, ordered, candidates, verdicts)
            self._pools += 1
            self._reserved |= {d.id: d.candidate_key for d in decisions if d.measure}
        return decisions

    def _settle_without_forecast(
        self, candidates: Sequence[Candidate], verdicts: Mapping[str, Verdict]
    ) -> tuple[dict[str, DecisionDraft], list[Candidate]]:
        """Decisions that need no forecast, by candidate id, and the candidates that do."""
        drafts: dict[str, DecisionDraft] = {}
        fresh: dict[str, Candidate] = {}
        in_flight = self._in_flight()
        for candidate in sorted(candidates, key=lambda c: (c.key, c.id)):
            answer = self._history.answer(candidate.key)
            detail = None
            if candidate.problem is not None:
                reason, action = Reason.INVALID_SOURCE, Action.SKIP
            elif answer is not None or candidate.key in in_flight:
                reason, action = Reason.DUPLICATE, Action.SKIP
            elif candidate.key == self.reference.key and self.remaining() != 0:
                # Everything is relative to it: measured first, and never forecast.
                reason, action = Reason.WARM_UP, Action.MEASURE
                in_flight.add(candidate.key)
            elif (verdict := verdicts.get(candidate.key)) is not None and verdict.is_invalid:
                reason, action, detail = *self._on_invalid(drafts), verdict.explanation()
                if action is Action.MEASURE:
                    in_flight.add(candidate.key)
            else:
                fresh[candidate.key] = candidate
                in_flight.add(candidate.key)
                continue
            drafts[candidate.id] = DecisionDraft(
                candidate.id,
                candidate.key,
                action,
                reason,
                answer=answer,
                parent_key=candidate.parent_key,
                detail=detail,
            )
        return drafts, list(fresh.values())

    def _on_invalid(self, drafts: Mapping[str, DecisionDraft]) -> tuple[Reason, Action]:
        """What becomes of a candidate that cannot run, as the configuration says, and as far as the budget goes."""
        settled = sum(draft.action is Action.MEASURE for draft in drafts.values())
        if self.config.screen.policy == "skip" or self._remaining(settled) == 0:
            return Reason.INVALID_SOURCE, Action.SKIP
        return Reason.UNCERTAIN, Action.MEASURE

    def _deferral_in_force(self) -> DeferralInForce:
        open_decisions = [*self._reserved, *(charge.decision_id for charge in self._ledger.open_charges())]
        self._history.refresh()  # in this order: whatever is not open any more has its result in the history
        return self._deferring.in_force(
            self._history.observations(), self._ledger.first_pool_of(open_decisions)
        )

    def _pool_draft(
        self, size: int, anchor: Anchor, forecast_seconds: float, deferral: DeferralInForce
    ) -> PoolDraft:
        return PoolDraft(
            size,
            self._history.trust(self.config.guard),
            anchor.key,
            anchor.speedup,
            forecast_seconds,
            deferral.rules.threshold,
            deferral.source.value,
            deferral.miscalibrated,
            None if deferral.drift is None else deferral.drift.log_evidence,
        )

    # -- tell -----------------------------------------------------------------------------------------------

    def start(self, decision_id: int, worker: Worker | None = None) -> bool:
        """Charge the budget, just before the evaluator is called.

        Returns:
            Whether the evaluator may be called; False when the budget is spent or the decision was started.
        """
        with self._lock:
            charged = self._ledger.charge(
                decision_id, worker or Worker.current(), limit=self._budget.measurements
            )
            self._reserved.pop(decision_id, None)
            return charged

    def close_interrupted(self, spared: Collection[int] = ()) -> int:
        """Close measurements whose process has ended without a result, as ``infrastructure``; they stay paid.

        Call it when a run is resumed. What still runs somewhere is left open: its result is on its way.

        Args:
            spared: decisions whose results are on their way although that process has ended.

        Returns:
            How many were closed.
        """
        lost = Measurement(Outcome.INFRASTRUCTURE, error="interrupted before it had a result")
        gone = [c for c in self._ledger.open_charges() if not c.worker.may_be_alive()]
        return sum(self.tell(c.decision_id, lost) for c in gone if c.decision_id not in spared)

    def close_overdue(self, age_s: float) -> int:
        """Close measurements that were charged longer ago than ``age_s`` seconds, as ``timeout``.

        Returns:
            How many were closed.
        """
        late = Measurement(Outcome.TIMEOUT, error=f"no result within {age_s:.0f} s")
        overdue = [c for c in self._ledger.open_charges() if time.time() - c.charged_at > age_s]
        return sum(self.tell(charge.decision_id, late) for charge in overdue)

    def release(self, decision_id: int) -> None:
        """Give back a decision that was never started, so that its place in the budget is free again."""
        with self._lock:
            self._reserved.pop(decision_id, None)

    def tell(self, decision_id: int, measurement: Measurement, *, provisional: bool = False) -> bool:
        """Close a decision with what the evaluator said; starts it first if the host did not.

        Args:
            decision_id: a decision to measure.
            measurement: what came of it.
            provisional: more may follow (an early stage of a cascade); the next result replaces this one.

        Returns:
            Whether it was written; False when a final result stands already.
        """
        with self._lock:
            if decision_id in self._reserved:
                self.start(decision_id)
            written = self._ledger.record_result(decision_id, measurement, provisional=provisional)
        self._observing.wake()
        return written

    def settle(self, decision_id: int) -> bool:
        """No further stage follows: a provisional result, if there is one, stands as it is.

        Until then the source counts as being measured, and duplicates of it wait.
        """
        partial = self.partial_answer(decision_id)
        return partial is not None and self.tell(decision_id, replace(partial, gpu_seconds=0.0))
