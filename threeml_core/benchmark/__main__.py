"""`python -m threeml_core.benchmark -p preset benchmark`: measure, or print what was measured before."""

from threeml_core.benchmark.run import run_benchmark
from threeml_core.config import parse_arguments
from threeml_core.errors import StudyError, command_line
from threeml_core.speeds import lines_of


@command_line
def main() -> None:
    """Measure as the parameters say, and print the table."""
    config = parse_arguments("Measure how fast the models train, as notebooks/08_performance.ipynb does.")
    record = run_benchmark(config)
    print("\n".join(lines_of(record)))
    print(f"record: {record.folder(config.runs_dir) / 'record.json'}")
    if record.metrics.get("too_noisy"):
        raise StudyError("too noisy: no speed is given; let the machine idle and run the same command again")


if __name__ == "__main__":  # child processes import it again
    main()
