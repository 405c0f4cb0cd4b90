"""Table 1: validation perplexity of the three models on one corruption, beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from threeml_core.config import StudyConfig
from threeml_core.paper import reported_in
from threeml_core.parameters.masking import KINDS
from threeml_core.reporting import cells
from threeml_core.reporting.commands import commands_of
from threeml_core.reporting.table import MISSING, NOT_RUN, Table, beside
from threeml_core.study.results import Result


def table_1(results: Sequence[Result], config: StudyConfig) -> Table:
    """Perplexity over all corrupted tokens, with the paper's, and by kind."""
    rows, reported, shown = [], reported_in("Table 1"), cells.shown_in("Table 1", results)
    vanilla = next((o for o in shown if o.run.config.architecture == "vanilla"), None)
    for result in shown:
        c = result.run.config
        value = reported.get((f"{c.architecture} {c.mask_rate:g}", "perplexity"))
        everywhere = cells.perplexity(result, "eval_perplexity")
        row = {"Model": result.run.model, "All corrupted": beside(everywhere, value.reported if value else None)}
        for kind in KINDS:
            metric = f"eval_perplexity_{kind}"
            is_known = result.metric(metric) or not result.ended
            row[kind.capitalize()] = cells.perplexity(result, metric) if is_known else MISSING
        row["Unigram, masked"] = cells.measured_perplexity([*result.metric("unigram_perplexity_masked").values()][:1])
        against = cells.loss_difference(result, vanilla) if vanilla else NOT_RUN
        row["Loss over all corrupted, against vanilla (nats)"] = MISSING if result is vanilla else against
        rows.append(row)
    same = f"every model sees the same corruption ({config.eval_mask_rate:.0%}, {config.eval_mask_split})"
    commands = commands_of(shown, config, "Table 1")
    return Table(rows, f"Table 1: validation perplexity; {same}", commands=commands)
