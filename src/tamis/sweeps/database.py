"""A study lives in a database, which several workers may open, or create, at the same moment."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamis.errors import InvalidInput
from tamis.sweeps.spec import DIRECTIONS

if TYPE_CHECKING:
    import optuna

ATTEMPTS = 5  # to open a database that several workers may be creating at the same moment
DATABASE = "sweep.db"


def open_study(url: str, name: str, objectives: Sequence[str]) -> tuple[optuna.storages.RDBStorage, optuna.Study]:
    """Open a study in a database, or create it, and return the database and the study.

    Args:
        url: the address of the database.
        name: of the study in it.
        objectives: by name.

    Raises:
        InvalidInput: the database cannot be reached, or the study there has other objectives.
    """
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    imported = import_optuna()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            storage = imported.storages.RDBStorage(url, engine_kwargs=_choose_engine_options(url))
            with _silence(imported), close_on_error(storage):
                directions = [DIRECTIONS[each] for each in objectives]
                study = imported.create_study(
                    storage=storage, study_name=name, directions=directions, load_if_exists=True
                )
                # For the dashboard, which would call them "Objective 0" and so on.
                study.set_metric_names(list(objectives))
            return storage, study
        except (ImportError, ArgumentError) as error:
            # A driver that is not installed, or an address that is none: waiting does not help.
            raise InvalidInput(f"--storage: '{hide_password(url)}' cannot be used: {_first_line(error)}") from error
        except (SQLAlchemyError, imported.exceptions.StorageInternalError) as error:
            # Two workers that make the tables at the same moment get in each other's way, once.
            if attempt == ATTEMPTS or _is_unreachable(error):
                raise InvalidInput(f"--storage: {hide_password(url)} cannot be opened: {_first_line(error)}") from error
            time.sleep(0.2 * attempt)
        except ValueError as error:  # the study has other objectives
            raise InvalidInput(f"'{name}' in {hide_password(url)} is another sweep: {_first_line(error)}") from error
    raise AssertionError


def close_storage(storage: Any) -> None:
    """Give up the connections to a database; they come back when they are needed."""
    storage.remove_session()
    storage.engine.dispose()


@contextmanager
def close_on_error(storage: Any) -> Iterator[None]:
    """Give up the connections to a database where an error goes through."""
    try:
        yield
    except BaseException:
        # After an interruption by the user, too: no connection may stay open.
        close_storage(storage)
        raise


def import_optuna() -> Any:
    """Import optuna, or raise InvalidInput where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise InvalidInput("a sweep needs optuna, which is not installed: pip install 'tamis[sweep]'") from None
    return optuna


def make_database_url(storage: str | None, out: Path) -> str:
    """Return the address of the database that is asked for, or of an SQLite file in the folder.

    Example:
        >>> from pathlib import Path
        >>> make_database_url("postgresql://me@server/sweeps", Path("out"))
        'postgresql+psycopg://me@server/sweeps'
    """
    if storage is None:
        # Absolute: the address is printed, and a dashboard may be started in another folder.
        return f"sqlite:///{(out / DATABASE).resolve()}"
    if "://" not in storage:
        raise InvalidInput(
            f"--storage is the address of a database, as postgresql://me@host/name or sqlite:///my.db; got '{storage}'"
        )
    plain = "postgresql://"
    # Without a driver's name, SQLAlchemy takes the address for one of psycopg2.
    return "postgresql+psycopg://" + storage.removeprefix(plain) if storage.startswith(plain) else storage


def hide_password(url: str) -> str:
    """Return an address without its password.

    Example:
        >>> hide_password("postgresql://me:secret@server/sweeps")
        'postgresql://me:***@server/sweeps'
    """
    scheme, _, rest = url.partition("://")
    # From the right, because a password may have an @ in it.
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{':***' if ':' in user else ''}{at}{host}"


def _choose_engine_options(url: str) -> dict[str, Any]:
    """Wait for a file that others write to, and test connections to a server before they are used."""
    return {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}


def _is_unreachable(error: BaseException) -> bool:
    """Say whether the database itself failed, rather than a lock that another worker holds."""
    from sqlalchemy.exc import OperationalError

    cause = error if isinstance(error, OperationalError) else error.__cause__
    # SQLite says so of a file that another process writes to.
    return isinstance(cause, OperationalError) and "locked" not in str(cause)


def _first_line(error: BaseException) -> str:
    return str(error.__cause__ or error).strip().partition("\n")[0]


@contextmanager
def _silence(optuna: Any) -> Iterator[None]:
    """Silence optuna's lines about what was made, and about what may change in later versions."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
