"""Places of mutants in sources: found by definition, whatever the formatting; refused where they are gone or
several.
"""

from __future__ import annotations

import pytest

from tests.prove.anchors import changed

SOURCE = """
def f(a, b):
    x = (a
         < b)  # a comment
    if x:
        x = a < b
        return g(a)
    return None

class C:
    def f(self, a):
        return a + 1
"""


def test_a_place_is_found_in_its_definition_whatever_the_formatting() -> None:
    assert "x = a <= b\n    if" in changed(SOURCE, "f", "a < b", "a <= b", 0)
    assert "        x = a <= b" in changed(SOURCE, "f", "a < b", "a <= b", 1)
    assert "return a - 1" in changed(SOURCE, "C.f", "a + 1", "a - 1")


def test_statements_in_a_row_are_one_place() -> None:
    assert "    if x:\n        pass\n    return None" in changed(
        SOURCE, "f", "x = a < b\nreturn g(a)", "pass"
    )


@pytest.mark.parametrize(
    ("definition", "old"), [("f", "a < b"), ("f", "a + 1"), ("C.g", "a + 1"), ("C.f", "a < b")]
)
def test_a_place_that_is_gone_or_not_the_only_one_is_refused(definition: str, old: str) -> None:
    with pytest.raises(ValueError, match=r"has \d of|there is no"):
        changed(SOURCE, definition, old, "None")
