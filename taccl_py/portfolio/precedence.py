"""Which of two files for the same calls counts: what installing says where files of MSCCL XML or MSCCL++ plans compete."""

from __future__ import annotations

from taccl_py.collective import Kind
from taccl_py.errors import InputError


def already_done(source: str, kind: Kind, sizes: tuple[int, int], other: str, *, held: bool) -> InputError:
    """Error for a file whose sizes another one does; `held` says that the directory holds that one, so it can be replaced."""
    ways = ["give them other sizes with taccl lower"]
    ways += ["add --replace to take away all that the directory holds"] if held else []
    return InputError(
        f"{kind} from {sizes[0]} to {sizes[1]} bytes is also done by {other}; {', '.join(ways)}, or add --trim to keep the "
        "one that is named first",
        path=source,
    )


def nothing_left(source: str, *, held: bool) -> InputError:
    """Error for a file of whose sizes trimming leaves none: who names a file wants something of it."""
    where = "that the directory holds" if held else "that are named before it"
    way = "add --replace to take those away" if held else "name it before them"
    return InputError(
        f"is cut to nothing, as all its sizes are done by files {where}; {way}, or leave it out", path=source
    )
