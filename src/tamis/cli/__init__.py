"""The command line: `main.py` declares the commands, one file each does the work, imported when it is called."""

from tamis.cli.main import main as main

__all__ = [
    "main",
]
