"""The toy plugin as a distribution of its own: built, installed and used; and plugins that are broken."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Command, by_number, candidate, measure_all, open_gate, surrogate

import gpu_forecasters_plugin
from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.decision import Reason
from gpu_forecasters_plugin.errors import ConfigError, PluginError
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.hookspecs import HOOKS, ForecasterFactory
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.plugins import discover, registry
from gpu_forecasters_plugin.recorded.pool import open_pool

TOY = Path(__file__).parents[1] / "toy_plugin"
ROOT = Path(gpu_forecasters_plugin.__file__).parents[1]


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    subprocess.run(command, check=True, env=os.environ | {"PIP_NO_INDEX": "1"})


@pytest.fixture(scope="session")
def toy_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the toy plugin's wheel was installed into."""
    folder = tmp_path_factory.mktemp("toy")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, TOY)
    (wheel,) = folder.glob("gpu_forecasters_toy-1.2.0-*.whl")
    pip("install", "--no-deps", "--target", folder / "site", wheel)
    return folder / "site"


@pytest.fixture
def with_toy(toy_site: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command with the toy plugin installed."""
    path = os.pathsep.join(map(str, (toy_site, ROOT, ROOT / "adapters")))

    def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpu_forecasters_plugin", *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": path} | environment
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180
        )

    return run


def write_config(folder: Path, **section: Any) -> Path:
    path = folder / "surrogate.yaml"
    path.write_text(yaml.safe_dump({"surrogate": section}))
    return path


# -- the toy plugin ---------------------------------------------------------------------------------------------------


def test_the_command_lists_what_an_installed_plugin_adds(with_toy: Any, tmp_path: Path) -> None:
    done = with_toy("plugins", "--out", "listed")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "listed" / "summary.json").read_text())
    added = {(row["kind"], row["name"]) for row in summary["registered"] if row["plugin"] == "toy"}
    assert added == {
        ("forecaster", "toy-warps"),
        ("ranking rule", "toy-pessimist"),
        ("policy", "toy-first-few"),
        ("host", "toy-walk"),
        ("recorded task", "toy-sum"),
        ("observer", "toy-counter"),
    }
    assert {row["version"] for row in summary["registered"] if row["plugin"] == "toy"} == {"1.2.0"}
    assert summary["problems"] == [] and "gpu-forecasters-toy 1.2.0" in done.stdout


def test_a_plugins_forecaster_answers_with_the_options_given(with_toy: Any, tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text("launch(num_warps=1)\n")
    (tmp_path / "kernel.py").write_text("launch(num_warps=16)\n")
    config = write_config(
        tmp_path, forecaster={"kind": "toy-warps", "hedge": False, "options": {"mass": 0.9}}
    )
    files = ("--reference", "reference.py", "--candidate", "kernel.py")
    done = with_toy("forecast", *files, "--config", config, "--json")
    assert done.returncode == 0, done.stderr
    look = json.loads(done.stdout)
    assert look["predicted_bin"] == 8 and look["probabilities"][7] == pytest.approx(0.9)
    assert look["model"] == "gpu-forecasters-toy 1.2.0" and look["prompt_hash"]


@pytest.mark.parametrize("host", ["inprocess", "toy-walk"])
def test_a_comparison_with_everything_from_the_plugin(with_toy: Any, tmp_path: Path, host: str) -> None:
    config = write_config(
        tmp_path,
        forecaster={"kind": "toy-warps"},
        ranking="toy-pessimist",
        policy={"kind": "toy-first-few", "options": {"most": 3}},
        observers=[{"kind": "toy-counter", "path": "counts.jsonl"}],
    )
    arguments = ("--budget", "9", "--seeds", "2", "--arms", "baseline,surrogate", "--out", "out")
    done = with_toy("compare", "--task", "toy-sum", "--host", host, "--surrogate", config, *arguments)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["task"], summary["host"]) == ("toy", host)
    assert summary["arms"]["surrogate"]["measurements_used"] == [9, 9]
    counts = [json.loads(line) for line in (tmp_path / "counts.jsonl").read_text().splitlines()]
    assert [count["MeasurementEnded"] for count in counts] == [9, 9]
    assert all(count["RunStarted"] == count["RunEnded"] == 1 for count in counts)
    assert all(count["DecisionTaken"] > count["ForecastMade"] > 9 for count in counts)


def test_wrong_options_of_a_plugin_are_refused_by_name(with_toy: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, forecaster={"kind": "toy-warps", "options": {"mas": 0.9}})
    done = with_toy("compare", "--task", "toy-sum", "--surrogate", config, "--out", "out")
    assert done.returncode == 2
    assert done.stderr == "error: surrogate.forecaster.options.mas: unknown key; did you mean 'mass'?\n"


def test_a_disabled_plugin_is_as_good_as_not_installed(with_toy: Any) -> None:
    disabled = {"GPU_FORECASTERS_DISABLE_PLUGINS": "toy"}
    done = with_toy("plugins", **disabled)
    assert done.returncode == 0 and "toy-warps" not in done.stdout and "disabled by" in done.stdout
    done = with_toy("compare", "--task", "toy-sum", "--out", "out", **disabled)
    assert done.returncode == 1 and "no recorded task 'toy-sum'" in done.stderr


# -- plugins that are broken ------------------------------------------------------------------------------------------

HEAD = """
from gpu_forecasters_plugin.hookspecs import *
SPEC_VERSION = 1
"""
FORECASTER = """
@hookimpl
def gpu_forecasters_forecasters():
    return [ForecasterFactory({name!r}, lambda setup: None)]
"""


def returning(factory: str) -> str:
    """A plugin whose hook returns a factory that is made so."""
    return HEAD + f"@hookimpl\ndef gpu_forecasters_hosts():\n    return [{factory}]\n"


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs plugins that consist of one module into a folder on the path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    before = set(sys.modules)

    def add(name: str, code: str, version: str = "1.0", entry: str | None = None) -> None:
        module = f"installed_{name}"
        (site / f"{module}.py").write_text(code)
        information = site / f"{name}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (information / "entry_points.txt").write_text(f"[gpu_forecasters]\n{entry or name} = {module}\n")
        importlib.invalidate_caches()
        registry.cache_clear()

    yield add
    registry.cache_clear()
    for module in set(sys.modules) - before:
        if module.startswith("installed_"):
            del sys.modules[module]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import no_such_package",
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("raise BaseException('panic')", "cannot be imported: BaseException: panic"),
        (returning("HostFactory('x', 5)"), "build of 'x' cannot be called: 5"),
        (returning("HostFactory('x', list, summary=5)"), "a summary is a line of text: 5"),
        (
            returning("ObserverFactory('x', list, options=dict)"),
            "options is a pydantic model or None: <class 'dict'>",
        ),
        (
            returning("ObserverFactory('x', list, paths=('file',))"),
            "paths names settings of options (none): ('file',)",
        ),
        ("", "does not say which specification it is written for: it needs SPEC_VERSION = 1"),
        ("SPEC_VERSION = 7", "is written for version 7 of the plugin specification"),
        (HEAD, "implements no hook; there are: gpu_forecasters_forecasters, "),
        (
            HEAD + "@hookimpl\ndef gpu_forecasters_forecaster(): pass",
            "'gpu_forecasters_forecaster', which is no hook",
        ),
        (
            HEAD + "@hookimpl\ndef gpu_forecasters_hosts(wrong): pass",
            "does not fit the specification: Plugin",
        ),
        (HEAD + FORECASTER.format(name="learned"), "registers the forecaster 'learned', a name that gpu-"),
        (
            HEAD + FORECASTER.format(name="Bad name"),
            "raises in gpu_forecasters_forecasters: ValueError: a name is",
        ),
        (
            HEAD + "@hookimpl\ndef gpu_forecasters_hosts(): return 1 / 0",
            "raises in gpu_forecasters_hosts: ZeroDiv",
        ),
        (
            HEAD + "@hookimpl\ndef gpu_forecasters_hosts(): return ['x']",
            "returns str from gpu_forecasters_hosts, not",
        ),
    ],
)
def test_a_broken_plugin_stops_with_its_name_and_the_reason(
    install: Install, gpu_forecasters: Command, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    install("acme", code)
    with pytest.raises(PluginError) as raised:
        parse_surrogate_config({"ranking": "random"})
    assert str(raised.value).startswith("plugin 'acme' (acme 1.0) ") and reason in str(raised.value)
    listed = gpu_forecasters("plugins")
    assert listed.code == 1 and "learned" in listed.out
    assert listed.err.startswith("error: plugin 'acme' (acme 1.0) ") and listed.err.count("\n") == 2
    monkeypatch.setenv("GPU_FORECASTERS_DISABLE_PLUGINS", "acme")
    assert parse_surrogate_config({"ranking": "random"}).ranking == "random"
    assert gpu_forecasters("plugins").code == 0


CHATTY = """
print("imported")
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.forecasters import Forecaster
class Chatty(Forecaster):
    name = "chatty"
    def forecast(self, queries):
        print("forecasting")
        return [Forecast.from_weights([1] * 8, source="chatty") for _ in queries]
@hookimpl
def gpu_forecasters_forecasters():
    print("asked")
    return [ForecasterFactory("chatty", lambda setup: Chatty())]
"""


def test_what_a_plugin_prints_is_no_part_of_an_answer(
    install: Install, gpu_forecasters: Command, tmp_path: Path
) -> None:
    install("acme", HEAD + CHATTY)
    (tmp_path / "kernel.py").write_text("launch()\n")
    config = write_config(tmp_path, forecaster={"kind": "chatty", "hedge": False})
    files = ("--reference", tmp_path / "kernel.py", "--candidate", tmp_path / "kernel.py")
    said = gpu_forecasters("forecast", *files, "--config", config, "--json")
    assert said.code == 0 and json.loads(said.out)["forecaster"] == "chatty"
    assert {"imported", "asked", "forecasting"} <= set(said.err.split())


def test_two_plugins_that_clash_are_both_named(install: Install) -> None:
    install("acme", HEAD + FORECASTER.format(name="fast"))
    install("zeta", HEAD + FORECASTER.format(name="fast"), version="2.1")
    (problem,) = discover().problems
    assert str(problem) == (
        "plugin 'zeta' (zeta 2.1) registers the forecaster 'fast', a name that plugin 'acme' (acme 1.0) has already"
    )


def test_two_plugins_of_one_name_are_told_apart(install: Install) -> None:
    install("acme", HEAD + FORECASTER.format(name="fast"))
    install("zeta", HEAD + FORECASTER.format(name="slow"), entry="acme")
    (problem,) = discover().problems
    assert str(problem) == "plugin 'acme' (zeta 1.0) has the name of another plugin, 'acme'"


def test_several_broken_plugins_are_counted(install: Install) -> None:
    install("acme", "SPEC_VERSION = 0")
    install("zeta", "SPEC_VERSION = 0")
    with pytest.raises(PluginError, match=r"'acme'.*\(and 1 more problems: gpu-forecasters plugins\)"):
        registry()


RAISES_EVERYWHERE = (
    HEAD
    + """
from gpu_forecasters_plugin.forecasters import Forecaster
from gpu_forecasters_plugin.observers import Observer
from gpu_forecasters_plugin.policies import RankingRule, SelectionPolicy

def fail(*given, **more):
    raise RuntimeError("broken on purpose")

class BrokenForecaster(Forecaster):
    forecast = observe = close = fail

class BrokenRule(RankingRule):
    score = fail

class BrokenPolicy(SelectionPolicy):
    select = fail

class BrokenObserver(Observer):
    notify = close = fail

@hookimpl
def gpu_forecasters_forecasters():
    return [ForecasterFactory("broken", lambda setup: BrokenForecaster()), ForecasterFactory("unbuildable", fail)]

@hookimpl
def gpu_forecasters_ranking_rules():
    return [RankingRuleFactory("broken", lambda config: BrokenRule()), RankingRuleFactory("unbuildable", fail)]

@hookimpl
def gpu_forecasters_policies():
    return [PolicyFactory("broken", lambda setup: BrokenPolicy()), PolicyFactory("unbuildable", fail)]

@hookimpl
def gpu_forecasters_observers():
    return [ObserverFactory("broken", lambda setup: BrokenObserver()), ObserverFactory("unbuildable", fail)]

@hookimpl
def gpu_forecasters_hosts():
    return [HostFactory("broken", lambda: type("Broken", (), {"run": fail})), HostFactory("unbuildable", fail)]

@hookimpl
def gpu_forecasters_recorded_tasks():
    return [RecordedTaskFactory("broken", fail)]
"""
)


def search(gate: Gate) -> Counter[Reason]:
    """Measure the reference and two pools of eight; the reasons of what was measured."""
    measure_all(gate, gate.ask([candidate(0)]))
    found: Counter[Reason] = Counter()
    for first in (1, 9):
        found.update(d.reason for d in measure_all(gate, gate.ask([candidate(first + i) for i in range(8)])))
    return found


@pytest.mark.parametrize("raised", ["RuntimeError", "BaseException"])
@pytest.mark.parametrize(
    ("section", "reasons"),
    [
        ({"forecaster": {"kind": "broken"}}, {Reason.FALLBACK: 4}),
        ({"ranking": "broken"}, {Reason.FALLBACK: 4}),
        (
            {"policy": {"kind": "broken"}, "audit_fraction": 0.0, "guard": {"enabled": False}},
            {Reason.TOP_FRACTION: 4},
        ),
        ({"observers": [{"kind": "broken"}], "audit_fraction": 1.0}, {Reason.AUDIT: 4}),
    ],
    ids=["forecaster", "ranking", "policy", "observer"],
)
def test_a_run_goes_on_when_a_plugin_raises_at_every_call(
    install: Install,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
    raised: str,
    section: dict[str, Any],
    reasons: dict[Reason, int],
) -> None:
    install("acme", RAISES_EVERYWHERE.replace("RuntimeError", raised))
    config = surrogate(**section, deferral={"threshold": None})
    forecaster = build_forecaster(config.forecaster) if "forecaster" in section else by_number
    with open_gate(ledger, forecaster, config=config) as gate:
        found = search(gate)
    assert found == reasons
    loud = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert sum(f"raised {raised}: broken on purpose" in message for message in loud) == 1


def test_what_a_plugin_cannot_make_stops_before_anything_is_measured(
    install: Install, ledger: Ledger
) -> None:
    install("acme", RAISES_EVERYWHERE)
    broken: dict[str, Any] = {
        "ranking rule": {"ranking": "unbuildable"},
        "policy": {"policy": {"kind": "unbuildable"}},
        "observer": {"observers": [{"kind": "unbuildable"}]},
    }
    for kind, section in broken.items():
        reason = (
            rf"^{kind} 'unbuildable' of plugin 'acme' \(acme 1.0\) cannot be made: RuntimeError: broken on"
        )
        with pytest.raises(PluginError, match=reason):
            open_gate(ledger, config=surrogate(**section))
    with pytest.raises(PluginError, match="forecaster 'unbuildable' of plugin 'acme'"):
        build_forecaster(surrogate(forecaster={"kind": "unbuildable"}).forecaster)
    with pytest.raises(
        PluginError, match=r"recorded task 'broken' of plugin 'acme' \(acme 1.0\) cannot be loaded"
    ):
        open_pool("broken")
    assert ledger.runs() == []


def test_a_forecaster_that_ends_the_process_when_it_is_made_is_named(install: Install) -> None:
    install(
        "acme",
        HEAD
        + "@hookimpl\ndef gpu_forecasters_forecasters(): return [ForecasterFactory('leaves', lambda setup: exit(0))]",
    )
    with pytest.raises(PluginError, match="'leaves' of plugin 'acme'.* cannot be made: SystemExit: 0"):
        build_forecaster(surrogate(forecaster={"kind": "leaves"}).forecaster)


@pytest.mark.parametrize(
    ("host", "complaint"), [("broken", "cannot search"), ("unbuildable", "cannot be made")]
)
def test_a_host_that_raises_ends_its_comparison_in_one_line(
    install: Install, gpu_forecasters: Command, tmp_path: Path, host: str, complaint: str
) -> None:
    install("acme", RAISES_EVERYWHERE)
    arguments = (
        "--task",
        "rmsnorm",
        "--host",
        host,
        "--budget",
        "4",
        "--seeds",
        "1",
        "--out",
        tmp_path / "out",
    )
    said = gpu_forecasters("compare", *arguments)
    expected = (
        f"error: host '{host}' of plugin 'acme' (acme 1.0) {complaint}: RuntimeError: broken on purpose"
    )
    assert said.code == 1 and said.err.strip().splitlines()[-1] == expected


def test_a_run_is_known_by_the_version_of_its_forecasters_plugin(install: Install, ledger: Ledger) -> None:
    install("acme", RAISES_EVERYWHERE, version="2.0")
    forecaster = build_forecaster(surrogate(forecaster={"kind": "broken", "hedge": False}).forecaster)
    assert open_gate(ledger, forecaster).identity.model == "acme 2.0"


def test_what_takes_no_settings_of_its_own_says_so() -> None:
    with pytest.raises(ConfigError, match=r"^surrogate.policy.options.most: policy 'top_fraction' of gpu-f"):
        surrogate(policy={"options": {"most": 1}})
    with pytest.raises(ConfigError, match=r"^surrogate.observers.0.url: unknown key; known keys: path"):
        surrogate(observers=[{"kind": "jsonl", "path": "x", "url": "y"}])


@pytest.mark.parametrize("where", ["forecaster", "observers"])
def test_settings_of_plugins_hold_no_secrets(where: str) -> None:
    secret = {"kind": "jsonl", "api_key": "hunter2"}
    section = {"observers": [secret]} if where == "observers" else {"forecaster": {"options": secret}}
    with pytest.raises(
        ConfigError, match="'api_key' is called like one: leave it to the environment"
    ) as raised:
        surrogate(**section)
    assert "hunter2" not in str(raised.value)


def test_every_hook_has_a_specification_and_a_shipped_implementation() -> None:
    shipped = {type(entry.factory) for entry in registry().entries() if entry.origin.shipped}
    assert shipped == set(HOOKS.values())
    assert registry().names(ForecasterFactory)[0] == "learned"
