"""Compiles, checks and times kernels, each in a warm process that is replaced when a kernel has spoilt it."""
