"""`python -m threeml_core.reporting -p preset tiny`: run the notebooks that are out of date, build the HTML report."""

from threeml_core.archive import from_records
from threeml_core.config import parse_arguments
from threeml_core.errors import StudyError, command_line
from threeml_core.files import PROJECT_ROOT
from threeml_core.reporting.execute import execute_notebooks
from threeml_core.reporting.html import build_report


@command_line
def main() -> None:
    """Bring the report of a preset up to date and say where its first page is."""
    config = parse_arguments("Bring the report of a preset up to date: reports/<preset>/index.html.")
    output = PROJECT_ROOT / "reports" / config.preset
    if config.report_from == "records":
        config = from_records(config, output)
    folder, failed = execute_notebooks(config)
    index = build_report(folder, output, config)
    print(f"The report is {index.relative_to(PROJECT_ROOT)}: open it in a browser.")
    if failed:
        raise StudyError(f"{len(failed)} of its pages are missing: {'; '.join(failed)}")


if __name__ == "__main__":  # its worker processes import it again
    main()
