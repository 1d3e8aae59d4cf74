"""Sweeps: many small networks of one model, made on as many machines as one likes, compared, and the best certified."""

from tamis.sweeps.run import RESULTS as RESULTS
from tamis.sweeps.run import Row as Row
from tamis.sweeps.run import Swept as Swept
from tamis.sweeps.run import as_plain_data as as_plain_data
from tamis.sweeps.run import sweep as sweep
from tamis.sweeps.run import work as work
from tamis.sweeps.space import described as described
from tamis.sweeps.spec import Sweep as Sweep
from tamis.sweeps.spec import read_sweep as read_sweep
from tamis.sweeps.study import imported_optuna as imported_optuna
from tamis.sweeps.study import shown as shown

__all__ = [
    "RESULTS",
    "Row",
    "Sweep",
    "Swept",
    "as_plain_data",
    "described",
    "imported_optuna",
    "read_sweep",
    "shown",
    "sweep",
    "work",
]
