"""Campaign: many instances at once, whose results are kept, compared with earlier ones, and never computed twice."""
