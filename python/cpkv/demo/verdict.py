"""Whether everything was the same, and the table that says so."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from cpkv.demo.scenarios import NEW_TOKENS, PROMPTS, SCENARIOS, RankReport, Seen, prompts
from cpkv.engine import Engine, EngineConfig


@dataclass(frozen=True, slots=True)
class Row:
    """A scenario on all ranks of a group.

    Args:
        split: How prompts were shared.
        scenario: Its name.
        is_equal: Whether tokens and logits are those of one rank without a cache, on every rank.
        acceptance_length: Tokens that a verification has brought, on average over requests.
        expected_length: The same of one rank without a cache.
        device_hit_tokens, host_hit_tokens: Of all requests.
        pages: Whose bytes were compared.
        wrong_pages: Those that were visible and not what they have to be.
        seconds: On the slowest rank.
        problems: Everything that differs.
    """

    split: str
    scenario: str
    is_equal: bool
    acceptance_length: float
    expected_length: float
    device_hit_tokens: int
    host_hit_tokens: int
    pages: int
    wrong_pages: int
    seconds: float
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """All of it.

    Args:
        rows: For each split and scenario.
        all_layer_forwards: Forwards that were not copied layer by layer.
        hidden: Share of the time of all backups that lies within a forward; `None` where it is not known.
        other_collectives: What was sent and not by the model, on all ranks.
        collectives: Of the model, by split and what they were for, on each rank.
    """

    rows: tuple[Row, ...]
    all_layer_forwards: int
    hidden: float | None
    other_collectives: int
    collectives: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that differs, with where; empty if all scenarios are equal."""
        found = [f"{row.split}, {row.scenario}: {problem}" for row in self.rows for problem in row.problems]
        if self.all_layer_forwards:
            found.append(f"{self.all_layer_forwards} forwards were copied all layers at once, want none")
        if self.other_collectives:
            found.append(f"there were {self.other_collectives} collectives that the model did not make, want none")
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"problems": list(self.problems), "is_equal": not self.problems}


def expected(config: EngineConfig, short: int) -> dict[int, Seen]:
    """Return what one rank without a cache makes of the demo's prompts, by their length.

    Args:
        config: Of the engine.
        short: Tokens of the short one.
    """
    vocab = config.model.vocab
    with Engine(config) as engine:
        requests = engine.generate([*prompts(vocab), *prompts(vocab, [short], seed=8)], NEW_TOKENS)
        return {len(request.prompt): Seen.of(request) for request in requests}


def judge(reports: Mapping[str, Sequence[RankReport]], wanted: Mapping[int, Seen], short: int) -> Verdict:
    """Compare what all ranks of all groups have reported with what is expected.

    Args:
        reports: Of each group.
        wanted: See `expected`.
        short: See there.
    """
    lengths = {"abort in mid-backup": [PROMPTS[1]], "short request": [short]}
    rows = tuple(
        _row(split, scenario, ranks, [wanted[length] for length in lengths.get(scenario, PROMPTS)])
        for split, ranks in reports.items()
        for scenario in SCENARIOS
    )
    every = [report for ranks in reports.values() for report in ranks]
    copied, within = (sum(report.backup_ns[place] for report in every) for place in range(2))
    return Verdict(
        rows=rows,
        all_layer_forwards=sum(report.counts["all_layer_forwards"] for report in every),
        hidden=within / copied if copied else None,
        other_collectives=sum(report.other_collectives for report in every),
        collectives={split: ranks[0].collectives for split, ranks in reports.items()},
    )


def _row(split: str, scenario: str, ranks: Sequence[RankReport], expect: Sequence[Seen]) -> Row:
    outcomes = [report.outcomes[scenario] for report in ranks]
    problems = []
    for rank, outcome in enumerate(outcomes):
        problems += [f"rank {rank}: {problem}" for problem in (*outcome.wrong, *outcome.problems)]
        if len(outcome.requests) != len(expect):
            problems.append(f"rank {rank}: {len(outcome.requests)} requests were served, want {len(expect)}")
        for place, (seen, want) in enumerate(zip(outcome.requests, expect, strict=False)):
            what = [
                name for name in ("tokens", "logits", "acceptance_length") if getattr(seen, name) != getattr(want, name)
            ]
            if what:
                problems.append(f"rank {rank}, request {place}: {', '.join(what)} differ")
    found, whole = sum(outcome.found_pages for outcome in outcomes), outcomes[0].whole_pages
    if found != whole or not whole:
        problems.append(f"{found} pages were compared at the end, want {whole or 'some'}")
    first = outcomes[0].requests
    return Row(
        split=split,
        scenario=scenario,
        is_equal=not problems,
        acceptance_length=fmean(seen.acceptance_length for seen in first) if first else 0.0,
        expected_length=fmean(want.acceptance_length for want in expect),
        device_hit_tokens=sum(seen.device_hit_tokens for seen in first),
        host_hit_tokens=sum(seen.host_hit_tokens for seen in first),
        pages=sum(outcome.pages for outcome in outcomes),
        wrong_pages=sum(len(outcome.wrong) for outcome in outcomes),
        seconds=max(outcome.seconds for outcome in outcomes),
        problems=tuple(problems),
    )
