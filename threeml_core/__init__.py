"""Mask more and mask later (3ML): efficient pre-training of masked language models."""

import os
import sys

from threeml_core.processes import spin_briefly

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is imported; else its profiler prints
if any(argument.startswith(__name__) for argument in sys.orig_argv):  # python -m threeml_core.<command>
    spin_briefly()

__version__ = "0.1.0"
