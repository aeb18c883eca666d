"""Runtime profiles: values, files, and what a machine looks like under them."""
