"""Mask more and mask later (3ML): efficient pre-training of masked language models."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is imported; else its profiler prints

__version__ = "0.1.0"
