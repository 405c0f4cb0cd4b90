"""Schedules of the mask rate: the rate of each step, what is executed, and what is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from threeml_core.config import (
    StudyConfig,
    at_constant_rate,
    executed_parameters,
    executed_rate,
    identity_parameters,
    make_config,
)
from threeml_core.foundation.errors import ParameterError
from threeml_core.parameters.masking import executed_statement, levels_of, rate_label


def scheduled(kind: str = "linear", levels: int = 8, **given: Any) -> StudyConfig:
    given = {"mask_rate": 0.5, "mask_rate_end": 0.15, **given}
    return make_config({**given, "mask_rate_schedule": kind, "mask_rate_levels": levels})


def rates(config: StudyConfig) -> list[float]:
    """One per step."""
    return [level.rate for level in levels_of(config.parameters()) for _ in range(len(level))]


def test_rates_by_hand() -> None:
    """Steps stand at 1/16, 3/16, ... of eight: linear rounds twice that, a cosine (1 - cos(pi t)), to 0, 1 or 2."""
    ends = {"mask_rate": 0.4, "mask_rate_end": 0.2, "max_steps": 8}
    assert rates(scheduled("constant", **ends)) == [0.4] * 8
    assert rates(scheduled("linear", 3, **ends)) == [0.4] * 2 + [0.3] * 4 + [0.2] * 2
    assert rates(scheduled("cosine", 3, **ends)) == [0.4] * 3 + [0.3] * 2 + [0.2] * 3
    assert rates(scheduled("steps", 2, **ends)) == [0.4] * 4 + [0.2] * 4
    assert rates(scheduled("steps", 3, **ends)) == [0.4] * 3 + [0.3] * 2 + [0.2] * 3
    assert rates(scheduled("linear", 2, mask_rate=0.2, mask_rate_end=0.4, max_steps=3)) == [0.2, 0.4, 0.4]


@pytest.mark.parametrize("kind", ["linear", "cosine", "steps"])
def test_every_step_has_the_rate_that_the_rule_gives(kind: str) -> None:
    for steps, levels in itertools.product((1, 2, 7, 20, 1001), (2, 3, 8, 30)):
        found = rates(scheduled(kind, levels, max_steps=steps))
        assert len(found) == steps
        for step, rate in enumerate(found):
            t = (step + 0.5) / steps
            gone = {"linear": t, "cosine": (1 - math.cos(math.pi * t)) / 2, "steps": None}[kind]
            place = t * levels if gone is None else gone * (levels - 1) + 0.5
            level = math.floor(round(place, 9))
            assert rate == pytest.approx(0.5 + (0.15 - 0.5) * level / (levels - 1), abs=1e-12), (steps, levels, step)


def test_a_constant_rate_is_the_run_that_it_was() -> None:
    """Numbers that mean nothing for it change no identity; a schedule that changes nothing is a constant rate."""
    plain = make_config({})
    asked = plain.replace(mask_rate_end=0.3, mask_rate_levels=5)
    assert identity_parameters(asked) == identity_parameters(plain)
    assert executed_parameters(asked) == executed_parameters(plain)
    level = scheduled(mask_rate=0.4, mask_rate_end=0.4)
    assert executed_parameters(level) == executed_parameters(plain) and rate_label(level.parameters()) == "40%"
    assert not any("schedule" in name or name.startswith("mask_rate_") for name in executed_parameters(plain))


def test_each_level_is_part_of_the_identity() -> None:
    config = scheduled("linear", 3, sequence_length=32)
    levels = executed_parameters(config)["corruption"]["levels"]
    assert [of["masked"] for of in levels] == ["13", "8", "4"]
    others = [
        scheduled("cosine", 3),
        scheduled("linear", 4),
        config.replace(mask_rate_end=0.2),
        config.replace(mask_counts="probabilistic"),
        at_constant_rate(config),
    ]
    found = [executed_parameters(each)["corruption"] for each in (config, *others)]
    assert all(one != other for one, other in itertools.combinations(found, 2))
    assert executed_parameters(config.replace(mask_rate_end=0.16)) == executed_parameters(config), "4 [MASK]s, too"


def test_what_was_executed_is_said() -> None:
    config = scheduled("linear", 3, max_steps=8, sequence_length=32)
    counts = (13, 8, 8, 4)  # of 32 tokens, two steps each; with the visible ones a quarter more
    assert executed_rate(config) == pytest.approx(sum(counts) / 4 * 1.25 / 32)
    said = executed_statement(config.parameters(), executed_parameters(config)["corruption"])
    assert said == "0.5 to 0.15 (linear) as 0.5078 to 0.1562 in 3 levels, 0.3223 in the mean over the steps"
    assert rate_label(config.parameters()) == "50→15%"
    assert executed_rate(config.replace(mask_counts="probabilistic")) == pytest.approx(0.325)
    older = {name: value for name, value in config.parameters().items() if not name.startswith("mask_rate_")}
    assert rate_label(older) == "50%"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "exponential"}, "mask_rate_schedule='exponential': expected one of constant, linear, cosine, steps"),
        ({"levels": 1}, "mask_rate_levels=1: expected 2 to 64"),
        ({"mask_rate_end": 0}, "mask_rate_end=0.0: expected a fraction above 0"),
        ({"mask_rate_end": 0.01}, r"mask_rate_end=0.01 masks no token in a sequence of 32: raise it to at least 0.02"),
        ({"mask_rate_end": 0.97}, r"mask_rate_end=0.97 corrupts 32 of 32 tokens, .* lower it to at most 0.957"),
        ({"mask_rate": 0.97}, r"^mask_rate=0.97 corrupts"),
    ],
)
def test_refused(given: dict, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        scheduled(**{"sequence_length": 32, **given})
    at_fault = {name: value for name, value in given.items() if name == "mask_rate_end" and value}
    make_config(at_fault)  # means nothing with a constant rate
