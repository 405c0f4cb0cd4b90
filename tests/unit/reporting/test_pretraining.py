"""Which runs stand beside each other on the page of a pre-training, and which a configuration finds."""

from __future__ import annotations

import dataclasses

from tests.study_records import pretrained
from threeml_core.config import LATER, executed_parameters, make_config
from threeml_core.reporting.pretraining import comparable
from threeml_core.runs.ledger import of_pretraining
from threeml_core.runs.record import RunRecord
from threeml_core.study.ledger import study_runs


def test_another_optimizer_is_another_experiment() -> None:
    """Its default stands in no identity, and in older records nowhere."""
    run = study_runs(make_config({}), ["Table 3"])[0]

    def record(name: str, **changes: str | float) -> RunRecord:
        own = dataclasses.replace(run, config=run.config.replace(**changes))
        made = pretrained(own, 0, eval_corruption="one")
        return dataclasses.replace(made, run_id=name, identity=executed_parameters(own.config.replace(seed=0)))

    adamw, muon = record("adamw"), record("muon", optimizer="muon")
    slower = record("slower", optimizer="muon", muon_learning_rate=0.01)
    older = {name: value for name, value in adamw.parameters.items() if name not in LATER}
    there = [adamw, dataclasses.replace(adamw, run_id="older", parameters=older), muon, slower]
    found = {of.run_id: [r.run_id for r in comparable(of, there)] for of in there}
    assert found == {**dict.fromkeys(("adamw", "older"), ["adamw", "older"]), "muon": ["muon"], "slower": ["slower"]}
    config = run.config.replace(seed=0)
    asked = {"adamw": config.replace(muon_momentum=0.5), "muon": config.replace(optimizer="muon")}
    asked["study"] = config.replace(budget_flops="exact", equal_size_flops=True)  # says which runs, not what they are
    ended = {name: [r.run_id for r in of_pretraining(there, of)] for name, of in asked.items()}
    assert ended == {**dict.fromkeys(("adamw", "study"), ["adamw", "older"]), "muon": ["muon"]}
