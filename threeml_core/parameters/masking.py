"""Parameters of the corruption, and the arithmetic of rate, split and schedule that cost model and corruption share."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from threeml_core.parameters.parameter import COUNT, Allowed, in_range, numbers, one_of, parameter

KINDS = ("masked", "replaced", "unchanged")
"""What can happen to a corrupted token; the order of a split and of every count."""


@functools.cache  # a study reads it thousands of times
def _read_split(text: str) -> tuple[Fraction, ...]:
    parts = text.split("-")
    if len(parts) != 3 or not math.isclose(sum(map(float, parts)), 100.0) or min(map(float, parts)) < 0:
        raise ValueError(text)
    shares = [Fraction(part.strip()) for part in parts]
    return tuple(share / sum(shares) for share in shares)


MASK_SPLIT = Allowed(
    "masked-replaced-unchanged percentages that sum to 100, such as '80-10-10' or '100-0-0'", _read_split
)
MASK_RATE = in_range("a fraction above 0 and below 1, such as 0.4 (40% of the tokens)", lambda value: 0 < value < 1)
MASK_RATES = numbers(float, "mask rates such as '0.15,0.4'")
SCHEDULES = ("constant", "linear", "cosine", "steps")
ADAPTATIONS = ("none", "hard", "soft")
_ADAPTING = ("mask_adaptation", *ADAPTATIONS[1:])
_CHANGING = ("mask_rate_schedule", *SCHEDULES[1:])
_LEVELS = in_range("2 to 64", lambda value: 2 <= value <= 64)  # each a shape, which a GPU compiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingParameters:
    """Masking."""

    STAGES = "pretrain plan"

    mask_rate: float = parameter(0.4, "r: share of the tokens of a sequence that is corrupted", MASK_RATE)
    mask_split: str = parameter("80-10-10", "percent of corrupted tokens masked-replaced-unchanged", MASK_SPLIT)
    mask_counts: str = parameter(
        "exact", "the same counts in every sequence, or fairseq's draw", one_of(("exact", "probabilistic"))
    )
    mask_special_tokens: bool = parameter(False, "may special tokens be corrupted, as in fairseq")
    mask_rate_schedule: str = parameter(
        "constant", "how the rate goes from mask_rate to mask_rate_end", one_of(SCHEDULES), later=True
    )
    mask_rate_end: float = parameter(
        0.15, "mask rate at the last step of a schedule", MASK_RATE, later=True, when=_CHANGING
    )
    mask_rate_levels: int = parameter(
        8, "equally spaced rates, both ends among them, that a schedule takes", _LEVELS, later=True, when=_CHANGING
    )
    mask_adaptation: str = parameter(
        "none",
        "corrupt tokens more often that are predicted badly, by accuracy (hard) or loss (soft) of each token id",
        one_of(ADAPTATIONS),
        later=True,
    )
    mask_adaptation_steps: int = parameter(
        200, "steps after which the weights of the token ids are renewed", COUNT, later=True, when=_ADAPTING
    )
    mask_adaptation_smoothing: float = parameter(
        0.2,
        "share of its old weight that an id keeps when it is renewed; 1: all stay alike",
        in_range("0 to 1", lambda value: 0 <= value <= 1),
        later=True,
        when=_ADAPTING,
    )


ASKED = {
    "corruption": ("mask_rate", "mask_split", "mask_rate_schedule", "mask_rate_end", "mask_rate_levels"),
    "eval_corruption": ("eval_mask_rate", "eval_mask_split"),
}
"""What is executed (see `corruption_of`), and the parameters that ask for it."""


def parse_mask_split(mask_split: str) -> tuple[float, float, float]:
    """`"80-10-10"` -> (0.8, 0.1, 0.1): shares of corrupted tokens masked, replaced and unchanged."""
    masked, replaced, unchanged = map(float, _exact_shares(mask_split))
    return masked, replaced, unchanged


_exact_shares = functools.partial(MASK_SPLIT.parse, "mask_split")


@dataclasses.dataclass(frozen=True)
class CorruptionCounts:
    """What happens to the tokens of a sequence: whole [MASK]s, and the mean number of replaced and unchanged tokens.

    Every sequence holds as many [MASK]s, so that the encoder sees the same number of tokens of each. Replaced
    and unchanged tokens are spread over sequences: in the mean they have exactly the share that the split asks for.
    """

    masked: int
    replaced: Fraction
    unchanged: Fraction

    @property
    def visible(self) -> Fraction:
        """Replaced and unchanged tokens of a sequence, in the mean."""
        return self.replaced + self.unchanged

    @property
    def visible_slots(self) -> int:
        """The most that a sequence has; where a sequence has one less, its last slot is computed and not used."""
        return math.ceil(self.visible)

    @property
    def total(self) -> Fraction:
        """Corrupted tokens of a sequence, in the mean."""
        return self.masked + self.visible

    @property
    def split(self) -> str:
        """Percent masked-replaced-unchanged."""
        total = self.total or 1
        return "-".join(f"{float(100 * part / total):.3g}" for part in vars(self).values())

    def as_text(self) -> dict[str, str]:
        """For a record: exact numbers, such as `{"masked": "4", "replaced": "1/2", "unchanged": "1/2"}`."""
        return {kind: str(count) for kind, count in vars(self).items()}


def corruption_counts(n: int, mask_rate: float, mask_split: str) -> CorruptionCounts:
    """Tokens masked, replaced and unchanged in sequences of `n` tokens.

    The [MASK]s are `mask_rate * n` times their share, rounded half up; the other kinds follow from them, so that the
    split is exact and the rate is off by at most half a [MASK]. Settings that give the same counts are the same.
    """
    masked, replaced, unchanged = _exact_shares(mask_split)
    if not masked:
        return CorruptionCounts(0, Fraction(0), Fraction(0))
    count = math.floor(Fraction(str(mask_rate)) * n * masked + Fraction(1, 2))
    return CorruptionCounts(count, count * replaced / masked, count * unchanged / masked)


def smallest_mask_rate(n: int, mask_split: str) -> float:
    """The smallest rate, to three digits, at which a sequence of `n` tokens has a [MASK]."""
    rate = Fraction(1, 2) / n / _exact_shares(mask_split)[0]
    return math.ceil(rate * 1000) / 1000


def largest_mask_rate(n: int, mask_split: str, candidates: int) -> float:
    """The largest rate, to three digits, that corrupts at most `candidates` of `n` tokens; 0: none does."""
    share = _exact_shares(mask_split)[0]
    masked = math.floor(candidates * share)
    while masked and masked + math.ceil(masked * (1 - share) / share) > candidates:
        masked -= 1
    rate = (masked + Fraction(1, 2)) / n / share if masked else Fraction(0)
    return max(0, min(999, math.ceil(rate * 1000) - 1)) / 1000


@dataclasses.dataclass(frozen=True)
class Level:
    """The steps from `first` on and before `stop`, counted from 0, and their mask rate."""

    rate: float
    first: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.first


def levels_of(parameters: Mapping[str, Any]) -> list[Level]:
    """The mask rate of every step, which follows from the step alone; in a short run a level may have no step.

    Level i of L has the rate `mask_rate + (mask_rate_end - mask_rate) * i / (L - 1)`. Of u steps, step s stands at
    t = (s + 1/2) / u. `steps` are L equal plateaus: level floor(t * L). `linear` and `cosine` round to the nearest
    level: (L - 1) times t, or times (1 - cos(pi * t)) / 2, half up.
    """
    kind, rate, steps = (parameters[name] for name in ("mask_rate_schedule", "mask_rate", "max_steps"))
    if kind == "constant":
        return [Level(rate, 0, steps)]
    last = parameters["mask_rate_levels"] - 1
    whole = [i / (last + 1) for i in range(1, last + 1)]
    halves = [(i - 0.5) / last for i in range(1, last + 1)]
    begins = {"steps": whole, "linear": halves, "cosine": [math.acos(1 - 2 * x) / math.pi for x in halves]}[kind]
    first = [0, *(math.ceil(round(t * steps - 0.5, 6)) for t in begins), steps]  # rounded: a tie is one everywhere
    start, end = Fraction(str(rate)), Fraction(str(parameters["mask_rate_end"]))
    rates = [float(start + (end - start) * i / last) for i in range(last + 1)]
    return [Level(*level) for level in zip(rates, first[:-1], first[1:], strict=True)]


def rate_label(parameters: Mapping[str, Any], form: str = ".0%") -> str:
    """The mask rate as names of models have it: `40%`, or with a schedule, which older records lack, `50→15%`."""
    has_one = parameters.get("mask_rate_schedule", "constant") != "constant"
    ends = [f"{parameters[name]:{form}}" for name in ("mask_rate", "mask_rate_end")[: 1 + has_one]]
    return "→".join(dict.fromkeys(ends)).replace("%→", "→")


def corruption_of(parameters: Mapping[str, Any], evaluation: bool = False) -> dict[str, Any]:
    """What is executed of the rate and split (`evaluation`: of validation) of a run: equal where it is the same.

    With a schedule: its kind, and what is executed at each of its levels.
    """
    if evaluation:
        rates, split = [parameters["eval_mask_rate"]], parameters["eval_mask_split"]
    else:
        rates, split = [level.rate for level in levels_of(parameters)], parameters["mask_split"]
    if parameters["mask_counts"] == "exact" or evaluation:
        n = parameters["sequence_length"]
        found: list[dict[str, Any]] = [{**corruption_counts(n, rate, split).as_text()} for rate in rates]
    else:
        found = [{"mask_rate": rate, "mask_split": split} for rate in rates]
    if all(executed == found[0] for executed in found):
        return found[0]
    return {"schedule": parameters["mask_rate_schedule"], "levels": found}


def executed_rates(parameters: Mapping[str, Any], executed: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Steps and share of corrupted tokens of each level that has steps, of what is executed (see `corruption_of`)."""

    def rate(of: Mapping[str, Any]) -> float:
        if "mask_rate" in of:
            return float(of["mask_rate"])
        return float(sum(Fraction(of[kind]) for kind in KINDS) / parameters["sequence_length"])

    if "levels" not in executed:
        return [(parameters["max_steps"], rate(executed))]
    levels = zip(levels_of(parameters), executed["levels"], strict=True)
    return [(len(level), rate(of)) for level, of in levels if len(level)]


def mean_rate(parameters: Mapping[str, Any], executed: Mapping[str, Any]) -> float:
    """Share of corrupted tokens of what is executed, in the mean over the steps."""
    rates = executed_rates(parameters, executed)
    return sum(steps * rate for steps, rate in rates) / sum(steps for steps, _ in rates)


def executed_statement(parameters: Mapping[str, Any], executed: Mapping[str, Any], evaluation: bool = False) -> str:
    """What a run executes (see `corruption_of`), where that is not what its parameters ask for; else ""."""
    if "levels" in executed:
        rates = [rate for _, rate in executed_rates(parameters, executed)]
        asked = f"{parameters['mask_rate']:.4g} to {parameters['mask_rate_end']:.4g} ({executed['schedule']})"
        mean = f"{mean_rate(parameters, executed):.4f} in the mean over the steps"
        return f"{asked} as {rates[0]:.4f} to {rates[-1]:.4f} in {len(rates)} levels, {mean}"
    if "masked" not in executed:
        return ""
    counts = CorruptionCounts(int(executed["masked"]), Fraction(executed["replaced"]), Fraction(executed["unchanged"]))
    rate, split = (parameters[f"{'eval_' * evaluation}{name}"] for name in ("mask_rate", "mask_split"))
    n = parameters["sequence_length"]
    same_split = [*vars(counts).values()] == [share * counts.total for share in _exact_shares(split)]
    if same_split and counts.total / n == Fraction(str(rate)):
        return ""
    means = f"{counts.masked} [MASK]s, {float(counts.replaced):g} replaced, {float(counts.unchanged):g} unchanged"
    return (
        f"{rate:.4g} as {float(counts.total / n):.4f}{'' if same_split else f', {split} as {counts.split}'} ({means})"
    )
