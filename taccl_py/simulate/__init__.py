"""How long? Event-driven replay of schedules and programs."""
