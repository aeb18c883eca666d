"""``python -m taccl_py`` and the command ``taccl``."""

import os
import signal
from types import FrameType


def _end(_number: int, _frame: FrameType | None) -> None:
    """End at once, for there is nothing to lose yet."""
    os.write(2, b"error: interrupted\n")
    os._exit(130)


def start() -> None:
    """Run the command line, which takes a while to load: an interrupt ends the program then as it does later."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    from taccl_py.cli import main

    main()


if __name__ == "__main__":
    start()
