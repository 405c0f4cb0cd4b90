"""`python -m threeml_core.reporting NOTEBOOKS OUTPUT PRESET [RUNS_DIR]`: build the HTML report."""

import argparse
from pathlib import Path

from threeml_core.errors import command_line
from threeml_core.reporting.html import build_report


@command_line
def main() -> None:
    """Build the report and print where its index is."""
    parser = argparse.ArgumentParser(description="Render executed notebooks into an HTML report.")
    parser.add_argument("notebooks", type=Path, help="folder of executed notebooks")
    parser.add_argument("output", type=Path, help="folder of the report; replaced")
    parser.add_argument("preset", help="named at the foot of every page")
    parser.add_argument("runs_dir", nargs="?", default="runs", help="folder of run folders")
    options = parser.parse_args()
    print(build_report(options.notebooks, options.output, options.preset, options.runs_dir))


main()
