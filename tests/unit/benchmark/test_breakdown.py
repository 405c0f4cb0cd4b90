"""Where a step's time goes, by kind of operator."""

from __future__ import annotations

from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.models.test_models import batch_of, make
from threeml_core.benchmark.breakdown import kind_of


def test_operators_are_sorted_into_kinds() -> None:
    assert kind_of("aten::mm", [[64, 32], [32, 128]], [], 300) == "matrix products"
    assert kind_of("aten::mm", [[64, 32], [32, 300]], [], 300) == "head"
    assert kind_of("aten::addmm", [[64, 32], [32, 320]], [], 300) == "head"  # padded to 64
    assert kind_of("aten::baddbmm", [[8, 9, 4], [8, 4, 9]], ["_Attention"], 300) == "attention"
    assert kind_of("aten::random_", [[64]], ["_Attention"], 300) == "dropout"
    assert kind_of("aten::mul", [[64, 32]], ["_DropoutAddBackward"], 300) == "dropout"
    assert kind_of("aten::_fused_adamw_", [], ["Optimizer.step#AdamW.step"], 300) == "optimizer"
    assert kind_of("aten::gather", [[8, 32]], ["threeml: data"], 300) == "data"
    assert kind_of("aten::native_layer_norm", [[64, 32]], [], 300) == "GELU and norms"
    assert kind_of("aten::copy_", [[64, 32]], [], 300) == "the rest"


class Copies(TorchDispatchMode):
    """Counts the operators that only move data."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # noqa: ANN001
        name = function.overloadpacket.__name__
        if name in ("clone", "copy_", "cat", "_to_copy", "index_select", "index_copy", "gather"):
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


def test_copies_of_a_step() -> None:
    """Per encoder block: q, k, v into heads, the context back; joined weights and biases; three dropout masks."""
    _, model = make("self", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model.train()
    with Copies() as copies:
        model(corrupted=batch_of(), return_logits=False)
    encoder_blocks, decoder_blocks = 2, 2
    blocks = encoder_blocks + decoder_blocks
    assert copies.counts["clone"] <= 4 * blocks
    assert copies.counts["_to_copy"] <= 3 * blocks + 1 + 5 * blocks  # masks; thresholds and their types
    assert copies.counts["cat"] <= 2 * encoder_blocks + 2  # and the order of what is predicted
    assert copies.counts["index_copy"] == 1 and copies.counts["index_select"] == 2
