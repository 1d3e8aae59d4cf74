"""The few computations worth writing below PyTorch, and the choice of which one runs.

`cpu/` holds the C++ kernels; `dispatch` picks an implementation and says why it was picked.
"""
