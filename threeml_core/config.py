"""The parameters of a study: one flat, typed list made of sections; presets; checks. No torch here.

Every value has one of five sources, kept in `StudyConfig.sources`: `given` (papermill `-p`/`-f`, a command
line, a notebook cell), `preset <name>`, `default`, `checkpoint` (as `init_encoder` has it), or `derived` (computed
from another value because it was left open). Standard library and PyYAML only (a hub name as `init_encoder` takes
huggingface_hub too), so a GPU host with no more than torch and transformers can use it.
"""

from __future__ import annotations

import argparse
import ast
import copy
import dataclasses
import difflib
import functools
import math
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.files import CARRIED, utf16_of
from threeml_core.foundation.processes import spin_briefly
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.benchmark import BenchmarkParameters
from threeml_core.parameters.data import DataParameters
from threeml_core.parameters.glue import RANDOM, GlueParameters
from threeml_core.parameters.hub import HubParameters
from threeml_core.parameters.information import InformationParameters
from threeml_core.parameters.masking import (
    ASKED,
    MaskingParameters,
    corruption_counts,
    corruption_of,
    largest_mask_rate,
    mean_rate,
    parse_mask_split,
    smallest_mask_rate,
)
from threeml_core.parameters.model import MODERN, ModelParameters, default_ffn_width, too_few_kept
from threeml_core.parameters.parameter import LARGEST, RENAMED, REPLACED, check
from threeml_core.parameters.probing import ProbingParameters
from threeml_core.parameters.report import PlanParameters, ReportParameters
from threeml_core.parameters.runs import RunsParameters
from threeml_core.parameters.start import parameters_of_start
from threeml_core.parameters.study import StudyParameters
from threeml_core.parameters.training import TrainingParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig(
    RunsParameters,
    DataParameters,
    ModelParameters,
    MaskingParameters,
    TrainingParameters,
    GlueParameters,
    InformationParameters,
    ProbingParameters,
    StudyParameters,
    BenchmarkParameters,
    ReportParameters,
    HubParameters,
    PlanParameters,
):
    """All parameters of a study. Names are the field's (Hugging Face); rates are fractions, lengths are tokens."""

    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Fill values left open, then check ranges and combinations."""
        sources = {**dict.fromkeys(PARAMETERS, "default"), **self.sources}
        if self.init_encoder is not None:
            self._follow_start(sources)
        for name, field in PARAMETERS.items():
            check(name, getattr(self, name), field)
        head_size = max(1, self.hidden_size // self.num_attention_heads)
        width = self.decoder_hidden_size or self.hidden_size // 2
        derived: dict[str, Any] = {
            "intermediate_size": default_ffn_width(self.encoder, self.hidden_size),
            "max_position_embeddings": max(self.sequence_length, self.max_length) + 2,
            "decoder_hidden_size": width,
            "decoder_num_attention_heads": max(1, width // head_size),
            "micro_batch_size": self.batch_size,
        }
        entry = ARCHITECTURES[self.architecture]
        if entry.full_layers is not None:
            derived["full_layers"] = entry.full_layers(self.num_hidden_layers)
        derived = {name: value for name, value in derived.items() if getattr(self, name) is None}
        pre_only = entry.pre_layer_norm_only or self.encoder == MODERN  # section 3.3: 3ML_cross
        if pre_only and self.layer_norm == "post" and sources["layer_norm"].startswith("preset"):
            derived["layer_norm"] = "pre"
        for name, value in derived.items():
            object.__setattr__(self, name, value)
            check(name, value, PARAMETERS[name])
        object.__setattr__(self, "sources", types.MappingProxyType(sources | dict.fromkeys(derived, "derived")))
        for problem in _problems(self):
            raise ParameterError(problem)

    def _follow_start(self, sources: dict[str, str]) -> None:
        """Take from `init_encoder` what follows from it, and refuse what is given and different."""
        start = str(self.init_encoder)
        for name, value in parameters_of_start(start).items():
            value, own = _coerce(name, value, f" in the config.json of {start}"), getattr(self, name)
            if sources[name] == "given" and own not in (None, value):
                raise ParameterError(f"{name}={own!r}: init_encoder={start} has {value!r}; leave {name} out")
            object.__setattr__(self, name, value)
            if own is None or sources[name] != "given":
                sources[name] = "checkpoint"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by value, so that a job can be sent to another process."""
        return functools.partial(StudyConfig, **self.parameters(), sources=dict(self.sources)), ()

    def parameters(self) -> dict[str, Any]:
        """Name -> resolved value, section by section."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def listed(self, name: str) -> tuple[Any, ...]:
        """What stands in a parameter that holds a list, such as (16, 32) for "16,32"; nothing for None."""
        value = getattr(self, name)
        return () if value is None else PARAMETERS[name].metadata["allowed"].parse(name, value)

    def replace(self, **changes: Any) -> StudyConfig:
        """A copy with other values; what was derived is derived again."""
        kept = {name: getattr(self, name) for name in PARAMETERS if self.sources[name] != "derived"}
        sources = {name: source for name, source in self.sources.items() if source != "derived"}
        if self.sources["layer_norm"] == "derived":  # of 3ML_cross or ModernBERT, instead of the preset's
            kept["layer_norm"], sources["layer_norm"] = "post", f"preset {self.preset}"
        return StudyConfig(**{**kept, **changes}, sources={**sources, **dict.fromkeys(changes, "given")})


SECTIONS: tuple[Any, ...] = StudyConfig.__bases__
PARAMETERS: dict[str, dataclasses.Field[Any]] = {
    field.name: field for section in SECTIONS for field in dataclasses.fields(section)
}
_TYPES = typing.get_type_hints(StudyConfig)


def names_of(*sections: type, changes_result: bool = False) -> tuple[str, ...]:
    """Parameters of these sections; with `changes_result` without those that no result depends on."""
    fields = [field for section in sections for field in dataclasses.fields(section)]
    return tuple(field.name for field in fields if field.metadata["changes_result"] or not changes_result)


DATA_PARAMETERS = names_of(DataParameters)
FINETUNE_PARAMETERS = names_of(GlueParameters)
INFORMATION_PARAMETERS = names_of(InformationParameters)
PROBING_PARAMETERS = names_of(ProbingParameters, changes_result=True)
STUDY_PARAMETERS = names_of(StudyParameters)
BENCHMARK_PARAMETERS = names_of(BenchmarkParameters, changes_result=True)
PRETRAIN_PARAMETERS = names_of(
    RunsParameters, ModelParameters, MaskingParameters, TrainingParameters, changes_result=True
)

LATER = {name: field.default for name, field in PARAMETERS.items() if field.metadata["later"]}
"""Parameters that older records do not have -> what their runs did."""


def unused_parameters(values: Mapping[str, Any]) -> set[str]:
    """Parameters that mean nothing for the values of others, such as Muon's for AdamW."""
    conditions = {name: field.metadata["when"] for name, field in PARAMETERS.items() if field.metadata["when"]}
    idle = {name for name, (other, *meant) in conditions.items() if values[other] not in meant}
    return idle.union(ARCHITECTURES[values["architecture"]].unused)


def deciding_parameters(config: StudyConfig) -> dict[str, Any]:
    """The parameters that decide the result of a pre-training run, given its data."""
    unused = unused_parameters(config.parameters())
    return {name: getattr(config, name) for name in PRETRAIN_PARAMETERS if name not in unused}


def identity_parameters(config: StudyConfig) -> dict[str, Any]:
    """Those that are part of a run's identity: all, but for what runs from before a parameter was there did too."""
    return {name: v for name, v in deciding_parameters(config).items() if name not in LATER or v != LATER[name]}


def executed_parameters(config: StudyConfig) -> dict[str, Any]:
    """As `identity_parameters`, with what rate, split and schedule execute in place of what they ask for."""
    asked = {name for names in ASKED.values() for name in names}
    kept = {name: value for name, value in identity_parameters(config).items() if name not in asked}
    parameters = config.parameters()
    return {**kept, "corruption": corruption_of(parameters), "eval_corruption": corruption_of(parameters, True)}


def executed_rate(config: StudyConfig) -> float:
    """Share of the tokens of a sequence that is corrupted, in the mean over sequences and steps."""
    parameters = config.parameters()
    return mean_rate(parameters, corruption_of(parameters))


def _problems(c: StudyConfig) -> Iterator[str]:
    """What is wrong with values that are allowed each by itself."""
    if c.random_baseline and (c.checkpoint or "").startswith(RANDOM):
        is_random = f"checkpoint={c.checkpoint!r} is random already"
        yield f"{is_random}: leave random_baseline out, or give the trained checkpoint"
    if "speed" not in c.listed("benchmark_parts") and c.num_benchmark_sessions > 1:
        sessions = f"num_benchmark_sessions={c.num_benchmark_sessions}"
        yield f"benchmark_parts={c.benchmark_parts!r}: expected speed in it, as {sessions}"
    assert c.max_position_embeddings is not None and c.micro_batch_size is not None
    n = c.sequence_length
    if c.max_position_embeddings < n + 2 and c.init_encoder is not None:
        room = f"{c.init_encoder} has positions for {c.max_position_embeddings - 2} tokens"
        yield f"sequence_length={n}: init_encoder={room}; take shorter sequences"
    if c.max_position_embeddings < n + 2:
        yield f"max_position_embeddings={c.max_position_embeddings}: expected at least sequence_length + 2 = {n + 2}"
    if c.max_tokens is not None and c.max_tokens < n:
        yield f"max_tokens={c.max_tokens}: expected at least a sequence, sequence_length={n}"
    if c.decoder_warmup_steps and c.init_encoder is None:
        yield f"decoder_warmup_steps={c.decoder_warmup_steps}: a fresh encoder has to learn; give init_encoder, or 0"
    if (last := max(c.listed("checkpoint_steps"), default=0)) > c.max_steps:
        yield f"checkpoint_steps={c.checkpoint_steps!r}: expected at most max_steps={c.max_steps}, not {last}"
    if c.decoder_warmup_steps >= c.max_steps:
        yield f"decoder_warmup_steps={c.decoder_warmup_steps}: expected fewer than max_steps={c.max_steps}"
    for stack in ("", "decoder_"):
        width, heads = f"{stack}hidden_size", f"{stack}num_attention_heads"
        d, h = getattr(c, width), getattr(c, heads)
        if d % h:
            yield f"{heads}={h} does not divide {width}={d}: choose heads that divide the width"
        elif c.encoder == MODERN and d // h % 2:
            yield f"{heads}={h} makes heads of {d // h} at {width}={d}: RoPE needs heads of an even width"
    if c.encoder == MODERN and c.layer_norm == "post":
        yield "layer_norm='post': ModernBERT has pre-LN alone; leave layer_norm out, or take encoder=roberta"
    label = ARCHITECTURES[c.architecture].label
    if ARCHITECTURES[c.architecture].full_layers is not None:
        assert c.full_layers is not None
        if c.encoder == MODERN:
            yield f"encoder={MODERN!r}: {label} runs parts of RoBERTa's layers; take encoder=roberta"
        if c.full_layers > c.num_hidden_layers:
            yield f"full_layers={c.full_layers}: expected at most num_hidden_layers={c.num_hidden_layers}"
    if c.batch_size % c.micro_batch_size:
        yield f"micro_batch_size={c.micro_batch_size} does not divide batch_size={c.batch_size}"
    ends = () if c.mask_rate_schedule == "constant" else ("mask_rate_end",)  # what lies between is right with them
    for name in ("mask_rate", *ends, "eval_mask_rate"):
        side = "eval_" * name.startswith("eval_")
        rate, split = getattr(c, name), getattr(c, f"{side}mask_split")
        if not parse_mask_split(split)[0]:
            yield f"{side}mask_split={split!r} masks nothing: 3ML restores [MASK] tokens, give the first number above 0"
        counts = corruption_counts(n, rate, split)
        if not counts.masked:
            remedy = f"raise it to at least {smallest_mask_rate(n, split):.3f} or take longer sequences"
            yield f"{name}={rate} masks no token in a sequence of {n}: {remedy}"
        # two special tokens per sequence are never corrupted
        most = counts.masked + counts.visible_slots
        if most > n - 2 and not (c.mask_special_tokens and counts.masked < n and most <= n):
            remedy = f"lower it to at most {largest_mask_rate(n, split, n - 2):.3f}"
            yield f"{name}={rate} corrupts {most} of {n} tokens, but 2 are special tokens and stay: {remedy}"
        if c.architecture == "token_dropping" and not side:
            if problem := too_few_kept(n, c.kept_share, counts.masked + 2):
                yield problem


def type_of(name: str) -> tuple[type, bool]:
    """The type of a parameter's values, and whether it may be None."""
    kinds = [kind for kind in typing.get_args(_TYPES[name]) or (_TYPES[name],) if kind is not type(None)]
    return kinds[0], _TYPES[name] != kinds[0]


def describe(section: Any) -> list[dict[str, str]]:
    """The parameters of a section in words, a row each."""
    return [
        {
            "Name": field.name,
            "Type": " or ".join([type_of(field.name)[0].__name__, "None"][: 1 + type_of(field.name)[1]]),
            "Default": f"{field.default!r}",
            "Allowed": str(field.metadata["allowed"] or ""),
            "Stages": f"{section.STAGES} {field.metadata['also']}".strip().replace(" ", ", "),
            "Changes a result": "yes" if field.metadata["changes_result"] else "no",
            "Meaning": field.metadata["meaning"],
        }
        for field in dataclasses.fields(section)
    ]


def _shown(value: Any) -> str:
    """A value in an error message, cut to a line's length."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 100, 100
    try:
        return short.repr(value)
    except ValueError:  # a number of thousands of digits
        return type(value).__name__


def _meant(value: Any) -> str:
    """How a number is written that stands there with a comma or in percent; empty for anything else."""
    text = value.strip() if isinstance(value, str) else ""
    percent = text.endswith("%")
    try:
        number = float(text.rstrip("% ").replace(",", ".")) / (100 if percent else 1)
    except ValueError:
        return ""
    return f"; write {number:.10g}" if (percent or "," in text) and math.isfinite(number) else ""


def _coerce(name: str, value: Any, where: str) -> Any:
    """A value from YAML or from papermill's `-p` as the parameter's type. `2e-3` may arrive as a string."""
    kind, optional = type_of(name)
    if optional and (value is None or isinstance(value, str) and value.lower() in ("none", "null")):
        return None
    default, allowed = PARAMETERS[name].default, PARAMETERS[name].metadata["allowed"]
    numbers = allowed is not None and allowed.numbers
    expected = {
        bool: "True or False",
        int: f"a whole number such as {default or 16}",
        float: f"a number such as {default or 0.4}".removesuffix(".0"),
        str: f"values joined with commas such as '{default}'" if numbers else "text",
    }
    wrong = ParameterError(
        f"{name}={_shown(value)}{where}: expected {expected[kind]}{', or None' if optional else ''}"
        f"{_meant(value) if kind is float else ''}"
    )
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, int) and abs(item) > LARGEST for item in items):
        raise ParameterError(f"{name}{where}: a number beyond {LARGEST:,}; give a smaller one")
    if kind is str:
        parts = (str, int, float) if numbers else str  # `-p finetune_epochs 3` comes as a number
        if items and all(isinstance(item, parts) and not isinstance(item, bool) for item in items):
            return ",".join(map(str, items))
        raise wrong
    if isinstance(value, str):
        try:
            value = {"true": True, "false": False}[value.lower()] if kind is bool else float(value)
        except (KeyError, ValueError):
            raise wrong from None
    if not isinstance(value, (int, float)) or isinstance(value, bool) != (kind is bool):
        raise wrong
    if kind is int and isinstance(value, float) and not (value.is_integer() and abs(value) <= LARGEST):
        raise wrong
    return kind(value)


def _known(name: str, where: str) -> None:
    if name in PARAMETERS:
        return
    if name in RENAMED:
        raise ParameterError(f"unknown parameter {name!r}{where}: it is called {RENAMED[name]} now")
    if name in REPLACED:
        raise ParameterError(f"unknown parameter {name!r}{where}: give {REPLACED[name]} now")
    raise ParameterError(f"unknown parameter {_shown(name)}{where}: {_hint(name, PARAMETERS, 'known parameters')}")


def _hint(name: Any, known: Iterable[str], which: str) -> str:
    close = difflib.get_close_matches(str(name), known, 1)
    return f"did you mean {close[0]!r}?" if close else f"{which}: {', '.join(known)}"


def preset_names() -> list[str]:
    """Names of the files in params/."""
    return sorted(path.stem for path in (CARRIED / "params").glob("*.yaml"))


_YAML_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _refuse_surprises(node: yaml.Node | None, path: Path) -> None:
    """Of a name that stands there twice YAML's reader would take the last, and `010` would be 8, `1:30` would be 90."""
    lines: dict[str, int] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else []:
        name, line = _shown(key.value), key.start_mark.line + 1
        if isinstance(key, yaml.ScalarNode):
            if key.value in lines:
                raise ParameterError(
                    f"{path}: {name} stands there twice, in lines {lines[key.value]} and {line}; keep one"
                )
            lines[key.value] = line
        if value.tag in _YAML_NUMBERS and re.match(r"[-+]?(0[0-9_]+$|[0-9_]+:)", value.value):
            raise ParameterError(
                f"{path}, line {line}: {name}: {value.value} is a number of base 8 or 60 in YAML; write it without "
                "zeros in front and without colons, or in quotes"
            )


def _read_yaml(path: Path) -> dict[str, Any]:
    one_a_line = "expected lines 'name: value', one for each parameter"
    try:
        document = _parse_yaml(path.read_bytes(), path)
    except ParameterError:
        raise
    except Exception as error:  # values that are no number or date raise errors of many kinds
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ParameterError(f"cannot read parameters from {path}: {reason}; {one_a_line}") from None
    if not isinstance(document, dict | None):
        raise ParameterError(f"{path}: {one_a_line}")
    return copy.deepcopy(document or {})


@functools.lru_cache  # a page reads its preset a hundred times
def _parse_yaml(content: bytes, path: Path) -> Any:
    if encoding := utf16_of(content[:4096]):
        raise ParameterError(f"{path} looks like UTF-16: convert it with `iconv -f {encoding} -t utf-8`")
    loader = yaml.SafeLoader(content.decode("utf-8-sig"))
    node = loader.get_single_node()
    _refuse_surprises(node, path)
    return loader.construct_document(node) if node else None


def load_preset(name: str) -> dict[str, Any]:
    """Values of the preset `name`, coerced to their types; a `ParameterError` if there is none or a value is wrong."""
    names = preset_names()
    if name not in names:
        raise ParameterError(f"unknown preset {name!r}: {_hint(name, names, 'there are')}")
    where = f" in params/{name}.yaml"
    values = _read_yaml(CARRIED / "params" / f"{name}.yaml")
    for key in values:
        _known(key, where)
    return {key: _coerce(key, value, where) for key, value in values.items()}


def make_config(given: Mapping[str, Any]) -> StudyConfig:
    """Preset values overlaid with `given`, where None means "not given"; a given corpus brings its own validation text.

    A preset's post-LN is not for 3ML_cross or ModernBERT, which get pre-LN, and its sizes are not for `init_encoder`,
    with `-f params/x.yaml` as with `-p preset x`; given by itself, such a value is obeyed, or refused.

    Raises:
        ParameterError: unknown name (with the nearest known one), wrong type, out of range.
    """
    for name in given:
        _known(name, "")
    given = {name: _coerce(name, value, "") for name, value in given.items() if value is not None}
    preset = given.get("preset", "tiny")
    values = load_preset(preset)
    if "corpus" in given:
        values.pop("validation_corpus", None)  # it belongs to the preset's own text
    is_file = values.keys() <= given.keys()  # -f params/<preset>.yaml gives all that the preset does
    yields = values if "init_encoder" in given else ("layer_norm",)
    own = {name for name in yields if is_file and given.get(name) == values.get(name)}
    sources = dict.fromkeys(values, f"preset {preset}") | {name: "given" for name in given if name not in own}
    return StudyConfig(**{**values, **given, "preset": preset}, sources=sources)


def given_parameters(config: StudyConfig) -> dict[str, Any]:
    """What `make_config` has to be given in another process for the same values from the same sources."""
    deciding = ("corpus", "architecture", "encoder", "init_encoder")  # whether and how others follow from the preset
    given = {"preset": config.preset} | {n: getattr(config, n) for n in deciding if config.sources[n] == "given"}
    others = make_config(given)
    for name, value in config.parameters().items():
        source = config.sources[name]
        follows = source == others.sources[name] == "derived" or source != "given" and value == getattr(others, name)
        if not follows:
            given[name] = "None" if value is None else value
    return given


def resolve_parameters(namespace: Mapping[str, Any]) -> StudyConfig:
    """The parameters of a notebook: call it as `resolve_parameters(globals())` before anything else is defined.

    A notebook's first cell shows values of the tiny preset, written with a type: `max_steps: int = 1600`. Such a line
    gives a parameter only where its value has been edited, so that another preset keeps what it says of the others.
    A line without a type, `max_steps = 1600`, always gives it: so are the cells that papermill puts behind the first
    one for `-p` and `-f`, and those that a user writes. Which of the two a value comes from is read from the cells that
    were run (IPython's `In`); the last one counts, so cells may be edited and run again in any order. nbval keeps no
    `In`: values alone decide there. None is a value where a parameter may be None, and else says that nothing is given.

    Any other plain value in the namespace is a misspelt parameter and is refused. Objects (modules, records, figures)
    are passed over, so the cell can be run again in JupyterLab after the rest of the notebook. It is what a notebook
    does first, so the way its threads wait is set here, before torch is imported.

    Raises:
        ParameterError: see `make_config`.
    """
    spin_briefly()
    plain = (str, int, float, bool, type(None))
    untyped, tiny = _assigned_without_type(namespace.get("In", ())), make_config({}).parameters()
    given = {}
    for name, value in namespace.items():
        if name.startswith("_") or name not in PARAMETERS and not isinstance(value, plain):
            continue
        edited = name not in tiny or (type(value), value) != (type(tiny[name]), tiny[name])
        if name in untyped or edited or name == "preset":
            given[name] = "None" if value is None and name in PARAMETERS and type_of(name)[1] else value
    return make_config(given)


def _assigned_without_type(cells: Iterable[str]) -> set[str]:
    """Names whose last assignment in these cells has no type."""
    found: set[str] = set()
    for cell in cells:
        try:
            statements = ast.parse(cell).body
        except SyntaxError:  # such a cell has assigned nothing
            continue
        for statement in statements:
            if isinstance(statement, ast.AnnAssign):
                found.discard(ast.unparse(statement.target))
            elif isinstance(statement, ast.Assign):
                found.update(node.id for t in statement.targets for node in ast.walk(t) if isinstance(node, ast.Name))
    return found


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as for every other mistake."""
        raise ParameterError(
            f"{message}; parameters are given as -p NAME VALUE, such as -p mask_rate 0.5, or in a file as -f FILE; "
            "--help lists them"
        )


def parse_arguments(
    description: str,
    arguments: list[str] | None = None,
    stage: str = "",
    several: str = "",
    each: Sequence[str] = (),
) -> StudyConfig:
    """A command line with papermill's own `-f FILE` and `-p NAME VALUE` -> `StudyConfig`.

    `--help` lists the parameters of `stage` ("": all), with the values that they have where nothing is given. What
    stands there without a name is given to the parameter `several`, joined with commas, or to those of `each` in turn.

    Raises:
        ParameterError: anything else on it; see `make_config`.
    """
    parser = _Parser(
        prog=f"threeml {stage}".rstrip(),
        description=description,
        epilog="The values are those of the preset tiny. Every parameter of docs/parameters.md is accepted.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-f", "--parameters-file", "--config", action="append", default=[], metavar="FILE", help="YAML file"
    )
    parser.add_argument(
        "-p", "--parameter", action="append", default=[], nargs=2, metavar=("NAME", "VALUE"), help="one parameter"
    )
    if several:
        parser.add_argument(several, nargs="*", help=f"the same as -p {several}, joined with commas")
    for name in each:
        parser.add_argument(name, nargs="?", help=f"the same as -p {name}")
    tiny = make_config({}).parameters()
    for section in SECTIONS:
        lines = [
            f"{row['Name']}: {row['Type']} = {tiny[row['Name']]!r}{', ' * bool(row['Allowed'])}{row['Allowed']}\n"
            f"    {row['Meaning']}"
            for row in describe(section)
            if stage in ["", *row["Stages"].split(", ")]
        ]
        if lines:
            parser.add_argument_group(section.__doc__.rstrip("."), "\n".join(lines))
    options = parser.parse_intermixed_args(arguments)
    given: dict[str, Any] = {}
    for file in options.parameters_file:
        given |= _read_yaml(Path(file))
    given |= dict(options.parameter)
    for name in (*each, several):
        if name and (named := getattr(options, name)):
            if name in given:
                raise ParameterError(f"{name} stands there twice: as -p {name} and without a name; keep one")
            given[name] = ",".join(named) if name == several else named
    return make_config(given)


def variant(config: StudyConfig, **changes: Any) -> StudyConfig:
    """`config` with other values; 3ML_cross with pre-LN (section 3.3: post-LN does not work), or as `init_encoder`.

    A decoder of another width has heads as wide as the encoder's. A schedule of the mask rate goes with the rate of
    `config`: at another one the rate is constant.
    """
    if changes.get("mask_rate", config.mask_rate) != config.mask_rate:
        changes = {"mask_rate_schedule": "constant", **changes}
    if changes.get("architecture", config.architecture) == "cross" and config.init_encoder is None:
        changes = {"layer_norm": "pre", **changes}
    if "decoder_hidden_size" in changes:
        changes = {"decoder_num_attention_heads": None, **changes}
    return config.replace(**changes)


def at_constant_rate(config: StudyConfig, rate: float | None = None) -> StudyConfig:
    """`config` without a schedule of the mask rate, at this rate (None: its own)."""
    return config.replace(mask_rate=config.mask_rate if rate is None else rate, mask_rate_schedule="constant")


def study_steps(config: StudyConfig) -> int:
    """Steps of the models of Tables 1 and 3 and Figure 4."""
    return config.study_steps or config.max_steps
