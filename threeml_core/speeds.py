"""What a benchmark's record says: ratios within rounds with intervals, conversion, utilisation. No torch."""

from __future__ import annotations

import dataclasses

import numpy as np

from threeml_core.results import RunRecord

BASELINE = "vanilla-15"
"""The arm that 3ML is measured against; it has two turns a round, and the second shows the noise."""

AGAIN = f"{BASELINE} again"
"""The second turn of the baseline in a round."""

NOISE_LIMIT = 0.05
"""The baseline may differ from itself by this share; else no speed is given."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """A median and its 95% bootstrap interval."""

    median: float
    low: float
    high: float

    def times(self, factor: float) -> Interval:
        """Scaled."""
        return Interval(self.median * factor, self.low * factor, self.high * factor)


def interval(values: np.ndarray, resamples: int = 10_000) -> Interval:
    """Median of (rounds,) values, and the percentile bootstrap of it; the same values give the same interval."""
    rng = np.random.default_rng(0)
    medians = np.median(values[rng.integers(len(values), size=(resamples, len(values)))], 1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return Interval(float(np.median(values)), float(low), float(high))


def ratio(baseline: np.ndarray, arm: np.ndarray) -> Interval:
    """How many times faster the arm is: the median of the ratios of seconds within each round."""
    return interval(baseline / arm)


def too_noisy(noise: Interval) -> bool:
    """Does the baseline differ from itself by more than `NOISE_LIMIT`?"""
    return abs(noise.median - 1) > NOISE_LIMIT


@dataclasses.dataclass(frozen=True)
class ArmSpeed:
    """One arm of the comparison.

    Attributes:
        name: of the arm.
        label: for tables.
        step: seconds of an update.
        cpu: CPU seconds of an update, of the whole process.
        tokens_per_second: original tokens.
        flops: executed by an update.
        utilisation: share of the measured ceiling of matrix products.
        mfu: share of the GPU's datasheet, or None on a CPU.
        over_vanilla: how many times faster than vanilla at 15%.
        conversion: that, divided by the same ratio of FLOPs.
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
    conversion: Interval
    over_hf: Interval | None
    first_step: float
    data_wait: float
    peak_bytes: int | None


def speeds(record: RunRecord) -> list[ArmSpeed]:
    """The arms of a record, in its order; none if speed was not measured or the record was too noisy."""
    metrics, parameters = record.metrics, record.parameters
    seconds = _seconds(record)
    if not seconds:
        return []
    tokens = parameters["batch_size"] * parameters["sequence_length"]
    found = []
    for name, about in metrics["arms"].items():
        step, flops = interval(seconds[name]), record.flops[name]
        cpu = np.array(metrics["turns"][name]["cpu_seconds"])
        over = ratio(seconds[BASELINE], seconds[name])
        on_gpu = "gpu" in record.environment["hardware"]
        found.append(
            ArmSpeed(
                name,
                about["label"],
                step,
                interval(cpu),
                tokens / step.median,
                flops,
                flops / step.median / metrics["flops_ceiling"],
                flops / step.median / (parameters["gpu_tflops"] * 1e12) if on_gpu else None,
                over,
                over.times(flops / record.flops[BASELINE]),
                ratio(seconds["hf"], seconds[name]) if "hf" in seconds else None,
                metrics["first_step_seconds"][name],
                float(np.sum(metrics["turns"][name]["data_seconds"]) / np.sum(seconds[name])),
                metrics.get("peak_bytes", {}).get(name),
            )
        )
    return found


def conversions(record: RunRecord, arm: str) -> tuple[float, ...]:
    """Round by round, an arm's speed-up over vanilla at 15% divided by the same ratio of FLOPs.

    Empty: that was not measured, or the record was too noisy.
    """
    seconds = _seconds(record)
    if arm not in seconds:
        return ()
    expected = record.flops[BASELINE] / record.flops[arm]
    return tuple((seconds[BASELINE] / seconds[arm] / expected).tolist())


def _seconds(record: RunRecord) -> dict[str, np.ndarray]:
    """Arm -> (rounds,) seconds of an update, the baseline's two turns averaged; empty: not measured, or too noisy."""
    if "turns" not in record.metrics or record.metrics["too_noisy"]:
        return {}
    seconds = {name: np.array(turns["seconds"]) for name, turns in record.metrics["turns"].items()}
    return {**seconds, BASELINE: (seconds[BASELINE] + seconds[AGAIN]) / 2}


def noise(record: RunRecord) -> Interval | None:
    """The baseline against itself, in the same rounds; None if speed was not measured."""
    turns = record.metrics.get("turns")
    return turns and ratio(np.array(turns[BASELINE]["seconds"]), np.array(turns[AGAIN]["seconds"]))


def lines_of(record: RunRecord) -> list[str]:
    """The comparison as lines of text."""
    hardware = record.environment["hardware"]
    lines = [f"{hardware.get('gpu', hardware['cpu'])}, {hardware['threads']} threads; vanilla-15% against itself: "]
    floor = noise(record)
    lines[0] += "not measured" if floor is None else text_of(floor, 3)
    if record.metrics.get("too_noisy"):
        return [*lines, "too noisy: no speed is given"]
    head = f"{'':32} {'ms/step':>9} {'tokens/s':>9} {'GFLOP':>8} {'ceiling':>8} {'over vanilla-15%':>22} "
    lines.append(head + f"{'conversion':>22} {'over Hugging Face':>22} {'data':>6} {'first s':>8} {'MiB':>7}")
    for arm in speeds(record):
        lines.append(
            f"{arm.label:32} {1000 * arm.step.median:9.1f} {arm.tokens_per_second:9.0f} {arm.flops / 1e9:8.1f} "
            f"{arm.utilisation:8.0%} {text_of(arm.over_vanilla):>22} {text_of(arm.conversion):>22} "
            f"{text_of(arm.over_hf) if arm.over_hf else '':>22} {arm.data_wait:6.1%} {arm.first_step:8.1f} "
            f"{'' if arm.peak_bytes is None else f'{arm.peak_bytes / 2**20:.0f}':>7}"
        )
    return lines


def text_of(value: Interval, digits: int = 2) -> str:
    """`1.52 (1.49 to 1.55)`."""
    return f"{value.median:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"
