"""A sweep makes many small networks of one model, on any number of machines, compares them, and certifies the best.

`sweep` runs one, as `tamis sweep` does; `work` takes part in one from another process or machine; `read_sweep` reads
the file that says what to try.

    from tamis.sweeps import sweep
    found = sweep(model, "sweep.yaml", "out/sweep")
    print(found.certified[0].certificate)
"""

from tamis.sweeps.database import hide_password as hide_password
from tamis.sweeps.database import import_optuna as import_optuna
from tamis.sweeps.results import RESULTS as RESULTS
from tamis.sweeps.results import Row as Row
from tamis.sweeps.results import SweepResult as SweepResult
from tamis.sweeps.results import as_plain_data as as_plain_data
from tamis.sweeps.run import sweep as sweep
from tamis.sweeps.run import work as work
from tamis.sweeps.space import describe_point as describe_point
from tamis.sweeps.spec import Sweep as Sweep
from tamis.sweeps.spec import read_sweep as read_sweep

__all__ = [
    "RESULTS",
    "Row",
    "Sweep",
    "SweepResult",
    "as_plain_data",
    "describe_point",
    "hide_password",
    "import_optuna",
    "read_sweep",
    "sweep",
    "work",
]
