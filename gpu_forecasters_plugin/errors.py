"""Every error that this package raises on purpose.

::

    GpuForecastersError
    ├── ConfigError            settings are wrong; names each key and the nearest right one
    ├── HostError              the host framework lacks what the adapter needs
    ├── MissingExtraError      an optional dependency is not installed; names the extra
    ├── PluginError            an installed plugin is broken; names it, its distribution and the reason
    ├── ProposalError          the recorded proposer was asked about a program that it does not know
    ├── PoolFileError          a recorded task or pool file cannot be read; names the line
    ├── RowFileError           a file of exported rows cannot be read or written; names the line
    ├── OutputError            results cannot be written where they are wanted
    ├── FolderInUseError       another run works in the output folder
    ├── ForecasterError        a forecaster cannot be built or broke its contract
    ├── TrainingError          a model cannot be trained any further, or on these rows; names the knob to turn
    ├── LedgerError            the ledger cannot be opened, written or trusted
    │   ├── LedgerMissingError     there is none, or no run in it: maybe not yet
    │   ├── LedgerIdentityError    it belongs to another task, device, evaluator or bin scheme
    │   └── LedgerWriteError       it could not be written (disk full, read-only)
    └── GateError              ask/tell used out of order
        └── UnknownDecisionError   a decision id that this ledger does not hold
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "FolderInUseError",
    "ForecasterError",
    "GateError",
    "GpuForecastersError",
    "HostError",
    "LedgerError",
    "LedgerIdentityError",
    "LedgerMissingError",
    "LedgerWriteError",
    "MissingExtraError",
    "OutputError",
    "PluginError",
    "PoolFileError",
    "ProposalError",
    "RowFileError",
    "TrainingError",
    "UnknownDecisionError",
]


class GpuForecastersError(Exception):
    """Base of all errors of this package; its message is one line that says what to do."""


class ConfigError(GpuForecastersError):
    """Configuration values are wrong.

    Attributes:
        problems: what is wrong, in one line each.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(self.problems)


class HostError(GpuForecastersError):
    """The host framework is missing, too old or too new for the adapter."""


class MissingExtraError(GpuForecastersError, ImportError):
    """An optional dependency is missing."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'gpu-forecasters-plugin[{extra}]'")
        self.package = package
        self.extra = extra


class PluginError(GpuForecastersError):
    """An installed plugin cannot be used, or clashes with another."""


class PoolFileError(GpuForecastersError):
    """A recorded task or pool file cannot be read."""


class RowFileError(GpuForecastersError):
    """A file of rows from a ledger cannot be read or written."""


class ProposalError(GpuForecastersError):
    """A request that the recorded proposer cannot answer."""


class OutputError(GpuForecastersError):
    """A file or folder for results cannot be written."""


class FolderInUseError(GpuForecastersError):
    """Another run works in the output folder."""


class ForecasterError(GpuForecastersError):
    """A forecaster cannot be built, or answered against its contract."""


class TrainingError(GpuForecastersError):
    """A model cannot be trained any further, or not on these rows."""


class LedgerError(GpuForecastersError):
    """The ledger cannot be opened, written or trusted."""


class LedgerMissingError(LedgerError):
    """There is no ledger, or no run in it: maybe not yet."""


class LedgerIdentityError(LedgerError):
    """The ledger belongs to another task, reference, evaluator, device or bin scheme."""


class LedgerWriteError(LedgerError):
    """The ledger could not be written; nothing that depended on the write has happened."""


class GateError(GpuForecastersError):
    """The ask/tell protocol was used out of order."""


class UnknownDecisionError(GateError):
    """No decision of that id is in the ledger."""
