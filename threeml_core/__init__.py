"""Mask more and mask later (3ML): efficient pre-training of masked language models."""

__version__ = "0.1.0"
