"""Event-driven replay of schedules and programs: how long they take."""
