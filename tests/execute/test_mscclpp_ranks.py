"""Plans handed to MSCCL++: what it is given, and what is made of the result. The package and the ranks are stand-ins here."""

import ctypes
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from taccl_py.errors import InputError, InvalidArtifact, PackageMissing
from taccl_py.execute import mpi
from taccl_py.execute.arithmetic import NumpyCells
from taccl_py.execute.mscclpp_ranks import MscclppSession
from taccl_py.execute.one_sided import read_one_sided
from taccl_py.execute.plan import DataType, Operator
from taccl_py.execute.promise import draw_input
from taccl_py.execute.runs import Call, Conditions
from taccl_py.runtimes import EXECUTOR
from tests.execute import mscclpp_standin
from tests.verify.mscclpp.plans import two_allgather, two_allreduce
from tests.verify.mscclpp.test_switch import three_allreduce

PLANS = {"allgather": two_allgather, "allreduce": two_allreduce}


class Comm:
    """Rank 0 of two; the other one always says the same."""

    rank, size = 0, 2

    def Dup(self):  # noqa: N802
        return self

    def Split_type(self, _):  # noqa: N802
        return self

    def barrier(self):
        pass

    def allgather(self, value):
        return [value, value]


class Host:
    """Memory of this process in place of a GPU's."""

    def __init__(self):
        self.late = False

    def cells(self, data_type):
        return NumpyCells(data_type)

    def address(self, cells):
        return cells.ctypes.data

    def measure(self, launch, timeout_seconds):
        if self.late:
            raise TimeoutError
        launch(7)
        return timeout_seconds / 1000


class Executor:
    """Doubles the input of a sum of two equal ranks, and leaves everything else as it is."""

    def __init__(self, communicator):
        assert communicator.rank == 0

    def execute(self, rank, given, wanted, given_bytes, wanted_bytes, data_type, plan, stream):
        assert (rank, stream, plan.rank, Path(plan.path).name) == (0, 7, 0, "plan.json")
        Executor.seen = (given, wanted, given_bytes, wanted_bytes, data_type)
        values = np.ctypeslib.as_array((ctypes.c_uint32 * (given_bytes // 4)).from_address(given))
        if given_bytes == wanted_bytes:
            doubled = values * 2
            ctypes.memmove(wanted, doubled.ctypes.data, wanted_bytes)


@pytest.fixture
def session(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    package = mscclpp_standin.put_in_place(monkeypatch)
    package.CommGroup = lambda mpi_comm: types.SimpleNamespace(communicator=mpi_comm)
    package.Executor = Executor
    monkeypatch.setattr(mpi, "load_mpi", lambda: types.SimpleNamespace(COMM_WORLD=Comm(), COMM_TYPE_SHARED=0))
    return MscclppSession(5.0, Host())


def run(session, collective, data_type=DataType.UINT32, operator=Operator.SUM, repeats=1):
    text = json.dumps({"min_message_size": 0, "max_message_size": 1 << 30, **PLANS[collective]()})
    Path("plan.json").write_text(text, encoding="utf-8")
    plan = read_one_sided(text, "plan.json")
    call = Call(1024, data_type, operator, plan.in_place)
    return session.run(plan, call, Conditions(EXECUTOR, repeats=repeats, timeout_seconds=5.0))


def test_mscclpp_is_given_buffers_sizes_and_type(session):
    run(session, "allgather")
    given, wanted, given_bytes, wanted_bytes, data_type = Executor.seen
    assert (given_bytes, wanted_bytes, data_type) == (512, 1024, mscclpp_standin.DataType.uint32)
    assert given == wanted  # rank 0's share is the first of the output
    run(session, "allreduce")
    assert Executor.seen[0] != Executor.seen[1]
    assert Executor.seen[2:4] == (1024, 1024)


def test_what_comes_out_is_compared_on_all_ranks(session, monkeypatch):
    """The stand-in gives twice the own input, which is right if both ranks have the same."""
    assert run(session, "allreduce").num_wrong > 0
    for name in ("taccl_py.execute.promise", "taccl_py.execute.data"):
        monkeypatch.setattr(sys.modules[name], "draw_input", lambda task, _: draw_input(task, 0))
    assert run(session, "allreduce").num_wrong == 0
    assert run(session, "allgather").num_wrong > 0


def test_the_time_is_the_mean_of_the_repetitions(session):
    assert run(session, "allreduce", repeats=3).time_us == pytest.approx(5000.0)


def test_a_plan_that_does_not_end_is_told_and_not_awaited(session):
    session._device.late = True
    with pytest.raises(InvalidArtifact, match="rank 0: the plan has not ended on its GPU for 5 seconds"):
        run(session, "allreduce")


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({"data_type": DataType.INT64}, "--datatype: MSCCL\\+\\+ has no int64"),
        ({"operator": Operator.MAX}, "--op: MSCCL\\+\\+ plans only sum"),
    ],
)
def test_what_mscclpp_does_not_have_is_refused(session, wishes, says):
    with pytest.raises(InputError, match=says):
        run(session, "allreduce", **wishes)


def test_switch_channels_need_other_memory(session):
    plan = read_one_sided(json.dumps(three_allreduce()), "plan.json")
    with pytest.raises(InputError, match="uses switch channels, which need buffers that MSCCL"):
        session.run(plan, Call(1024, DataType.FLOAT32, Operator.SUM, in_place=True), Conditions(EXECUTOR))


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mscclpp", None)
    with pytest.raises(
        PackageMissing, match="--with mscclpp needs the Python package mscclpp: mscclpp cannot be imported"
    ) as caught:
        MscclppSession(5.0)
    assert caught.value.exit_code == 6


def test_a_package_that_is_too_old_is_told(monkeypatch):
    mscclpp_standin.put_in_place(monkeypatch, old=True)
    with pytest.raises(PackageMissing, match=r"mscclpp is 0\.8\.0, which has no algorithms to register"):
        MscclppSession(5.0)
