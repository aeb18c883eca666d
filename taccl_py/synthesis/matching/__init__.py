"""Time-expanded matching (after TACOS): whoever is free is given something that the other side lacks, moment by moment."""
