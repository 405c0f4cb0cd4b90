"""The variants of the comparison: Hugging Face as shipped, its bare loop, and this package's models.

All train on the same sequences with the same optimizer and dropout, in the same precision; a step is one step.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling

from threeml_core import flops
from threeml_core.config import StudyConfig
from threeml_core.data.prepare import PreparedData
from threeml_core.models.build import build_model
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.training.batches import Batches
from threeml_core.training.optim import make_optimizer
from threeml_core.training.trainer import Trainer, precision_of


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is compared; its `kind` is `ours`, `hf` (as run_mlm trains it) or `hf_bare`."""

    name: str
    label: str
    kind: str
    config: StudyConfig

    def described(self) -> dict[str, Any]:
        """For the record."""
        about = {name: getattr(self.config, name) for name in ("architecture", "mask_rate")}
        return {"label": self.label, "kind": self.kind, **about}

    def step_flops(self, vocab: int) -> float:
        """Executed by a step: three forward passes of every sequence, by the exact formula of Appendix C.

        Hugging Face's head runs at every position.
        """
        c = self.config
        forward = flops.forward_flops(c, "exact", vocab)
        if self.kind != "ours":
            every = flops.TokenCounts(c.sequence_length, c.sequence_length, 0)
            forward = flops.vanilla_flops(every, c.hidden_size, c.num_hidden_layers, vocab, flops.encoder_ffn(c))
        return flops.training_flops(forward, c.batch_size, 1, "exact")


def variants_of(config: StudyConfig) -> list[Variant]:
    """The variants that the parameters ask for, vanilla at 15% among them.

    Hugging Face's two have the first of `benchmark_rates`; their cost does not depend on it.
    """
    wanted = config.listed("benchmark_variants")
    rates = config.listed("benchmark_rates")

    def ours(architecture: str, rate: float) -> Variant:
        label = f"{ARCHITECTURES[architecture].label}-{rate:.0%}"
        changed = config.replace(architecture=architecture, mask_rate=rate)
        return Variant(f"{architecture}-{rate * 100:g}", label, "ours", changed)

    vanilla = config.replace(architecture="vanilla", mask_rate=rates[0])
    theirs = {"hf": "run_mlm", "hf_bare": "bare loop"}
    variants = [
        Variant(kind, f"Hugging Face, {how}, {rates[0]:.0%}", kind, vanilla)
        for kind, how in theirs.items()
        if kind in wanted
    ]
    variants.append(ours("vanilla", 0.15))
    return variants + [ours(a, r) for a in ARCHITECTURES if a in wanted for r in rates if (a, r) != ("vanilla", 0.15)]


def with_vocabulary(data: PreparedData, config: StudyConfig) -> PreparedData:
    """The same text for models of `config.vocab_size` tokens, where the tokenizer has fewer.

    A small text gives a small vocabulary; the cost of the head is that of the vocabulary asked for.
    """
    size = max(config.vocab_size, data.vocab_size)
    return dataclasses.replace(data, meta={**data.meta, "vocab_size": size})


class OursRunner:
    """A variant of this package: `Trainer` itself."""

    def __init__(self, variant: Variant, data: PreparedData, device: torch.device) -> None:
        self.trainer = Trainer(variant.config, data, device)
        self.bf16 = self.trainer.bf16

    def batch(self) -> Any:
        """Read and corrupt the sequences of the next step."""
        return self.trainer.next_batch()

    def step(self, batch: Any) -> Tensor:
        """One step."""
        return self.trainer.update(batch)


class HuggingFaceRunner:
    """`RobertaForMaskedLM`, or the encoder's own kind, of the same configuration, trained as run_mlm does or barely.

    As shipped: a DataLoader with the collator of transformers, an attention mask, clipping at 1.0 and a scheduler;
    the trainer's callbacks and logging are left out. Bare: sequences corrupted by this package, none of the others, and
    compiled where our models are.
    """

    def __init__(self, variant: Variant, data: PreparedData, device: torch.device) -> None:
        self.variant, self.data, self.device, config = variant, data, device, variant.config
        torch.manual_seed(config.seed)
        encoder = build_model(config, data.vocab_size, **data.token_ids).config.encoder
        self.model = AutoModelForMaskedLM.from_config(encoder).to(device).train()
        self.optimizer = make_optimizer(self.model, config)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
        self.bf16, compiled = precision_of(config, device)
        self._bare = variant.kind == "hf_bare"
        self._forward: Any = torch.compile(self.model, dynamic=False) if compiled and self._bare else self.model
        self._batches = Batches(config, data, device)
        self._step = 0
        self._loader = None if self._bare else self._load()

    def _load(self) -> Iterator[dict[str, Tensor]]:
        sequences, special = self.data.train, torch.tensor(list(self.data.special_ids))
        config, on_gpu = self.variant.config, self.device.type == "cuda"
        collator = DataCollatorForLanguageModeling(self.data.tokenizer(), mlm_probability=config.mask_rate)

        def example(index: int) -> dict[str, list[int]]:
            ids = sequences[np.array([index])][0]
            mask = torch.isin(ids, special).int().tolist()
            return {"input_ids": ids.tolist(), "attention_mask": [1] * len(ids), "special_tokens_mask": mask}

        def collate(indices: list[int]) -> Any:
            return collator([example(index) for index in indices])

        options: dict[str, Any] = {"shuffle": True, "drop_last": True, "collate_fn": collate, "pin_memory": on_gpu}
        places: Any = range(len(sequences))
        loader: Iterable[dict[str, Tensor]] = DataLoader(places, config.micro_batch_size, **options)
        while True:
            yield from loader

    def batch(self) -> list[dict[str, Tensor]]:
        """The micro-batches of the next step, on the device."""
        self._step += 1
        micro = self.variant.config.micro_batch_size
        assert micro is not None
        if self._loader is None:
            corrupted = self._batches[self._step - 1].split(micro)
            return [{"input_ids": part.input_ids, "labels": part.labels} for part in corrupted]
        loaded = [next(self._loader) for _ in range(self.variant.config.batch_size // micro)]
        return [{name: x.to(self.device, non_blocking=True) for name, x in part.items()} for part in loaded]

    def step(self, batch: list[dict[str, Tensor]]) -> Tensor:
        """One step."""
        total = torch.zeros((), device=self.device)
        for part in batch:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
                loss = self._forward(**part).loss / len(batch)
            loss.backward()
            total += loss.detach()
        if not self._bare:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if not self._bare:
            self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total


Runner = OursRunner | HuggingFaceRunner


def make_runner(variant: Variant, data: PreparedData, device: torch.device) -> Runner:
    """A fresh model, ready for its first step."""
    return OursRunner(variant, data, device) if variant.kind == "ours" else HuggingFaceRunner(variant, data, device)


def at_its_best(variant: Variant, data: PreparedData, device: torch.device) -> Variant:
    """Hugging Face's on a CPU, if `bf16` is left open and ours take it: in the precision that is faster for itself."""
    config = variant.config
    if variant.kind == "ours" or config.bf16 is not None or device.type != "cpu" or not precision_of(config, device)[0]:
        return variant

    def seconds(choice: Variant) -> float:
        runner = HuggingFaceRunner(choice, data, device)
        batch = runner.batch()
        runner.step(batch)
        started = time.perf_counter()
        runner.step(batch)
        return time.perf_counter() - started

    choices = [dataclasses.replace(variant, config=config.replace(bf16=bf16)) for bf16 in (False, True)]
    return min(choices, key=seconds)


def wait_for(device: torch.device) -> None:
    """Until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
