import pickle
from copy import copy
from dataclasses import dataclass

import pytest

from taccl_py.collective import Address, Buffer
from taccl_py.lowering.program import Op, Step
from taccl_py.pickles import pickled_by_fields
from taccl_py.schedule.ir import Message
from taccl_py.topology.model import Link

CELL = Address(Buffer.OUTPUT, 3)


@pytest.mark.parametrize(
    "value", [CELL, Message(2, (1, 4), 0.5, 1.5, reduce=True), Step(Op.COPY, CELL, CELL, 2, None, True), Link(0, 1, 1.0, 2.0, ports=(3,))]
)  # fmt: skip
def test_what_is_pickled_by_fields_comes_back(value):
    found = pickle.loads(pickle.dumps(value))
    assert found == value
    assert type(found) is type(value)
    assert copy(value) == value
    # Python's own form for slots looks every field up.
    assert b"_dataclass_setstate" not in pickle.dumps(value)
    assert value.__reduce__()[0] is type(value)


def test_fields_keep_their_order():
    @pickled_by_fields
    @dataclass(frozen=True, slots=True)
    class Pair:
        first: int
        second: str = ""

    make, values = Pair(1, "x").__reduce__()
    assert (make, values) == (Pair, (1, "x"))
