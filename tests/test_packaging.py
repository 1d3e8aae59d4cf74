"""The wheel, made of the sdist, made of this tree: what is in it, and that it works alone, in newer Pythons as well."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import tamis

ROOT = Path(__file__).parents[1]
SDIST = """
import os, sys
os.chdir(sys.argv[1])
from scikit_build_core.build import build_sdist
print(build_sdist(sys.argv[2]))
"""
SMOKE = """
import sys
import torch, tamis
from tamis import _native
from tamis.recipes.catalogue import list_shipped
assert tamis.__file__.startswith(sys.argv[1]), tamis.__file__
net = tamis.trace(torch.nn.Linear(4, 2), torch.zeros(1, 4))
tamis.prune(net, 0.5).save(sys.argv[1] + "/small.tamis")
tamis.certify(net, sys.argv[1] + "/small.tamis", torch.randn(20, 4)).save(sys.argv[1] + "/small.json")
tamis.report(sys.argv[1] + "/small.json", sys.argv[1] + "/report.html", original=net)
assert len(list(list_shipped())) >= 12
"""


def run(*command: str, **environment: str) -> str:
    told = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_BUILD_CONSTRAINT": "", **environment}
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=told)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def sdist(folder: Path) -> Path:
    """This tree, packed."""
    tool = folder / "tool"  # the build's own requirement, apart from what the tests run with
    run(sys.executable, "-m", "pip", "install", "-q", "--target", str(tool), "scikit-build-core", "nanobind")
    return folder / run(sys.executable, "-c", SDIST, str(ROOT), str(folder), PYTHONPATH=str(tool)).split()[-1]


@pytest.mark.slow
def test_sdist_and_wheel(tmp_path: Path) -> None:
    name = sdist(tmp_path).name
    with tarfile.open(tmp_path / name) as archive:
        sources = archive.getnames()
    assert any(entry.endswith("kernels/cpu/native.cpp") for entry in sources)
    assert not any("/.ci/" in entry or "/out/" in entry for entry in sources)

    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(tmp_path / name))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive_of_wheel:
        packed = archive_of_wheel.namelist()
    for needed in ("tamis/py.typed", "tamis/reports/templates/report.html", "tamis/recipes/shipped/ternary.yaml"):
        assert needed in packed
    assert any(entry.startswith("tamis/_native") and not entry.endswith(".pyi") for entry in packed)
    assert not any(entry.endswith((".cpp", ".h")) for entry in packed)
    # The package alone: no experiments, no tests.
    assert {entry.split("/")[0] for entry in packed} == {"tamis", f"tamis-{tamis.__version__}.dist-info"}
    assert f"tamis-{tamis.__version__}" in wheel.name

    installed = tmp_path / "installed"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(installed), str(wheel))
    # -S: without the hook of an editable installation, which would find this tree instead.
    others = sysconfig.get_paths()["purelib"]
    run(sys.executable, "-S", "-c", SMOKE, str(installed), PYTHONPATH=os.pathsep.join([str(installed), others]))


def interpreter(minor: int) -> str | None:
    """A Python 3.minor that runs, on the path or among those of pyenv."""
    others = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"), reverse=True)
    for found in (shutil.which(f"python3.{minor}"), *map(str, others)):
        if found and subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return found
    return None


# Whatever torch needs is left out, which is gigabytes: what starts without it, and what was compiled.
ALONE = """
import importlib.machinery, importlib.util, sys
from pathlib import Path
import tamis
assert tamis.__file__.startswith(sys.argv[1]), tamis.__file__
(native,) = Path(tamis.__file__).parent.glob("_native*.so")
loader = importlib.machinery.ExtensionFileLoader("_native", str(native))
importlib.util.module_from_spec(importlib.util.spec_from_loader("_native", loader))
"""


@pytest.mark.slow
def test_newer_pythons(tmp_path: Path) -> None:
    """The wheel is compiled once, by the oldest of them, and works in all."""
    pythons = [python for python in map(interpreter, (12, 13)) if python is not None]
    if not pythons:
        pytest.skip("there is neither Python 3.12 nor 3.13 here")
    wheels: list[Path] = []
    for number, python in enumerate(pythons):
        environment = tmp_path / f"environment_{number}"
        run(python, "-m", "venv", str(environment))
        inside = str(environment / "bin" / "python")
        if not wheels:
            run(inside, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(sdist(tmp_path)))
            wheels = [*tmp_path.glob("*.whl")]
        (wheel,) = wheels
        assert "-cp312-abi3-" in wheel.name  # one for all of them
        run(inside, "-m", "pip", "install", "-q", "typer", "rich", "numpy")
        run(inside, "-m", "pip", "install", "-q", "--no-deps", str(wheel))
        run(inside, "-c", ALONE, str(environment), PYTHONPATH="")
        assert "compress" in run(str(environment / "bin" / "tamis"), "--help", PYTHONPATH="")
