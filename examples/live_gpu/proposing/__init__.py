"""Kernels by rule: what plays the language model where there is none."""
