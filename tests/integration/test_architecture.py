"""An architecture of one's own is one file: this one. 3ML_late gives only the [MASK]s a position in the decoder."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM

from threeml_core import flops
from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.log import no_line
from threeml_core.masking import CorruptedBatch
from threeml_core.models.configuration import ThreeMLConfig
from threeml_core.models.counting import count_forward_flops
from threeml_core.models.gather import place
from threeml_core.models.threeml_self import ThreeMLSelfForMaskedLM
from threeml_core.parameters.architectures import ARCHITECTURES, Architecture, register
from threeml_core.reporting.style import look_of
from threeml_core.reporting.table_2 import table_2
from threeml_core.study.experiment import Experiment
from threeml_core.study.ledger import find
from threeml_core.study.run import run_study
from threeml_core.training.loop import pretrain


class LateConfig(ThreeMLConfig):
    model_type = "threeml_late"


class LateForMaskedLM(ThreeMLSelfForMaskedLM):
    config_class = LateConfig

    def decoder_input(self, batch: CorruptedBatch) -> Tensor:
        masks = self.mask_embedding + self.decoder_positions(batch.mask_idx + self.first_position)
        whole = place(masks, batch.mask_idx, batch.input_ids.shape[1], torch.zeros_like(self.mask_embedding))
        kept = place(
            self.projection(self.encoder_states(batch)),
            batch.keep_idx,
            batch.input_ids.shape[1],
            torch.zeros_like(self.mask_embedding),
        )
        return whole + kept


LATE = Architecture(
    "late",
    "3ML_late",
    LateForMaskedLM,
    flops.threeml_self_forward,
    flops.threeml_self_decoder,
    colour="#7a5195",
    marker="^",
    linestyle="-.",
    unused=("visible_head",),
)

DEPTH = Experiment(
    "Depth of late",
    "a decoder of one and of two layers",
    models=("self", "late"),
    vary={"decoder_num_hidden_layers": (1, 2)},
    tasks="ablation",
)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register(LATE)
    yield
    del ARCHITECTURES["late"]


def test_it_is_refused_until_it_is_registered() -> None:
    del ARCHITECTURES["late"]
    with pytest.raises(ParameterError, match="architecture='late': expected one of vanilla, self, cross"):
        make_config({"architecture": "late"})
    register(LATE)
    assert make_config({"architecture": "late"}).architecture == "late"
    with pytest.raises(ValueError, match="'self' is registered already"):
        register(Architecture("self", "another", LateForMaskedLM, "", "", "", "", ""))


def test_it_trains_is_counted_and_exported(small: dict[str, object]) -> None:
    config = make_config({**small, "architecture": "late", "max_steps": 4})
    record = pretrain(config, no_line)
    folder = record.folder(config.runs_dir)
    assert record.run_id.startswith("late-") and record.metrics["eval_loss"] > 0
    assert count_forward_flops(config) == flops.forward_flops(config, "exact")
    parameters = sum(p.numel() for p in AutoModelForMaskedLM.from_pretrained(folder / "model").parameters())
    assert parameters == record.data["parameters"] == flops.parameter_count(config, record.data["vocab_size"])
    assert "pre-trained as 3ML_late" in (folder / "encoder" / "README.md").read_text()
    assert AutoModel.from_pretrained(folder / "encoder").config.model_type == "roberta-prelayernorm"
    assert "\nclass LateForMaskedLM(" in (folder / "model" / "modeling_threeml.py").read_text()


def test_what_was_typed_in_ends_no_run(small: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A class whose source is nowhere cannot carry its code: the log says so, and the run is finished all the same."""
    monkeypatch.setattr(LateForMaskedLM, "__module__", "typed_in")
    monkeypatch.setitem(sys.modules, "typed_in", types.ModuleType("typed_in"))
    lines: list[str] = []
    config = make_config({**small, "architecture": "late", "max_steps": 1})
    folder = pretrain(config, lines.append).folder(config.runs_dir)
    assert [line for line in lines if "the source of typed_in cannot be read" in line]
    assert not (folder / "model" / "modeling_threeml.py").exists()
    assert AutoModelForMaskedLM.from_pretrained(folder / "model").config.model_type == "threeml_late"


def test_a_study_shows_it(small: dict[str, object]) -> None:
    given = {**small, "glue": "bundled", "tasks": "word_order", "max_train_examples": 16, "max_length": 32}
    config = make_config({**given, "max_steps": 2, "num_seeds": 1, "num_workers": 1})
    found = run_study(config, [DEPTH], no_line)
    assert [(r.run.model, r.is_finished) for r in found] == [("3ML_self-40%", True), ("3ML_late-40%", True)] * 2
    assert [r.metric("eval_loss") for r in find(config, [DEPTH])] == [r.metric("eval_loss") for r in found]
    table = table_2(DEPTH, found, config)
    assert [row[:2] for row in table.rows if row[0] == "3ML_late-40%"] == [["3ML_late-40%", "1"], ["3ML_late-40%", "2"]]
    assert look_of("late")["color"] == "#7a5195"
