"""Loops in a user's file: what an iteration leaves to the next, the loop written out, and its traffic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.frontend import check
from dse.solve.gogeta.traffic import traffic_of
from tests.amount import amount, some
from tests.numeric import run
from workloads import catalog, hpc
from workloads.einsum import WorkloadError, canonical_key
from workloads.graph import Workload
from workloads.loops import LoopForm, in_form
from workloads.text import workload

ROWS, NNZ, COLUMNS = 5000, 25000, 4
# the solver of hpc.cg, as a user writes it
CG = """
name: mine
extents: {m: 5000, k: 5000, n: 4, i: 4, j: 4}
einsums:
- {text: "S[m,n] += A[m,k] * P[k,n]", density: {A: 0.001}, format: {A: csr},
   index_bits: {A: 32}, pointer_bits: {A: 32}}
- "D[j,n] += P[m,j] * S[m,n]"
- "L[j,n] = inverse(D[j,i], G[i,n])"
- "PL[m,n] += P[m,j] * L[j,n]"
- "X1[m,n] = X[m,n] + PL[m,n]"
- "SL[m,n] += S[m,j] * L[j,n]"
- "R1[m,n] = sub(R[m,n], SL[m,n])"
- "G1[j,n] += R1[m,j] * R1_again[m,n]"
- "F[j,n] = inverse(G[j,i], G1[i,n])"
- "PF[m,n] += P[m,j] * F[j,n]"
- "P1[m,n] = R1[m,n] + PF[m,n]"
loop_state: {P: P1, X: X1, R: R1, G: G1}
iterations: 3
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(CG)
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize("form", ["periodic", "unrolled"])
def test_a_solver_in_a_file_is_the_built_in_one(path: Path, form: hpc.Form) -> None:
    mine = catalog.load(f"{path}:form={form}")
    built_in = hpc.cg(rows=ROWS, nnz=NNZ, n=COLUMNS, iterations=3, form=form)
    assert [*map(canonical_key, mine.einsums)] == [*map(canonical_key, built_in.einsums)]
    assert (mine.repeats, len(mine.loop_state)) == (built_in.repeats, len(built_in.loop_state))
    for capacity in some((1000, 30_000, 100_000), 1):
        ours, theirs = (traffic_of(w, capacity, 32) for w in (mine, built_in))
        assert (ours.optimal.cost, ours.gogeta, ours.seq_overflow, ours.seq_flex, ours.ideal) == (
            theirs.optimal.cost,
            theirs.gogeta,
            theirs.seq_overflow,
            theirs.seq_flex,
            theirs.ideal,
        )


def drawn_loop(data: st.DataObject) -> Workload:
    """Up to four einsums that read any vector of before, two of them the state of a loop."""
    names, texts = ["P", "Q", "B"], []
    for made in ("S", "T", "U", "V"):
        one, other = (data.draw(st.sampled_from(names)) for _ in range(2))
        texts.append(
            data.draw(
                st.sampled_from(
                    (
                        f"{made}[a] = sub({one}[a], {other}{'_again' if one == other else ''}[a])",
                        f"{made}[a] += M[a,c] * {one}[c]",
                    )
                )
            )
        )
        names.append(made)
    texts.append("W[a] = sub(P[a], Q[a])")
    results = data.draw(st.lists(st.sampled_from("STUVW"), min_size=2, max_size=2))
    steps = data.draw(st.integers(1, 4))
    return workload(
        {"a": 3, "c": 3}, *texts, loop_state=dict(zip("PQ", results, strict=True)), iterations=steps
    )


@settings(max_examples=amount(40), deadline=None)
@given(st.data())
def test_a_loop_written_out_computes_what_its_iterations_do(data: st.DataObject) -> None:
    loop = drawn_loop(data)
    rng = np.random.default_rng(0)
    values = {t: rng.integers(-2, 3, 3).astype(float) for t in "PQB"} | {
        "M": rng.integers(-1, 2, (3, 3)) * 1.0
    }
    written_out = in_form(loop, LoopForm("unrolled"))
    iterations = len(written_out.einsums) // len(loop.einsums)
    at_once = run(written_out.einsums, {**values, **{f"{t}_again": x for t, x in values.items()}})
    for _ in range(iterations):
        after = run(loop.einsums, {**values, **{f"{t}_again": x for t, x in values.items()}})
        values |= {before: after[result] for result, before in loop.loop_state}
    for result, before in written_out.loop_state:
        assert np.array_equal(at_once[result], values[before])
    assert written_out.macs() == loop.macs()


def test_parameters_behind_a_file_choose_the_form(path: Path) -> None:
    assert catalog.load(str(path)).loop_state == (("P1", "P"), ("X1", "X"), ("R1", "R"), ("G1", "G"))
    assert catalog.load(str(path)).repeats == (3,) * 11
    assert catalog.load(f"{path}:iterations=7").repeats == (7,) * 11
    assert catalog.load(f"{path}:iterations=1").repeats == ()
    two = catalog.load(f"{path}:form=unrolled,iterations=2")
    assert (len(two.einsums), two.name) == (22, "mine:form=unrolled,iterations=2")
    assert two.loop_state == (("P_2", "P"), ("X_2", "X"), ("R_2", "R"), ("G_2", "G"))
    # the second iteration reads what the first one leaves
    assert {p.tensor for e in two.einsums[11:] for p in e.inputs} >= {"P_1", "X_1", "R_1", "G_1", "R_2_again"}
    assert "11 einsums" in check.file(str(path))[0]


def test_weights_are_those_of_all_iterations() -> None:
    loop = workload(
        {"a": 3, "c": 3}, "Y[a] += W[a,c] * X[c]", weights=["W"], loop_state={"X": "Y"}, iterations=5
    )
    assert loop.parameters == 9
    assert in_form(loop, LoopForm("unrolled")).parameters == 9


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("iterations: 3\n", "", "iterations is missing; say how often"),
        ("loop_state: {P: P1, X: X1, R: R1, G: G1}", "", "loop_state is missing; say which results"),
        ("iterations: 3", "iterations: 0", "iterations = 0: input should be greater than or equal to 1"),
        ("{P: P1,", "{Pp: P1,", "loop_state: Pp is read by no einsum; do you mean P?"),
        ("{P: P1,", "{S: P1,", "loop_state: S is made by an einsum; name what an iteration reads"),
        ("{P: P1,", "{P: P2,", "loop_state.P = P2 is made by no einsum;"),
        (
            "{P: P1,",
            "{P: G1,",
            "loop_state.P = G1: G1 has 16 elements, and P is read with 20000; give both one",
        ),
        ("{P: P1,", "{A: P1,", "loop_state.A = P1: P1 has 20000 elements, and A is read with 25000000"),
        ("{P: P1,", "{R1_again: P1,", "loop_state: R1_again is read by no einsum;"),
        (
            '- "D[j,n] += P[m,j] * S[m,n]"',
            '- {text: "D[j,n] += P[m,j] * S[m,n]", repeat: 2}',
            "einsums[1].repeat = 2",
        ),
        (
            '- "P1[m,n] = R1[m,n] + PF[m,n]"',
            '- {text: "P1[m,n] = R1[m,n] + PF[m,n]", bits: {P1: 16}}',
            "loop_state.P = P1: has bits = 16, and P has bits = the machine word; give both the same bits",
        ),
        ("loop_state:", "weights: [P]\nloop_state:", "loop_state: P is a weight, which no iteration changes"),
        (
            "P1[m,n] = R1",
            "P[m,n] = R1",
            "what the iteration before leaves has a name of its own (loop_state)",
        ),
    ],
)
def test_faults_of_a_loop_are_one_line(path: Path, old: str, new: str, fault: str) -> None:
    assert CG.count(old) == 1
    path.write_text(CG.replace(old, new))
    with pytest.raises(WorkloadError) as caught:
        catalog.load(str(path))
    assert str(caught.value).startswith(str(path))
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "source", "fault"),
    [
        ("SL", "S_1", ":form=unrolled", ""),
        (
            "A[m,k]",
            "S_1[m,k]",
            ":form=unrolled",
            "mine: form=unrolled names a result S_1, as a tensor from outside",
        ),
        ("", "", ":form=unrolled,iterations=100000", "100000 iterations of 11 einsums are more than 100,000"),
        ("", "", ":form=rolled", "form = rolled must be unrolled or periodic"),
        ("", "", ":steps=2", "no parameter is named steps; parameters are form, iterations"),
        (
            "loop_state: {P: P1, X: X1, R: R1, G: G1}\niterations: 3\n",
            "",
            ":iterations=2",
            "form and iterations are of loops",
        ),
    ],
)
def test_faults_of_forms(path: Path, old: str, new: str, source: str, fault: str) -> None:
    text = CG.replace(old, new) if old else CG
    path.write_text(text.replace("{A:", "{S_1:") if "S_1[m,k]" in text else text)
    if not fault:  # a result may bear the name of another one's first iteration
        assert len(catalog.load(f"{path}{source}").einsums) == 33
        return
    with pytest.raises(WorkloadError, match=r"^[^\n]+$") as caught:
        catalog.load(f"{path}{source}")
    assert fault in str(caught.value)


def test_a_loop_has_no_gradients(path: Path) -> None:
    with pytest.raises(WorkloadError, match="gradients through a loop are not made; take form=unrolled"):
        catalog.load(f"train:net={path}")
