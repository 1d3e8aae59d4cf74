"""The command line: `main.py` declares the commands, one file each does the work, imported when it is called."""
