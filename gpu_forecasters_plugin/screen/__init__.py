"""Asking the compiler first: screening and static profiles without a GPU."""

from gpu_forecasters_plugin.screen.jobs import ScreenJob
from gpu_forecasters_plugin.screen.profile import InstructionMix, LaunchProfile, LibraryCall, SourceProfile
from gpu_forecasters_plugin.screen.screener import Screener
from gpu_forecasters_plugin.screen.verdict import Fault, Status, Verdict

__all__ = [
    "Fault",
    "InstructionMix",
    "LaunchProfile",
    "LibraryCall",
    "ScreenJob",
    "Screener",
    "SourceProfile",
    "Status",
    "Verdict",
]
