"""``python -m gpu_forecasters_plugin`` is the ``gpu-forecasters`` command."""

from gpu_forecasters_plugin.cli import main

main()
