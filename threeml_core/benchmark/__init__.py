"""How fast the models train, beside the vanilla model and Hugging Face's own, and where the time goes.

One script for CPU and GPU: `python -m threeml_core.benchmark -p preset benchmark`.
"""

from threeml_core.benchmark.run import run_benchmark

__all__ = ["run_benchmark"]
