"""Running code that nobody has read: what Linux offers for it without privileges."""

from gpu_forecasters_plugin.screen.sandbox.confinement import SandboxLimits
from gpu_forecasters_plugin.screen.sandbox.supervision import Ending, supervise

__all__ = ["Ending", "SandboxLimits", "supervise"]
