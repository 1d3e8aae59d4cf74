"""How large an attack is: TAMIS_ATTACK_TIMES=10 repeats every class of attacks at ten times its size."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("TAMIS_ATTACK_TIMES", "1"))
