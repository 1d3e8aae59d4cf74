"""One thread per test process: the processes themselves run side by side."""

import torch

torch.set_num_threads(1)
