"""What a process knows of its process group."""

import logging

from taccl_py.torch.catalog import FileChoice
from taccl_py.torch.group import GroupSeat


def test_why_the_backend_is_called_is_said_once_for_each_reason_and_aloud_by_one_rank(caplog):
    caplog.set_level(logging.DEBUG)
    reasons = [FileChoice(None, why_not="no file is for alltoall", detail=detail) for detail in ("256 bytes", "1 KiB")]
    for rank in (0, 1):
        seat = GroupSeat(None, None, rank, (0, 1), "0")
        for choice in (*reasons, FileChoice(None), FileChoice(None, why_not="of its data type")):
            seat.tell(choice)
    own = "the backend's own collective is called, as"
    said = [f"{own} no file is for alltoall (256 bytes); said once", f"{own} of its data type; said once"]
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (level, text) for level in (logging.WARNING, logging.DEBUG) for text in said
    ]
