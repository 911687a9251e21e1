"""Contract suites: what every forecaster, ranking rule, policy, observer, ledger and host has to keep.

A plugin's own tests inherit them, and override the fixture that makes what is tested::

    from gpu_forecasters_plugin.testing import ForecasterContract

    class TestAcme(ForecasterContract):
        @pytest.fixture
        def make(self):
            return lambda: AcmeForecaster(slope=2.0)

They need pytest, and nothing that the package itself does not.
"""

from importlib.util import find_spec

from gpu_forecasters_plugin.errors import MissingExtraError

if find_spec("pytest") is None:
    raise MissingExtraError("pytest", "dev")

import pytest

# Before they are imported: a failed assertion is to say what it saw.
pytest.register_assert_rewrite(f"{__name__}.forecasters", f"{__name__}.hosts", f"{__name__}.ledgers")
pytest.register_assert_rewrite(f"{__name__}.observers", f"{__name__}.policies")

from gpu_forecasters_plugin.testing.forecasters import ForecasterContract  # noqa: E402
from gpu_forecasters_plugin.testing.hosts import HostContract, HostHarness  # noqa: E402
from gpu_forecasters_plugin.testing.ledgers import LedgerContract  # noqa: E402
from gpu_forecasters_plugin.testing.observers import ObserverContract  # noqa: E402
from gpu_forecasters_plugin.testing.policies import PolicyContract, RankingRuleContract  # noqa: E402

__all__ = [
    "ForecasterContract",
    "HostContract",
    "HostHarness",
    "LedgerContract",
    "ObserverContract",
    "PolicyContract",
    "RankingRuleContract",
]
