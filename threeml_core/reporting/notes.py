"""The notes above a page: what its seeds allow to say, what has not learned anything, and what was not as asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from threeml_core.parameters.masking import executed_statement
from threeml_core.runs.record import RunRecord
from threeml_core.study.results import Result


def study_notes(results: Sequence[Result]) -> str:
    """What holds for all models of a page, and in a paragraph of its own the corruption that was executed."""
    records = [record for result in results for record in result.ended.values()]
    return "\n\n".join(filter(None, (first_notes(results), corruption_note(records))))


def first_notes(results: Sequence[Result]) -> str:
    """What holds for all models of a study: seeds, the unigram plateau, kinds of tokens that were never trained on."""
    return " ".join([_seeds_note(results), _plateau_note(results), *_lacking_notes(results)])


def _seeds_note(results: Iterable[Result]) -> str:
    counts = sorted({len(result.run.seeds) for result in results})
    if counts[-1] == 1:
        text = "One pre-training seed: no interval is possible, so no difference on this page decides anything"
        return f"{text} (`num_pretrain_seeds`)."
    return (
        f"{' or '.join(map(str, counts))} pre-training seeds: means ± half the 95% interval by Student's t "
        "(perplexities: computed on their logs); differences are paired by seed."
    )


def _plateau_note(results: Iterable[Result]) -> str:
    known = [result.on_plateau for result in results if result.ended]
    if not known:
        return "Nothing of this page has been run yet."
    if not any(known):
        return f"All {len(known)} models have left the unigram plateau."
    return (
        f"{sum(known)} of {len(known)} models have not left the unigram plateau: they have learned next to nothing of "
        "masked tokens, and what they give shows the form of this page, not the method."
    )


def _lacking_notes(results: Iterable[Result]) -> list[str]:
    """Which models were not trained as their split says, so that comparisons with them mean something else."""
    models: dict[tuple[str, ...], dict[str, None]] = {}
    for result in results:
        models.setdefault(result.lacks, {})[result.run.model] = None
    return [
        f"{', '.join(names)} never saw {' or '.join(kinds)} tokens in training, although the split asks for them: "
        "every difference against them is also one of the split, and decides nothing."
        for kinds, names in models.items()
        if kinds
    ]


def corruption_note(records: Iterable[RunRecord]) -> str:
    """What mask rates and splits execute in sequences of this length, where that is not what was asked for; else ""."""
    found, lengths = set(), set()
    for record in records:
        for evaluation, key, prefix in ((False, "corruption", ""), (True, "eval_corruption", "validation: ")):
            if statement := executed_statement(record.parameters, record.identity.get(key, {}), evaluation):
                found.add(f"\n* {prefix}{statement}")
                lengths.add(record.parameters["sequence_length"])
    if not found:
        return ""
    n = " or ".join(f"{length:,}" for length in sorted(lengths))
    head = f"Executed per sequence of {n} tokens, with a whole number of [MASK]s (means over sequences):\n"
    return head + "".join(sorted(found))
