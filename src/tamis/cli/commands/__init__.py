"""The commands of `tamis`, one a file: what may be typed, with its help.

What a command does is in the module of its name in `tamis.cli`, which is imported, with torch, when it runs.
"""
