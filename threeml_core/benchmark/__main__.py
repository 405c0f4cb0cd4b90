"""`python -m threeml_core.benchmark -p preset benchmark`: measure, or print what was measured before."""

from threeml_core.benchmark.run import run_benchmark
from threeml_core.config import parse_arguments
from threeml_core.errors import BusyError, command_line
from threeml_core.speeds import lines_of, session_of, why_no_speed


@command_line
def main() -> None:
    """Measure as the parameters say, and print the table; on a busy machine, or a noisy one, end with an error."""
    config = parse_arguments("Measure how fast the models train, as notebooks/08_performance.ipynb does.")
    records = run_benchmark(config, refuse=True)
    print("\n".join(lines_of(records)))
    for record in records:
        print(f"record: {record.folder(config.runs_dir) / 'record.json'}")
    bad = {session_of(r): why for r in records if "turns" in r.metrics and (why := why_no_speed(r))}
    if bad:
        said = "; ".join(f"session {number} is {why}" for number, why in bad.items())
        raise BusyError(f"{said}: no speed is given; let the machine idle and run the same command again")


if __name__ == "__main__":  # child processes import it again
    main()
