"""A dry run: the candidate on tensors without data, its kernels compiled for a GPU that is not there.

Everything here runs in a confined process of its own, which is thrown away; it replaces parts of torch and triton.
"""
