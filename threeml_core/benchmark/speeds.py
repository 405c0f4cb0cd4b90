"""What the records of a benchmark say: sessions, ratios with intervals, realised speed-up, utilisation. No torch.

A record is one *session*: a process that timed all models in turns. Within a session ratios are taken round by round,
and their median is the session's value; over sessions stands the mean of these with Student's t. The rounds of one
session share its moment and its machine's mood, so only sessions say how far a ratio can be trusted.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from threeml_core.config import (
    BENCHMARK_PARAMETERS,
    DATA_PARAMETERS,
    StudyConfig,
    at_constant_rate,
    deciding_parameters,
)
from threeml_core.foundation.errors import ParameterError
from threeml_core.runs.ledger import find, newest
from threeml_core.runs.record import RunRecord, load_records

BASELINE = "vanilla-15"
"""The variant that 3ML is measured against; it has two turns a round, and the second shows the noise."""

AGAIN = f"{BASELINE} again"
"""The second turn of the baseline in a round."""

NOISE_LIMIT = 0.05
"""The baseline's interval against itself has to lie within 1 ± this; else the session gives no speed."""

LOAD_LIMIT = 0.5
"""Load average per core, over the minute before a session, up to which the machine counts as idle."""

BUSY_LIMIT = 0.25
"""Share of the cores' time that other processes may take, just before a session and during its turns."""

SESSIONS = 5
"""Sessions from which a verdict on the clock is given."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """A value and its 95% interval: of one session the median over its rounds, of several the mean over sessions."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Interval:
        """Scaled."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)


@dataclasses.dataclass(frozen=True)
class Timed:
    """A configuration whose step is timed, see `benchmark.clock`.

    Attributes:
        key: of all that decides its time.
        config: how it is trained.
        ours: by this package; else as Hugging Face's run_mlm does it.
    """

    key: str
    config: StudyConfig
    ours: bool


def interval(values: np.ndarray, resamples: int = 10_000) -> Interval:
    """Median of (rounds,) values, and the percentile bootstrap of it; the same values give the same interval."""
    rng = np.random.default_rng(0)
    medians = np.median(values[rng.integers(len(values), size=(resamples, len(values)))], 1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return Interval(float(np.median(values)), float(low), float(high))


def scipy_stats() -> Any:
    """What several sessions need; one does without, as on a GPU host with no more than torch and transformers.

    Raises:
        ParameterError: scipy is not installed.
    """
    try:
        from scipy import stats
    except ImportError:
        raise ParameterError("the interval over several sessions needs scipy: `pip install scipy`") from None
    return stats


def over_sessions(values: Sequence[float]) -> Interval:
    """Mean of the values of two sessions or more with its 95% interval by Student's t.

    Raises:
        ParameterError: scipy is not installed.
    """
    stats = scipy_stats()
    mean = statistics.fmean(values)
    half = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def ratio(baseline: np.ndarray, variant: np.ndarray) -> Interval:
    """How many times faster the variant is: the median of the ratios of seconds within each round."""
    return interval(baseline / variant)


def too_noisy(noise: Interval) -> bool:
    """Does the baseline's interval against itself reach beyond `NOISE_LIMIT`?"""
    return noise.low < 1 - NOISE_LIMIT or noise.high > 1 + NOISE_LIMIT


def noise(record: RunRecord) -> Interval | None:
    """The baseline against itself, in the same rounds; None if speed was not measured."""
    turns = record.metrics.get("turns")
    return turns and ratio(np.array(turns[BASELINE]["seconds"]), np.array(turns[AGAIN]["seconds"]))


def why_no_speed(record: RunRecord) -> str:
    """Why a session gives no speed, by what it recorded: others were busy, or it was too noisy; "": it gives one.

    Where it is known how many cores other processes kept at work, that counts; the load average, which for minutes
    goes on counting what has ended, only where it is not.
    """
    floor = noise(record)
    if floor is None:
        return "speed was not measured"
    metrics, cores = record.metrics, record.environment["hardware"].get("cores", 1)
    others = [metrics[name] for name in ("busy_before", "busy_during") if metrics.get(name) is not None]
    busy = noisy = ""
    if not others:
        busy = _too_loaded(record)
    elif max(others) > BUSY_LIMIT * cores:
        most = f"at most {BUSY_LIMIT * cores:.2f}"
        busy = f"busy: other processes kept {max(others):.2f} of {cores} cores at work, expected {most}"
    if too_noisy(floor):
        limits = f"{1 - NOISE_LIMIT:g} to {1 + NOISE_LIMIT:g}"
        noisy = f"too noisy: vanilla-15% against itself is {text_of(floor, 3)}, expected within {limits}"
    return "; ".join(filter(None, (busy, noisy)))


def why_no_verdict(record: RunRecord) -> str:
    """Why a session does not count for a verdict: it gives no speed, or began under a load average over the limit."""
    return why_no_speed(record) or _too_loaded(record)


def _too_loaded(record: RunRecord) -> str:
    cores, load = record.environment["hardware"].get("cores", 1), record.metrics.get("load_before", 0.0)
    said = f"busy: a load of {load:.2f} on {cores} cores before it, expected at most {LOAD_LIMIT * cores:.2f}"
    return said if load > LOAD_LIMIT * cores else ""


def latest_sessions(records: Sequence[RunRecord], variant: str) -> list[RunRecord]:
    """The sessions that a verdict on a variant's speed is taken from, of records of stage `benchmark`, oldest first.

    Those of the newest benchmark (`same_benchmark`) of which enough give a speed; there is none: of the newest.
    """
    groups: list[list[RunRecord]] = []
    for record in reversed([record for record in records if variant in record.metrics.get("turns", ())]):
        if group := next((group for group in groups if same_benchmark(group[0], record)), None):
            group.append(record)
        else:
            groups.append([record])
    enough = [group for group in groups if sum(not why_no_verdict(record) for record in group) >= SESSIONS]
    return sorted((enough or groups or [[]])[0], key=session_of)


def realised_by_session(records: Sequence[RunRecord], variant: str) -> tuple[float, ...]:
    """Wall-clock speed-up over vanilla at 15% as a share of the one in FLOPs, one value per session that counts."""
    return tuple(realised_speedup(record, variant) for record in records if not why_no_verdict(record))


def realised_speedup(record: RunRecord, variant: str) -> float:
    """The same of one session: the median over its rounds."""
    seconds = _seconds(record)
    return float(np.median(seconds[BASELINE] / seconds[variant])) * record.flops[variant] / record.flops[BASELINE]


def sessions_said(records: Sequence[RunRecord]) -> str:
    """How many sessions there are for a verdict, and why others are none; "" where there are enough."""
    reasons = {session_of(record): why for record in records if (why := why_no_verdict(record))}
    count = len(records) - len(reasons)
    if count >= SESSIONS:
        return ""
    left_out = "".join(f"; session {number} is none ({why})" for number, why in reasons.items())
    return f"{count} of {SESSIONS} sessions{left_out}"


@dataclasses.dataclass(frozen=True)
class VariantSpeed:
    """One variant of the comparison, seconds and FLOPs per step; of several sessions everything is the mean over them.

    Attributes:
        cpu: seconds of all CPUs, of the whole process.
        utilisation: share of the measured ceiling of matrix products.
        mfu: share of the GPU's datasheet, or None on a CPU.
        over_vanilla: how many times faster than vanilla at 15%.
        realised: that, as a share of the speed-up in FLOPs.
        over_hf: how many times faster than Hugging Face as shipped, or None.
        first_step: seconds of the first step, compiling included.
        data_wait: share of the step spent on getting its batch.
        peak_bytes: memory of training, or None where it was not measured.
    """

    name: str
    label: str
    step: Interval
    cpu: Interval
    tokens_per_second: float
    flops: float
    utilisation: float
    mfu: float | None
    over_vanilla: Interval
    realised: Interval
    over_hf: Interval | None
    first_step: float
    data_wait: float
    peak_bytes: int | None


def speeds(records: Sequence[RunRecord]) -> list[VariantSpeed]:
    """The variants of a benchmark's sessions, in their order; none if no session gives a speed.

    Intervals are over sessions by Student's t; of one session, over its rounds.
    """
    peaks: dict[str, int] = next((r.metrics["peak_bytes"] for r in records if "peak_bytes" in r.metrics), {})
    each = [_of_session(record, peaks) for record in records if not why_no_speed(record)]
    return each[0] if len(each) == 1 else [_mean(variants) for variants in zip(*each, strict=True)]


def _of_session(record: RunRecord, peaks: dict[str, int]) -> list[VariantSpeed]:
    metrics, parameters, seconds = record.metrics, record.parameters, _seconds(record)

    def of(name: str, label: str) -> VariantSpeed:
        step, flops, turns = interval(seconds[name]), record.flops[name], metrics["turns"][name]
        over = ratio(seconds[BASELINE], seconds[name])
        on_gpu = "gpu" in record.environment["hardware"]
        return VariantSpeed(
            name,
            label,
            step,
            interval(np.array(turns["cpu_seconds"])),
            parameters["batch_size"] * parameters["sequence_length"] / step.value,
            flops,
            flops / step.value / metrics["flops_ceiling"],
            flops / step.value / (parameters["gpu_tflops"] * 1e12) if on_gpu else None,
            over,
            over.times(flops / record.flops[BASELINE]),
            ratio(seconds["hf"], seconds[name]) if "hf" in seconds else None,
            metrics["first_step_seconds"][name],
            float(np.sum(turns["data_seconds"]) / np.sum(seconds[name])),
            peaks.get(name),
        )

    return [of(name, about["label"]) for name, about in metrics["arms"].items()]


def _mean(sessions: Sequence[VariantSpeed]) -> VariantSpeed:
    """Of one variant over sessions."""
    means: dict[str, Any] = {}
    for name, first in vars(sessions[0]).items():
        values = [getattr(variant, name) for variant in sessions]
        if isinstance(first, Interval):
            means[name] = over_sessions([value.value for value in values])
        elif isinstance(first, float):
            means[name] = statistics.fmean(values)
    return dataclasses.replace(sessions[0], **means)


def _seconds(record: RunRecord) -> dict[str, np.ndarray]:
    """Variant -> (rounds,) seconds of a step, the baseline's two turns averaged."""
    seconds = {name: np.array(turns["seconds"]) for name, turns in record.metrics["turns"].items()}
    return {**seconds, BASELINE: (seconds[BASELINE] + seconds[AGAIN]) / 2}


def lines_of(records: Sequence[RunRecord]) -> list[str]:
    """The comparison as lines of text: what each session was worth, then the variants."""
    hardware = records[0].environment["hardware"]
    lines = [f"{hardware.get('gpu', hardware['cpu'])}, {hardware['threads']} threads"]
    for record in records:
        said = "not measured"
        if floor := noise(record):
            why = why_no_speed(record)
            said = text_of(floor, 3) + (f"; no speed is given, {why}" if why else "")
        lines.append(f"session {session_of(record)}, vanilla-15% against itself: {said}")
    variants = speeds(records)
    if not variants:
        return lines
    head = f"{'':32} {'ms/step':>9} {'tokens/s':>9} {'GFLOP':>8} {'ceiling':>8} {'over vanilla-15%':>22} "
    lines.append(head + f"{'realised':>22} {'over Hugging Face':>22} {'data':>6} {'first s':>8} {'MiB':>7}")
    for v in variants:
        lines.append(
            f"{v.label:32} {1000 * v.step.value:9.1f} {v.tokens_per_second:9.0f} {v.flops / 1e9:8.1f} "
            f"{v.utilisation:8.0%} {text_of(v.over_vanilla):>22} {text_of(v.realised):>22} "
            f"{text_of(v.over_hf) if v.over_hf else '':>22} {v.data_wait:6.1%} {v.first_step:8.1f} "
            f"{'' if v.peak_bytes is None else f'{v.peak_bytes / 2**20:.0f}':>7}"
        )
    return lines


def text_of(value: Interval, digits: int = 2) -> str:
    """`1.52 (1.49 to 1.55)`."""
    return f"{value.value:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"


def benchmark_records(config: StudyConfig) -> list[RunRecord]:
    """The sessions of the newest benchmark of these parameters, on whatever machine; the first measured all parts.

    Raises:
        ParameterError: there is none.
    """
    config = at_constant_rate(config)
    names = (*DATA_PARAMETERS, *deciding_parameters(config), *BENCHMARK_PARAMETERS)
    there = [record for record in find(config, "benchmark", names) if session_of(record) == 1]
    first = newest(there, config, "stage benchmark")
    others = (r for r in load_records(config.runs_dir, "benchmark") if session_of(r) > 1 and same_benchmark(r, first))
    return [first, *sorted(others, key=session_of)]


def session_of(record: RunRecord) -> int:
    """Number of a benchmark's session, from 1."""
    return record.identity.get("session", 1)


def same_benchmark(first: RunRecord, second: RunRecord) -> bool:
    """Are they sessions of the same models, on the same kind of machine, with the same code?"""
    apart = ("session", "benchmark_parts")  # later sessions measure speed alone
    one, other = ({k: v for k, v in record.identity.items() if k not in apart} for record in (first, second))
    return one == other
