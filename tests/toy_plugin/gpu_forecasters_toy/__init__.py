"""A plugin of every kind."""
