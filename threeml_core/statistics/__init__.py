"""Intervals over seeds and the rule of verdicts. No torch."""
