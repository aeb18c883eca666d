"""Ask for it: the command line."""
