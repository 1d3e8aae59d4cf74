"""The CPU kernels under the sanitizers of the compiler: no memory but their own, no behaviour left undefined."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

CPU = Path(__file__).parents[2] / "src" / "tamis" / "kernels" / "cpu"
COMPILER = next(
    (path for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++") if (path := shutil.which(name))), None
)
FLAGS = {
    "binary_avx512": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512vpopcntdq",
        "-mavx512vnni",
        "-mprfchw",
    ],
    "binary_avx2": ["-mavx2", "-mfma"],
    "binary_popcnt": ["-mpopcnt"],
    "affine_avx512": ["-mavx512f"],
    "affine_avx2": ["-mavx2", "-mfma"],
    "pool_avx512": ["-mavx512f", "-mavx512dq", "-mavx512vl"],
    "pool_avx2": ["-mavx2", "-mfma"],
    "kronecker_avx512": ["-mavx512f", "-mavx512dq"],
    "kronecker_avx2": ["-mavx2", "-mfma"],
}
FILES = ["binary_avx512", "binary_avx2", "binary_popcnt", "binary_neon", "binary_plain", "binary_conv", "workers"]
FILES += ["affine", "affine_avx512", "affine_avx2", "pool", "pool_avx512", "pool_avx2"]
KRONECKER = ["kronecker_avx512", "kronecker_avx2", "kronecker_plain", "kronecker", "kronecker_gradient", "workers"]


def build(folder: Path, sanitizers: str, files: list[str], driver_file: str) -> Path:
    x86 = platform.machine() in ("x86_64", "AMD64")
    common = ["-std=c++20", "-O1", "-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", f"-I{CPU}"]
    objects = []
    for path in [*(CPU / f"{name}.cpp" for name in files), Path(__file__).with_name(driver_file)]:
        objects.append(folder / f"{path.stem}.o")
        own = ["-ffp-contract=off", *(FLAGS.get(path.stem, []) if x86 else [])]
        subprocess.run([COMPILER, *common, *own, "-c", path, "-o", objects[-1]], check=True)  # type: ignore[list-item]
    driver = folder / "driver"
    subprocess.run([COMPILER, *common, *objects, "-pthread", "-ldl", "-o", driver], check=True)  # type: ignore[list-item]
    return driver


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found")
@pytest.mark.parametrize(("sanitizers", "layers"), [("address,undefined", 300), ("thread", 60)])
def test_every_kernel_on_random_layers(tmp_path: Path, sanitizers: str, layers: int) -> None:
    driver = build(tmp_path, sanitizers, FILES, "binary_driver.cpp")
    run = subprocess.run([driver, str(layers), "7"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith(f"agree on {layers} layers\n")


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found")
@pytest.mark.parametrize(("sanitizers", "patterns"), [("address,undefined", 300), ("thread", 60)])
def test_every_kronecker_kernel_on_random_patterns(tmp_path: Path, sanitizers: str, patterns: int) -> None:
    driver = build(tmp_path, sanitizers, KRONECKER, "kronecker_driver.cpp")
    run = subprocess.run([driver, str(patterns), "7"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith(f"agree on {patterns} patterns\n")


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found")
def test_rows_of_a_file_right_and_forged(tmp_path: Path) -> None:
    driver = build(tmp_path, "address,undefined", ["pack"], "pack_driver.cpp")
    run = subprocess.run([driver, "20000", "7"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout == "agree on 20000 rows\n"
