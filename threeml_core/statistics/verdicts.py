"""The rule by which every claim and statement of the paper is judged; no result can change it. No torch.

A claim is one or more comparisons; a comparison is a difference (or ratio) that the claim says lies in a range.
Differences are paired by pre-training seed: both models of a pair have the same seed, hence the same order of the text.
Their mean has a 95% interval by Student's t over the seeds, which also holds the error of measurement where there is
one. `supported`: the interval lies in the range; `contradicted`: it lies outside; else `undecided`. A claim of several
comparisons is supported if all are, and contradicted if one is at a level that makes this as rare as for a single one
(Bonferroni: 1 - 0.05 / comparisons). One seed gives no interval, hence no verdict. Nor is there one while a comparison
is in doubt: it then differs by noise alone. Where a spread pooled over models judges, and the models do not vary alike
(`UNEVEN`), that interval or the one by the pair's own seeds judges, whichever is wider.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence

from threeml_core.statistics import intervals
from threeml_core.statistics.intervals import Interval, Spread

SUPPORTED, CONTRADICTED, UNDECIDED, NOT_RUN = "supported", "contradicted", "undecided", "not run"

FALSE_VERDICT = 0.025
"""The probability that a verdict of its own is false is at most this: one end of a 95% interval."""


UNEVEN = 0.01
"""p-value of Bartlett's test below which models are not taken to vary alike over seeds."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One comparison of a claim.

    Attributes:
        what: first model minus second model, of what.
        unit: of the values.
        low: lower end of the range that the claim says; -inf: none.
        high: upper end; inf: none.
        values: one a pre-training seed, or a session of the benchmark; empty: not run, or doubt says why there is none.
        doubt: why the values mean nothing, or "".
        one_of: what a value is one of.
        error: standard error of measurement that all values share.
        spread: of one model's values over seeds, pooled over the models of the study; None: not of this comparison.
        pooled: is the pooled spread what judges? Otherwise it is only shown.
        planned: does the study have both models, run or not?
        settings: first and second model as `paper.ReportedValue.setting` names them; (): the paper has no such number.
    """

    what: str
    unit: str
    low: float
    high: float
    values: tuple[float, ...]
    doubt: str = ""
    one_of: str = "pre-training seed"
    error: float = 0.0
    spread: Spread | None = None
    pooled: bool = False
    planned: bool = True
    settings: tuple[str, ...] = ()

    @functools.cached_property
    def _estimates(self) -> list[intervals.Estimate]:
        """What judges; of two the wider one."""
        own = intervals.mean_estimate(self.values, self.error)
        if not (self.pooled and self.spread and len(self.values) > 1):
            return [own]
        pool = intervals.pooled_estimate(self.values, self.spread, self.error)
        return [pool, own] if self.spread.alike is not None and self.spread.alike < UNEVEN else [pool]

    def _interval(self, level: float) -> Interval:
        found = [estimate.interval(level) for estimate in self._estimates]
        return max(found, key=lambda of: 0 if of.high is None else of.high - of.mean)

    @property
    def interval(self) -> Interval | None:
        """Of the values, as it is judged; None: not run."""
        return self._interval(0.95) if self.values else None

    @property
    def by_pool(self) -> Interval | None:
        """With the pooled spread; None: there is none."""
        if not self.spread or not self.values:
            return None
        return intervals.pooled_estimate(self.values, self.spread, self.error).interval()

    @property
    def by_own_seeds(self) -> Interval | None:
        """With the spread of these differences alone; None: not run."""
        return intervals.mean_estimate(self.values, self.error).interval() if self.values else None

    @property
    def detectable(self) -> float | None:
        """What these seeds could show, by their own spread; see `detectable_difference`. None: fewer than two."""
        count = len(self.values)
        if count < 2:
            return None
        return intervals.detectable_difference(statistics.stdev(self.values), count, shared=self.error)

    @property
    def range(self) -> str:
        """What the claim says, in words."""
        if self.high == math.inf:
            return f"above {self.low:g}"
        return f"below {self.high:g}" if self.low == -math.inf else f"{self.low:g} to {self.high:g}"

    def judge(self, level: float = 0.95) -> str:
        """See the module's rule."""
        if not self.values:
            return UNDECIDED if self.doubt else NOT_RUN
        found = self._interval(level)
        if self.doubt or found.low is None or found.high is None:
            return UNDECIDED
        if self.low < found.low and found.high < self.high:
            return SUPPORTED
        return CONTRADICTED if found.high < self.low or found.low > self.high else UNDECIDED

    @property
    def verdict(self) -> str:
        """At 95%."""
        return self.judge()

    @functools.cached_property
    def p_value(self) -> float:
        """The smallest 1 - level at which there is a verdict; 1: at none."""
        low, high = 0.0, 1.0
        if self.judge(1 - 1e-12) not in (UNDECIDED, NOT_RUN):
            return 0.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.judge(1 - middle) in (UNDECIDED, NOT_RUN) else (low, middle)
        return high

    @property
    def counts(self) -> bool:
        """Is it one of the family that is corrected for? One still to be run is, one that cannot be had is not."""
        return bool(self.values) or (self.planned and not self.doubt)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why there is no verdict."""
        if not self.values:
            return (self.doubt or "not all is run",)
        one = f"one {self.one_of}: no interval" if len(self.values) == 1 else ""
        return tuple(filter(None, (one, self.doubt)))


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of the paper (C1 to C9), what it says and where, with the comparisons that judge it."""

    name: str
    text: str
    where: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """Of all comparisons together."""
        level = 1 - 0.05 / max(1, len(self.findings))
        verdicts = [finding.verdict for finding in self.findings]
        return _together(verdicts, any(finding.judge(level) == CONTRADICTED for finding in self.findings))

    @property
    def reasons(self) -> str:
        """Why there is no verdict, or ""."""
        if self.verdict != UNDECIDED:
            return ""
        found = dict.fromkeys(reason for finding in self.findings for reason in finding.reasons)
        return "; ".join(found) or "the interval reaches beyond the range"


def _together(verdicts: Sequence[str], is_contradicted: bool) -> str:
    if is_contradicted:
        return CONTRADICTED
    if all(verdict == NOT_RUN for verdict in verdicts):
        return NOT_RUN
    return SUPPORTED if all(verdict == SUPPORTED for verdict in verdicts) else UNDECIDED


def corrected_verdicts(claims: Sequence[Claim]) -> list[str]:
    """The verdict of each claim if the chance of any false verdict is to be as small as it is for one comparison alone.

    Source: Holm, "A simple sequentially rejective multiple test procedure" (1979), over all comparisons of all claims
    that the study has, those included that are in doubt or still to be run: what is not there yet must not make the
    rest look surer. It holds however the comparisons hang together.
    """
    pairs = [(claim, finding) for claim in claims for finding in claim.findings if finding.values]
    family = sum(finding.counts for claim in claims for finding in claim.findings)
    order = sorted(range(len(pairs)), key=lambda i: pairs[i][1].p_value)
    certain: set[int] = set()
    for rank, i in enumerate(order):
        if pairs[i][1].p_value > 0.05 / (family - rank):
            break
        certain.add(i)
    found = []
    for claim in claims:
        own = [finding.verdict if i in certain else UNDECIDED for i, (of, finding) in enumerate(pairs) if of is claim]
        own += [finding.verdict for finding in claim.findings if not finding.values]
        # never more than without the correction: a claim's own rule may ask for more than Holm's last steps
        found.append(UNDECIDED if claim.verdict == UNDECIDED else _together(own, CONTRADICTED in own))
    return found


def family_statement(claims: Sequence[Claim]) -> str:
    """How sure verdicts on several claims are together, in words."""
    judged = sum(claim.verdict != NOT_RUN for claim in claims)
    family = [finding for claim in claims for finding in claim.findings if finding.counts]
    missing = sum(not finding.values for finding in family)
    to_run = f", {missing} of them still to be run" if missing else ""
    if not judged:
        return "No claim has been run yet."
    any_false = 1 - (1 - FALSE_VERDICT) ** judged
    return (
        f"A verdict is false with a probability of at most {FALSE_VERDICT:.1%} if it stands alone; of {judged} "
        f"independent ones at least one is, with a probability of up to {any_false:.0%}. "
        f"Corrected: at most {FALSE_VERDICT:.1%} for all {len(family)} comparisons together{to_run} (Holm)."
    )
