"""The learned forecaster: features, learning, warm start, odd inputs, speed."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.forecast import Forecast, Observation, Query
from gpu_forecasters_plugin.forecasters import ClimatologyForecaster, Forecaster, LearnedForecaster
from gpu_forecasters_plugin.forecasters.learned import WarmStartTask, warm_start_tasks
from gpu_forecasters_plugin.forecasters.learned.features import (
    STRUCTURE_NAMES,
    extract_features,
    number_scale,
)
from gpu_forecasters_plugin.forecasters.learned.text import clean_source
from gpu_forecasters_plugin.forecasters.learned.warm_start import WarmStart

TRITON = '''"""A docstring with BLOCK = 7."""
import triton
import triton.language as tl

@triton.autotune(configs=[triton.Config({{"BLOCK_K": 32}}, num_warps={warps})], key=["n"])
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr = {block}):
    pid = tl.program_id(0)  # BLOCK = 9
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        acc += tl.load(x + offs, mask=offs < n, other=0.0)
    tl.store(y + pid, tl.sum(acc))

def run(x):
    y = x.contiguous() if {copy} else x
    kernel[(1,)](x, y, x.numel() // 2, num_stages={stages})
    return y
'''
CUDA = '''
import torch
from torch.utils.cpp_extension import load_inline
src = r"""
#include <cuda_runtime.h>
#define TILE {tile}
// TILE 99 in a comment
__global__ void __launch_bounds__({threads}) k(const float4* __restrict__ x, float* y) {
  __shared__ float s[{tile}][33];
  for (int i = 0; i < TILE; ++i) s[i][0] += __ldg(&y[i]);
  __syncthreads();
  y[0] = __shfl_down_sync(~0u, s[0][0], 1);
  atomicAdd(y, 1.0f);
}
void launch() { dim3 block({threads}, 2); k<<<1, block>>>(nullptr, nullptr); kernel<8, 4>(); }
"""
mod = load_inline("m", cpp_sources="", cuda_sources=src)
'''


def triton(**values: int) -> str:
    return TRITON.format(**({"block": 128, "warps": 4, "stages": 2, "copy": 0} | values))


def cuda(tile: int, threads: int) -> str:
    return CUDA.replace("{tile}", str(tile)).replace("{threads}", str(threads))


def structure(code: str) -> dict[str, float]:
    return dict(zip(STRUCTURE_NAMES, extract_features(code).structure, strict=True))


def query(code: str, reference: str, anchor_speedup: float = 1.0) -> Query:
    return Query(source_key(code), code, reference, reference, anchor_speedup)


def observation(code: str, speedup: float) -> Observation:
    return Observation(source_key(code), code, speedup)


def log_loss(forecaster: Forecaster, rows: list[tuple[str, float]], reference: str) -> float:
    outcomes = forecaster.forecast([query(code, reference) for code, _ in rows])
    total = 0.0
    for outcome, (_, speedup) in zip(outcomes, rows, strict=True):
        assert isinstance(outcome, Forecast)
        total -= math.log(outcome.probabilities[BINS.index(speedup) - 1])
    return total / len(rows)


def synthetic(seed: int = 0) -> tuple[str, list[tuple[str, float]]]:
    """Triton sources whose speed follows block size, warps and a needless copy."""
    generator = random.Random(seed)
    rows = []
    for block in (32, 64, 128, 256, 512, 1024):
        for warps in (1, 2, 4, 8):
            for stages in (1, 2, 3):
                for copy in (0, 1):
                    log2 = -0.4 * (math.log2(block) - 8) ** 2 + 0.5 * math.log2(warps) - 0.8 * copy
                    speedup = 2.0 ** (log2 + generator.gauss(0, 0.03))
                    rows.append((triton(block=block, warps=warps, stages=stages, copy=copy), speedup))
    generator.shuffle(rows)
    return triton(block=64, warps=2, stages=2, copy=0), rows


def test_numbers_are_bound_to_names_in_every_notation() -> None:
    python = extract_features(triton(block=256, warps=8, stages=3)).bindings
    assert python["block"] == number_scale(256)
    assert python["num_warps"] == number_scale(8)
    assert python["num_stages"] == number_scale(3)
    assert python["block_k"] == number_scale(32)
    c = extract_features(cuda(16, 256)).bindings
    assert c["tile"] == number_scale(16)
    assert c["__launch_bounds__(0)"] == number_scale(256)
    assert c["dim3(0)"] == number_scale(256)
    assert c["dim3(1)"] == number_scale(2)
    assert c["kernel(1)"] == number_scale(4)
    assert c["__shared__[1]"] == number_scale(33)
    defines = extract_features(
        "#define block_size_x 144\n#define use_padding 0\n#define eps 1e-5f\n"
    ).bindings
    assert defines["block_size_x"] == number_scale(144)
    assert defines["use_padding"] == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [("1 << 10", 1024), ("4 * 256", 1024), ("2 ** 10", 1024), ("0x400", 1024), ("1_024", 1024)],
)
def test_literal_expressions_have_their_value(text: str, value: int) -> None:
    assert extract_features(f"SIZE = {text}\n").bindings["size"] == pytest.approx(number_scale(value))


def test_structure_is_counted() -> None:
    python, c = structure(triton()), structure(cuda(8, 64))
    for name in ("load", "store", "loop", "mask", "reduction", "autotune", "kernel", "python_launch", "copy"):
        assert python[name] > 0, name
    assert python["load_in_loop"] == pytest.approx(math.log(2))
    for name in ("shared", "barrier", "shuffle", "atomic", "launch", "vector_type", "restrict"):
        assert c[name] > 0, name
    assert python["role_warps"] == pytest.approx(1.0)


def test_comments_and_docstrings_say_nothing_and_floor_division_is_code() -> None:
    assert "numel() // 2" in clean_source(triton())
    assert "99 in a comment" not in clean_source(cuda(8, 64))
    plain = extract_features("import x\na = 1\nb = f(a) // 2\n")
    noisy = extract_features('import x\n"""doc BLOCK = 3"""\na = 1  # n = 5\n\n\nb = f(a) // 2  # end\n')
    assert noisy.bindings == plain.bindings
    assert (noisy.shingles == plain.shingles).all()


@pytest.mark.parametrize(
    "piece", ["a", "(", "[", "x[", "1*", "1_", "a:", '"""', "#define a 1", "/*", "dim3 "]
)
def test_huge_monotonous_sources_are_quick(piece: str) -> None:
    started = time.thread_time()
    extract_features((piece * (300_000 // len(piece)))[:300_000])
    # A tenth of a second; what takes quadratic time takes hours. This thread's own time: tests share cores.
    assert time.thread_time() - started < 30.0


def test_learning_lowers_the_log_loss_below_climatology() -> None:
    reference, rows = synthetic()
    held_out, losses = rows[100:], []
    for count in (0, 20, 100):
        learned, climatology = LearnedForecaster(), ClimatologyForecaster()
        for forecaster in (learned, climatology):
            forecaster.observe([observation(*row) for row in rows[:count]])
        losses.append((log_loss(learned, held_out, reference), log_loss(climatology, held_out, reference)))
    (_, _), (learned_20, climatology_20), (learned_100, climatology_100) = losses
    assert learned_20 < climatology_20 - 0.2
    assert learned_100 < climatology_100 - 0.7
    assert learned_100 < learned_20 < losses[0][0]


def test_define_lines_alone_are_enough_to_learn_from() -> None:
    generator = random.Random(2)
    rows = []
    for _ in range(120):
        x, tile, shared = (
            generator.choice([16, 32, 64, 128, 256]),
            generator.randint(1, 8),
            generator.randint(0, 1),
        )
        code = f"#define block_size_x {x}\n#define tile {tile}\n#define use_shmem {shared}\n"
        rows.append((code, 2.0 ** (0.6 * math.log2(x / 64) - 0.3 * abs(tile - 4) + 0.5 * shared)))
    reference = "#define block_size_x 64\n#define tile 4\n#define use_shmem 0\n"
    learned, climatology = LearnedForecaster(), ClimatologyForecaster()
    for forecaster in (learned, climatology):
        forecaster.observe([observation(*row) for row in rows[:60]])
    assert log_loss(learned, rows[60:], reference) < log_loss(climatology, rows[60:], reference) - 0.6


def test_probabilities_are_honest() -> None:
    reference, rows = synthetic(1)
    learned = LearnedForecaster()
    learned.observe([observation(*row) for row in rows[:40]])
    outcomes = learned.forecast([query(code, reference) for code, _ in rows[40:]])
    confidence = np.mean([o.confidence() for o in outcomes if isinstance(o, Forecast)])
    hits = np.mean(
        [
            o.predicted_bin == BINS.index(speedup)
            for o, (_, speedup) in zip(outcomes, rows[40:], strict=True)
            if isinstance(o, Forecast)
        ]
    )
    assert hits > confidence - 0.15


def test_bins_follow_the_anchor() -> None:
    reference, rows = synthetic()
    learned = LearnedForecaster()
    learned.observe([observation(*row) for row in rows])
    code, speedup = max(rows, key=lambda row: row[1])
    to_reference, to_itself = learned.forecast([query(code, reference), query(code, reference, speedup)])
    assert isinstance(to_reference, Forecast)
    assert isinstance(to_itself, Forecast)
    assert to_reference.predicted_bin == BINS.index(speedup)
    assert to_itself.predicted_bin in (4, 5)


def test_same_measurements_give_the_same_answers_in_any_order() -> None:
    reference, rows = synthetic()
    asked = [query(code, reference) for code, _ in rows[60:90]]
    one, two = LearnedForecaster(), LearnedForecaster()
    one.observe([observation(*row) for row in rows[:10]])
    one.forecast(asked)
    one.observe([observation(*row) for row in rows[:60]])
    two.observe([observation(*row) for row in rows[:60]][::-1])
    first, second = one.forecast(asked), two.forecast(asked[::-1])[::-1]
    for a, b in zip(first, second, strict=True):
        assert isinstance(a, Forecast)
        assert isinstance(b, Forecast)
        assert a.probabilities == pytest.approx(b.probabilities, abs=1e-9)


def test_forecasts_do_not_change_from_process_to_process() -> None:
    script = (
        "from gpu_forecasters_plugin.forecasters.learned.features import extract_features as e;"
        "print(float(e('BLOCK = 4\\nfor i in x: y = load(z)').shingles @ range(2048)))"
    )
    runs = {
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    }
    assert len(runs) == 1


@pytest.mark.parametrize(
    "codes",
    [
        [],
        [triton()],
        [triton()] * 3,
        [triton(), cuda(8, 64), "", "\x00\ud800 é漢字", "def f(:\n  '''", "9" * 1000],
        ["x = 1"] * 20,
    ],
)
def test_odd_measurements_are_no_trouble(codes: list[str]) -> None:
    learned = LearnedForecaster()
    learned.observe([Observation(str(i), code, 1.0 + i) for i, code in enumerate(codes)])
    asked = ["", "\ud800", "z = 3", triton(block=64), cuda(4, 32), "// only a comment"]
    outcomes = learned.forecast([Query(str(i), code, "a = 1", "a = 1") for i, code in enumerate(asked)])
    assert all(isinstance(outcome, Forecast) for outcome in outcomes)
    assert learned.forecast([]) == []


def test_extreme_speedups_are_no_trouble() -> None:
    learned = LearnedForecaster()
    learned.observe([Observation(str(i), triton(block=2**i), 10.0 ** (100 * i - 200)) for i in range(5)])
    assert isinstance(learned.forecast([query(triton(), triton(block=1))])[0], Forecast)


def test_several_references_in_one_batch_are_told_apart() -> None:
    learned = LearnedForecaster()
    asked = [query(triton(block=2**i), triton(block=2 ** (i % 3))) for i in range(6)]
    together = learned.forecast(asked)
    alone = [learned.forecast([one])[0] for one in asked]
    for a, b in zip(together, alone, strict=True):
        assert isinstance(a, Forecast)
        assert isinstance(b, Forecast)
        assert a.probabilities == pytest.approx(b.probabilities)


def warm_task(operation: str, seed: int) -> WarmStartTask:
    """An operation on which a copy always costs and a loop's unrolling always pays."""
    generator = random.Random(seed)
    codes, values = [], []
    for _ in range(40):
        copies, unrolls = generator.randint(0, 3), generator.randint(0, 3)
        codes.append("def f(x):\n" + "    x.contiguous()\n" * copies + "    static_range(4)\n" * unrolls)
        values.append(-0.5 * copies + 0.4 * unrolls + generator.gauss(0, 0.1))
    return WarmStartTask(operation, "import torch\n\n\ndef f(x):\n    pass\n", tuple(codes), tuple(values))


def test_a_warm_start_helps_before_anything_is_measured() -> None:
    tasks = [warm_task("a", 1), warm_task("b", 2), warm_task("c", 3)]
    other = warm_task("d", 4)
    rows = [(code, 2.0**value) for code, value in zip(other.codes, other.log2_speedups, strict=True)]
    warm, cold = LearnedForecaster(warm_start=tasks), LearnedForecaster()
    assert log_loss(warm, rows, other.reference_code) < log_loss(cold, rows, other.reference_code) - 0.1


def test_a_list_of_parameters_is_no_program_that_a_warm_start_knows_of() -> None:
    tasks = [warm_task("a", 1), warm_task("b", 2), warm_task("c", 3)]
    sources = [extract_features(f"#define tile_x {n}\n#define unroll {n}\n") for n in (1, 8)]
    assert (WarmStart(tasks).expect(sources[0], sources) == 0).all()
    kernels = [extract_features("import torch\n" + "x.contiguous()\n" * n) for n in (1, 3)]
    assert (WarmStart(tasks).expect(kernels[0], kernels) != 0).any()


def test_changes_between_sources_without_a_kernel_are_unknown_to_a_warm_start_from_kernels() -> None:
    library = "import torch\n\n\ndef run(x):\n    return torch.softmax(x, -1)\n"
    longer = library.replace("torch.softmax(x, -1)", "torch.softmax(x.contiguous().clone(), -1).clone()")
    kernel = "import torch\nimport triton\n\n\n@triton.jit\ndef softmax(x_ptr):\n    pass\n"
    others = warm_start_tasks("softmax")
    reference, change, own = (extract_features(code) for code in (library, longer, kernel))
    unseen, seen = WarmStart(others).expect(reference, [change, own])
    assert unseen == 0.0
    assert seen != 0.0
    assert (WarmStart(others).expect(own, [reference, change]) != 0).all()


def test_a_misleading_warm_start_is_unlearned() -> None:
    tasks = [
        WarmStartTask(t.operation, t.reference_code, t.codes, tuple(-v for v in t.log2_speedups))
        for t in (warm_task("a", 1), warm_task("b", 2), warm_task("c", 3))
    ]
    other = warm_task("d", 4)
    rows = [(code, 2.0**value) for code, value in zip(other.codes, other.log2_speedups, strict=True)]
    warm, cold = LearnedForecaster(warm_start=tasks), LearnedForecaster()
    for forecaster in (warm, cold):
        forecaster.observe([observation(*row) for row in rows[:20]])
    difference = log_loss(warm, rows[20:], other.reference_code) - log_loss(
        cold, rows[20:], other.reference_code
    )
    assert difference < 0.15


def test_tasks_that_contradict_each_other_are_not_believed() -> None:
    generator = random.Random(0)
    tasks = [warm_task("a", 1), warm_task("b", 2), warm_task("c", 3)]
    noise = [
        WarmStartTask(t.operation, t.reference_code, t.codes, tuple(generator.gauss(0, 1) for _ in t.codes))
        for t in tasks
    ]
    program = extract_features(triton())
    assert WarmStart(noise).slope(program) < 0.4
    assert WarmStart(tasks).slope(program) > 0.5


def test_tasks_of_the_runs_own_kind_of_operation_count_most() -> None:
    product = "import torch\n\n\ndef f(x):\n    tl.dot(x, x)\n"
    tasks = [warm_task(name, seed) for seed, name in enumerate("abc")] + [
        # What helps where memory is moved hurts where matrices are multiplied.
        WarmStartTask(t.operation, product, t.codes, tuple(-v for v in t.log2_speedups))
        for t in (warm_task("d", 4), warm_task("e", 5), warm_task("f", 6))
    ]
    body = "    static_range(4)\n" * 3
    for reference, sign in ((tasks[0].reference_code, 1.0), (product, -1.0)):
        unrolled = [extract_features(source) for source in (reference, reference + body)]
        before, after = WarmStart(tasks).expect(unrolled[0], unrolled)
        assert before == 0.0 and sign * after > 0.3


def test_tasks_of_the_other_kind_alone_still_tell_something() -> None:
    product = extract_features("import torch\n\n\ndef f(x):\n    tl.dot(x, x)\n")
    unrolled = extract_features("import torch\n\n\ndef f(x):\n    tl.dot(x, x)\n    static_range(4)\n")
    others = WarmStart([warm_task("a", 1), warm_task("b", 2)])
    assert others.slope(product) > 0.2 and others.expect(product, [unrolled])[0] > 0.0
    alone = WarmStart([warm_task("a", 1)])
    assert alone.slope(product) == 0.0, "nothing says how well one task carries over"


@pytest.mark.parametrize(
    ("source", "multiplies"),
    [
        ("y = a @ b\n", True),
        ("x = y[0] @ z.T\n", True),
        ("accumulator = tl.dot(a, b, accumulator)\n", True),
        ("self.layer = nn.Linear(3, 4)\n", True),
        ("F.scaled_dot_product_attention(q, k, v)\n", True),
        ("wmma::mma_sync(d, a, b, c);\n", True),
        ('asm volatile("mma.sync.aligned.m16n8k16");\n', True),
        ("@triton.jit\ndef f():\n    pass\n", False),
        ("class A:\n    @property\n    def x(self):\n        pass\n", False),
        ("dot = 3\n", False),
        ("float* linear;\n", False),
        ("y = torch.softmax(x, -1)\n", False),
    ],
)
def test_matrix_products_are_told_from_names_and_decorators(source: str, multiplies: bool) -> None:
    assert extract_features(source).multiplies_matrices is multiplies


def test_whether_there_is_any_of_a_feature_tells_more_than_how_much() -> None:
    """A first copy costs, and further ones nothing."""

    def task(operation: str, seed: int) -> WarmStartTask:
        generator = random.Random(seed)
        copies = [generator.randint(0, 6) for _ in range(60)]
        codes = tuple("import torch\n" + "x.contiguous()\n" * count for count in copies)
        return WarmStartTask(operation, "import torch\n", codes, tuple(-1.0 * (n > 0) for n in copies))

    warm = WarmStart([task("a", 1), task("b", 2), task("c", 3)])
    sources = [extract_features("import torch\n" + "x.contiguous()\n" * count) for count in (0, 1, 6)]
    none, one, six = warm.expect(sources[0], sources)
    assert none - one > 6.0 * abs(one - six)


def test_a_warm_start_of_little_or_nothing_expects_nothing() -> None:
    features = extract_features(triton())
    small = WarmStartTask("a", "x = 1", ("y = 2",), (0.5,))
    for tasks in ([], [small], [WarmStartTask("b", "x", (), ())]):
        assert (WarmStart(tasks).expect(features, [features, features]) == 0).all()
    with pytest.raises(ValueError, match="2 sources but 1"):
        WarmStartTask("a", "x", ("y", "z"), (0.5,))


def test_a_pool_is_forecast_in_well_under_a_second() -> None:
    generator = random.Random(0)
    filler = "".join(f"    value_{i} = tl.load(x + {i} * BLOCK, mask=offs < {i})\n" for i in range(100))
    codes = [
        triton(
            block=generator.randint(1, 4096), warps=generator.randint(1, 32), stages=generator.randint(1, 9)
        )
        + f"def more_{generator.randint(0, 40)}():\n{filler}"
        for _ in range(564)
    ]
    learned = LearnedForecaster()
    learned.observe(
        [Observation(str(i), code, 2 ** generator.gauss(0, 1)) for i, code in enumerate(codes[64:])]
    )
    learned.forecast([query(code, codes[0]) for code in codes[:64]])
    seconds = []
    for _ in range(3):
        learned.observe([Observation(str(i), code, 1.0 + i / 500) for i, code in enumerate(codes[64:])])
        started = time.thread_time()
        learned.forecast([query(code, codes[0]) for code in codes[:64]])
        seconds.append(time.thread_time() - started)
    # A fifth of a second on an idle machine, training included. This thread's own time: tests share cores.
    assert min(seconds) < 10.0
