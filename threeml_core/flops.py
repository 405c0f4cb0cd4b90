"""Appendix C: how many FLOPs the models cost, and how many parameters they have. Pure numbers.

Source: Appendix C (equations 2 to 4) and Table 4. A multiply-add counts as two FLOPs; biases, activations, norms,
dropout and sparse embedding lookups are left out. The slips of the printed appendix that are corrected here:

* phi_out of self-attention is printed as 2n²d; it is 2nd² (the printed total 8nd² + 4n²d already uses that).
* 3ML_cross: "n_de = 0.8nr and n_de = (1-0.8r)n"; the second is n_en.
* "2bu": forward and backward are said to cost the same. The backward pass costs twice the forward, so a training
  step is 3 forward passes. Ratios between models do not change.
* Table 4 calls both depths l_en; the decoder's is l_de.

Two modes:

* `paper`: real-valued token counts, n_en = (1 - 0.8r)n, and the factor 2 of the paper: reproduces printed figures.
* `exact`: the [MASK]s and the slots for visible tokens that the corruption really has (one that a row leaves open is
  computed too, its logits on a GPU only), the factor 3, and the last decoder block of 3ML_self at the predicted
  positions only: what a step executes. Equal to `torch.utils.flop_counter.FlopCounterMode` (tested).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from threeml_core.config import StudyConfig, at_constant_rate
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.masking import corruption_counts, levels_of, parse_mask_split
from threeml_core.parameters.model import MODERN, default_ffn_width, num_kept

Mode = Literal["paper", "exact"]
STEP_FACTOR: dict[Mode, int] = {"paper": 2, "exact": 3}
"""Cost of a training step in forward passes."""


def block_flops(n: float, d: float, intermediate: float | None = None) -> float:
    """phi_BLK(n, d) = 24nd² + 4n²d: one self-attention block over n tokens of width d, forward, FLOPs.

    Source: Appendix C. `intermediate` is the FFN width (tokens' inner width), 4d if None.
    """
    intermediate = 4 * d if intermediate is None else intermediate
    return 8 * n * d * d + 4 * n * n * d + 4 * n * d * intermediate


def cross_block_flops(n_en: float, n_de: float, d_de: float, intermediate: float | None = None) -> float:
    """phi_CBLK = 4n_en·d_de² + 28n_de·d_de² + 4n_en·n_de·d_de + 4n_de²·d_de, forward, FLOPs.

    Source: Appendix C. Self-attention among n_de [MASK]s, cross-attention to n_en encoder outputs, FFN.
    """
    cross_attention = 4 * n_en * d_de**2 + 4 * n_de * d_de**2 + 4 * n_en * n_de * d_de
    return block_flops(n_de, d_de, intermediate) + cross_attention


def last_block_flops(n: float, n_predicted: float, d: float, intermediate: float | None = None) -> float:
    """A self-attention block whose result is needed at `n_predicted` of its n tokens only, forward, FLOPs.

    Keys and values of all tokens, everything else at the predicted ones; `block_flops(n, d)` where all are.
    """
    intermediate = 4 * d if intermediate is None else intermediate
    return 4 * n * d * d + 4 * n_predicted * d * (d + intermediate) + 4 * n * n_predicted * d


def prediction_flops(n_predicted: float, d_in: float, d_en: float, vocab: float) -> float:
    """phi_Pred = 2·n_predicted·(d_in·d_en + d_en·|V|): the head at the predicted positions, forward, FLOPs.

    Source: Appendix C; phi_Pred has d_in = d_en, phi'_Pred has d_in = d_de; n_predicted = nr there.
    """
    return 2 * n_predicted * (d_in * d_en + d_en * vocab)


@dataclasses.dataclass(frozen=True)
class TokenCounts:
    """Tokens of one sequence, by role. Whole numbers in `exact` mode: [MASK]s, and slots for visible tokens."""

    n: float
    n_masked: float
    n_visible: float
    """Replaced and unchanged: corrupted, but seen by the encoder."""

    @property
    def n_en(self) -> float:
        """Tokens the 3ML encoder sees."""
        return self.n - self.n_masked

    @property
    def n_corrupted(self) -> float:
        """Tokens that are predicted."""
        return self.n_masked + self.n_visible


def token_counts(n: int, mask_rate: float, mask_split: str = "80-10-10", mode: Mode = "paper") -> TokenCounts:
    """How many tokens of a sequence of n are masked and how many stay visible."""
    if mode == "exact":
        counts = corruption_counts(n, mask_rate, mask_split)
        return TokenCounts(n, counts.masked, counts.visible_slots)
    share = parse_mask_split(mask_split)[0]
    return TokenCounts(n, share * mask_rate * n, (1 - share) * mask_rate * n)


def vanilla_flops(counts: TokenCounts, d: float, l_en: int, vocab: float, intermediate: float | None = None) -> float:
    """phi_RoBERTa without 2bu: one sequence through the vanilla model, forward, FLOPs. Source: eq. 2."""
    encoder = l_en * block_flops(counts.n, d, intermediate)
    return encoder + prediction_flops(counts.n_corrupted, d, d, vocab)


def forward_flops(config: StudyConfig, mode: Mode = "paper", vocab: int | None = None) -> float:
    """Forward FLOPs of one sequence through the model that `config` describes, by its architecture's formula.

    With a schedule of the mask rate the mean over the steps: the sum over its levels, each by its share of the steps.
    """
    vocab = config.vocab_size if vocab is None else vocab
    formula = ARCHITECTURES[config.architecture].load("forward_flops")
    if config.mask_rate_schedule == "constant":
        return formula(config, mode, vocab)
    levels = [level for level in levels_of(config.parameters()) if len(level)]
    costs = (formula(at_constant_rate(config, level.rate), mode, vocab) for level in levels)
    return sum(len(level) * cost for level, cost in zip(levels, costs, strict=True)) / config.max_steps


def _counts(config: StudyConfig, mode: Mode) -> TokenCounts:
    return token_counts(config.sequence_length, config.mask_rate, config.mask_split, mode)


def vanilla_forward(config: StudyConfig, mode: Mode, vocab: int) -> float:
    """`vanilla_flops` of a configuration."""
    return vanilla_flops(
        _counts(config, mode), config.hidden_size, config.num_hidden_layers, vocab, encoder_ffn(config)
    )


def encoder_ffn(config: StudyConfig) -> float:
    """`intermediate` of the encoder in the formulas; a gate is a third matrix, as costly as half as much width."""
    assert config.intermediate_size is not None
    return config.intermediate_size * (1.5 if config.encoder == MODERN else 1)


def _decoder_ffn(config: StudyConfig) -> float:
    width = default_ffn_width(config.encoder, _widths(config)[1])
    return width * (1.5 if config.encoder == MODERN else 1)


def _encoder_flops(config: StudyConfig, n_en: float) -> float:
    """The encoder of 3ML, and the projection to the decoder's width if that is another."""
    d_en, d_de = _widths(config)
    projection = 2 * n_en * d_en * d_de if d_en != d_de else 0
    return projection + config.num_hidden_layers * block_flops(n_en, d_en, encoder_ffn(config))


def threeml_self_forward(config: StudyConfig, mode: Mode, vocab: int) -> float:
    """phi_3ML_self without 2bu: one sequence, forward, FLOPs. Source: eq. 3.

    The appendix counts the last decoder block in full; `exact` counts what is executed, see `last_block_flops`.
    """
    counts, (d_en, d_de), ffn = _counts(config, mode), _widths(config), _decoder_ffn(config)
    return (
        _encoder_flops(config, counts.n_en)
        + (config.decoder_num_hidden_layers - 1) * block_flops(counts.n, d_de, ffn)
        + last_block_flops(counts.n, counts.n if mode == "paper" else counts.n_corrupted, d_de, ffn)
        + prediction_flops(counts.n_corrupted, d_de, d_en, vocab)
    )


def threeml_cross_forward(config: StudyConfig, mode: Mode, vocab: int) -> float:
    """phi_3ML_cross without 2bu: one sequence, forward, FLOPs. Source: eq. 4.

    Appendix C, and so the `paper` mode, counts a separate head of width d_en for the visible tokens; with
    `visible_head="shared"` they go through the decoder's head after the projection to d_de (section 2.2).
    """
    counts, (d_en, d_de) = _counts(config, mode), _widths(config)
    visible_width = d_de if mode == "exact" and config.visible_head == "shared" else d_en
    return (
        _encoder_flops(config, counts.n_en)
        + config.decoder_num_hidden_layers * cross_block_flops(counts.n_en, counts.n_masked, d_de, _decoder_ffn(config))
        + prediction_flops(counts.n_visible, visible_width, d_en, vocab)
        + prediction_flops(counts.n_masked, d_de, d_en, vocab)
    )


def sparse_queries_forward(config: StudyConfig, mode: Mode, vocab: int) -> float:
    """NarrowBERT SparseQueries: one sequence, forward, FLOPs. Source: Li et al. (2023), section 2.

    Narrow layers make keys and values of all tokens, and the rest at the corrupted ones alone.
    """
    narrow = last_block_flops(config.sequence_length, _counts(config, mode).n_corrupted, *_block(config))
    return _narrowbert(config, mode, vocab, narrow)


def context_first_forward(config: StudyConfig, mode: Mode, vocab: int) -> float:
    """NarrowBERT ContextFirst: one sequence, forward, FLOPs. Source: Li et al. (2023), section 2.

    Narrow layers have their attention over all tokens, and their FFN at the corrupted ones alone.
    """
    d, ffn = _block(config)
    narrow = block_flops(config.sequence_length, d, 0) + 4 * _counts(config, mode).n_corrupted * d * ffn
    return _narrowbert(config, mode, vocab, narrow)


def _narrowbert(config: StudyConfig, mode: Mode, vocab: int, narrow: float) -> float:
    """Full layers, narrow ones of `narrow` FLOPs each, and the head at the corrupted positions."""
    d, full = config.hidden_size, config.full_layers
    assert full is not None
    layers = full * block_flops(config.sequence_length, *_block(config)) + (config.num_hidden_layers - full) * narrow
    return layers + prediction_flops(_counts(config, mode).n_corrupted, d, d, vocab)


def token_dropping_forward(config: StudyConfig, mode: Mode, vocab: int) -> float:
    """Token dropping while it trains: one sequence, forward, FLOPs. Source: Hou et al. (2022), section 3.

    The first layer that drops makes keys and values of all tokens, and the rest of the kept ones; those behind it see
    these alone, and the last one all again.
    """
    n, d, full = config.sequence_length, config.hidden_size, config.full_layers
    assert full is not None
    kept = config.kept_share * n if mode == "paper" else num_kept(n, config.kept_share)
    dropping = max(0, config.num_hidden_layers - 1 - full)
    layers = (config.num_hidden_layers - dropping) * block_flops(n, *_block(config))
    if dropping:
        layers += last_block_flops(n, kept, *_block(config)) + (dropping - 1) * block_flops(kept, *_block(config))
    return layers + prediction_flops(_counts(config, mode).n_corrupted, d, d, vocab)


def _block(config: StudyConfig) -> tuple[int, float]:
    """Width and `intermediate` of an encoder layer in the formulas."""
    return config.hidden_size, encoder_ffn(config)


def _positions(config: StudyConfig, d: int) -> int:
    """Parameters of a position table of this width; RoPE has none."""
    assert config.max_position_embeddings is not None
    return 0 if config.encoder == MODERN else config.max_position_embeddings * d


def _widths(config: StudyConfig) -> tuple[int, int]:
    """d_en, d_de."""
    assert config.decoder_hidden_size is not None
    return config.hidden_size, config.decoder_hidden_size


def training_flops(forward: float, batch_size: int, steps: float, mode: Mode = "paper") -> float:
    """FLOPs of `steps` steps of `batch_size` sequences: 2bu forward passes (paper) or 3bu (exact)."""
    return STEP_FACTOR[mode] * batch_size * steps * forward


def optimizer_flops(config: StudyConfig) -> float:
    """FLOPs of Muon's orthogonalisation in a step: five iterations for each matrix of a layer; 0 with AdamW.

    Of a matrix m x n, m its smaller side, each takes 4m²n + 2m³: two products with the Gram matrix, and its square.
    Source: Jordan et al. (2024); what has no product is left out, as everywhere here. They do not depend on the batch.
    """
    if config.optimizer != "muon":
        return 0.0
    (d_en, d_de), entry = _widths(config), ARCHITECTURES[config.architecture]
    assert config.intermediate_size is not None
    halves = 3 if config.encoder == MODERN else 2  # the gate is a matrix of its own
    sides = [*[(d_en, d_en)] * 4, *[(d_en, config.intermediate_size)] * halves] * config.num_hidden_layers
    if entry.has_decoder:
        cross = config.architecture == "cross"
        inner = default_ffn_width(config.encoder, d_de)
        sides += [*[(d_de, d_de)] * (8 if cross else 4), *[(d_de, inner)] * halves] * config.decoder_num_hidden_layers
        sides += [(d_en, d_de)] if d_en != d_de else []
        sides += [(d_en, d_en)] if cross and config.visible_head == "separate" else []
    sides.append((d_de if entry.has_decoder else d_en, d_en))
    return 5.0 * sum(4 * min(side) ** 2 * max(side) + 2 * min(side) ** 3 for side in sides)


def speedup(baseline: float, model: float) -> float:
    """How many times cheaper `model` is than `baseline`; both in forward FLOPs of a sequence."""
    return baseline / model


def config_speedup(
    config: StudyConfig, mode: Mode = "paper", baseline_mask_rate: float | None = 0.15, vocab: int | None = None
) -> float:
    """Speed-up over the vanilla model at `baseline_mask_rate` (None: the model's own rates) with the split 80-10-10."""
    baseline = config.replace(architecture="vanilla", mask_split="80-10-10")
    if baseline_mask_rate is not None:
        baseline = at_constant_rate(baseline, baseline_mask_rate)
    return speedup(forward_flops(baseline, mode, vocab), forward_flops(config, mode, vocab))


def _linear(config: StudyConfig, d_in: int, d_out: int) -> int:
    return d_in * d_out + (0 if config.encoder == MODERN else d_out)


def _norm(config: StudyConfig, d: int) -> int:
    return d if config.encoder == MODERN else 2 * d


def _block_parameters(config: StudyConfig, d: int, inner: int) -> int:
    entry = 2 * inner if config.encoder == MODERN else inner  # the gate stands beside what it gates
    ffn = _linear(config, d, entry) + _linear(config, inner, d)
    return 4 * _linear(config, d, d) + ffn + 2 * _norm(config, d)


def encoder_block_parameters(config: StudyConfig) -> int:
    """Parameters of the encoder's blocks, without embeddings; with the final LayerNorm of pre-LN.

    ModernBERT's first block has no norm before its attention, as the embedding's is there.
    """
    assert config.intermediate_size is not None
    blocks = config.num_hidden_layers * _block_parameters(config, config.hidden_size, config.intermediate_size)
    final = config.layer_norm == "pre" and config.encoder != MODERN
    return blocks + (_norm(config, config.hidden_size) if final else 0)


def decoder_parameters(config: StudyConfig) -> int:
    """Parameters that fine-tuning throws away, the prediction head left out: blocks, projection, positions, [MASK]."""
    return ARCHITECTURES[config.architecture].load("decoder_parameters")(config)


def no_decoder(config: StudyConfig) -> int:
    """The vanilla model has none, nor have those that train an encoder in another way."""
    return 0


def threeml_self_decoder(config: StudyConfig) -> int:
    """Parameters of the decoder of 3ML_self."""
    (d_en, d_de), inner = _widths(config), default_ffn_width(config.encoder, _widths(config)[1])
    total = config.decoder_num_hidden_layers * _block_parameters(config, d_de, inner) + _positions(config, d_de) + d_de
    total += _linear(config, d_en, d_de) if d_en != d_de else 0
    return total + (_norm(config, d_de) if config.layer_norm == "pre" else 0)


def threeml_cross_decoder(config: StudyConfig) -> int:
    """Parameters of the decoder of 3ML_cross, with the separate head for visible tokens if there is one."""
    d_en, d_de = _widths(config)
    head = _linear(config, d_en, d_en) + _norm(config, d_en) if config.visible_head == "separate" else 0
    cross_attention = config.decoder_num_hidden_layers * (4 * _linear(config, d_de, d_de) + _norm(config, d_de))
    return threeml_self_decoder(config) + cross_attention + head


def parameter_count(config: StudyConfig, vocab: int | None = None) -> int:
    """Trainable parameters of the whole pre-training model; the word embedding is tied and counted once."""
    vocab = config.vocab_size if vocab is None else vocab
    d = config.hidden_size
    token_type = 0 if config.encoder == MODERN else d
    embeddings = vocab * d + _positions(config, d) + token_type + _norm(config, d)
    d_in = config.decoder_hidden_size if ARCHITECTURES[config.architecture].has_decoder else d
    assert d_in is not None
    head = _linear(config, d_in, d) + _norm(config, d) + vocab
    return embeddings + encoder_block_parameters(config) + decoder_parameters(config) + head


def training_memory_bytes(config: StudyConfig) -> int:
    """Weights, gradients and both AdamW moments in fp32: 16 bytes a parameter. Activations come on top.

    Muon keeps one moment of a matrix, so that it needs up to a quarter less.
    """
    return 16 * parameter_count(config)
