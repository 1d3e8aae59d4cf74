"""Recipes: chains of steps in a YAML file, run one after the other, and the search for one that fits a budget."""
