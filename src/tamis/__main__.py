"""`python -m tamis` is the `tamis` command."""

import os
import sys

# Python puts the current folder first, where a `numpy.py` of whoever filled it would be taken for numpy. The installed
# command does not have it there, and looks into it last, for a MODEL that is nowhere else.
if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from tamis.cli import main

main()
