"""How large an attack is, and where: TAMIS_ATTACK_TIMES=10 TAMIS_ATTACK_DEVICE=cuda is ten times the size, on a GPU."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("TAMIS_ATTACK_TIMES", "1"))
DEVICE = os.environ.get("TAMIS_ATTACK_DEVICE", "cpu")
