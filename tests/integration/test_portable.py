"""`model/` on a host without this package: loaded, saved again, and scored as BabyLM's evaluation does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

from tests.combinations import WITH_ENCODERS
from threeml_core.config import make_config
from threeml_core.models.build import build_model
from threeml_core.training.checkpoint import save_model, usable_positions

SENTENCES = ["The cat sees the house again.", "no", "The dog said that the bird went away to the river."]
REPO, REVISIONS = "somebody/threeml", ("main", "chck_1M")


def elsewhere(folder: Path, script: str, **environment: str) -> Any:
    """What a script prints as JSON in a process that knows nothing of this package, from a folder far away."""
    start = 'import json, sys; sys.modules["threeml_core"] = None  # an import of it fails\n'
    ran = subprocess.run(
        [sys.executable, "-I", "-c", start + textwrap.dedent(script)],
        cwd=folder,
        env={**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> dict[str, Path]:
    """Every architecture as a run leaves it."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer.save_pretrained(folder / "tokenizer")
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id", "mask_token_id")}
    size = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "sequence_length": 62}
    found = {}
    for architecture, encoder in WITH_ENCODERS:
        given = {"architecture": architecture, "encoder": encoder, "local_attention": 8, "initializer_range": 0.1}
        torch.manual_seed(0)
        model = build_model(make_config({**given, **size}), len(tokenizer), **ids)
        path = found[f"{architecture}-{encoder}"] = folder / f"{architecture}-{encoder}"
        save_model(model, path, folder / "tokenizer", usable_positions(model), portable=True)
    return found


def test_it_loads_without_the_package_and_gives_the_same(
    models: dict[str, Path], tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Bit for bit; saved again and loaded again too, which takes the code along."""
    given = dict(tokenizer([text.replace("the", "<mask>") for text in SENTENCES], padding=True, return_tensors="pt"))
    save_file(given, tmp_path / "given.safetensors")
    modules = elsewhere(
        tmp_path,
        f"""
        from safetensors.torch import load_file, save_file
        from transformers import AutoModelForMaskedLM, AutoTokenizer
        given, modules = load_file("given.safetensors"), {{}}
        for name, folder in { ({name: str(path) for name, path in models.items()})!r}.items():
            model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True)
            model.save_pretrained(name)
            again = AutoModelForMaskedLM.from_pretrained(name, trust_remote_code=True)
            save_file({{"once": model(**given).logits, "twice": again(**given).logits}}, name + ".safetensors")
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
            modules[name] = [type(model).__module__, type(again).__module__, tokenizer.mask_token_id]
        print(json.dumps(modules))
        """,
    )
    for name, folder in models.items():
        model = AutoModelForMaskedLM.from_pretrained(folder)
        assert type(model).__module__.startswith("threeml_core."), "here the package's own class is taken"
        expected = model(**given).logits
        assert expected.std() > 0.1
        found = load_file(tmp_path / f"{name}.safetensors")
        assert torch.equal(found["once"], expected) and torch.equal(found["twice"], expected), name
        once, twice, mask = modules[name]
        assert once.startswith("transformers_modules.") and once.endswith(".modeling_threeml")
        assert twice.startswith("transformers_modules.") and mask == tokenizer.mask_token_id


def test_its_code_is_run_only_if_it_is_trusted(models: dict[str, Path], tmp_path: Path) -> None:
    said = elsewhere(
        tmp_path,
        f"""
        from transformers import AutoModelForMaskedLM
        try:
            AutoModelForMaskedLM.from_pretrained({str(models["self-roberta"])!r}, trust_remote_code=False)
        except ValueError as error:
            print(json.dumps([str(error), [name for name in sys.modules if name.startswith("transformers_modules.")]]))
        """,
    )
    assert "trust_remote_code=True" in said[0] and said[1] == []


def pseudo_log_likelihood(model: Any, tokenizer: PreTrainedTokenizerFast, text: str) -> float:
    """Sum over tokens of log p(token | the others), each in a sequence of its own."""
    total = 0.0
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    for at in range(1, ids.shape[1] - 1):
        masked = ids.index_fill(1, torch.tensor([at]), tokenizer.mask_token_id)
        total += model(masked).logits[0, at].log_softmax(-1)[ids[0, at]].item()
    return total


@pytest.fixture
def hub(models: dict[str, Path], tmp_path: Path) -> Path:
    """The cache of a hub that holds two revisions of a repository, with other weights."""
    repository = tmp_path / "hub" / f"models--{REPO.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    for revision, digit, source in zip(REVISIONS, "ab", ("self-roberta", "cross-roberta"), strict=True):
        (repository / "refs" / revision).write_text(digit * 40)
        snapshot = repository / "snapshots" / (digit * 40)
        snapshot.mkdir(parents=True)
        for file in models[source].iterdir():
            (snapshot / file.name).write_bytes(file.read_bytes())
    return tmp_path / "hub"


@torch.no_grad()
def test_babylm_evaluation(
    models: dict[str, Path], hub: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    """As its masked backend does: processor and model by name and revision, each token masked in turn, padded rows."""
    scores = elsewhere(
        tmp_path,
        f"""
        import torch
        from torch.nn.utils.rnn import pad_sequence
        from transformers import AutoModelForMaskedLM, AutoProcessor
        scores = {{}}
        for revision in {REVISIONS!r}:
            where = dict(pretrained_model_name_or_path={REPO!r}, revision=revision, trust_remote_code=True)
            tokenizer = AutoProcessor.from_pretrained(padding_side="right", **where)
            model = AutoModelForMaskedLM.from_pretrained(**where).eval()
            rows, at, targets, owner = [], [], [], []
            for number, text in enumerate({SENTENCES!r}):
                ids = torch.tensor(tokenizer(text)["input_ids"])
                for place in range(1, len(ids) - 1):
                    rows.append(ids.index_fill(0, torch.tensor([place]), tokenizer.mask_token_id))
                    at.append(place), targets.append(int(ids[place])), owner.append(number)
            padded = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
            seen = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            with torch.no_grad():
                logits = model(input_ids=padded, attention_mask=seen)["logits"]
            found = logits[torch.arange(len(rows)), at].log_softmax(-1)[torch.arange(len(rows)), targets]
            sums = torch.zeros({len(SENTENCES)}).index_add(0, torch.tensor(owner), found)
            scores[revision] = sums.tolist()
        print(json.dumps(scores))
        """,
        HF_HUB_CACHE=str(hub),
    )
    for revision, source in zip(REVISIONS, ("self-roberta", "cross-roberta"), strict=True):
        model = AutoModelForMaskedLM.from_pretrained(models[source]).eval()
        expected = [pseudo_log_likelihood(model, tokenizer, text) for text in SENTENCES]
        assert scores[revision] == pytest.approx(expected, rel=1e-5)
    assert scores["main"] != pytest.approx(scores["chck_1M"], rel=1e-2)
