"""A Dask cluster whose workers do what processes here would do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from taccl_py.errors import InputError, import_package
from taccl_py.solvers.processes import Workers
from taccl_py.solvers.versions import code_digest

_CONNECT_SECONDS = 10


def connect(scheduler: str) -> Any:
    """Return a Dask client, to be closed by whoever asked for it.

    Parameters
    ----------
    scheduler
        Address of the cluster's scheduler.

    Raises
    ------
    PackageMissing
        If Dask is not installed.
    InputError
        If nobody answers at the address.
    """
    distributed = import_package("distributed", "Dask", "pip install '.[dask]'")
    try:
        return distributed.Client(scheduler, timeout=_CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at {scheduler} ({error}); start one", field="--scheduler"
        ) from None


@contextmanager
def cluster_workers(scheduler: str) -> Iterator[Workers]:
    """Workers of a cluster, which have the same code as this process.

    Raises
    ------
    PackageMissing, InputError
        See `connect`; also if there are no workers, or some have other code.
    """
    with connect(scheduler) as client:
        try:
            found = set(client.run(code_digest).values())
        except (ImportError, AttributeError):
            found = {""}
        if not found:
            raise InputError(f"the cluster at {scheduler} has no workers; start some", field="--scheduler")
        if found != {code_digest()}:
            raise InputError(
                f"workers of the cluster at {scheduler} have another version of taccl_py or of a solver; install the same everywhere",
                field="--scheduler",
            )
        from distributed.scheduler import KilledWorker

        # Calls that run there end by their own limits.
        yield Workers(client.get_executor(pure=False, retries=0), lambda: None, (KilledWorker, OSError))
