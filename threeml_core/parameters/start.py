"""What a checkpoint's `config.json` says of the parameters that follow from it. No torch."""

from __future__ import annotations

from typing import Any

from threeml_core.foundation.checkpoints import find_checkpoint, read_json_object
from threeml_core.foundation.errors import CheckpointError
from threeml_core.parameters.model import MODERN

_KINDS = {"roberta": ("roberta", "post"), "roberta-prelayernorm": ("roberta", "pre"), MODERN: (MODERN, "pre")}
"""transformers' model type -> `encoder` and `layer_norm`."""

_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")


def parameters_of_start(source: str) -> dict[str, Any]:
    """The parameters that follow from `init_encoder`, as its config.json has them: of any type, and in any range.

    Args:
        source: a folder or hub name, of which no more is fetched than this file.

    Raises:
        CheckpointError: no such checkpoint, or one of another kind; config.json does not say how large it is.
    """
    folder, _ = find_checkpoint(source, ("config.json",))
    about = read_json_object(folder / "config.json")
    kind = about.get("model_type")
    if kind not in _KINDS:
        remedy = f", such as {folder.parent / 'encoder'}" if (folder.parent / "encoder").is_dir() else ""
        raise CheckpointError(
            f"init_encoder {source}: a checkpoint of the kind {kind!r}; expected one of {', '.join(_KINDS)}{remedy}"
        )
    if lacking := [name for name in (*_SIZES, "max_position_embeddings") if not isinstance(about.get(name), int)]:
        raise CheckpointError(f"init_encoder {source}: its config.json has no whole number for {', '.join(lacking)}")
    encoder, layer_norm = _KINDS[kind]
    values = {"encoder": encoder, "layer_norm": layer_norm, "tokenizer": source} | {n: about[n] for n in _SIZES}
    rows = about["max_position_embeddings"]
    if encoder == MODERN:
        return values | {"max_position_embeddings": rows + 2} | _modern(source, about)
    # tokens' positions start behind the padding's id, which is 1 where nothing is said
    return values | {"max_position_embeddings": rows - max(0, (about.get("pad_token_id") or 1) - 1)}


def _modern(source: str, about: dict[str, Any]) -> dict[str, Any]:
    """ModernBERT's own, in either form that transformers writes."""
    kinds, rope = about.get("layer_types") or [], about.get("rope_parameters") or {}
    second = next((i for i, kind in enumerate(kinds) if i and kind == "full_attention"), len(kinds) or 3)
    every = about.get("global_attn_every_n_layers") or second
    if kinds != [f"{'sliding' if i % every else 'full'}_attention" for i in range(len(kinds))]:
        raise CheckpointError(
            f"init_encoder {source}: its global layers are not the first and one of so many behind it, which no "
            "parameter can say; take another checkpoint"
        )
    thetas = {}
    for where, layers, default in (("global", "full", 160_000.0), ("local", "sliding", 10_000.0)):
        name = f"{where}_rope_theta"
        thetas[name] = rope.get(f"{layers}_attention", {}).get("rope_theta", about.get(name, default))
    return {"local_attention": about.get("local_attention", 128), "global_attn_every_n_layers": every, **thetas}
