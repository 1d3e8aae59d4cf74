"""CPU kernels of tamis, compiled from kernels/cpu/native.cpp. Reach them through `tamis.kernels.dispatch.native`."""

def cpu_features() -> dict[str, bool]:
    """Which instruction sets this processor and operating system can run, by name."""
