"""Figures of the plugin, and the generators of its recorded tasks."""
