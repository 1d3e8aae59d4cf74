"""The command line is declared in `main.py`; each command's work is in one file, imported when it is called."""

from tamis.cli.main import main as main

__all__ = [
    "main",
]
