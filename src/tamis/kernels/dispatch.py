"""Dispatch decides which kernels can run on this machine, which one does, and why."""

import importlib
import os
from pathlib import Path
from types import ModuleType

from tamis.errors import InvalidInput

# Our name of each instruction set, and the names the Linux kernel lists it under in /proc/cpuinfo.
_CPUINFO_NAMES = {
    "popcnt": {"popcnt"},
    "avx2": {"avx2"},
    "fma": {"fma"},
    "avx512f": {"avx512f"},
    "avx512bw": {"avx512bw"},
    "avx512vl": {"avx512vl"},
    "avx512_vbmi": {"avx512vbmi"},
    "avx512_vbmi2": {"avx512_vbmi2"},
    "avx512_vpopcntdq": {"avx512_vpopcntdq"},
    "neon": {"neon", "asimd"},  # 32-bit ARM says neon, 64-bit ARM says asimd
}


def native() -> ModuleType | None:
    """Return the extension `tamis._native`, or None where it is not built or does not load (see `explain_native`)."""
    return _load()[0]


def explain_native() -> str:
    """Say in one sentence why the native kernels are used, or why they are not."""
    return _load()[1]


def cpu_features() -> dict[str, bool]:
    """Return which instruction sets this processor and operating system can run, by name.

    The extension answers, or /proc/cpuinfo where there is no extension. A name that is absent is unknown: without the
    extension and outside Linux the answer is `{}`.

    Example:
        >>> cpu_features().get("avx2", False)  # doctest: +SKIP
        True
    """
    extension = native()
    if extension is None:
        return _read_cpu_features()
    features: dict[str, bool] = extension.cpu_features()
    return features


def binary_kernel() -> tuple[str, str]:
    """Return the kernel that binary layers run in on the CPU, and one sentence saying why.

    It is the fastest that the processor can run, or the one that the environment variable TAMIS_KERNEL names: avx512,
    avx2, popcnt, neon or plain. Without the extension it is "torch".
    """
    return _choose_kernel("binary_kernels")


def kronecker_kernel() -> tuple[str, str]:
    """Return the kernel that the backend "cpu" of Kronecker-sparse products runs in, and one sentence saying why.

    It is the fastest that the processor can run, or the one that the environment variable TAMIS_KERNEL names: avx512,
    avx2 or plain; popcnt and neon, which binary layers have alone, stand for plain. Without the extension it is
    "torch".
    """
    wanted, extension = os.environ.get("TAMIS_KERNEL", ""), native()
    if extension is not None and wanted not in extension.kronecker_kernels() and wanted in extension.binary_kernels():
        return "plain", f"plain is the nearest to TAMIS_KERNEL={wanted}, which is a kernel of binary layers alone"
    return _choose_kernel("kronecker_kernels")


def _choose_kernel(listed: str) -> tuple[str, str]:
    """Return the first kernel that a function of the extension lists, or the one that TAMIS_KERNEL names, and why."""
    wanted, extension = os.environ.get("TAMIS_KERNEL", ""), native()
    if extension is None:
        if wanted:
            raise InvalidInput(f"TAMIS_KERNEL={wanted} names a kernel, but {explain_native()}")
        return "torch", explain_native()
    names: list[str] = getattr(extension, listed)()
    if not wanted:
        return names[0], f"{names[0]} is the fastest of the kernels that this processor can run: {', '.join(names)}"
    if wanted not in names:
        raise InvalidInput(
            f"TAMIS_KERNEL={wanted} is not one of the kernels that this processor can run: {', '.join(names)}"
        )
    return wanted, f"{wanted} is what TAMIS_KERNEL names; this processor can run {', '.join(names)}"


def _load() -> tuple[ModuleType | None, str]:
    # Not cached: an import already done costs a dictionary lookup, and a test can hide the extension in sys.modules.
    name = "tamis._native"
    try:
        extension = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None, f"native kernels are not used: {name} is not built (pip install . builds it)"
    except ImportError as error:
        return None, f"native kernels are not used: {name} is built but does not load: {error}"
    return extension, f"native kernels are used, from {extension.__file__}"


def _read_cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, bool]:
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        label, _, value = line.partition(":")
        if label.strip() in ("flags", "Features"):  # x86, ARM
            listed = set(value.split())
            return {name: not listed.isdisjoint(aliases) for name, aliases in _CPUINFO_NAMES.items()}
    return {}
