"""The papers' experiments, one file each: runs it, and prints the paper's figures beside ours. README.md lists them."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"  # what full runs have stored
