"""The process of one session of a benchmark: `python -m threeml_core.benchmark.child`, started by `session`."""

from __future__ import annotations

import json
import sys

from threeml_core.benchmark.load import Patience
from threeml_core.benchmark.measure import measure_session
from threeml_core.config import make_config
from threeml_core.foundation.errors import command_line
from threeml_core.foundation.processes import leave_if_asked


@command_line
def main() -> None:
    """Measure one session."""
    leave_if_asked()
    asked = json.loads(sys.stdin.read())
    measure_session(make_config(asked["parameters"]), asked["number"], asked["refuse"], Patience(**asked["patience"]))


if __name__ == "__main__":  # child processes import it again
    main()
