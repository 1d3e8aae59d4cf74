"""The papers' experiments, one file each: runs it, and prints the paper's figures beside ours."""
