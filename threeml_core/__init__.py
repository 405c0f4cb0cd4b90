"""Mask more and mask later (3ML): efficient pre-training of masked language models."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # torch reads it when imported; without it, its profiler prints

__version__ = "0.1.0"
