"""Numbers that a source's text yields: values bound to names, structure, token shingles.

Three groups, because they differ in what they know:

- *bindings*: numbers bound to names (``BLOCK = 128``, ``#define TILE 8``, ``num_warps=4``, ``'BM': 64``,
  ``dim3 block(16, 16)``, ``kernel<256, 4>``). The vocabulary is this run's own: a name means something only
  beside other candidates that use it.
- *structure*: counts of things that kernels do (loads, loops, dots, barriers, launches, casts, ...) and the
  roles that bound numbers commonly play. A fixed vocabulary, so that it carries over between operations.
- *shingles*: hashed token n-grams, for similarity alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.forecasters.learned.text import clean_source, shingle_counts, tokenise

__all__ = ["STRUCTURE_NAMES", "SourceFeatures", "extract_features", "multiplies_matrices", "number_scale"]

_GROUPS: dict[str, str] = {
    "load": "load ldg __ldg __ldcs __ldcg __ldca cp_async memcpy_async",
    "store": "store __stcs __stcg __stwt copy_",
    "block_pointer": "make_block_ptr advance make_tensor_descriptor boundary_check",
    "dot": "dot dot_scaled mma_sync wmma wgmma mma load_matrix_sync",
    "library_matmul": "matmul mm bmm addmm baddbmm einsum linear cublas cutlass conv1d conv2d conv3d",
    "loop": "for while",
    "unrolled": "static_range unroll",
    "branch": "if else elif where",
    "mask": "mask other boundary",
    "reduction": "sum max min mean amax amin reduce logsumexp softmax norm var argmax cumsum scan",
    "exponential": "exp exp2 expf exp2f __expf log log2 logf __logf sigmoid tanh",
    "root": "sqrt rsqrt sqrtf rsqrtf __frsqrt_rn rms_norm layer_norm",
    "barrier": "__syncthreads __syncwarp debug_barrier barrier",
    "shared": "__shared__ shared smem",
    "vector_type": "float2 float4 int2 int4 uint2 uint4 half2 __half2 bfloat162 __nv_bfloat162",
    "restrict": "__restrict__ __launch_bounds__ const __forceinline__",
    "constexpr": "constexpr template",
    "cache_hint": "eviction_policy cache_modifier evict_first evict_last multiple_of max_contiguous",
    "autotune": "autotune Config heuristics",
    "kernel": "jit __global__",
    "program": "program_id blockIdx threadIdx num_programs",
    "grid": "grid cdiv gridDim dim3",
    "copy": "contiguous clone copy detach",
    "shape": "permute transpose reshape view expand unsqueeze squeeze stride size shape",
    "allocation": "empty zeros ones full empty_like zeros_like ones_like full_like new_empty cat stack",
    "synchronise": "synchronize item cpu tolist numpy cudaDeviceSynchronize Stream Event",
    "fp32": "float32 float",
    "fp16": "float16 half __half",
    "bf16": "bfloat16 __nv_bfloat16",
    "fp64": "float64 double",
    "fp8": "float8_e4m3fn float8e4nv float8e5 __nv_fp8_e4m3 float8_e5m2",
    "int64": "int64 long int64_t size_t",
    "cast": "to astype static_cast reinterpret_cast __float2half __half2float type",
    "tensor_float": "tf32 allow_tf32 input_precision ieee tf32x3",
    "torch": "torch F nn functional",
    "graph": "CUDAGraph compile make_graphed_callables script cudnn benchmark",
    "operator_multiply": "* @",
    "operator_divide": "/ // %",
    "operator_add": "+ - += -=",
    "subscript": "[",
    "launch": "<<<",
    "call": "(",
}
_PREFIXES = {"atomic": "atomic", "__shfl": "shuffle", "shfl": "shuffle", "cuda": "cuda_api"}
_TOKEN_GROUP = {token: group for group, tokens in _GROUPS.items() for token in tokens.split()}
_ROLES: dict[str, re.Pattern[str]] = {
    "role_block": re.compile(r"^(?:.*block.*|.*tile.*|b[mnkvtcr]|.*chunk.*|.*threads.*|dim3.*)$"),
    "role_warps": re.compile(r"^.*warps?.*$"),
    "role_stages": re.compile(r"^.*stages?.*$"),
    "role_unroll": re.compile(r"^.*(?:unroll|vec|ilp|per_thread|rows_per|group).*$"),
}
_EXTRA = ("size", "distinct", "python_launch", "loop_depth", "load_in_loop", "kernels_launched_in_loop")
STRUCTURE_NAMES: tuple[str, ...] = (*_GROUPS, "atomic", "shuffle", "cuda_api", *_EXTRA, *_ROLES)
"""Names of the structure features, in the order of :attr:`SourceFeatures.structure`."""

# Every repetition is bounded and every name starts at a word's edge: no text makes these quadratic.
_NAME = r"(?<!\w)([^\W\d]\w{0,63})"
_NUMBER = r"-?(?:0[xX][0-9a-fA-F]{1,16}|(?:\d[\d_]{0,20}\.?\d{0,20}|\.\d{1,20})(?:[eE][+-]?\d{1,3})?)"
_EXPRESSION = rf"{_NUMBER}(?:\s*(?:\*\*|<<|\*)\s*{_NUMBER}){{0,4}}"
_DEFINE = re.compile(rf"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\(?\s*({_EXPRESSION})", re.MULTILINE)
_ASSIGN = re.compile(rf"{_NAME}[\"']?\s*(?::\s*[\w.]{{1,40}}\s*)?[=:]\s*({_EXPRESSION})(?![\w.])")
_ARGUMENTS = re.compile(
    r"(?<!\w)(dim3\s+\w{1,64}|[^\W\d]\w{0,63})\s*[(<]\s*(\d{1,12}(?:\s*,\s*\d{1,12}){0,3})\s*[)>]"
)
_SHARED = re.compile(r"__shared__\s+[\w:]+\s+\w+((?:\s*\[\s*\w+\s*\])+)")
_FACTOR = re.compile(rf"(\*\*|<<|\*)?\s*({_NUMBER})")
_PYTHON_LAUNCH = re.compile(r"\w\s*\[[^\[\]\n]{1,120}\]\s*\(")
_LOOP_LINE = re.compile(r"^([ \t]*)(?:for|while)\b")
_MATRIX_PRODUCT = re.compile(
    r"\b(?:dot|dot_scaled|matmul|mm|bmm|addmm|baddbmm|einsum|linear|Linear|[cC]onv[123]d|scaled_dot_product_attention"
    r"|\w{0,20}mma_sync|load_matrix_sync|cublas\w{0,40})\s{0,8}[(<]"
    r"|\b(?:wgmma|wmma|mma)(?:\.|::)"
    r"|[\w\])][ \t]{0,8}@[ \t]{0,8}[\w(]"
)
"""A call, an instruction, or the operator where it has something on its left: decorators have not."""
_MEMORY = re.compile(r"\bload\b|__ldg|\w\[")


@dataclass(frozen=True)
class SourceFeatures:
    """What one source yields.

    Attributes:
        bindings: scaled number by lower-case name (see :func:`number_scale`).
        structure: log(1 + count) per entry of :data:`STRUCTURE_NAMES`; roles in log2.
        shingles: log(1 + count) per hash bucket of token n-grams.
        multiplies_matrices: whether it has a matrix product or a convolution, its own or a library's.
        profile: what the compiler made of it (:data:`~.profile_features.PROFILE_NAMES`); ``None`` where nobody asked.
    """

    bindings: Mapping[str, float]
    structure: NDArray[np.float64]
    shingles: NDArray[np.float32]
    multiplies_matrices: bool = False
    profile: NDArray[np.float64] | None = None


def number_scale(value: float) -> float:
    """log2 of the size of a number, plus one; linear below one, odd: 0 -> 0, 1 -> 1, 2 -> 2, 256 -> 9."""
    size = abs(value)
    scaled = 1.0 + math.log2(min(size, 2.0**40)) if size >= 1.0 else size
    return math.copysign(scaled, value)


def _evaluate(expression: str) -> float:
    """Value of a literal or of literals joined by ``*``, ``**`` and ``<<``, from left to right."""
    result = 0.0
    for operator, text in _FACTOR.findall(expression):
        digits = text.replace("_", "")
        number = float(int(digits, 16)) if "x" in digits.lower() else float(digits)
        if operator == "*":
            result *= number
        elif operator:
            # Exponents that make sense for a size; anything else is text that only looks like one.
            power = min(max(number, 0.0), 40.0)
            result = result * 2.0**power if operator == "<<" else abs(result) ** power
        else:
            result = number
        if not math.isfinite(result) or abs(result) > 2.0**60:
            return math.copysign(2.0**60, result if result == result else 1.0)
    return result


def _bindings(code: str) -> dict[str, float]:
    """Mean scaled value by name; a name that is bound several times has its mean."""
    found: dict[str, list[float]] = {}
    for pattern in (_DEFINE, _ASSIGN):
        for name, expression in pattern.findall(code):
            found.setdefault(name.lower(), []).append(number_scale(_evaluate(expression)))
    for name, numbers in _ARGUMENTS.findall(code):
        label = "dim3" if name.startswith("dim3") else name.lower()
        for place, number in enumerate(numbers.split(",")):
            found.setdefault(f"{label}({place})", []).append(number_scale(_evaluate(number)))
    for dimensions in _SHARED.findall(code):
        for place, number in enumerate(re.findall(r"\d+", dimensions)):
            found.setdefault(f"__shared__[{place}]", []).append(number_scale(float(number[:12])))
    return {name: sum(values) / len(values) for name, values in found.items()}


def _loops(code: str) -> tuple[int, int, int]:
    """Deepest loop nesting, memory accesses inside loops and launches inside loops, by indentation."""
    stack: list[int] = []
    deepest = accesses = launches = 0
    for line in code.split("\n"):
        body = line.lstrip(" \t")
        if not body:
            continue
        indent = len(line) - len(body)
        while stack and indent <= stack[-1]:
            stack.pop()
        if stack:
            accesses += len(_MEMORY.findall(body))
            launches += len(_PYTHON_LAUNCH.findall(body)) + body.count("<<<")
        if _LOOP_LINE.match(line):
            stack.append(indent)
            deepest = max(deepest, len(stack))
    return deepest, accesses, launches


def _structure(code: str, tokens: list[str], bindings: Mapping[str, float]) -> NDArray[np.float64]:
    counts: Counter[str] = Counter()
    by_token = Counter(tokens)
    for token, count in by_token.items():
        group = _TOKEN_GROUP.get(token)
        if group is None:
            group = next((g for prefix, g in _PREFIXES.items() if token.startswith(prefix)), None)
        if group is not None:
            counts[group] += count
    depth, in_loop, launched = _loops(code)
    counts.update(
        size=len(tokens),
        distinct=len(by_token),
        python_launch=len(_PYTHON_LAUNCH.findall(code)),
        loop_depth=depth,
        load_in_loop=in_loop,
        kernels_launched_in_loop=launched,
    )
    values = [math.log1p(counts[name]) for name in STRUCTURE_NAMES[: -len(_ROLES)]]
    for pattern in _ROLES.values():
        numbers = [value for name, value in bindings.items() if pattern.match(name) and value > 0]
        # The product of block sizes is what fills registers and shared memory: logarithms add up.
        values.append(min(sum(max(value - 1.0, 0.0) for value in numbers), 30.0) / 2.0)
    return np.array(values)


def multiplies_matrices(source: str) -> bool:
    """:attr:`SourceFeatures.multiplies_matrices` of a text, without all else."""
    return bool(_MATRIX_PRODUCT.search(clean_source(source)))


@lru_cache(maxsize=1024)
def extract_features(source: str) -> SourceFeatures:
    """Features of any text at all, kept; never raises for what it contains."""
    code = clean_source(source)
    tokens = tokenise(code)
    bindings = _bindings(code)
    structure, shingles = _structure(code, tokens, bindings), shingle_counts(tokens)
    return SourceFeatures(bindings, structure, shingles, bool(_MATRIX_PRODUCT.search(code)))
