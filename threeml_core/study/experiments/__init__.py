"""The paper's tables and figures, and what else the study shows: one experiment a file."""
