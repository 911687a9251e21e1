"""Searches with and without the filter, with the same proposals and at the same number of measurements."""
