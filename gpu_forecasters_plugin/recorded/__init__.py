"""Recorded tasks: pools of kernels with measured times, replayed without a GPU."""

from __future__ import annotations

__all__: list[str] = []
