"""What a study says: pure values, no process, no clock, no file but the study file."""
