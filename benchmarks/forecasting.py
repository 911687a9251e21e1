"""Figures of the forecasters that are language models.

``python -m benchmarks.forecasting --client-overhead`` measures what our side costs: forecasts per second of one
process whose server, another process, answers at once.
``python -m benchmarks.forecasting --vllm`` compares readouts and prompt orders on the server of
``make vllm``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.client_overhead import client_overhead
from benchmarks.report import machine, write_result
from benchmarks.vllm_readouts import measure_readouts, readouts_table


def _report_client_overhead() -> None:
    found = client_overhead()
    text = (
        f"{machine()}\n\n| what | figure |\n|---|---|\n"
        f"| forecasts per second of one process, server answering at once, {found['pools']} pools of "
        f"{found['pool_size']}, kernels of {found['mean_kernel_characters']:.0f} characters | "
        f"{found['forecasts_per_second']:.0f} |\n"
        f"| processor time per forecast on our side, prompt included | "
        f"{found['cpu_milliseconds_per_forecast']:.2f} ms |\n"
    )
    write_result("client_overhead", found, text)


def _report_readouts() -> None:
    found, text = readouts_table(measure_readouts())
    write_result("readouts", found, f"{machine()}\n\n{text}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--client-overhead", action="store_true", help="what our side costs")
    parser.add_argument("--vllm", action="store_true", help="readouts and prompt orders on a real server")
    options = parser.parse_args(arguments)
    if not (options.client_overhead or options.vllm):
        parser.error("say what to measure: --client-overhead, --vllm")
    if options.client_overhead:
        _report_client_overhead()
    if options.vllm:
        _report_readouts()


if __name__ == "__main__":
    main()
