"""The answer for a runtime: schedules become programs, programs become files."""
