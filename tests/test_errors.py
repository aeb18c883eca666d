"""Errors, and how they cross from one process to another."""

import pickle

import pytest

from taccl_py import errors
from taccl_py.errors import (
    Infeasible,
    InputError,
    Interrupted,
    InvalidArtifact,
    LimitReached,
    LoweringError,
    PackageMissing,
    TacclError,
    Unsupported,
    UnsupportedFeature,
    Violation,
)
from taccl_py.solvers.processes import start_workers

ERRORS = [
    InputError("found 3", path="a.json", field="/ranks"),
    Infeasible("no way", chunk=1, source=0, rank=2, restriction="topology"),
    LimitReached("no time"),
    InvalidArtifact("a.xml", [Violation("gpu 0", "race", "x"), Violation("gpu 1", "race", "y")]),
    LoweringError("too long", runtime="executor", limit="steps", remedy="use fewer"),
    Unsupported("a.json", [UnsupportedFeature("", "collective", "x"), UnsupportedFeature("gpu 0", "size", "y")]),
    PackageMissing("mpi4py is missing", "install it"),
    Interrupted("interrupted before there was an answer"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_can_be_pickled(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_an_error_of_another_process_does_not_end_the_others():
    with start_workers(1) as workers:
        with pytest.raises(Infeasible, match="no way"):
            workers.submit(refuse).result()
        assert workers.submit(abs, -1).result() == 1


def refuse():
    raise ERRORS[1]


def test_every_kind_is_tried():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TacclError)]
    assert {type(error) for error in ERRORS} == {kind for kind in kinds if not kind.__subclasses__()}
