"""Table 2: depth of the decoder, width of the decoder, masking strategy."""

from __future__ import annotations

import functools
import math

from threeml_core.statistics.verdicts import Claim
from threeml_core.study.evidence import MARGIN, Evidence
from threeml_core.study.experiment import Experiment


def shallow_beats_deep(study: Evidence) -> Claim:
    """C4."""
    depths = study.config.listed("study_depths")
    deepest = max(depths)
    shallow = [d for d in depths if 1 < d < deepest] or [d for d in depths if d < deepest]
    words = {depth: f"{depth} layer{'s' * (depth > 1)}" for depth in shallow}
    found = study.variants("Table 2a", "decoder_num_hidden_layers", words, deepest, 0, math.inf)
    return Claim("C4", "A shallow decoder is better downstream than a deep one.", "Table 2a", found)


def width_hardly_matters(study: Evidence) -> Claim:
    """C5."""
    width = study.config.decoder_hidden_size
    words = {w: f"width {w}" for w in study.config.listed("study_widths") if w != width}
    found = study.variants("Table 2b", "decoder_hidden_size", words, width, -MARGIN, MARGIN)
    return Claim("C5", "The decoder's width hardly matters.", "Table 2b", found)


def unchanged_tokens_matter(study: Evidence) -> Claim:
    """C6."""
    words = {s: s for s in TABLE_2C.values(study.config, "mask_split") if s in ("80-10-10", "80-0-20")}
    found = study.variants("Table 2c", "mask_split", words, "100-0-0", 0, math.inf)
    return Claim("C6", "Unchanged tokens matter: 80-10-10 and 80-0-20 beat 100-0-0.", "Table 2c", found)


_ablation = functools.partial(Experiment, models=("self", "cross"), tasks="ablation")

TABLE_2A = _ablation(
    "Table 2a",
    "depth of the decoder",
    vary={"decoder_num_hidden_layers": "study_depths"},
    heading="Decoder layers",
    claims=(shallow_beats_deep,),
)

TABLE_2B = _ablation(
    "Table 2b",
    "width of the decoder",
    vary={"decoder_hidden_size": "study_widths"},
    heading="Decoder width",
    claims=(width_hardly_matters,),
)

TABLE_2C = _ablation(
    "Table 2c",
    "masking strategy",
    vary={"mask_split": "study_splits"},
    heading="Split",
    columns={"Perplexity, masked": "eval_perplexity_masked", "Perplexity, own split": "own_perplexity"},
    claims=(unchanged_tokens_matter,),
)
