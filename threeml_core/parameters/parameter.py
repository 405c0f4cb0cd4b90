"""What a parameter says of itself where it is defined: default, meaning, allowed values, and who reads it."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Collection
from typing import Any

from threeml_core.foundation.errors import ParameterError

RENAMED = {
    "seeds": "num_seeds",
    "trials": "num_trials",
    "clusters": "num_clusters",
    "workers": "num_workers",
    "kmeans_seeds": "num_kmeans_seeds",
    "kmeans_passes": "num_kmeans_passes",
    "pretrain_seeds": "num_pretrain_seeds",
    "ablation_pretrain_seeds": "num_ablation_pretrain_seeds",
    "ablation_seeds": "num_ablation_seeds",
    "max_eval_blocks": "max_eval_sequences",
    "benchmark_arms": "benchmark_variants",
    "benchmark_rounds": "num_benchmark_rounds",
    "benchmark_sessions": "num_benchmark_sessions",
}
"""Names of older records -> names of today."""

REPLACED = {"tensorboard": "report_to=tensorboard"}
"""Parameters that are gone -> what to give in their place."""

LARGEST = 2**53
"""Whole numbers up to it are exact as floats."""


@dataclasses.dataclass(frozen=True)
class Allowed:
    """The values that a parameter may have."""

    text: str
    """In words, as a refusal's "expected" goes on, but for the choices."""
    read: Callable[[Any], Any]
    """From a value to what it stands for, such as the numbers of a list; a ValueError says that it is not allowed."""
    choices: Collection[str] = ()
    numbers: bool = False
    """Text that holds numbers joined with commas, which papermill and YAML may give as a number or a list."""

    def __str__(self) -> str:
        return self.text.format(", ".join(self.choices))

    def parse(self, name: str, value: Any, none: str = "") -> Any:
        """What the value of the parameter `name` stands for (and its None: `none`), or a `ParameterError`."""
        try:
            return self.read(value)
        except ValueError:
            raise ParameterError(f"{name}={value!r}: expected {self}{f', or None for {none}' * bool(none)}") from None


def in_range(text: str, holds: Callable[[Any], bool], choices: Collection[str] = ()) -> Allowed:
    """Values for which `holds` is true."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise ValueError(text)
        return value

    return Allowed(text, read, choices)


def at_least(least: int, more: str = "") -> Allowed:
    """Numbers from `least` on; `more` goes behind it in words."""
    return in_range(f"at least {least}{more}", lambda value: value >= least)


def one_of(choices: Collection[str]) -> Allowed:
    """One of these texts, which may become more."""
    return in_range("one of {}", lambda value: value in choices, choices)


def some_of(known: Collection[str], all_of: Collection[str] = ()) -> Allowed:
    """Some of these texts joined with commas, or `all`; read as a tuple in the order of `known`.

    `all` stands for `all_of`, if that is given: what is known beside it has to be asked for by name.
    """

    def read(text: str) -> tuple[str, ...]:
        parts = list(all_of or known) if text == "all" else [part.strip() for part in text.split(",")]
        if not set(parts) <= set(known) or len(set(parts)) < len(parts):
            raise ValueError(text)
        return tuple(part for part in known if part in parts)

    meant = f" ({', '.join(all_of)})" if all_of else ""
    return Allowed(f"'all'{meant} or some of {{}}, each once", read, known)


def numbers(kind: type, what: str) -> Allowed:
    """Positive numbers of this type joined with commas; read as a tuple in the order given."""
    largest = LARGEST if kind is int else sys.float_info.max

    def read(text: str) -> tuple[Any, ...]:
        values = tuple(kind(part) for part in text.split(","))
        if not all(0 < value <= largest for value in values) or len(set(values)) < len(values):
            raise ValueError(text)
        return values

    return Allowed(f"{what}, each above 0 and given once", read, numbers=True)


COUNT = at_least(1)
POSITIVE = in_range("more than 0", lambda value: value > 0)
NOT_NEGATIVE = in_range("0 or more", lambda value: value >= 0)
SHARE = in_range("0 or more and below 1", lambda value: 0 <= value < 1)
COUNTS = numbers(int, "whole numbers such as '16,32'")
RATES = numbers(float, "learning rates such as '1e-5,3e-5'")
SEED = in_range("0 to 2^32 - 1", lambda value: 0 <= value < 2**32)


def parameter(
    default: Any,
    meaning: str,
    allowed: Allowed | None = None,
    *,
    none: str = "",
    also: str = "",
    changes_result: bool = True,
    later: bool = False,
    when: tuple[Any, ...] = (),
) -> Any:
    """A field of a section.

    Args:
        default: its value where neither the user nor the preset gives one.
        meaning: one line, with the unit.
        allowed: its range or choices; None: any of its type, and no empty text.
        none: what None stands for, where its type has None.
        also: further stages that read it, beside those of its section; names with spaces between them.
        changes_result: a result of its section's stage may depend on it, so that it belongs to the identity of a run.
        later: runs from before it was there did what its default does, so that the default is no part of an identity.
        when: another parameter and the values of it for which this one means something; none: it always does.
    """
    meaning += f"; None: {none}" if none else ""
    identity = {"changes_result": changes_result, "later": later, "when": when}
    return dataclasses.field(
        default=default, metadata={"meaning": meaning, "allowed": allowed, "none": none, "also": also, **identity}
    )


setting = functools.partial(parameter, changes_result=False)
"""A field that no result depends on."""


def check(name: str, value: Any, field: dataclasses.Field[Any]) -> None:
    """Refuse, with a `ParameterError`, a value that is outside the parameter's own range."""
    if value is None:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ParameterError(f"{name}={value}: expected a finite number")
    if field.metadata["allowed"]:
        field.metadata["allowed"].parse(name, value, field.metadata["none"])
    if isinstance(value, str) and not value.strip():
        raise ParameterError(f"{name}={value!r} is empty: give a value, or leave {name} out")
