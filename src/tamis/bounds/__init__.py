"""Theorems as functions: one in each file, all returning a `Bound`."""
