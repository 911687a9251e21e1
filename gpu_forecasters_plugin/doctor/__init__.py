"""What works on this machine with a configuration, and what to mend."""

from gpu_forecasters_plugin.doctor._base import CheckResult, Status
from gpu_forecasters_plugin.doctor.examination import examine

__all__ = ["CheckResult", "Status", "examine"]
