"""The benchmark's sessions, measured, or their records. `threeml benchmark`."""

from __future__ import annotations

import time

from threeml_core.benchmark.load import Patience
from threeml_core.benchmark.session import in_new_process
from threeml_core.benchmark.speeds import benchmark_records, scipy_stats
from threeml_core.config import StudyConfig, at_constant_rate
from threeml_core.foundation.log import Log, print_line
from threeml_core.runs.record import RunRecord, read_record


def run_benchmark(
    config: StudyConfig, log: Log = print_line, refuse: bool = False, patience: Patience | None = None
) -> list[RunRecord]:
    """Measure what `benchmark_parts` asks for in `num_benchmark_sessions` sessions; a record for each.

    A schedule of the mask rate is left out: every variant has a constant one.

    A session is a process: the first is this one, which measures all parts; each other one is new, starts a while
    after the one before, and measures speed alone. A record of the same code on the same kind of machine is read; but
    a session that gave no speed (`why_no_speed`) is measured again.

    Args:
        config: geometry, text, variants, rounds.
        log: takes progress lines.
        refuse: on a machine that stays busy, to end with an error; else the record says that it was busy.
        patience: how idle the machine has to be, and how long is waited for that.

    Raises:
        StudyError: bad parameters or corpus.
        BusyError: the machine is busy; nothing is recorded.
    """
    if config.mask_rate_schedule != "constant":
        log(f"mask_rate_schedule={config.mask_rate_schedule} is left out: a benchmark measures constant mask rates")
        config = at_constant_rate(config)
    if config.plan_only:
        return benchmark_records(config)
    from threeml_core.benchmark.measure import Session
    from threeml_core.benchmark.variants import with_vocabulary
    from threeml_core.data.prepare import prepare_data

    patience = patience or Patience()
    if config.num_benchmark_sessions > 1:
        scipy_stats()  # before anything is measured
    data = with_vocabulary(prepare_data(config, log, any_vocabulary=True), config)
    records: list[RunRecord] = []
    has_measured = False
    for number in range(1, config.num_benchmark_sessions + 1):
        session = Session(config if number == 1 else config.replace(benchmark_parts="speed"), number, data)
        record = session.finished(log)
        if record is None:
            if has_measured:
                time.sleep(patience.pause)
            if number == 1:
                record = session.measure(refuse, patience, log)
            else:
                log(f"session {number} of {config.num_benchmark_sessions}, in a process of its own")
                in_new_process(session.config, number, refuse, patience, log)
                record = read_record(session.folder)
            has_measured = True
        records.append(record)
    return records
