"""Selective surrogates for evolutionary GPU-kernel search."""
