"""The extension tamis._native, and what stands in for it where it is not built."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tamis.kernels import dispatch

IN_CI = os.environ.get("CI") == "true"

X86_CPUINFO = """\
processor\t: 0
model name\t: some processor
flags\t\t: fpu sse2 fma popcnt avx2 avx512f avx512vbmi avx512_vbmi2
bugs\t\t: spectre_v1

processor\t: 1
flags\t\t: fpu
"""
ARM_CPUINFO = "processor\t: 0\nFeatures\t: fp asimd crc32\nCPU implementer\t: 0x41\n"


@pytest.fixture
def extension_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tamis._native", None)


def require_extension() -> None:
    if dispatch.native() is None:
        (pytest.fail if IN_CI else pytest.skip)(dispatch.explain_native())


def test_extension_is_built_and_says_where_it_is() -> None:
    require_extension()
    extension = dispatch.native()
    assert extension is sys.modules["tamis._native"]
    assert dispatch.explain_native() == f"native kernels are used, from {extension.__file__}"


def test_extension_names_every_feature() -> None:
    require_extension()
    features = dispatch.native().cpu_features()
    assert features.keys() == dispatch._CPUINFO_NAMES.keys()
    assert all(type(value) is bool for value in features.values())
    assert dispatch.cpu_features() == features


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the stand-in reads /proc/cpuinfo")
def test_extension_and_stand_in_agree() -> None:
    require_extension()
    native, stand_in = dispatch.native().cpu_features(), dispatch._read_cpu_features()
    shared = native.keys() & stand_in.keys()
    assert shared
    assert {name: native[name] for name in shared} == {name: stand_in[name] for name in shared}


@pytest.mark.usefixtures("extension_hidden")
def test_hidden_extension_falls_back() -> None:
    assert dispatch.native() is None
    assert "tamis._native is not built" in dispatch.explain_native()
    assert dispatch.cpu_features() == dispatch._read_cpu_features()


def test_extension_that_does_not_load_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("undefined symbol: nonsense", name=name)

    monkeypatch.setattr(dispatch.importlib, "import_module", broken)
    assert dispatch.native() is None
    assert dispatch.explain_native().endswith("does not load: undefined symbol: nonsense")


@pytest.mark.parametrize(
    ("text", "present"),
    [
        (X86_CPUINFO, {"fma", "popcnt", "avx2", "avx512f", "avx512_vbmi", "avx512_vbmi2"}),
        (ARM_CPUINFO, {"neon"}),
        ("processor\t: 0\nisa\t: rv64imafdc\n", None),
    ],
    ids=["x86", "arm", "neither"],
)
def test_stand_in_reads_cpuinfo(tmp_path: Path, text: str, present: set[str] | None) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    features = dispatch._read_cpu_features(tmp_path / "cpuinfo")
    if present is None:
        assert features == {}
    else:
        assert features.keys() == dispatch._CPUINFO_NAMES.keys()
        assert {name for name, value in features.items() if value} == present


def test_stand_in_knows_nothing_without_cpuinfo(tmp_path: Path) -> None:
    assert dispatch._read_cpu_features(tmp_path / "absent") == {}


def test_import_leaves_torch_alone() -> None:
    code = (
        "import sys, tamis.kernels.dispatch as d; d.explain_native(); d.cpu_features(); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
