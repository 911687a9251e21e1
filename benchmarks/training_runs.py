"""Trainings of the comparison, one after the other in this process: ``python -m benchmarks.training_runs NAME...``.

Each one's result is written, whole, as soon as it is there; one that fails is told of and the next begins.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.training import DRAWS, PARTS, SIZES, Numbers, Work, gathered, settings_of
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.forecast import Forecast, ForecastOutcome
from gpu_forecasters_plugin.training.data import TrainingData
from gpu_forecasters_plugin.training.rows import TrainingRow, rows_identity
from gpu_forecasters_plugin.training.settings import TrainingSettings

_READOUTS = {"profile": (), "sft": (), "proper": ("logprobs",), "longer": ("logprobs",)}
"""By which a training is tested; others by both."""
_TESTED_AT_ONCE = 32
POISONED = 70
"""Exit status after an error that leaves the GPU unusable for this process."""


def run(name: str, work: Work) -> None:
    """One training and its forecasts of what was not trained on, kept as one file."""
    from gpu_forecasters_plugin.training.base_model import load_base_model

    settings, method = settings_of(name, work), name.partition("-")[0]
    started = time.perf_counter()
    data = gathered(work.sizes.rows)
    base = load_base_model(settings)
    found: Numbers = {
        "name": name,
        "settings": settings.model_dump(),
        "data": rows_identity(data.split.train),
        "rows": {part: len(getattr(data.split, part)) for part in PARTS},
        "loaded_s": _since(started),
    }
    if method not in ("base", "start"):
        started = time.perf_counter()
        found["training"] = _trained(method, base, data, settings, work.folder / name, work)
        found["trained_s"] = _since(started)
        base.model.save_pretrained(str(work.adapter(name)))
    found["forecasts"] = {}
    for readout in _READOUTS.get(method, ("logprobs", "verbalized")):
        started = time.perf_counter()
        found["forecasts"][readout] = {
            part: _forecasts(base, getattr(data.split, part), settings, readout, work) for part in PARTS[1:]
        }
        found[f"{readout}_s"] = _since(started)
    found["machine"] = _machine()
    work.result(name).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(work.result(name), json.dumps(found))


def _trained(
    method: str, base: Any, data: TrainingData, settings: TrainingSettings, folder: Path, work: Work
) -> Numbers:
    """Train by one method; what it cost."""
    from gpu_forecasters_plugin.training.grpo import train_grpo
    from gpu_forecasters_plugin.training.proper import train_proper
    from gpu_forecasters_plugin.training.sft import train_sft

    folder.mkdir(parents=True, exist_ok=True)
    seen: list[float] = []

    def at_step(step: int) -> bool:
        """Note when a step was done, at once."""
        seen.append(time.time())
        with (work.folder / "steps.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": folder.name, "step": step, "t": seen[-1]}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return seen[-1] > work.until

    if method == "grpo":
        log: Any = train_grpo(base, data, settings, folder, at_step)
    elif method == "profile":
        profile = Profile(work.folder / f"{folder.name}.json", settings.steps - 2)
        log = train_grpo(base, data, settings, folder, lambda step: at_step(step) | profile(step))
    else:
        log = (train_sft if method == "sft" else train_proper)(base, data, settings, folder)
    return dataclasses.asdict(log) | {"step_times": seen}


def _forecasts(
    base: Any, rows: Sequence[TrainingRow], settings: TrainingSettings, readout: str, work: Work
) -> dict[str, list[Numbers]]:
    """By row: forecasts, or the kind of failure, with the tokens of each answer; several where they are drawn."""
    from gpu_forecasters_plugin.training.scoring import forecast_rows

    if readout == "verbalized":
        return _drawn_forecasts(base, rows, settings, work)
    asking = settings.model_copy(update={"batch_size": _TESTED_AT_ONCE})
    outcomes = forecast_rows(base, rows, asking, "logprobs")
    return {row.id: [_kept(outcome, 1)] for row, outcome in zip(rows, outcomes, strict=True)}


def _drawn_forecasts(
    base: Any, rows: Sequence[TrainingRow], settings: TrainingSettings, work: Work
) -> dict[str, list[Numbers]]:
    import torch

    from gpu_forecasters_plugin.training.answering import Drawing, drawn_answers
    from gpu_forecasters_plugin.training.examples import Questions
    from gpu_forecasters_plugin.training.scoring import answer_text, read_answer

    tokens = work.sizes.answer_tokens
    how = Drawing(tokens, base.answer_ends, base.tokenizer.pad_token_id)
    questions = Questions(base, settings, "verbalized")
    torch.manual_seed(settings.seed)
    found: dict[str, list[Numbers]] = {}
    for start in range(0, len(rows), _TESTED_AT_ONCE):
        batch = rows[start : start + _TESTED_AT_ONCE]
        answers = drawn_answers(base.model, [questions.ids(row, tokens) for row in batch], DRAWS, how)
        kept = [_kept(read_answer(*answer_text(base, answer)), len(answer)) for answer in answers]
        found |= {row.id: kept[DRAWS * place : DRAWS * (place + 1)] for place, row in enumerate(batch)}
    return found


def _kept(outcome: ForecastOutcome, tokens: int) -> Numbers:
    known = isinstance(outcome, Forecast)
    return {
        "p": list(outcome.probabilities) if known else None,
        "failure": None if known else outcome.kind.value,
        "tokens": tokens,
    }


class Profile:
    """Profiles one step of a training: what the GPU computed of the time that it took; called after each step."""

    def __init__(self, file: Path, after: int) -> None:
        self._file, self._after = file, after
        self._profile: Any = None

    def __call__(self, step: int) -> bool:
        import torch

        if not torch.cuda.is_available() or step not in (self._after, self._after + 1):
            return False
        torch.cuda.synchronize()
        if step == self._after:
            self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profile.start()
            self._started = time.perf_counter()
            return False
        seconds = time.perf_counter() - self._started
        self._profile.stop()
        self._write(seconds)
        return True

    def _write(self, seconds: float) -> None:
        events = [
            (event.name(), event.start_ns(), event.duration_ns())
            for event in self._profile.profiler.kineto_results.events()
            if str(event.device_type()).endswith("CUDA")
        ]
        busy, end = 0, 0
        by_name: dict[str, int] = {}
        for name, start, duration in sorted(events, key=lambda event: event[1]):
            busy += max(0, start + duration - max(start, end))
            end = max(end, start + duration)
            by_name[name[:120]] = by_name.get(name[:120], 0) + duration
        most = dict(sorted(by_name.items(), key=lambda item: -item[1])[:12])
        found = {"seconds": seconds, "busy_s": busy / 1e9, "kernels": len(events), "ns_by_kernel": most}
        write_atomically(self._file, json.dumps(found))


def _machine() -> Numbers:
    """What it ran on."""
    import peft
    import torch
    import transformers

    cuda = torch.cuda.is_available()
    versions = {module.__name__: module.__version__ for module in (torch, transformers, peft)}
    return {
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "versions": versions,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
    }


def _free_memory() -> None:
    """Nothing of the last training is left, nor counts in the next one's peak."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 2)


def add_work_options(parser: argparse.ArgumentParser) -> None:
    """What says where everything is."""
    parser.add_argument("--model", type=Path, required=True, help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--work", type=Path, required=True, help="folder for all that is kept")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument(
        "--until",
        type=float,
        default=float("inf"),
        help="begin nothing after, in seconds since 1970; GRPO ends with its step then",
    )


def work_of(options: argparse.Namespace) -> Work:
    """The folder that the options name."""
    return Work(options.work, options.model, options.size, options.until)


def main(arguments: Sequence[str] | None = None, run: Callable[[str, Work], None] = run) -> None:
    """Train what has no result yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="+", help="base, sft-SEED, start-SEED, grpo-REWARD-SEED, proper-SCORE-SEED"
    )
    add_work_options(parser)
    options = parser.parse_args(arguments)
    work = work_of(options)
    for name in options.names:
        if work.result(name).exists() or time.time() > work.until:
            continue
        print(f"{time.time():.1f} {name} begins", flush=True)
        try:
            run(name, work)
        except Exception as error:  # the others are to be trained all the same
            traceback.print_exc()
            print(f"{time.time():.1f} {name} failed", flush=True)
            failed = work.folder / "failed" / name
            failed.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(failed, traceback.format_exc()[-4000:])
            if "CUDA error" in str(error) or "CUDNN" in str(error):
                raise SystemExit(POISONED) from None
        else:
            print(f"{time.time():.1f} {name} done", flush=True)
        _free_memory()


if __name__ == "__main__":
    main()
