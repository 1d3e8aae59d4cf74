"""One thread per test process, since the processes run side by side; and the same random examples on every CI run."""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
