"""One pre-training, or its record: `threeml pretrain -p mask_rate 0.5`. No torch where a record is read."""

from __future__ import annotations

from threeml_core.config import StudyConfig
from threeml_core.foundation.log import Log, print_line
from threeml_core.runs.ledger import pretraining
from threeml_core.runs.record import RunRecord


def pretrain(config: StudyConfig, log: Log = print_line) -> RunRecord:
    """As `loop.pretrain`; with `plan_only` the record is read.

    Raises:
        StudyError: see `loop.pretrain`; with `plan_only`: there is no record.
    """
    if config.plan_only:
        return pretraining(config)
    from threeml_core.training.loop import pretrain as do_pretrain

    return do_pretrain(config, log)
