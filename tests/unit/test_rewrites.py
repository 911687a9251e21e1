"""Rewrites of PyTorch modules: what ships is what was measured, and what is learned from it."""

from __future__ import annotations

import ast
import math

import numpy as np
import pytest
from helpers import times

from benchmarks.generators.rewrites.module import Body, Rewritten
from benchmarks.generators.rewrites.rows import all_sources, filed_rows, measured_rewrites
from benchmarks.generators.rewrites.sources import REFERENCE, module_named, module_names, sources_of
from benchmarks.recorded_kernels import REWRITES, rewrite_table
from gpu_forecasters_plugin.config import ForecasterConfig
from gpu_forecasters_plugin.forecast import Forecast, Query
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.forecasters.learned import (
    LearnedForecaster,
    rewrites,
    shipped_file,
    warm_start_tasks,
)
from gpu_forecasters_plugin.forecasters.learned.features import (
    STRUCTURE_NAMES,
    SourceFeatures,
    extract_features,
)
from gpu_forecasters_plugin.forecasters.learned.rewrites import (
    Changes,
    RewriteModel,
    RewriteTable,
    pack_rewrites,
    shipped_rewrites,
    unpack_rewrites,
)
from gpu_forecasters_plugin.forecasters.learned.warm_start import WarmStart


@pytest.fixture(scope="module")
def shipped() -> RewriteTable:
    return unpack_rewrites(REWRITES.read_bytes())


def only(table: RewriteTable, kept: np.ndarray) -> RewriteTable:
    modules = tuple(name for name, keep in zip(table.modules, kept, strict=True) if keep)
    changes = Changes(table.changes.structure[kept], table.changes.shingles[kept])
    return RewriteTable(modules, changes, table.log2_speedups[kept])


# -- sources ----------------------------------------------------------------------------------------------------


def test_every_source_was_measured_as_it_is_written() -> None:
    rows = {(row["module"], row["name"]): row for row in filed_rows() if "module" in row}
    sources = all_sources()
    assert set(rows) == set(sources)
    assert all(rows[key]["sha"] == source.sha for key, source in sources.items())
    assert all(rows[name, REFERENCE]["outcome"] == "ok" for name in module_names())


def test_sources_are_python_and_differ() -> None:
    for name in module_names():
        codes = [source.code for source in sources_of(name)]
        assert len(codes) == len(set(codes)) >= 10
        for code in codes:
            ast.parse(code)


def test_a_source_says_all_that_its_body_has() -> None:
    module = Rewritten(
        name="doubled",
        sizes="\n    rows = 4\n",
        arguments=("rows",),
        takes="x",
        inputs="[torch.randn(rows)]",
        reference=Body(summary="Twice.", init="self.rows = rows", forward="return x + x"),
    )
    code = module.source(
        Body(
            before="import math",
            forward="    y = self.twice(x)\n    return y",
            methods="def twice(self, x):\n    return 2 * x",
        )
    )
    space: dict[str, object] = {}
    pytest.importorskip("torch")
    exec(code, space)
    built = space["ModelNew"](*space["get_init_inputs"]())  # type: ignore[operator]
    inputs = space["get_inputs"]()  # type: ignore[operator]
    assert built.rows == 4 and built.__doc__ == "Twice." and space["math"] is math
    assert (built(*inputs) == 2 * inputs[0]).all()


@pytest.mark.parametrize("name", ["low_rank_adapter", "tiny_conv_softplus_min_pool", "mlp_dropout_head"])
def test_rewrites_compute_what_their_module_does(name: str) -> None:
    pytest.importorskip("torch")
    from benchmarks.generators.rewrites.check import check

    module = module_named(name)
    assert check(module) == []
    broken = Body(forward=f"return torch.zeros_like({module.inputs_taken[0]})")
    wrong = Rewritten(**{**vars(module), "rewrites": {"broken": broken}})
    assert len(check(wrong)) == 1


# -- what is learned --------------------------------------------------------------------------------------------


def test_the_shipped_table_is_what_was_measured(shipped: RewriteTable) -> None:
    """Otherwise it is older than rewrites or features: python -m benchmarks.recorded_kernels."""
    now = rewrite_table()
    assert shipped.modules == now.modules
    assert np.allclose(shipped.log2_speedups, now.log2_speedups)
    assert np.allclose(shipped.changes.structure, now.changes.structure)
    assert np.abs(shipped.changes.shingles - now.changes.shingles).max() <= 1.0 / 32.0


def test_a_table_of_other_features_is_refused(shipped: RewriteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack_rewrites(shipped)
    assert unpack_rewrites(data).modules == shipped.modules
    monkeypatch.setitem(shipped_file._FEATURES, "structure", ["something", "else"])
    with pytest.raises(ValueError, match="write it anew"):
        unpack_rewrites(data)


def test_without_its_file_nothing_is_known_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rewrites, "_FILE", "nowhere.npz")
    shipped_rewrites.cache_clear()
    try:
        assert shipped_rewrites() is None
        assert "install the package anew" in caplog.text
    finally:
        shipped_rewrites.cache_clear()


@pytest.mark.slow
def test_rewrites_of_a_module_that_was_left_out_are_ordered_better_than_by_chance(
    shipped: RewriteTable,
) -> None:
    names, measured, found = np.array(shipped.modules), list(measured_rewrites()), []
    for name in module_names()[:: times(20, 1)]:
        model = RewriteModel(only(shipped, names != name))
        own = [rewrite for rewrite in measured if rewrite.source.module == name]
        reference = extract_features(own[0].reference.code)
        expected = model.expect(reference, [extract_features(rewrite.source.code) for rewrite in own])
        truth = np.array([rewrite.log2_speedup for rewrite in own])
        signs = np.sign(np.subtract.outer(expected, expected)) * np.sign(np.subtract.outer(truth, truth))
        found.append(signs.sum() / np.abs(signs).sum())
        assert model.expect(reference, [reference])[0] == 0.0
    assert np.mean(found) > 0.25
    assert np.mean(np.array(found) > 0.0) > 0.8


def test_the_slope_is_what_leaving_each_module_out_gives(shipped: RewriteTable) -> None:
    few = only(shipped, np.isin(np.array(shipped.modules), sorted(set(shipped.modules))[:6]))
    names, whole = np.array(few.modules), RewriteModel(few)._learned
    truth = np.clip(few.log2_speedups, -4.0, 4.0) - np.clip(few.log2_speedups, -4.0, 4.0).mean()
    similar = whole._similarity(whole._known)
    expected = np.empty(len(names))
    for name in set(few.modules):
        out, rest = names == name, names != name
        weights = np.linalg.solve(
            similar[np.ix_(rest, rest)] + rewrites._NOISE * np.eye(int(rest.sum())), truth[rest]
        )
        expected[out] = similar[np.ix_(out, rest)] @ weights
    slope = float(expected @ truth) / float(expected @ expected)
    assert 0.1 < slope < 1.0
    assert whole.slope == pytest.approx(slope, abs=1e-6)


def test_far_from_all_rewrites_their_mean_is_expected(shipped: RewriteTable) -> None:
    model = RewriteModel(shipped)
    reference = extract_features("import torch\n\n\ndef run(x):\n    return torch.softmax(x, -1)\n")
    odd = SourceFeatures(
        {}, reference.structure + 6.0 * (-1.0) ** np.arange(len(STRUCTURE_NAMES)), reference.shingles + 2.0
    )
    mean = float(np.clip(shipped.log2_speedups, -4.0, 4.0).mean())
    assert model.expect(reference, [odd])[0] == pytest.approx(mean, abs=0.05)


# -- forecasts --------------------------------------------------------------------------------------------------


def query(code: str, reference: str) -> Query:
    return Query(code[-20:], code, reference, reference)


def test_a_forecast_over_a_pytorch_reference_rests_on_rewrites_and_one_over_a_kernel_does_not() -> None:
    sources = {source.name: source.code for source in sources_of("linear_gelu_scale")}
    module, kernel = sources[REFERENCE], sources["triton_tail"]
    tasks, model = warm_start_tasks("anything"), shipped_rewrites()
    assert model is not None
    without, with_them = (
        LearnedForecaster(warm_start=tasks),
        LearnedForecaster(warm_start=tasks, rewrites=model),
    )

    def expected(forecaster: LearnedForecaster, code: str, reference: str) -> float:
        (found,) = forecaster.forecast([query(code, reference)])
        assert isinstance(found, Forecast)
        return found.expected_log2()

    for name in ("row_by_row", "half_graph", "cuda_tail"):
        assert expected(without, sources[name], module) != expected(with_them, sources[name], module)
        assert expected(without, sources[name], kernel) == expected(with_them, sources[name], kernel)
    assert expected(with_them, sources["half_graph"], module) > expected(with_them, sources["copied"], module)


def test_lists_of_parameters_are_no_rewrites() -> None:
    parameters = [extract_features(f"#define TILE {size}\n#define UNROLL 2\n") for size in (8, 16)]
    start = WarmStart(warm_start_tasks("anything"), shipped_rewrites())
    assert (start.expect(parameters[0], parameters) == 0.0).all()


def test_the_default_forecaster_knows_rewrites_unless_it_starts_from_nothing() -> None:
    sources = {source.name: source.code for source in sources_of("linear_gelu_scale")}
    asked = [query(sources["half_graph"], sources[REFERENCE])]
    warm, cold = (
        build_forecaster(ForecasterConfig(kind="learned", warm_start=on)).forecast(asked)[0]
        for on in (True, False)
    )
    assert isinstance(warm, Forecast) and isinstance(cold, Forecast)
    assert warm.expected_log2() > cold.expected_log2() + 0.2
