"""Say it: tables and JSON records."""
