"""Which architectures go with which encoders."""

from __future__ import annotations

import itertools

from threeml_core.parameters.architectures import ARCHITECTURES, PAPER_ARCHITECTURES
from threeml_core.parameters.model import MODERN

PARTIAL = tuple(name for name, of in ARCHITECTURES.items() if of.full_layers)
"""They run parts of RoBERTa's layers."""

WITH_ENCODERS = [*((name, "roberta") for name in ARCHITECTURES), *((name, MODERN) for name in PAPER_ARCHITECTURES)]
"""Architecture, encoder."""

WITH_KINDS = [*itertools.product(PAPER_ARCHITECTURES, ("pre", "post", "modern"))]
WITH_KINDS += itertools.product(PARTIAL, ("pre", "post"))
"""Architecture, kind of encoder: RoBERTa with pre-LN or post-LN, or ModernBERT."""
