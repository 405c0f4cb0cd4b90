"""Tables, figures and the HTML report. Reads run records and the cost model; needs no torch."""

from threeml_core.reporting.cost import cost_plan, printed_against_computed, speedup_table
from threeml_core.reporting.figures import (
    Figure,
    plot_learning_curves,
    plot_speedups,
    plot_spread,
    plot_token_frequencies,
    plot_training,
)
from threeml_core.reporting.finetuning import (
    ablation_table,
    comparison_of_models,
    example_table,
    failed_table,
    finetune_parameter_table,
    finetune_plan,
    glue_table,
    protocol_table,
    runs_table,
)
from threeml_core.reporting.html import build_report
from threeml_core.reporting.tables import (
    Table,
    comparable,
    comparison_table,
    corpus_table,
    flops_table,
    parameter_table,
    perplexity_table,
    plateau_statement,
    speed_table,
)

__all__ = [
    "Figure",
    "Table",
    "ablation_table",
    "build_report",
    "comparable",
    "comparison_of_models",
    "comparison_table",
    "corpus_table",
    "cost_plan",
    "example_table",
    "failed_table",
    "finetune_parameter_table",
    "finetune_plan",
    "flops_table",
    "glue_table",
    "parameter_table",
    "perplexity_table",
    "plateau_statement",
    "plot_learning_curves",
    "plot_speedups",
    "plot_spread",
    "plot_token_frequencies",
    "plot_training",
    "printed_against_computed",
    "protocol_table",
    "runs_table",
    "speed_table",
    "speedup_table",
]
