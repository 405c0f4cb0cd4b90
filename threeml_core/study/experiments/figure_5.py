"""Figure 5: score against the speed-up of pre-training, at different mask rates.

The clock's values are the sessions of a benchmark, processes that timed the models in turns, and fewer than five of
them that were quiet give no verdict. Runs of a study share a machine and its days, so their clocks are not compared.
"""

from __future__ import annotations

import math

from threeml_core import flops
from threeml_core.benchmark.speeds import latest_sessions, realised_by_session, sessions_said
from threeml_core.config import make_config
from threeml_core.parameters.architectures import PAPER_ARCHITECTURES
from threeml_core.statistics.verdicts import Claim, Finding
from threeml_core.study.evidence import Evidence
from threeml_core.study.experiment import Experiment

FOLLOWS = 0.9
"""Share of the speed-up in FLOPs from which the wall clock follows it. Ours."""


def fewer_flops_and_less_time(study: Evidence) -> Claim:
    """C9."""
    shares = []
    for recipe in ("efficient-large", "longer-base"):
        config = make_config({"preset": recipe, "architecture": "self", "mask_rate": 0.5})
        shares.append(f"{100 / flops.config_speedup(config, 'paper', 0.15):.0f}% in {recipe}")
    text = f"3ML_self at 50% needs fewer FLOPs ({', '.join(shares)} by the formula), and the wall clock follows."
    return Claim("C9", text, "Figure 5, Table 3", (_fewer_flops(study), _clock(study)))


def _fewer_flops(study: Evidence) -> Finding:
    """At this scale; the formula's value is the same with every seed."""
    model = study.model("self", 0.5)
    found = [] if model is None else [record.flops for record in model.ended.values() if record.flops]
    values = tuple(1 / flops_of["speedup_over_vanilla_15"] for flops_of in found)
    settings = ("self 0.5", "vanilla 0.15")
    return Finding("3ML_self-50%: FLOPs as a share of vanilla-15%'s", "", -math.inf, 1.0, values, settings=settings)


def _clock(study: Evidence) -> Finding:
    """By the benchmark's sessions (`latest_sessions`), a value each.

    With one pre-training seed it gives no verdict either: a claim is judged as a whole.
    """
    what = "3ML_self-50% over vanilla-15%, benchmark: wall-clock speed-up as a share of the one in FLOPs"
    sessions = latest_sessions(study.benchmarks, "self-50")
    if not sessions:
        return Finding(what, "", FOLLOWS, math.inf, ())
    alone = "one pre-training seed: no verdict" if study.config.num_pretrain_seeds == 1 else ""
    doubt = "; ".join(filter(None, (alone, sessions_said(sessions))))
    return Finding(what, "", FOLLOWS, math.inf, realised_by_session(sessions, "self-50"), doubt, "session")


FIGURE_5 = Experiment(
    "Figure 5",
    "score against speed-up in FLOPs",
    models=PAPER_ARCHITECTURES,
    vary={"mask_rate": "study_mask_rates"},
    tasks="ablation",
    heading="Mask rate",
    claims=(fewer_flops_and_less_time,),
)
