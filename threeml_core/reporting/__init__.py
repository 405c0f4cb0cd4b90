"""The exhibits of the study, one file each, and the HTML report. Reads run records and the cost model, no torch."""
