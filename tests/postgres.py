"""A PostgreSQL server of one's own, where its programs are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _programs() -> Path | None:
    """Where initdb and pg_ctl are: Debian keeps them off the path."""
    found = shutil.which("initdb")
    places = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((place for place in places[::-1] if (place / "pg_ctl").exists()), None)


def _other_user() -> str | None:
    """Who the server runs as: it refuses to be root."""
    if os.geteuid() != 0:
        return None
    import pwd

    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), None)


@contextmanager
def postgres_server() -> Iterator[str]:
    """The address of a database on a new server, which listens on a socket in a temporary folder."""
    programs, user = _programs(), _other_user()
    if programs is None or (os.geteuid() == 0 and user is None):
        pytest.skip("PostgreSQL is not installed, or there is nobody to run it as")
    # Not pytest's folder: others may not enter that.
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if user is not None:
            shutil.chown(folder, user)

        def call(program: str, *arguments: str) -> None:
            command = [str(programs / program), *arguments]
            log = subprocess.DEVNULL  # pg_ctl leaves the server with its own output: a pipe would never end
            subprocess.run(command, check=True, user=user, cwd=folder, stdout=log, stderr=log, stdin=log)

        data = str(folder / "data")
        call("initdb", "-D", data, "-U", "tamis", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        call("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://tamis@/postgres?host={folder}"
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")
