"""The MLflow observer against MLflow's own server, on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from helpers import by_number, candidate, failed, measure_all, measured, open_gate, surrogate, wait_until

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import ConfigError, MissingExtraError
from gpu_forecasters_plugin.ledger import Ledger, RunIdentity
from gpu_forecasters_plugin.observers import Observer
from gpu_forecasters_plugin.observers.mlflow_tracking import RUN_KEY_TAG, MlflowObserver, MlflowOptions
from gpu_forecasters_plugin.testing import ObserverContract

HAS_MLFLOW = find_spec("mlflow") is not None
pytestmark = [
    pytest.mark.mlflow,
    pytest.mark.skipif(not HAS_MLFLOW, reason="MLflow is not installed: make test-mlflow"),
    # What MLflow's own dependencies deprecate is not ours to mend.
    pytest.mark.filterwarnings("default"),
]


def is_up(address: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{address}/health", timeout=2).status == 200)
    except OSError:
        return False


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a tracking server with a database of its own."""
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        wait_until(lambda: is_up(address), timeout=120.0)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


def observers(address: str, experiment: str) -> Any:
    return [{"kind": "mlflow", "tracking_uri": address, "experiment": experiment}]


def runs_of(address: str, experiment: str) -> list[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=address)
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else list(client.search_runs([found.experiment_id]))


def history(address: str, run_id: str, name: str) -> list[tuple[int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=address)
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


class TestContract(ObserverContract):
    @pytest.fixture
    def observer(self, server: str) -> Observer:
        return MlflowObserver(MlflowOptions(tracking_uri=server, experiment="contract"))


def test_a_run_is_logged_measurement_by_measurement_and_found_again(server: str, ledger: Ledger) -> None:
    config = surrogate(observers=observers(server, "search"), budget={"measurements": 4}, seed=7)
    identity = RunIdentity("softmax", candidate(0).key, device="H100", forecaster="scripted", seed=7)
    with open_gate(ledger, by_number, config=config, identity=identity) as gate:
        measure_all(gate, gate.ask([candidate(0)]))
        first, second = [d for d in gate.ask([candidate(n) for n in range(1, 9)]) if d.measure]
        gate.tell(first.id, measured(2.0, gpu_seconds=3.0))
        gate.tell(second.id, failed(Outcome.INCORRECT))
    (run,) = runs_of(server, "search")
    assert run.info.status == "FINISHED" and run.data.tags[RUN_KEY_TAG]
    assert run.data.params["run.task"] == "softmax" and run.data.params["run.device"] == "H100"
    assert run.data.params["surrogate.budget.measurements"] == "4"
    assert history(server, run.info.run_id, "best_speedup") == [(1, 1.0), (2, 2.0), (3, 2.0)]
    assert history(server, run.info.run_id, "speedup") == [(1, 1.0), (2, 2.0)]
    assert history(server, run.info.run_id, "failed") == [(1, 0.0), (2, 0.0), (3, 1.0)]
    assert history(server, run.info.run_id, "gpu_seconds")[-1] == (3, 5.0)
    assert history(server, run.info.run_id, "pool.size") == [(0, 1.0), (1, 8.0)]
    assert history(server, run.info.run_id, "pool.measured") == [(0, 1.0), (1, 2.0)]
    assert [step for step, _ in history(server, run.info.run_id, "abs_log2_error")] == [2]

    with open_gate(ledger, by_number, config=config, identity=identity) as gate:
        assert gate.resumed
        measure_all(gate, gate.ask([candidate(20)]), speedup=3.0)
    (again,) = runs_of(server, "search")
    assert again.info.run_id == run.info.run_id and again.info.status == "FINISHED"
    assert history(server, run.info.run_id, "best_speedup")[-1] == (4, 3.0)


def test_a_server_that_is_away_costs_the_run_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and never listens
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        config = surrogate(observers=observers(address, "away"))
        with open_gate(ledger, by_number, config=config) as gate:
            assert measure_all(gate, gate.ask([candidate(0)]))
    loud = [
        record.getMessage() for record in caplog.records if "the run goes on without it" in record.message
    ]
    assert len(loud) == 1 and "surrogate.observers.0 (mlflow)" in loud[0]


def test_the_configuration_holds_no_password() -> None:
    with pytest.raises(ConfigError, match=r"observers.0.tracking_uri: must hold no user or password"):
        surrogate(observers=observers("http://me:hunter2@localhost:5000", "x"))


def test_without_mlflow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gpu-forecasters-plugin\[mlflow\]'"):
        MlflowObserver(MlflowOptions())
