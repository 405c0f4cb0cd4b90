"""One pre-training run: model, optimizer, where it stands, and one step of it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from threeml_core.config import StudyConfig
from threeml_core.data.prepare import PreparedData
from threeml_core.foundation.errors import TrainingError
from threeml_core.masking import IGNORE_INDEX, Batch, CorruptedBatch
from threeml_core.models.build import build_model
from threeml_core.models.tally import TokenTally
from threeml_core.training.adaptation import MaskWeights
from threeml_core.training.batches import Batches, seed_of
from threeml_core.training.checkpoint import TrainingState
from threeml_core.training.device import keep_freed_memory
from threeml_core.training.distributed import Processes
from threeml_core.training.optim import linear_warmup_decay, make_optimizer, set_learning_rate
from threeml_core.training.precision import HalfCopy, train_in_bf16
from threeml_core.training.start import load_start


def count_of(batch: Batch) -> torch.Tensor:
    """() corrupted tokens of a batch, on its device."""
    return (batch.labels != IGNORE_INDEX).sum()


def loss_of(model: torch.nn.Module, batch: Batch, count: torch.Tensor) -> torch.Tensor:
    """Sum of cross-entropies over the batch divided by `count`, the corrupted tokens of the whole step."""
    if isinstance(batch, CorruptedBatch):
        return model(corrupted=batch, num_items_in_batch=count, return_logits=False).loss
    return model(input_ids=batch.input_ids, labels=batch.labels, num_items_in_batch=count, return_logits=False).loss


class Trainer:
    """One run: model, optimizer, where it stands, and how to move it on by one step.

    What a step does follows from its step: the sequences, their corruption, and the dropout of each micro-batch. So
    it is the same in whatever process, and however often the run was interrupted.
    """

    def __init__(
        self, config: StudyConfig, data: PreparedData, device: torch.device, processes: Processes | None = None
    ) -> None:
        """`processes`: which share each step; None: this one alone."""
        self.config, self.data, self.device = config, data, device
        self.processes = processes or Processes()
        assert config.micro_batch_size is not None
        self.processes.check(config.batch_size, config.micro_batch_size)
        self.share = config.batch_size // self.processes.count
        self.micro_batch_size = min(config.micro_batch_size, self.share)
        self.batches = Batches(config, data, device)
        keep_freed_memory()
        torch.manual_seed(config.seed)
        self.model = build_model(config, data.vocab_size, **data.token_ids)
        load_start(self.model, config)
        vocab = self.model.config.vocab_size
        self.mask_weights = MaskWeights.of(config, vocab)
        if self.mask_weights is not None:
            self.model.tally = self.model.tally or TokenTally(vocab)
            self.batches.weights = self.mask_weights.to(device).weights
        self.model.to(device=device)  # type: ignore[call-arg]
        self.model.train()
        self.optimizer = make_optimizer(self.model, config)
        self.state = TrainingState()
        self.bf16, self.compiled = precision_of(config, device)
        self.half = HalfCopy(self.model) if self.casts_once() else None
        forward: Any = self.model
        if self.compiled:
            # rows of unequal counts take Hugging Face's own way through the encoder, which looks at the mask's values
            whole = config.mask_counts == "exact"
            if config.mask_rate_schedule != "constant":  # each level is a shape, compiled once
                limits = torch._dynamo.config
                limits.recompile_limit = max(limits.recompile_limit, 8 + config.mask_rate_levels)
            forward = torch.compile(self.model, dynamic=False, fullgraph=whole, mode=config.torch_compile_mode)
        self._forward = self.half.model if self.half else self.processes.share(forward)

    def casts_once(self) -> bool:
        """Does it train a `HalfCopy`? On a GPU, or compiled, autocast serves."""
        return self.bf16 and self.device.type == "cpu" and not self.compiled

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """bfloat16 if the run uses it."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def next_batch(self) -> Batch:
        """The batch of the next step, of all processes."""
        return self.batches[self.state.step]

    def update(self, batch: Batch | None = None) -> torch.Tensor:
        """Do one step, with the next batch if none is given; its loss in nats, still on the device.

        Of several processes each gives its share; the loss is their sum.

        Raises:
            TrainingError: out of GPU memory; says which `micro_batch_size` fits.
        """
        config = self.config
        set_learning_rate(self.optimizer, self.learning_rate())
        batch = self.next_batch() if batch is None else batch
        count = count_of(batch)
        own = batch.split(self.share)[self.processes.rank]
        while True:
            try:
                total = self._gradients(own, count)
                break
            except torch.OutOfMemoryError as error:
                reason = str(error).split(". ")[0]
            self._take_smaller_parts(own, count, reason)
        if self.state.step < config.decoder_warmup_steps:
            for parameter in self.model.encoder.parameters():
                parameter.grad = None  # so that optimizers pass it over: no step, no decay, no moments
        if config.max_grad_norm > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)
        self.optimizer.step()
        self.state.step += 1
        if (tally := self.model.tally) is not None:
            self.processes.sum(tally.sums)
            if self.mask_weights is not None:
                self.mask_weights.take(tally, self.state.step)
        self.model.end_of_step()
        return total

    def _gradients(self, own: Batch, count: torch.Tensor) -> torch.Tensor:
        """Accumulate the gradients of this process's share; its part of the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.model.tally is not None:
            self.model.tally.clear()
        if self.half:
            self.half.refresh()
        total = torch.zeros((), device=self.device)
        parts = own.split(self.micro_batch_size)
        for number, part in enumerate(parts):
            if self.compiled:
                torch.compiler.cudagraph_mark_step_begin()
            with self.processes.accumulate(self._forward, last=number == len(parts) - 1):
                total += self._part(part, count, self.processes.rank * self.share + number * self.micro_batch_size)
        if self.half:
            self.processes.average(p.grad for p in self.model.parameters() if p.grad is not None)
        return total

    def _part(self, part: Batch, count: torch.Tensor, row: int) -> torch.Tensor:
        """Forward and backward of a micro-batch whose first sequence is `row` of the step."""
        torch.manual_seed(seed_of(self.config.seed, self.state.step, 1 + row))  # of dropout
        with contextlib.nullcontext() if self.half else self.autocast():
            loss = loss_of(self._forward, part, count)
        # processes' gradients are averaged, but the count is that of all
        (loss * self.processes.count if self.processes.count > 1 else loss).backward()
        return loss.detach()

    def _take_smaller_parts(self, own: Batch, count: torch.Tensor, reason: str) -> None:
        """Out of GPU memory: find the largest smaller micro-batch that fits, and take it if that was asked for."""
        asked = self.micro_batch_size
        smaller = (size for size in range(asked // 2, 0, -1) if self.share % size == 0)
        fits = next((size for size in smaller if self._fits(own, count, size)), None)
        if fits is None:
            raise TrainingError(
                f"out of GPU memory with micro_batch_size={asked} ({reason}), and one sequence does not fit either: "
                "take a smaller model or shorter sequences"
            )
        if not self.config.auto_find_micro_batch_size or self.processes.count > 1:
            raise TrainingError(
                f"out of GPU memory with micro_batch_size={asked} ({reason}); {fits} fits: set micro_batch_size={fits}"
                + ("" if self.processes.count > 1 else ", or auto_find_micro_batch_size=True")
            )
        self.micro_batch_size = fits

    def _fits(self, own: Batch, count: torch.Tensor, size: int) -> bool:
        """Try a micro-batch of this size; the next attempt clears its gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        try:
            with self.processes.accumulate(self._forward, last=False):
                self._part(own.split(size)[0], count, 0)
        except torch.OutOfMemoryError:
            return False
        return True

    def learning_rate(self) -> float:
        """AdamW's, of the next step."""
        config = self.config
        return config.learning_rate * linear_warmup_decay(self.state.step, config.max_steps, config.warmup_ratio)


def precision_of(config: StudyConfig, device: torch.device) -> tuple[bool, bool]:
    """(bf16, torch_compile) with None decided: both on a GPU; bf16 on a CPU that is faster with it."""
    gpu = device.type == "cuda"
    return train_in_bf16(config, device), config.torch_compile if config.torch_compile is not None else gpu
