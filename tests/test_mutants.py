"""Mutants of the long proof still stand: each has its line, once, and its test."""

from __future__ import annotations

from pathlib import Path

from tests.prove import mutants

ROOT = Path(__file__).parents[1]


def test_every_mutant_has_its_line_and_its_test() -> None:
    every = [one for group in vars(mutants).values() if isinstance(group, tuple) for one in group if isinstance(one, mutants.Mutant)]
    assert len(every) > 100
    assert [one.rule for one in every if (ROOT / one.file).read_text().count(one.old) != 1] == []
    named = [(one.rule, *one.proof.partition("[")[0].split("::")) for one in every if "::" in one.proof]
    assert [rule for rule, file, test in named if f"def {test}(" not in (ROOT / file).read_text()] == []
