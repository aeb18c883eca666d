"""The verifier of schedules and programs: it shares no code with the engines or the lowering whose results it verifies."""
