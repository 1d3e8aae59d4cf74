"""One thread per test process, since the processes run side by side; and the same random examples on every CI run."""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("here", deadline=None)  # no test times anything: processes may be held up at any moment
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
