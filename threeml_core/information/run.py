"""Mutual information, measured, or its records. `threeml information`."""

from __future__ import annotations

from threeml_core.config import StudyConfig
from threeml_core.foundation.log import Log, print_line
from threeml_core.information.ledger import information_records
from threeml_core.runs.record import RunRecord
from threeml_core.runs.sweep import run_all


def mutual_information(config: StudyConfig, log: Log = print_line) -> list[RunRecord]:
    """Measure every layer of the chosen runs, or read the records of what was measured before.

    Raises:
        StudyError: bad input, before anything is measured; too little disk or memory; damaged files.
    """
    if config.plan_only:
        return information_records(config)
    from threeml_core.information.measure import chosen_runs, plan_jobs

    jobs = plan_jobs(config, chosen_runs(config, log), log)
    records = run_all(jobs, config.runs_dir, log)
    return [records[job.run_id] for job in jobs]
