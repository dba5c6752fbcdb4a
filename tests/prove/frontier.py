"""10,000 machines priced by frontiers, every objective: what optimal finds on that machine alone."""

from __future__ import annotations

from collections import Counter

from tests.families import KINDS, UNPROVEN, differences

FAMILIES, PAIRS = 60, 28  # per kind of layer; machines of each


def main() -> int:
    found = Counter(line for seed in range(FAMILIES) for kind in KINDS for line in differences(kind, seed, PAIRS))
    wrong = [line for line in found if line not in ("", UNPROVEN)]
    for line in wrong:
        print(f"  {line}")
    print(f"  {FAMILIES * len(KINDS) * PAIRS} pairs of einsum and machine, three objectives each: {found['']} equal, {len(wrong)} different, "
          f"{found[UNPROVEN]} where optimal spent its budget and found nothing better")
    return int(bool(wrong))
