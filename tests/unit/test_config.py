"""Parameters: presets, sources, coercion, refusals."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import re
from pathlib import Path

import pytest
import yaml

from threeml_core.config import (
    PARAMETERS,
    SECTIONS,
    StudyConfig,
    deciding_parameters,
    describe,
    executed_parameters,
    given_parameters,
    identity_parameters,
    load_preset,
    make_config,
    names_of,
    parse_arguments,
    preset_names,
    resolve_parameters,
    type_of,
    variant,
)
from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.parameters.masking import corruption_counts, parse_mask_split
from threeml_core.parameters.parameter import RENAMED, REPLACED, check
from threeml_core.parameters.runs import RunsParameters
from threeml_core.reporting.parameters import PAGE, parameters_page


def test_a_parameter_says_all_of_itself() -> None:
    """Meaning, type, stages that exist, what None stands for; its default is one that it allows."""
    stages = set(RunsParameters.STAGES.split())
    for section in SECTIONS:
        for row, field in zip(describe(section), dataclasses.fields(section), strict=True):
            name, about = field.name, field.metadata
            kind, optional = type_of(name)
            assert len(about["meaning"]) > 10 and "=" not in about["meaning"] and "#" not in about["meaning"], name
            assert set(row["Stages"].split(", ")) <= stages and section.STAGES, name
            assert bool(about["none"]) == optional and (optional or isinstance(field.default, kind)), name
            assert about["allowed"] or kind in (bool, str) or name == "max_position_embeddings", name
            check(name, field.default, field)
    assert set(RENAMED.values()) <= set(PARAMETERS) and not set(RENAMED | REPLACED) & set(PARAMETERS)
    assert len(PARAMETERS) == len({name for section in SECTIONS for name in names_of(section)})


def test_the_page_of_parameters_is_up_to_date() -> None:
    assert PAGE.read_text() == parameters_page(), "run python -m threeml_core.reporting.parameters"


def test_sources() -> None:
    config = make_config({"mask_rate": 0.5, "seed": None})
    assert config.mask_rate == 0.5
    assert config.sources["mask_rate"] == "given"
    assert config.sources["hidden_size"] == "preset tiny"
    assert config.sources["adam_beta2"] == "default"
    assert config.sources["micro_batch_size"] == "derived"
    assert config.micro_batch_size == config.batch_size


def test_replace_derives_again() -> None:
    config = StudyConfig().replace(hidden_size=64, batch_size=8)
    assert (config.intermediate_size, config.decoder_hidden_size, config.micro_batch_size) == (256, 32, 8)
    assert config.sources["hidden_size"] == "given"


def test_a_presets_post_ln_is_not_for_cross() -> None:
    """Section 3.3: 3ML_cross does not work with post-LN, whatever way it is chosen; other models keep the preset's."""
    file = yaml.safe_load((PROJECT_ROOT / "params" / "longer-base.yaml").read_text())
    for given in ({"preset": "longer-base"}, file):
        assert make_config(given).layer_norm == "post"
        cross = make_config({**given, "architecture": "cross"})
        for config in (cross, make_config(given).replace(architecture="cross"), cross.replace(seed=1)):
            assert (config.layer_norm, config.sources["layer_norm"]) == ("pre", "derived")
        again = cross.replace(architecture="self", seed=2)
        assert (again.layer_norm, again.sources["layer_norm"]) == ("post", "preset longer-base")
        other = make_config(given_parameters(cross))
        assert other == cross and other.sources["layer_norm"] == "derived"
        assert cross.replace(layer_norm="post").layer_norm == "post"
        assert pickle.loads(pickle.dumps(cross)).sources == cross.sources
    given = make_config({"architecture": "cross", "layer_norm": "post"})
    assert (given.layer_norm, given.sources["layer_norm"]) == ("post", "given")


def test_modernbert_is_pre_ln() -> None:
    """A preset's post-LN is not followed, and comes back with RoBERTa; given, it is refused (see `REFUSALS`)."""
    base = make_config({"preset": "longer-base"})
    modern = make_config({"preset": "longer-base", "encoder": "modernbert"})
    for config in (modern, base.replace(encoder="modernbert"), make_config(given_parameters(modern))):
        assert config == modern and (config.layer_norm, config.sources["layer_norm"]) == ("pre", "derived")
    assert modern.replace(encoder="roberta").layer_norm == "post"


def test_a_gated_ffn_is_narrower() -> None:
    """8/3 of the width, up to a multiple of 8."""
    for d, width in ((96, 256), (128, 344), (768, 2048), (8, 24)):
        config = make_config({"hidden_size": d, "num_attention_heads": 4, "encoder": "modernbert"})
        assert config.intermediate_size == width
        assert config.replace(encoder="roberta").intermediate_size == 4 * d


def test_modernberts_parameters_are_no_part_of_a_robertas_identity() -> None:
    config = make_config({})
    others = {"local_attention": 64, "global_attn_every_n_layers": 2, "global_rope_theta": 1e5, "local_rope_theta": 1e3}
    assert not {"encoder", *others} & identity_parameters(config).keys()
    assert identity_parameters(config.replace(**others)) == identity_parameters(config)
    modern = config.replace(encoder="modernbert")
    assert identity_parameters(modern)["encoder"] == "modernbert"
    assert others.items() <= identity_parameters(modern.replace(**others)).items()


def test_preset_files() -> None:
    """Each names itself, so that `-f params/x.yaml` and `-p preset x` are the same; each says what it costs."""
    for name in preset_names():
        text = (PROJECT_ROOT / "params" / f"{name}.yaml").read_text()
        assert load_preset(name)["preset"] == name
        assert make_config(yaml.safe_load(text)).parameters() == make_config({"preset": name}).parameters()
        head = text.split("preset:")[0]
        assert "Costs" in head and "papermill notebooks/02_pretrain.ipynb" in head


def test_presets_are_the_papers() -> None:
    """Appendix A, Table 5, to the letter."""
    common = {"warmup_ratio": 0.06, "weight_decay": 0.01, "adam_epsilon": 1e-6, "adam_beta1": 0.9, "adam_beta2": 0.98}
    common |= {"max_grad_norm": 0.0, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    common |= {"decoder_num_hidden_layers": 2, "tokenizer": "roberta-base", "mask_split": "80-10-10"}
    large = {"num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
    large |= {"decoder_hidden_size": 512, "decoder_num_attention_heads": 8, "sequence_length": 128}
    large |= {"learning_rate": 2e-3, "batch_size": 4096, "max_steps": 23000, "layer_norm": "pre"}
    base = {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    base |= {"decoder_hidden_size": 384, "decoder_num_attention_heads": 6, "sequence_length": 512}
    base |= {"learning_rate": 7e-4, "batch_size": 2048, "max_steps": 153000, "layer_norm": "post"}
    for preset, expected in (("efficient-large", common | large), ("longer-base", common | base)):
        values = make_config({"preset": preset}).parameters()
        assert {name: values[name] for name in expected} == expected


REFUSALS: tuple[tuple[dict[str, object], str], ...] = (
    ({"mask_ratee": 0.5}, r"unknown parameter 'mask_ratee': did you mean 'mask_rate'\?"),
    ({"seeds": 5}, r"unknown parameter 'seeds': it is called num_seeds now$"),
    ({"preset": "tinny"}, r"unknown preset 'tinny': did you mean 'tiny'\?"),
    ({"mask_rate": 0}, r"mask_rate=0.0: expected a fraction"),
    ({"mask_rate": 40}, r"mask_rate=40.0: expected a fraction"),
    ({"mask_rate": 0.001}, r"mask_rate=0.001 masks no token in a sequence of"),
    (
        {"mask_rate_schedule": "exponential"},
        "mask_rate_schedule='exponential': expected one of constant, l",
    ),
    ({"mask_rate_schedule": "linear", "mask_rate_end": 0.001}, r"mask_rate_end=0.001 masks no token in a sequence of"),
    ({"mask_rate_schedule": "steps", "mask_rate_end": 0.99}, r"mask_rate_end=0.99 corrupts 3. of 32 tokens, but 2 are"),
    ({"mask_rate_schedule": "steps", "mask_rate_levels": 1}, r"mask_rate_levels=1: expected 2 to 64"),
    ({"mask_rate": 0.999}, r"mask_rate=0.999 corrupts .* lower it to at most"),
    ({"mask_rate": "0,5"}, r"mask_rate='0,5': expected a number such as 0.4; write 0.5$"),
    ({"mask_rate": "40%"}, r"mask_rate='40%': expected a number such as 0.4; write 0.4$"),
    ({"mask_rate": True}, r"mask_rate=True: expected a number such as 0.4$"),
    ({"seed": "x"}, r"seed='x': expected a whole number such as 16$"),
    ({"num_trials": "40%"}, r"num_trials='40%': expected a whole number such as 16, or None$"),
    ({"study_depths": [[1]]}, r"study_depths=\[\[1\]\]: expected values joined with commas such as '1,2,4,8'$"),
    ({"mask_rate": "much"}, r"mask_rate='much': expected a number such as 0.4"),
    ({"mask_split": "80-10-20"}, r"mask_split='80-10-20': expected .* sum to 100"),
    ({"mask_split": "80-20"}, r"mask_split='80-20': expected"),
    ({"mask_split": "0-50-50"}, r"masks nothing"),
    ({"num_attention_heads": 3}, r"num_attention_heads=3 does not divide hidden_size"),
    ({"num_attention_heads": 0}, r"num_attention_heads=0: expected at least 1"),
    ({"decoder_num_attention_heads": 5}, r"decoder_num_attention_heads=5 does not divide decoder_hidden_size"),
    ({"encoder": "bert"}, r"encoder='bert': expected one of roberta, modernbert$"),
    ({"encoder": "modernbert", "layer_norm": "post"}, r"layer_norm='post': ModernBERT .* or take encoder=roberta$"),
    (
        {"encoder": "modernbert", "hidden_size": 36, "num_attention_heads": 4, "decoder_hidden_size": 18},
        r"num_attention_heads=4 makes heads of 9 at hidden_size=36: RoPE needs heads of an even width$",
    ),
    ({"local_attention": 1}, r"local_attention=1: expected at least 2$"),
    ({"batch_size": 10, "micro_batch_size": 4}, r"micro_batch_size=4 does not divide batch_size=10"),
    ({"max_steps": 1.5}, r"max_steps=1.5: expected a whole number such as"),
    ({"max_steps": 0}, r"max_steps=0: expected at least 1"),
    ({"architecture": "selff"}, r"architecture='selff': expected one of vanilla, self, cross"),
    ({"keep_states": "perhaps"}, r"keep_states='perhaps': expected True or False"),
    ({"tensorboard": True}, r"unknown parameter 'tensorboard': give report_to=tensorboard now"),
    (
        {"report_to": "tensorbord"},
        r"report_to='tensorbord': expected 'all' or some of tensorboard, trackio, wandb, mlfl",
    ),
    ({"checkpoint_steps": "10,9999999"}, r"checkpoint_steps='10,9999999': expected at most max_steps=.*, not 9999999"),
    ({"learning_rate": "nan"}, r"learning_rate=nan: expected a finite number"),
    ({"seed": -1}, r"seed=-1"),
    ({"corpus": 3}, r"corpus=3: expected text"),
    ({"max_position_embeddings": 8}, r"max_position_embeddings=8: expected at least"),
)


def test_refusals() -> None:
    for given, message in REFUSALS:
        with pytest.raises(ParameterError, match=message) as caught:
            make_config(given)
        assert "\n" not in str(caught.value)


def test_strings_are_coerced() -> None:
    """papermill's `-f` gives 2e-3 as a string, its `-p` gives true as one."""
    config = make_config({"learning_rate": "2e-3", "max_steps": "1e3", "keep_states": "true", "bf16": "None"})
    assert (config.learning_rate, config.max_steps, config.keep_states, config.bf16) == (0.002, 1000, True, None)
    assert make_config({"corpus": ["a.txt", "b.txt"]}).corpus == "a.txt,b.txt"


def test_resolve_parameters_reads_a_namespace() -> None:
    import math

    namespace = {"preset": "tiny", "mask_rate": 0.5, "_hidden": 1, "In": [""], "math": math, "record": object()}
    namespace |= {"finished": [1], "config": make_config({})}  # what later cells leave behind
    assert resolve_parameters(namespace).mask_rate == 0.5
    for value in (0.5, None):
        with pytest.raises(ParameterError, match="unknown parameter 'mask_rat': did you mean 'mask_rate'"):
            resolve_parameters({**namespace, "mask_rat": value})


SHOWN = 'preset: str = "tiny"\nmax_steps: int = 1500  # updates\nlearning_rate: float = 0.004\ncheckpoint: str = None'
CELLS: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "nothing given": ((SHOWN,), {}),
    "a preset by papermill": ((SHOWN, '# Parameters\npreset = "small"\n'), {"preset": "small"}),
    "a preset and a shown value by papermill": (
        (SHOWN, 'preset = "small"\nmax_steps = 1500'),
        {"preset": "small", "max_steps": 1500},
    ),
    "not in the cell": ((SHOWN, "weight_decay = 0.1"), {"weight_decay": 0.1}),
    "the cell edited": ((SHOWN.replace("1500", "600"),), {"max_steps": 600}),
    "preset and value edited": (
        (SHOWN.replace("1500", "600").replace("tiny", "small"),),
        {"preset": "small", "max_steps": 600},
    ),
    "edited, papermill's value holds": ((SHOWN.replace("1500", "600"), "max_steps = 1500"), {"max_steps": 1500}),
    "None by papermill": (
        (SHOWN, 'preset = "small"\nvalidation_corpus = None\nseed = None'),
        {"preset": "small", "validation_corpus": "None"},
    ),
    "None edited": ((SHOWN, "max_train_examples: int = None"), {"max_train_examples": "None"}),
    "run again, edited back": ((SHOWN.replace("1500", "600"), "%matplotlib inline", SHOWN), {}),
    "papermill's cell, then the first one again": ((SHOWN, 'preset = "small"\nmax_steps = 7', SHOWN), {}),
    "run again from the top": ((SHOWN, 'preset = "small"', SHOWN, 'preset = "small"'), {"preset": "small"}),
    "a user's own cell": ((SHOWN, 'preset, max_steps = "small", 1500'), {"preset": "small", "max_steps": 1500}),
    "a shown value without its type": (("max_steps = 1500\npreset = 'small'",), {"preset": "small", "max_steps": 1500}),
}


def test_resolve_parameters_knows_what_was_given() -> None:
    """Values that the first cell shows are those of tiny, and do not stand against another preset."""
    for what, (cells, given) in CELLS.items():
        namespace: dict[str, object] = {"In": ["", *cells, "config = resolve_parameters(globals())"]}
        for cell in cells:
            exec("" if cell.startswith("%") else cell, namespace)
        namespace.pop("__annotations__", None)
        config, expected = resolve_parameters(namespace), make_config({"preset": "tiny", **given})
        assert (config, dict(config.sources)) == (expected, dict(expected.sources)), what


def test_help_lists_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    def helped(stage: str) -> str:
        with pytest.raises(SystemExit):
            parse_arguments("Do something.", ["--help"], stage)
        return capsys.readouterr().out

    text = helped("information")
    assert "clusters: int = 200, at least 2" in text
    assert "states_text: str = 'validation', one of validation, train" in text and "Mutual information" in text
    assert "mask_rate" not in text and "Benchmark" not in text
    assert all(f"  {name}: " in helped("") for name in PARAMETERS)


def test_command_line_has_papermills_syntax(tmp_path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("mask_rate: 0.3\nmax_steps: 7\n")
    config = parse_arguments("x", ["-f", str(file), "-p", "mask_rate", "0.5"])
    assert (config.mask_rate, config.max_steps) == (0.5, 7)
    file.write_text("mask_rate: [\n")
    with pytest.raises(ParameterError, match=re.escape(str(file))):
        parse_arguments("x", ["-f", str(file)])


SURPRISES = (
    ("seed: 1\nmask_rate: 0.3\n\nseed: 2\n", "'seed' stands there twice, in lines 1 and 4; keep one"),
    ('{seed: 1, "seed": 1}\n', "'seed' stands there twice, in lines 1 and 1; keep one"),
    ("max_steps: 0100\n", "line 1: 'max_steps': 0100 is a number of base 8 or 60 in YAML; write it without zeros"),
    ("seed: 3\ntasks: 1:30\n", "line 2: 'tasks': 1:30 is a number of base 8 or 60 in YAML"),
)


def test_surprises_in_a_parameters_file(tmp_path: Path) -> None:
    """YAML's reader takes the last of two, and `0100` for 64."""
    file = tmp_path / "p.yaml"
    for content, message in SURPRISES:
        file.write_text(content)
        with pytest.raises(ParameterError) as caught:
            parse_arguments("x", ["-f", str(file)])
        assert message in str(caught.value) and str(file) in str(caught.value) and "\n" not in str(caught.value)
    file.write_text("seed: 0\nmask_rate: 0.30\nlearning_rate: 0.001\nmax_steps: 1_000\n")
    assert parse_arguments("x", ["-f", str(file)]).max_steps == 1000


def test_a_parameters_file_in_utf16(tmp_path: Path) -> None:
    """As some shells of Windows write it."""
    file = tmp_path / "p.yaml"
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        file.write_bytes("mask_rate: 0.3\n".encode(encoding))
        with pytest.raises(ParameterError, match="p.yaml looks like UTF-16: convert it with `iconv -f utf-16"):
            parse_arguments("x", ["-f", str(file)])
    file.write_bytes("mask_rate: 0.3\n".encode("utf-8-sig"))
    assert parse_arguments("x", ["-f", str(file)]).mask_rate == 0.3


def test_a_repeated_name_in_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "mine.yaml").write_text("preset: mine\nmask_rate: 0.3\nmask_rate: 0.4\n")
    monkeypatch.setattr("threeml_core.config.CARRIED", tmp_path)
    with pytest.raises(ParameterError, match="mine.yaml: 'mask_rate' stands there twice, in lines 2 and 3"):
        load_preset("mine")


def test_another_process_gets_the_same_values_from_the_same_sources() -> None:
    mine: dict[str, object] = {"preset": "small", "corpus": "/data/text"}
    more = ({"hidden_size": 48}, {"validation_corpus": "/data/held", "micro_batch_size": 32})
    for given in ({}, {"preset": "small", "mask_rate": 0.3, "bf16": "None"}, *({**mine, **each} for each in more)):
        config = make_config(given)
        again = make_config(given_parameters(config))
        assert again == config and again.sources["preset"] == "given"
        assert {**again.sources, "preset": ""} == {**config.sources, "preset": ""}
    built = StudyConfig(hidden_size=96, num_attention_heads=6, max_steps=3)
    assert make_config(given_parameters(built)) == built


def test_identity_leaves_out_what_does_not_matter() -> None:
    base = make_config({})
    same = make_config({"logging_steps": 3, "save_steps": 9, "runs_dir": "elsewhere", "mfu": 0.2})
    assert identity_parameters(base) == identity_parameters(same)
    assert identity_parameters(base) != identity_parameters(make_config({"learning_rate": 1e-4}))
    vanilla = {"architecture": "vanilla"}
    wider = make_config({**vanilla, "decoder_hidden_size": 32, "decoder_num_attention_heads": 1})
    assert identity_parameters(make_config(vanilla)) == identity_parameters(wider)


def test_the_split_of_a_corruption_is_exact() -> None:
    splits = ("80-10-10", "100-0-0", "80-20-0", "80-0-20", "70-20-10")
    for n, rate, split in itertools.product((16, 32, 128, 512), (0.15, 0.3, 0.4, 0.5, 0.75), splits):
        counts = corruption_counts(n, rate, split)
        assert counts.split == split
        assert abs(float(counts.total) / n - rate) <= 0.5 / n / parse_mask_split(split)[0]


def test_corruption_counts_by_hand() -> None:
    def text(*arguments) -> tuple[str, ...]:
        return tuple(corruption_counts(*arguments).as_text().values())

    assert text(32, 0.15, "80-10-10") == ("4", "1/2", "1/2")
    assert text(128, 0.4, "80-10-10") == ("41", "41/8", "41/8")
    assert text(100, 0.3, "80-10-10") == ("24", "3", "3")
    assert text(512, 0.4, "80-20-0") == ("164", "41", "0")


def test_a_refused_mask_rate_names_one_that_works() -> None:
    """Both limits: what the line says is accepted, a thousandth beyond it is not."""

    def at(rate: float, split: str) -> StudyConfig:
        return make_config({"sequence_length": 16, "mask_rate": rate, "mask_split": split})

    for split, step in (("80-10-10", 0.001), ("100-0-0", 0.001), ("40-30-30", 0.001)):
        for wrong, beyond in ((0.001, -step), (0.999, step)):
            with pytest.raises(ParameterError) as refused:
                at(wrong, split)
            limit = float(re.search(r"(?:at least|at most) (\d\.\d+)", str(refused.value)).group(1))  # type: ignore[union-attr]
            at(limit, split)
            with pytest.raises(ParameterError):
                at(limit + beyond, split)


def test_a_given_post_ln_is_obeyed_for_cross_whatever_the_preset_has() -> None:
    """The preset's own is switched; one given by itself is not, here and in another process."""
    preset = make_config({"preset": "longer-base", "architecture": "cross"})
    assert (preset.layer_norm, preset.sources["layer_norm"]) == ("pre", "derived")
    given = make_config({"preset": "longer-base", "architecture": "cross", "layer_norm": "post"})
    for config in (given, preset.replace(layer_norm="post")):
        again = make_config(given_parameters(config))
        assert (config.layer_norm, again.layer_norm, again.sources["layer_norm"]) == ("post", "post", "given")


def test_settings_that_execute_the_same_are_one_run() -> None:
    """At 32 tokens 15 and 16% are both 4 [MASK]s; 20% are 5."""
    one, same, other = (make_config({"mask_rate": rate}) for rate in (0.15, 0.16, 0.2))
    assert executed_parameters(one) == executed_parameters(same) != executed_parameters(other)
    drawn = one.replace(mask_counts="probabilistic"), same.replace(mask_counts="probabilistic")
    assert executed_parameters(drawn[0]) != executed_parameters(drawn[1])


def test_a_given_corpus_brings_its_own_validation_text() -> None:
    """The preset's validation text belongs to the preset's text."""
    assert make_config({"preset": "small"}).validation_corpus == "data/corpus/validation.txt.xz"
    own = make_config({"preset": "small", "corpus": "/data/text"})
    assert own.validation_corpus is None and own.sources["validation_corpus"] == "default"
    both = make_config({"preset": "small", "corpus": "/data/text", "validation_corpus": "/data/held"})
    assert both.validation_corpus == "/data/held"


def test_muons_numbers_mean_nothing_for_adamw() -> None:
    """An AdamW run is the one that it was before there was Muon."""
    adamw, other = make_config({}), make_config({"muon_learning_rate": 0.1, "adjust_lr_fn": "match_rms_adamw"})
    assert identity_parameters(adamw) == identity_parameters(other)
    assert not [name for name in identity_parameters(other) if "muon" in name or name in ("optimizer", "adjust_lr_fn")]
    muon = adamw.replace(optimizer="muon")
    assert identity_parameters(muon) == {**identity_parameters(adamw), "optimizer": "muon"}
    assert identity_parameters(muon.replace(muon_momentum=0.9)) == {**identity_parameters(muon), "muon_momentum": 0.9}
    assert deciding_parameters(muon)["muon_learning_rate"] == 0.02, "shown on a page"


def test_a_schedule_is_part_of_a_run_only_where_it_changes_something() -> None:
    """Its numbers mean nothing at a constant rate; with one its levels are what is executed."""
    constant = make_config({})
    same = make_config({"mask_rate_end": 0.2, "mask_rate_levels": 3})
    assert executed_parameters(same) == executed_parameters(constant)
    going = {kind: make_config({"mask_rate_schedule": kind}) for kind in ("linear", "cosine", "steps")}
    found = [executed_parameters(config)["corruption"] for config in going.values()]
    assert [len(of["levels"]) for of in found] == [8, 8, 8] and len({of["schedule"] for of in found}) == 3
    still = executed_parameters(make_config({"mask_rate_schedule": "linear", "mask_rate_end": 0.4}))
    assert still["corruption"] == executed_parameters(constant)["corruption"]


def test_a_schedule_goes_with_its_own_rate() -> None:
    """A study's baseline at 15% masks 15% all along."""
    config = make_config({"mask_rate": 0.5, "mask_rate_schedule": "linear", "mask_rate_end": 0.3})
    assert variant(config, mask_rate=0.5, architecture="cross").mask_rate_schedule == "linear"
    assert variant(config, mask_rate=0.15, architecture="vanilla").mask_rate_schedule == "constant"
