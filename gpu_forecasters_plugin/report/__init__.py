"""One self-contained HTML page that tells the story of a run or of a comparison."""

from gpu_forecasters_plugin.report.comparison import Comparison, load_comparison
from gpu_forecasters_plugin.report.comparison_page import comparison_page
from gpu_forecasters_plugin.report.facts import RunFacts, gather
from gpu_forecasters_plugin.report.page import Page, render
from gpu_forecasters_plugin.report.run_page import run_page

__all__ = [
    "Comparison",
    "Page",
    "RunFacts",
    "comparison_page",
    "gather",
    "load_comparison",
    "render",
    "run_page",
]
