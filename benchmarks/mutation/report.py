"""The table of a mutation score, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from mutation.faults import FAULTS
from mutation.graphs import AOT
from mutation.score import Mutant, Scored
from mutation.subject import EFFECT, ZERO

RULE = f"""A mutant is effective if its fp64 run differs from the unmutated one by more than
{EFFECT:g} (root mean square of the difference, relative to that of the tensor) in some compared
tensor, in the state as built or in the one in which no branch is dead. A tensor smaller than
{ZERO:g} of the largest of its kind (gradients, changes, outputs, ...) is zero but for rounding, and
is measured against that one; of squares of gradients it is {ZERO**2:g}. In an fp64 run what leaves
a graph is rounded to the format that it has in the step. Mutants that raise an error, or have no
fp64 run, are no mutants of the check; they are counted apart."""


def write_report(scored: Sequence[Scored], header: Sequence[str]) -> str:
    """All sections, one after the other."""
    lines = ["# Mutation score of the accuracy check", "", *header, "", RULE]
    for title, found in _by_run(scored):
        mutants = [mutant for item in found for mutant in item.mutants]
        effective = [mutant for mutant in mutants if mutant.is_effective]
        lines += ["", f"## {title}", "", *_classes(mutants), "", *_models(found)]
        survivors = [mutant for mutant in effective if not mutant.is_killed]
        lines += ["", f"### Survivors, {title}", "", *_list(survivors)]
        others = [mutant for mutant in mutants if not mutant.is_effective]
        lines += [
            "",
            "<details>",
            f"<summary>The {len(others)} that are not effective</summary>",
            "",
        ]
        lines += [*_list(others), "", "</details>"]
    return "\n".join(lines) + "\n"


def _by_run(scored: Iterable[Scored]) -> Iterator[tuple[str, list[Scored]]]:
    def key(item: Scored) -> tuple[bool, bool]:
        return item.backend != AOT, item.precision != "fp32"

    for (inductor, amp), found in groupby(sorted(scored, key=key), key):
        yield f"{'AMP' if amp else 'fp32'}{' through Inductor' if inductor else ''}", list(found)


def _classes(mutants: Sequence[Mutant]) -> Iterator[str]:
    yield "| fault | planted | did not run | effective | killed | unverified | score |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for fault in [*FAULTS, None]:
        chosen = [mutant for mutant in mutants if fault in (None, mutant.fault)]
        if chosen:
            yield _row(fault or "**all**", chosen)


def _row(name: str, mutants: Sequence[Mutant]) -> str:
    effective = [mutant for mutant in mutants if mutant.is_effective]
    killed = sum(mutant.is_killed for mutant in effective)
    unverified = sum(
        mutant.answer is not None and mutant.answer.outcome == "unverified" for mutant in effective
    )
    broken = sum(not _runs(mutant) for mutant in mutants)
    share = f"{killed / len(effective):.1%}" if effective else "-"
    return (
        f"| {name} | {len(mutants)} | {broken} | {len(effective)} | {killed} | {unverified} | "
        f"{share} |"
    )


def _runs(mutant: Mutant) -> bool:
    return (
        mutant.effect is not None
        and mutant.answer is not None
        and mutant.answer.outcome != "crashed"
    )


def _models(scored: Sequence[Scored]) -> Iterator[str]:
    yield "| model | unmutated | planted | effective | killed | seconds |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for item in scored:
        effective = [mutant for mutant in item.mutants if mutant.is_effective]
        killed = sum(mutant.is_killed for mutant in effective)
        said = item.unmutated.outcome
        said = said if said == "passed" else f"**{said}**: {_cell(item.unmutated.text)}"
        yield (
            f"| {item.model} | {said} | {len(item.mutants)} | {len(effective)} | {killed} | "
            f"{item.took_s:.0f} |"
        )


def _list(mutants: Iterable[Mutant]) -> Iterator[str]:
    yield "| model | fault | place | fp64 difference | in | the check says |"
    yield "| --- | --- | --- | ---: | --- | --- |"
    for mutant in sorted(mutants, key=lambda mutant: (mutant.fault, mutant.model)):
        effect, answer = mutant.effect, mutant.answer
        difference = f"{effect.difference:.2g}" if effect else "does not run"
        where = f"{effect.tensor}, {effect.state}" if effect else ""
        said = f"{answer.outcome}: {_cell(answer.text)}" if answer else ""
        said += " (compiled anew in the check)" if mutant.recompiled else ""
        yield (
            f"| {mutant.model} | {mutant.fault} | {mutant.place} | {difference} | {where} | "
            f"{said} |"
        )


def _cell(text: str) -> str:
    return (text.strip().splitlines() or [""])[0].replace("|", "/")[:160]
