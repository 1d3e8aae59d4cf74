"""One thread per test process, since the processes run side by side; the same random numbers and examples on each run.

Networks of one architecture are traced once in each run: tracing takes longer than most of what is tested. Tests of
tracing itself, those of `tamis.graph`, trace anew, and so do slow tests, so that all of tamis is seen at work as it is.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import settings
from traces import TraceMemory

import tamis.graph

TRACES = "TAMIS_TEST_TRACES"  # the environment variable that names, for all processes of a run, the folder of traces
if TRACES not in os.environ:
    _folder = TemporaryDirectory(prefix="tamis_traces_")  # until the process that began the run ends
    os.environ[TRACES] = _folder.name
MEMORY = TraceMemory(Path(os.environ[TRACES]))
tamis.graph.trace = MEMORY.trace  # before any other package of tamis takes it from there
tamis.graph.trace_with_batch = MEMORY.trace_with_batch

torch.set_num_threads(1)
settings.register_profile("here", deadline=None)  # no test times anything: processes may be held up at any moment
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let every test, and the fixtures made for it, draw the same numbers, whatever ran before."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _remember_traces(request: pytest.FixtureRequest) -> None:
    of_tracing = Path(__file__).parent / "graph" in request.path.parents
    MEMORY.asleep = of_tracing or request.node.get_closest_marker("slow") is not None
