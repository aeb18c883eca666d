"""``python -m taccl_py``."""

from taccl_py.cli import main

main()
