"""The models: equivalences, initialisation, losses, round trips, the traps of the libraries underneath."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from tests.combinations import WITH_KINDS
from threeml_core import flops
from threeml_core.config import StudyConfig, make_config
from threeml_core.masking import CorruptedBatch, Masking, corrupt
from threeml_core.models.build import build_model
from threeml_core.models.gather import take
from threeml_core.parameters.architectures import ARCHITECTURES, PAPER_ARCHITECTURES

VOCAB, N = 120, 24
KINDS = ("pre", "post", "modern")
NOT_POST = [(architecture, kind) for architecture, kind in WITH_KINDS if kind != "post"]


@pytest.fixture
def restore_gradients():
    yield
    torch.set_grad_enabled(True)


def make(architecture: str, kind: str = "pre", **settings) -> tuple[StudyConfig, torch.nn.Module]:
    """A small model: RoBERTa's layers with pre-LN or post-LN, or ModernBERT's, of which the second one is local."""
    modern = {"encoder": "modernbert", "local_attention": 8, "global_attn_every_n_layers": 2}
    config = make_config(
        {
            "architecture": architecture,
            **(modern if kind == "modern" else {"layer_norm": kind}),
            "sequence_length": N,
            "max_position_embeddings": N + 2,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "initialization": "bert",
            "decoder_num_hidden_layers": 2,
            "decoder_hidden_size": settings.get("hidden_size", 32) // 2,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **settings,
        }
    )
    torch.manual_seed(0)
    return config, build_model(config, VOCAB, mask_token_id=4).eval()


def batch_of(rows: int = 6, seed: int = 0, **settings) -> CorruptedBatch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCAB, (rows, N), generator=generator)
    ids[:, 0], ids[:, -1] = 0, 2
    batch = corrupt(ids, Masking(4, (0, 1, 2, 3, 4), VOCAB, **settings), generator)
    assert isinstance(batch, CorruptedBatch)
    return batch


@pytest.mark.usefixtures("restore_gradients")
@pytest.mark.parametrize(("architecture", "kind"), WITH_KINDS)
@pytest.mark.parametrize("visible_head", ["shared", "separate"])
@pytest.mark.parametrize("gradients", [True, False])
def test_fast_path_equals_ordinary_forward(architecture: str, kind: str, visible_head: str, gradients: bool) -> None:
    """The dense gather gives what a full-length run with the [MASK] keys hidden gives.

    Without gradients torch's layers take a fused path of their own, the one behind every reported perplexity.
    """
    _, model = make(architecture, kind, visible_head=visible_head)
    batch = batch_of()
    with_gradients = model(corrupted=batch).logits
    torch.set_grad_enabled(gradients)
    fast = model(corrupted=batch)
    assert (fast.logits - with_gradients).abs().max() < 1e-6
    for attention_mask in (None, torch.ones_like(batch.input_ids)):
        ordinary = model(batch.input_ids, attention_mask, batch.labels)
        at = ordinary.logits.gather(1, batch.corrupted_idx[..., None].expand(-1, -1, VOCAB))
        assert (fast.logits - at).abs().max() < 1e-6
        assert fast.loss.item() == pytest.approx(ordinary.loss.item(), abs=1e-6)


def test_gathered_encoder_needs_the_original_positions() -> None:
    _, model = make("self")
    batch = batch_of()
    kept = batch.input_ids.gather(1, batch.keep_idx)
    full = model.encoder(
        batch.input_ids,
        attention_mask=(batch.input_ids != 4).long(),
        position_ids=model.position_ids(batch.input_ids),
    ).last_hidden_state
    expected = full.gather(1, batch.keep_idx[..., None].expand(-1, -1, 32))
    assert (model.encoder_states(batch) - expected).abs().max() < 1e-6
    renumbered = model.encoder(kept).last_hidden_state
    assert (renumbered - expected).abs().max() > 0.5


@pytest.mark.parametrize("local_attention", [2, 8, 2 * N])
@pytest.mark.parametrize("architecture", PAPER_ARCHITECTURES)
def test_windows_of_gathered_tokens_are_by_position(architecture: str, local_attention: int) -> None:
    """In fp64: both ways in agree, gradients too, and padding on either side changes nothing.

    transformers' own mask is another. A window of two tokens holds no kept token around many a [MASK].
    """
    _, model = make(architecture, "modern", local_attention=local_attention, initialization="scaled")
    model, batch = model.double(), batch_of()
    fast, ids = model(corrupted=batch), batch.input_ids
    ordinary = model(ids, labels=batch.labels)
    both = fast.logits, take(ordinary.logits, batch.corrupted_idx)
    assert (both[0] - both[1]).abs().max() < 1e-12
    weights = torch.linspace(-1, 1, both[0].numel()).view_as(both[0])
    gradients = [torch.autograd.grad((x * weights).sum(), list(model.parameters())) for x in both]
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)
    assert fast.loss.item() == pytest.approx(ordinary.loss.item(), abs=1e-5)  # in fp32
    left = torch.arange(N + 5) >= 5
    for real in (left, left.flip(0)):
        padded = torch.full((len(ids), N + 5), 1)
        padded[:, real] = ids
        assert (model(padded, real.long().expand(len(ids), -1)).logits[:, real] - ordinary.logits).abs().max() < 1e-12
    tokens, positions = model.kept_tokens(batch)
    by_index = model.encoder(tokens, position_ids=positions).last_hidden_state
    same = (by_index - model.encoder_states(batch)).abs().max() < 1e-12
    assert same == (architecture == "vanilla" or local_attention == 2 * N)


def test_windows_need_masks() -> None:
    """Flash attention would take windows by index; `eager` adds a mask to the scores."""
    _, model = make("self", "modern")
    expected = model(corrupted=batch_of()).logits
    model.encoder.set_attn_implementation("eager")
    assert (model(corrupted=batch_of()).logits - expected).abs().max() < 1e-5
    model.encoder.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="^attn_implementation='flash_attention_2' .* take sdpa or eager$"):
        model(corrupted=batch_of())


@pytest.mark.parametrize("kind", KINDS)
def test_positions_are_the_encoders_own(kind: str) -> None:
    """What pre-training calls position i is what the exported encoder gives token i at fine-tuning."""
    _, model = make("vanilla", kind)
    ids = batch_of().input_ids
    with_ours = model.encoder(ids, position_ids=model.position_ids(ids)).last_hidden_state
    assert torch.equal(with_ours, model.encoder(ids).last_hidden_state)


@pytest.mark.parametrize(("architecture", "kind"), WITH_KINDS)
def test_padding_changes_nothing(architecture: str, kind: str) -> None:
    _, model = make(architecture, kind, max_position_embeddings=N + 10)
    ids = batch_of().input_ids
    alone = model(ids).logits
    padding = torch.full((len(ids), 5), 1)
    for padded, where in ((torch.cat([ids, padding], 1), slice(0, N)), (torch.cat([padding, ids], 1), slice(5, None))):
        logits = model(padded, (padded != 1).long()).logits[:, where]
        assert (logits - alone).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["pre", "modern"])
@pytest.mark.parametrize("architecture", ["self", "cross"])
def test_any_number_of_masks_a_row(architecture: str, kind: str) -> None:
    """Rows with no [MASK], one, and nothing but [MASK]s in one batch: finite, with finite gradients."""
    _, model = make(architecture, kind, attention_probs_dropout_prob=0.1)
    ids = batch_of(3).input_ids
    ids[0][ids[0] == 4] = 7
    ids[1, 1:] = 9
    ids[1, 3] = 4
    ids[2] = 4
    out = model.train()(ids, torch.ones_like(ids), ids)
    out.loss.backward()
    assert torch.isfinite(out.logits).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    alone = model.eval()(ids[:1]).logits
    assert (model(ids).logits[:1] - alone).abs().max() < 1e-5


@pytest.mark.usefixtures("restore_gradients")
@pytest.mark.parametrize(("architecture", "kind"), WITH_KINDS)
@pytest.mark.parametrize("gradients", [True, False])
def test_padding_changes_no_row_of_nothing_but_masks(architecture: str, kind: str, gradients: bool) -> None:
    """No kept token, so nothing to attend to: neither the padding, whatever token it is, nor an encoded [MASK]."""
    _, model = make(architecture, kind, max_position_embeddings=N + 10)
    with torch.no_grad():
        for parameter in model.parameters():  # biases are zero at first
            parameter.add_(torch.randn_like(parameter) * 0.1)
    torch.set_grad_enabled(gradients)
    ids = torch.cat([torch.full((1, N), 4), batch_of(2).input_ids])
    alone = model(ids).logits
    for filler, left in itertools.product((1, 4, 50), (True, False)):
        padding, real = torch.full((3, 5), filler), torch.ones_like(ids)
        parts, masks = ([padding, ids], [0 * padding, real]) if left else ([ids, padding], [real, 0 * padding])
        logits = model(torch.cat(parts, 1), torch.cat(masks, 1)).logits
        assert (logits[:, 5:] - alone if left else logits[:, :N] - alone).abs().max() < 1e-5
    assert torch.isfinite(model(ids, torch.zeros_like(ids)).logits).all()
    if ARCHITECTURES[
        architecture
    ].has_decoder:  # the word embedding of [MASK] is never trained: it gives its own logit, no more
        model.get_input_embeddings().weight.data[4] += 1
        changed = (model(ids).logits - alone).abs().amax((0, 1))
        assert changed[4] > 1e-3 and changed[torch.arange(VOCAB) != 4].max() < 1e-6


@pytest.mark.parametrize(("architecture", "kind"), WITH_KINDS)
def test_attention_is_bidirectional(architecture: str, kind: str) -> None:
    """The prediction at the first [MASK] depends on the last kept token and on the last [MASK]'s place."""
    _, model = make(architecture, kind)
    ids = torch.arange(5, 5 + N)[None].clone()
    ids[0, [1, 20]] = 4
    changed = ids.clone()
    changed[0, -1] = 50
    before, after = model(ids).logits[0, 1], model(changed).logits[0, 1]
    assert (before - after).abs().max() > 1e-5
    more = ids.clone()
    more[0, 22] = 4
    assert (model(more).logits[0, 1] - before).abs().max() > 1e-6


@pytest.mark.parametrize("architecture", ["self", "cross"])
def test_the_encoder_never_sees_a_mask(architecture: str) -> None:
    """Masked tokens' ids cannot reach any logit: whatever stood there, the result is the same."""
    _, model = make(architecture)
    batch = batch_of()
    other = batch.map(lambda tensor: tensor.clone())
    other.input_ids.scatter_(1, other.mask_idx, 33)
    assert torch.equal(model(corrupted=batch).logits, model(corrupted=other).logits)


@pytest.mark.parametrize(("architecture", "kind"), WITH_KINDS)
def test_initialisation(architecture: str, kind: str) -> None:
    """N(0, 0.02); ModernBERT's own is cut at two deviations, and smaller where a layer adds to the residual stream."""
    _, model = make(architecture, kind, hidden_size=128, initializer_range=0.02)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and parameter.numel() > 4000:
            modern = kind == "modern" and name.startswith("encoder.")
            factor = 0.88 * (0.5 if name.endswith("Wo.weight") else 1) if modern else 1
            assert parameter.std().item() == pytest.approx(0.02 * factor, rel=0.1), name
        elif "norm" in name.lower() and name.endswith("weight"):
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif name.endswith("bias"):
            assert torch.equal(parameter, torch.zeros_like(parameter)), name
    if ARCHITECTURES[architecture].has_decoder:
        assert model.mask_embedding.std().item() == pytest.approx(0.02, rel=0.5)
        assert kind == "modern" or (model.decoder_positions.weight[1] == 0).all()
    loss = model(corrupted=batch_of()).loss.item()
    assert loss == pytest.approx(math.log(VOCAB), rel=0.05)


@pytest.mark.parametrize(("architecture", "kind"), NOT_POST)
def test_scaled_initialisation(architecture: str, kind: str) -> None:
    """Matrices by fan-in, positions as sinusoids at the scale of what they are added to, embeddings as before."""
    _, model = make(architecture, kind, hidden_size=128, initialization="scaled")
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "embeddings" not in name and "positions" not in name:
            assert parameter.std().item() == pytest.approx(parameter.shape[1] ** -0.5, rel=0.1), name
    assert model.word_embedding.std().item() == pytest.approx(0.0176 if kind == "modern" else 0.02, rel=0.1)
    tables = {} if kind == "modern" else {model.encoder.embeddings.position_embeddings: 0.02}
    if kind == "pre" and ARCHITECTURES[architecture].has_decoder:
        tables[model.decoder_positions] = 0.5**0.5
    for table, scale in tables.items():
        rows = table.weight[2 : N + 2]
        assert rows.square().mean().sqrt().item() == pytest.approx(scale, rel=0.01)
        assert (table.weight[1] == 0).all()
        products = rows @ rows.T  # sinusoids: a product depends on the distance alone
        for distance in (1, 3):
            line = products.diagonal(distance)
            assert torch.allclose(line, line[:1].expand_as(line), rtol=1e-4)
    loss = model(corrupted=batch_of()).loss.item()
    assert loss == pytest.approx(math.log(VOCAB), rel=0.1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dropout_rates_are_the_papers(architecture: str) -> None:
    """Hidden and attention dropout as asked; none inside the decoder's FFN, as in BERT."""
    _, model = make(architecture, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    for layer in getattr(model, "decoder_layers", []):
        assert (layer.dropout.p, layer.self_attn.dropout) == (0.3, 0.2)
        assert architecture == "self" or layer.multihead_attn.dropout == 0.2


@pytest.mark.parametrize(("architecture", "kind"), WITH_KINDS)
@pytest.mark.parametrize("visible_head", ["shared", "separate"])
def test_every_parameter_learns_and_is_counted(architecture: str, kind: str, visible_head: str) -> None:
    config, model = make(architecture, kind, visible_head=visible_head)
    assert sum(p.numel() for p in model.parameters()) == flops.parameter_count(config, VOCAB)
    model.train()(corrupted=batch_of()).loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] in (
        [],
        # key biases shift all scores of a query alike and have no gradient but rounding
        [n for n, p in model.named_parameters() if n.endswith("key.bias") and not p.grad.any()],
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_is_the_mean_over_all_corrupted_tokens(architecture: str) -> None:
    _, model = make(architecture)
    batch = batch_of()
    out = model(corrupted=batch)
    by_hand = F.cross_entropy(out.logits.flatten(0, 1), batch.targets.flatten())
    assert out.loss.item() == pytest.approx(by_hand.item(), rel=1e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_micro_batches_give_the_gradient_of_one_big_batch(architecture: str) -> None:
    _, model = make(architecture)
    batch = batch_of()
    count = int((batch.labels != -100).sum())
    model(corrupted=batch, num_items_in_batch=count).loss.backward()
    whole = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for part in batch.split(2):
        model(corrupted=part, num_items_in_batch=count).loss.backward()
    for name, p in model.named_parameters():
        assert torch.allclose(p.grad, whole[name], atol=1e-7), name


@pytest.mark.parametrize(("architecture", "kind"), WITH_KINDS)
def test_save_and_load(architecture: str, kind: str, tmp_path: Path) -> None:
    _, model = make(architecture, kind, visible_head="separate")
    with torch.no_grad():
        for parameter in model.parameters():  # no value may survive by being the default
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is type(model)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    state, other = model.state_dict(), loaded.state_dict()
    assert state.keys() == other.keys() and all(torch.equal(state[key], other[key]) for key in state)
    batch = batch_of()
    assert torch.equal(model(corrupted=batch).logits, loaded.eval()(corrupted=batch).logits)
    ours, theirs = model.config.encoder.to_dict(), loaded.config.encoder.to_dict()
    assert loaded.config.mask_token_id == 4 and {**theirs, "dtype": None} == {**ours, "dtype": None}


@pytest.mark.parametrize(("architecture", "kind"), NOT_POST)
@pytest.mark.parametrize("size", [VOCAB + 7, VOCAB - 7, None])
def test_resize_token_embeddings(architecture: str, size: int | None, kind: str, tmp_path: Path) -> None:
    """Embedding, head and both configurations follow; what was there stays; it can be saved, loaded and exported."""
    _, model = make(architecture, kind)
    ids = batch_of().input_ids
    ids[ids >= VOCAB - 7] = 9
    parameter = model.head_bias
    with torch.no_grad():
        parameter.normal_()
        before = model(ids, labels=ids)
    embedding = model.resize_token_embeddings(size)
    assert embedding is model.get_input_embeddings()
    if size is None:
        assert model.head_bias is parameter, "nothing to do: an optimizer may hold it"
        return
    common = min(size, VOCAB)
    after = model(ids, labels=ids)
    assert after.logits.shape[-1] == len(model.head_bias) == len(embedding.weight) == size
    assert model.config.vocab_size == model.config.encoder.vocab_size == model.encoder.config.vocab_size == size
    assert torch.allclose(after.logits[..., :common], before.logits[..., :common], atol=1e-6)
    if size > VOCAB:
        assert torch.allclose(model.head_bias[VOCAB:], parameter.mean().expand(7))
    after.loss.backward()
    assert model.head_bias.grad.any() and torch.isfinite(after.loss)
    model.save_pretrained(tmp_path / "model")
    model.encoder.save_pretrained(tmp_path / "encoder")
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model").eval()
    assert torch.equal(loaded(ids).logits, after.logits)
    alone = AutoModel.from_pretrained(tmp_path / "encoder")
    assert alone.config.vocab_size == len(alone.get_input_embeddings().weight) == size


@pytest.mark.parametrize(("architecture", "kind"), WITH_KINDS)
def test_hidden_states(architecture: str, kind: str) -> None:
    """The encoder's, one for each layer; the decoder's beside them; they are those behind the logits."""
    _, model = make(architecture, kind)
    batch = batch_of()
    plain = model(batch.input_ids, labels=batch.labels)
    assert plain.hidden_states is None and plain.decoder_hidden_states is None
    output = model(batch.input_ids, labels=batch.labels, output_hidden_states=True)
    assert (output.logits - plain.logits).abs().max() < 1e-5
    assert [state.shape for state in output.hidden_states] == [(6, N, 32)] * 3
    rows = torch.arange(6)[:, None]
    expected = model.mask_states(batch)
    if not ARCHITECTURES[architecture].has_decoder:
        assert output.decoder_hidden_states is None
        found = output.hidden_states
    else:
        found = output.decoder_hidden_states
        kept = output.hidden_states[-1][rows, batch.keep_idx]
        assert (kept - model.encoder_states(batch)).abs().max() < 1e-5
    assert len(found) == len(expected) == 3
    for state, at_masks in zip(found, expected, strict=True):
        assert (state[rows, batch.mask_idx] - at_masks).abs().max() < 1e-5
    model.config.output_hidden_states = True
    assert model(batch.input_ids).hidden_states is not None
    with pytest.raises(ValueError, match="mask_states"):
        model(corrupted=batch)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_tuple_instead(architecture: str) -> None:
    _, model = make(architecture)
    batch = batch_of()
    for given in ({"corrupted": batch}, {"input_ids": batch.input_ids, "labels": batch.labels}):
        expected = model(**given)
        loss, logits = model(**given, return_dict=False)
        assert torch.equal(loss, expected.loss) and torch.equal(logits, expected.logits)
    (logits,) = model(batch.input_ids, return_dict=False)
    assert torch.equal(logits, expected.logits)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_argument_that_means_nothing_is_refused(architecture: str) -> None:
    """A misspelt one, or one that a RoBERTa has, would otherwise be passed over."""
    _, model = make(architecture)
    ids = batch_of().input_ids
    for name in ("label", "position_ids", "inputs_embeds"):
        with pytest.raises(TypeError, match=f"no argument {name}: expected input_ids"):
            model(ids, **{name: ids})
    with pytest.raises(TypeError, match="output_attentions"):
        model(ids, output_attentions=True)
    with pytest.raises(ValueError, match="token_type_ids: expected zeros"):
        model(ids, token_type_ids=torch.ones_like(ids))
    with pytest.raises(ValueError, match="not both"):
        model(ids, corrupted=batch_of())
    harmless = {"token_type_ids": torch.zeros_like(ids), "inputs_embeds": None, "output_attentions": False}
    assert torch.equal(model(ids, **harmless).logits, model(ids).logits)


@pytest.mark.parametrize(("architecture", "kind"), WITH_KINDS)
def test_exported_encoder_is_an_ordinary_one(architecture: str, kind: str, tmp_path: Path) -> None:
    """A pooler or a head is drawn anew, nothing else is missing, and nothing is left over."""
    _, model = make(architecture, kind)
    model.encoder.save_pretrained(tmp_path)
    ids = batch_of().input_ids
    alone, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    names = {"pre": "RobertaPreLayerNormModel", "post": "RobertaModel", "modern": "ModernBertModel"}
    assert type(alone).__name__ == names[kind] and not info["unexpected_keys"]
    assert all(name.startswith("pooler") for name in info["missing_keys"])
    assert (alone.eval()(ids).last_hidden_state - model.encoder(ids).last_hidden_state).abs().max() < 1e-6
    _, info = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3, output_loading_info=True)
    assert all(name.startswith(("classifier.", "head.")) for name in info["missing_keys"])
    assert not info["unexpected_keys"]


def test_ordinary_forward_needs_to_know_the_mask_token() -> None:
    config, _ = make("self")
    model = build_model(config, VOCAB)
    with pytest.raises(ValueError, match="mask_token_id"):
        model(batch_of().input_ids)
    with pytest.raises(ValueError, match="input_ids or a CorruptedBatch"):
        model()


@pytest.mark.parametrize(("architecture", "kind"), NOT_POST)
def test_compiled_once_and_never_again(architecture: str, kind: str) -> None:
    """One graph without a break for all micro-batches of a shape, whatever their tokens. The inductor is not needed
    to count graphs, and takes a minute."""
    from torch._dynamo.utils import counters

    _, model = make(architecture, kind, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model.train(), dynamic=False, fullgraph=True, backend="aot_eager")
    for seed in range(4):
        batch = batch_of(4, seed)
        for part in batch.split(2):
            compiled(corrupted=part, num_items_in_batch=64, return_logits=False).loss.backward()
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    model.eval()
    with torch.no_grad():
        expected, found = model(corrupted=batch).logits, compiled(corrupted=batch).logits
    assert (expected - found).abs().max() < 1e-5
    torch._dynamo.reset()
