"""Does a calibration-shaped reward make a forecaster that knows what it does not know? Trained and tested, on one GPU.

A small language model (SmolLM2-135M-Instruct) is taught the form of both kinds of answers (SFT), and from this one
start goes on in two ways over the same kernels for the same number of steps: GRPO of written forecasts with each of
three rewards, and ``proper``, direct descent on each of three scores of the one-token readout; with two seeds. Two
recorded operations are never trained on, nor is a fifth of the kernels of the others.

``python -m benchmarks.training drive --model FOLDER --work FOLDER`` trains whatever has no result there yet, several
trainings at once, and keeps each one's forecasts; ``python -m benchmarks.training_report`` makes table and pictures of
them, without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.training.data import TrainingData, gather
from gpu_forecasters_plugin.training.rows import TrainingRow, rows_identity
from gpu_forecasters_plugin.training.settings import TrainingSettings, parse_training_settings
from gpu_forecasters_plugin.training.splits import Split

HELD_OUT_OPERATIONS = ("softmax", "gdn_chunk_o")
TRAINED_OPERATIONS = ("cross_entropy", "fp8_quant", "rmsnorm")
OTHER_BASELINES = 3
"""Each trained kernel is also compared with so many other trained ones, since the reference alone gives few rows."""
REWARDS = ("correctness", "correctness_brier", "correctness_crps")
SCORES = ("nll", "brier", "crps")
SEEDS = (0, 1)
GRPO = tuple(f"grpo-{reward}-{seed}" for seed in SEEDS for reward in REWARDS)
PROPER = tuple(f"proper-{score}-{seed}" for seed in SEEDS for score in SCORES)
START = "start"
"""The model that SFT has made, asked without any further training."""
PROFILED = "profile-correctness_brier-0"
LONGER = ("longer-nll-0", "longer-brier-0", "longer-crps-0")
"""``proper`` once more, with as many rows as fit into a tenth of GRPO's time rather than as many as its questions."""

Numbers = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is trained: full, and a rehearsal's, which shows that all of it works on a processor."""

    sft: Numbers
    grpo: Numbers
    proper: Numbers
    longer: Numbers
    answer_tokens: int
    rows: int | None


SIZES = {
    "full": Sizes(
        sft={"steps": 150, "batch_size": 16, "gradient_accumulation": 2, "learning_rate": 1e-3},
        grpo={"steps": 40, "batch_size": 8, "gradient_accumulation": 4, "learning_rate": 5e-4},
        proper={"steps": 40, "batch_size": 4, "learning_rate": 5e-4},
        longer={"steps": 120, "batch_size": 16, "learning_rate": 5e-4},
        answer_tokens=160,
        rows=200,
    ),
    "rehearsal": Sizes(
        sft={"steps": 2, "batch_size": 2, "learning_rate": 1e-3},
        grpo={"steps": 4, "batch_size": 2, "gradient_accumulation": 2, "learning_rate": 2e-4},
        proper={"steps": 2, "batch_size": 1, "learning_rate": 2e-4},
        longer={"steps": 3, "batch_size": 1, "learning_rate": 2e-4},
        answer_tokens=16,
        rows=2,
    ),
}


def settings_of(name: str, options: argparse.Namespace) -> TrainingSettings:
    """The settings of one training; all others are the product's defaults."""
    method, _, rest = name.partition("-")
    sizes = SIZES[options.size]
    given: Numbers = {
        "base_model": str(options.model),
        "data": {"tasks": [*TRAINED_OPERATIONS, *HELD_OUT_OPERATIONS]},
        "held_out": {"operations": list(HELD_OUT_OPERATIONS), "kernels": 0.2},
        "save_steps": 100_000,
        "log_steps": 1,
        "samples": 2,
    }
    kind, _, seed = rest.rpartition("-")
    if method == "base":
        return parse_training_settings(given)
    given |= getattr(sizes, {"profile": "grpo", "start": "sft"}.get(method, method))
    if method == "sft":
        return parse_training_settings(given)
    given |= {"seed": 0, "adapter": str(options.work / "sft" / "adapter"), "warmup": 0.1}
    if method == "start":
        return parse_training_settings(given)
    if method in ("grpo", "profile"):
        group = 8 if options.size == "full" else 2
        given["grpo"] = {
            "reward": kind,
            "max_answer_tokens": sizes.answer_tokens,
            "group_size": group,
            "vllm": "never",
        }
    else:
        given["proper"] = {"score": kind}
    return parse_training_settings(given | {"seed": int(seed)})


def gathered(settings: TrainingSettings, rows: int | None) -> TrainingData:
    """The same division for every seed; to the rows that are trained on come those with other baselines."""
    data = gather(settings.model_copy(update={"seed": 0}))
    split = data.split
    train = [*split.train, *with_other_baselines(split.train)]
    tested = [chosen(part, rows) for part in (split.unseen_kernels, split.unseen_operations)]
    return TrainingData(Split(tuple(train), *tested))


def chosen(rows: Sequence[TrainingRow], count: int | None) -> tuple[TrainingRow, ...]:
    """All rows, or some of them drawn by their names."""
    return tuple(sorted(rows, key=lambda row: keyed_uniform(0, "test", row.id))[:count])


def with_other_baselines(rows: Sequence[TrainingRow]) -> Iterator[TrainingRow]:
    """Each kernel beside some others of its operation: their times are known, so their ratio is too."""
    for row in rows:
        others = [o for o in rows if o.operation == row.operation and o.candidate_key != row.candidate_key]
        others.sort(key=lambda other: keyed_uniform(0, "baseline", row.candidate_key, other.candidate_key))
        for other in others[:OTHER_BASELINES]:
            time_us = None if row.reference_time_us is None else row.reference_time_us / other.speedup
            yield dataclasses.replace(
                row,
                reference_code=other.candidate_code,
                reference_key=other.candidate_key,
                speedup=row.speedup / other.speedup,
                log2_sd=math.hypot(row.log2_sd, other.log2_sd),
                reference_time_us=time_us,
            )


def train(name: str, options: argparse.Namespace) -> None:
    """One training and its forecasts of what was not trained on, kept as one file."""
    from gpu_forecasters_plugin.training.base_model import load_base_model

    settings, sizes = settings_of(name, options), SIZES[options.size]
    data, method = gathered(settings, sizes.rows), name.partition("-")[0]
    started = time.perf_counter()
    base = load_base_model(settings)
    found: Numbers = {
        "name": name,
        "settings": settings.model_dump(),
        "data": rows_identity(data.split.train),
    }
    found |= {"rows": {part: len(getattr(data.split, part)) for part in PARTS}, "loaded_s": _since(started)}
    started = time.perf_counter()
    if method not in ("base", "start"):
        found["training"] = trained(method, base, data, settings, options.work / name, options)
        found["trained_s"] = _since(started)
        base.model.save_pretrained(str(options.work / name / "adapter"))
    readouts = {
        "grpo": ["verbalized"],
        "proper": ["logprobs"],
        "longer": ["logprobs"],
        "profile": [],
        "sft": [],
    }
    found["forecasts"] = {}
    for readout in readouts.get(method, ["logprobs", "verbalized"]):
        started = time.perf_counter()
        found["forecasts"][readout] = forecasts(base, data, settings, readout, sizes.answer_tokens)
        found[f"{readout}_s"] = _since(started)
    found["machine"] = machine()
    result_file(options.work, name).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(result_file(options.work, name), json.dumps(found))


def trained(
    method: str,
    base: Any,
    data: TrainingData,
    settings: TrainingSettings,
    folder: Path,
    options: argparse.Namespace,
) -> Numbers:
    """Train by one method; what it cost."""
    from gpu_forecasters_plugin.training.grpo import train_grpo
    from gpu_forecasters_plugin.training.proper import train_proper
    from gpu_forecasters_plugin.training.sft import train_sft

    folder.mkdir(parents=True, exist_ok=True)
    if method == "grpo":
        log = train_grpo(base, data, settings, folder, lambda step: time.time() > options.until)
    elif method == "profile":
        log = train_grpo(base, data, settings, folder, Profile(options.work / f"{folder.name}.json"))
    else:
        log = (train_sft if method == "sft" else train_proper)(base, data, settings, folder)
    return dataclasses.asdict(log)


def forecasts(
    base: Any, data: TrainingData, settings: TrainingSettings, readout: str, answer_tokens: int
) -> Numbers:
    """By part of the test: each row's forecast, or the kind of failure, and the tokens of its answer."""
    import torch

    from gpu_forecasters_plugin.forecasters.language_model.transformers_local import (
        TransformersLocalForecaster,
    )
    from gpu_forecasters_plugin.training.grpo import merged

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    tokens = answer_tokens if readout == "verbalized" else None
    asking = settings.asking(readout).model_copy(update={"max_tokens": tokens})
    found: Numbers = {}
    with merged(base.model):
        forecaster = TransformersLocalForecaster(asking, loaded=(base.model, base.tokenizer))
        for part in PARTS[1:]:
            rows = getattr(data.split, part)
            outcomes = forecaster.forecast([row.query for row in rows])
            found[part] = {
                row.id: {
                    "p": list(o.probabilities) if isinstance(o, Forecast) else None,
                    "failure": None if isinstance(o, Forecast) else o.kind.value,
                    "tokens": o.cost.completion_tokens,
                }
                for row, o in zip(rows, outcomes, strict=True)
            }
    return found


PARTS = ("train", "unseen_kernels", "unseen_operations")


def result_file(work: Path, name: str) -> Path:
    """Where a training's forecasts are kept."""
    return work / "results" / f"{name}.json"


class Profile:
    """Profiles one step of a training: what the GPU computed of the time that it took; called after each step."""

    FIRST = 2

    def __init__(self, file: Path) -> None:
        self._file = file
        self._profile: Any = None

    def __call__(self, step: int) -> bool:
        import torch

        if not torch.cuda.is_available() or step not in (self.FIRST, self.FIRST + 1):
            return False
        torch.cuda.synchronize()
        if step == self.FIRST:
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


def drive(options: argparse.Namespace) -> None:
    """Everything that has no result yet: the start and the base model, then all others, several at once."""
    stop = threading.Event()
    sampler = threading.Thread(target=sample_gpu, args=(options.work / "gpu.jsonl", stop), daemon=True)
    options.work.mkdir(parents=True, exist_ok=True)
    sampler.start()
    side_by_side([["sft"], ["base"]], options)
    # One step of GRPO runs alone. Then it takes longest and begins at once; the others follow each other beside it.
    side_by_side([[PROFILED]], options)
    side_by_side([*([name] for name in GRPO), PROPER[:3], PROPER[3:], [START, *LONGER]], options)
    stop.set()


def side_by_side(lanes: Sequence[Sequence[str]], options: argparse.Namespace) -> None:
    """Lanes at the same time, the trainings of each one after the other, each in a process of its own."""

    def run(lane: Sequence[str]) -> None:
        for name in lane:
            if result_file(options.work, name).exists() or (options.only and name not in options.only):
                continue
            log = options.work / "logs" / f"{name}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "benchmarks.training", "train", name, "--size", options.size]
            command += [
                "--model",
                str(options.model),
                "--work",
                str(options.work),
                "--until",
                str(options.until),
            ]
            with log.open("a", encoding="utf-8") as stream:
                stream.write(f"{time.time():.1f} begins\n")
                stream.flush()
                status = subprocess.run(
                    command, stdout=stream, stderr=subprocess.STDOUT, env=quiet()
                ).returncode
                stream.write(f"{time.time():.1f} ended with {status}\n")
            print(f"{name}: {'done' if status == 0 else f'failed, see {log}'}", flush=True)

    threads = [threading.Thread(target=run, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def quiet() -> dict[str, str]:
    """The environment of a training: two threads each, no hub."""
    return os.environ | {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def sample_gpu(file: Path, stop: threading.Event) -> None:
    """Write down every second how busy the GPU is, as its driver says."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except (ImportError, OSError) as error:
        print(f"no NVML: {error}", flush=True)
        return
    except pynvml.NVMLError as error:
        print(f"no NVML: {error}", flush=True)
        return
    with file.open("a", encoding="utf-8") as stream:
        while not stop.wait(1.0):
            use, memory = pynvml.nvmlDeviceGetUtilizationRates(handle), pynvml.nvmlDeviceGetMemoryInfo(handle)
            line = {"t": time.time(), "gpu": use.gpu, "memory": use.memory, "used_gib": memory.used / 2**30}
            stream.write(json.dumps(line) + "\n")
            stream.flush()


def machine() -> Numbers:
    """What it ran on."""
    import peft
    import torch
    import transformers

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    versions = {module.__name__: module.__version__ for module in (torch, transformers, peft)}
    return {"gpu": gpu, "versions": versions, "peak_gib": _peak(torch)}


def _peak(torch: Any) -> float | None:
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, or report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    actions: dict[str, Callable[[argparse.Namespace], None]] = {
        "drive": drive,
        "train": lambda options: train(options.name, options),
    }
    for name, action in actions.items():
        command = commands.add_parser(name)
        if name == "train":
            command.add_argument("name", help="sft, base, grpo-REWARD-SEED, proper-SCORE-SEED")
        command.add_argument("--model", type=Path, required=True, help="folder of SmolLM2-135M-Instruct")
        command.add_argument("--work", type=Path, required=True, help="folder for all that is kept")
        command.add_argument("--size", choices=SIZES, default="full")
        command.add_argument(
            "--until",
            type=float,
            default=math.inf,
            help="GRPO ends with its step then, in seconds since 1970",
        )
        command.add_argument("--only", nargs="*", help="these alone")
        command.set_defaults(action=action)
    options = parser.parse_args(arguments)
    options.action(options)


if __name__ == "__main__":
    main()
