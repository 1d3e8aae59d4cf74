"""The steps of recipes, one in each file."""
