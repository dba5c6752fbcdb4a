"""Every rule of the searches made slightly wrong: a proof must catch each. Prints a table, fails if a mutant lives.

    python -m tests.prove mutants [--problems 150] [--only TEXT]

A mutant is one line of the sources changed in a copy of them. Its proof runs there in a process of its own, without compiling (the searches are short, the
enumerations were made before, from the sources as they are); the copy without a change must pass every proof. A mutant whose line is gone fails: its rule
moved, and the mutant must move along. So does one that ends its proof with an exception: that shows a broken line, not a wrong answer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from random import Random

from tests.told_apart import TOLD

ROOT = Path(__file__).parents[2]
COPIED = ("dse", "hw", "workloads", "cluster", "analysis", "tests", "pyproject.toml")
WALKED = 600  # nests and schedules that are walked element by element
SECONDS = 1500  # for one proof of one mutant
CHECKED = "import sys, pathlib; from tests.prove import mutants; sys.exit(mutants.checked(sys.argv[1], pathlib.Path(sys.argv[2])))"  # in the copy
COSTED = "tests/test_asked.py::test_machines_costed_together_are_those_costed_alone"
NARROWED = "tests/test_asked.py::test_machines_are_found_before_anything_is_computed"
COLUMNS, TWIN, ONE_BY_ONE = "hw/columns.py", "dse/sim/bound_kernels.py", "tests/test_columns.py::test_columns_and_bounds_are_those_of_the_machines"
GROUPS = ("array", "array", "array", "one level", "two levels", "windows", "two fan-outs", "holds", "sparse", "symmetric")


@dataclass(frozen=True)
class Mutant:
    """rule: what is wrong; old -> new in a file, which has it once; proof: what catches it, a check below or a test."""

    rule: str
    file: str
    old: str
    new: str
    proof: str = "mappers"


KERNELS, SEARCH, LANES = (f"dse/dataflow/{name}.py" for name in ("search_kernels", "search", "lanes"))
NEAREST = "tests/test_turns.py::test_gaps_in_parts_are_no_smaller"
BETWEEN = "tests/test_turns.py::test_what_one_machine_says_of_another_is_never_above_its_optimum"
IN_TURN = "tests/test_cells.py::test_einsums_in_turn_on_many_machines"
SINGLY, KINDLY, EQUALS, ROUNDED = (f"tests/test_together.py::test_{name}" for name in (
    "each_machine_gets_the_answer_that_it_gets_alone", "machines_of_one_kind_are_searched_once",
    "of_equals_the_first_is_the_answer_whatever_is_looked_at_first", "choices_that_are_equal_but_for_rounding_are_not_forgotten"))
DRAWN = "tests/test_real_matrices.py::test_expected_counts_are_those_of_drawn_matrices"
TERMS, TIMES = "dse/sim/terms.py", "tests/test_times.py::test_port_times_are_those_of_the_unrolled_nest"
HOPS, MESH = "dse/sim/network.py", "tests/test_network.py::test_hops_of_a_nest_are_those_of_all_its_words"
AROUND, PLACED, REFUSED, GRAPH = "dse/sim/boundary.py", "dse/sim/placed.py", "dse/sim/faults.py", "dse/sim/graph.py"
STAY, WORDS, LOOPS, POINTS = "dse/reuse/optimum.py", *(f"tests/{name}" for name in (
    "test_optimum.py::test_no_schedule_of_single_words_is_cheaper", "test_optimum.py::test_periods_cost_what_the_whole_loop_costs",
    "test_cases.py::test_gogeta_cases_pass"))
BOUNDS, ASKED = "dse/sim/bounds.py", "tests/test_bounds.py::test_what_compute_asks_for_is_shared_by_no_more_lanes_than_there_are"
JOIN, CHOICES, BEAMS = "dse/join.py", *(f"tests/test_join.py::{name}" for name in (
    "test_the_engine_finds_what_an_enumeration_finds", "test_a_beams_floor_is_never_above_the_optimum"))
SPARSE = "tests/test_fused.py::test_bounds_leave_schedules_of_compressed_matrices_in"
NONZEROS, UNLIKE = (f"tests/test_network.py::test_{which}lanes_at_different_nonzeros_fetch_on_ways_of_their_own" for which in ("", "unequal_"))
NESTS, TILED, CHEAPER, WAITS = "dse/reuse/nests.py", "dse/reuse/fused.py", *(f"tests/test_fused.py::{name}" for name in (
    "test_no_schedule_of_the_space_is_cheaper", "test_gaps_hold_where_fills_wait"))
WRITTEN, PIPES, STAGES, TABLE, UNEVEN = "dse/directives.py", "dse/reuse/pipeline.py", "dse/reuse/stages.py", *(f"tests/{name}" for name in (
    "test_pipeline.py::test_the_bound_is_below_the_best_of_small_workloads", "test_network.py::test_hops_of_unequal_lanes_are_those_of_all_their_words"))
NO_DEARER, OUTSIDE_SPACE = (f"tests/test_pipeline.py::test_{name}" for name in (
    "no_dearer_than_einsums_in_turn_or_the_published_solver", "what_the_published_solver_finds_outside_of_the_space_breaks_no_bound"))
WHOLLY, SHARES, SMALL, CUT, ADDED, LEFT, HAND, TOLD_APART = "dse/reuse/whole.py", "dse/reuse/shares.py", *(f"tests/test_pipeline.py::test_{name}" for name in (
    "small_workloads_are_solved_wholly", "what_is_cut_is_no_better", "energies_of_stages_add_up_to_that_of_their_segment",
    "nests_that_may_be_best_somewhere_are_left", "floors_of_parts_by_hand",
    "the_floor_of_a_segment_is_below_what_is_found"))
SEGMENTS, PUBLISHED, OUT = "dse/reuse/segments.py", "dse/reuse/published.py", "tests/test_left_out.py::test_"
PASSED, ALIKE, ANEW, SKIPPED = (f"{OUT}{name}" for name in (
    "segments_that_are_passed_over_are_in_no_cheaper_chain", "segments_alike_are_so_in_all_that_costs",
    "nodes_are_asked_anew_for_other_rooms_homes_and_figures", "published_schemes_that_are_skipped_read_no_less_than_a_solved_one"))
ESTIMATE, PARTED, ROOMY = (f"{OUT}{name}" for name in (
    "stages_side_by_side_take_the_longer_of_all_work_and_all_words", "parts_that_bounds_know_are_the_smallest_of_as_many_lanes",
    "a_part_has_room_if_a_word_of_all_else_stands_beside_what_stays"))
REGISTERS = "dse/reuse/registers.py"
FETCHED, ALL_LISTED, AGAIN, SMALL_BUFFER = (f"tests/test_floors.py::test_{name}" for name in (
    "fetches_of_registers_are_those_of_the_best_boxes", "registers_ask_for_no_less_than_the_bound_and_little_more",
    "words_that_a_buffer_takes_in_again_by_hand", "no_mapping_of_a_small_buffer_costs_less"))
BOXES, DIRECTED = "dse/sim/boxes.py", "dse/sim/directed.py"
STANDING, UNCOUNTED = (f"tests/test_boxes.py::test_{name}" for name in ("counts_are_those_of_a_walk", "what_cannot_be_counted_is_refused_in_one_line"))
PRICED, SAME = (f"tests/test_directives.py::test_{name}" for name in ("the_papers_example_is_priced_as_it_stands", "what_nests_say_too_costs_the_same"))
TOGETHER = "tests/test_fused.py::test_reuse_and_layouts_together_are_no_dearer_than_apart"
RECTANGLES = "tests/test_pipeline.py::test_rectangles_do_all_the_parts"
SUMS = "tests/test_schedule_walks.py::test_sums_that_lanes_of_a_stage_share_are_added_up_once_in_the_first"
MUTANTS = (
    Mutant("together: what costs the same is not settled", KERNELS, "return bool(w.best_count[j] >= 0 and turn_of(option, ",
           "return bool(False and turn_of(option, ", SINGLY),
    Mutant("together: of equals any lanes go", KERNELS, "return bool(lanes < 0)", "return bool(lanes != 0)", EQUALS),
    Mutant("together: of equals any levels go", KERNELS, "return bool(own[x] < w.best_own[j, x])", "return True", EQUALS),
    Mutant("together: of equals choices are not told apart by levels", KERNELS, "range(own.shape[0] if lanes == 0 else 0)", "range(0)", EQUALS),
    Mutant("together: what another machine had inside a border counts", KERNELS, "worse = seen.of[v] == j", "worse = True", SINGLY),
    Mutant("together: bounds are those of the first machine", KERNELS, "x.least[i, a] = t.base[live[a], i]", "x.least[i, a] = t.base[0, i]", SINGLY),
    Mutant("together: coefficients are those of the first machine", KERNELS, "s.coef[link, live[a]] * low", "s.coef[link, 0] * low", SINGLY),
    Mutant("together: lanes of a few machines are lanes of all", KERNELS, "machines == 1 and w.tally[1] <= w.tally[2] and not wins(0, rest",
           "w.tally[1] <= w.tally[2] and not wins(0, rest", EQUALS),
    Mutant("together: a node that one machine drops is dropped by all", KERNELS, "            w.live[d + 1, n], n = j, n + 1\n    if keep:",
           "            w.live[d + 1, n], n = j, n + 1\n        else:\n            w.lives[d + 1] = 0\n            return 0\n    if keep:", SINGLY),
    Mutant("together: capacities differ", SEARCH, "tuple(level.capacity_bits for level in arch.levels), arch.fanouts, ramps", "arch.fanouts, ramps", KINDLY),
    Mutant("together: an option that one machine leaves is left by all", KERNELS, "c.alive[o] = n > 0", "c.alive[o] = n == machines", SINGLY),
    Mutant("a fold over lanes stands inside of them", WRITTEN, "s.rank == u.rank and u.tile > s.tile", "s.rank == u.rank and u.tile > 4 * s.tile",
           "tests/test_directives.py::test_what_is_no_nest_is_refused_in_one_line"),
    Mutant("nodes rise above loops over lanes", WRITTEN, "while at and not loops[at - 1].over and", "while at and",
           "tests/test_directives.py::test_a_tensor_that_no_update_moves_stands_below_its_lanes"),
    Mutant("boxes: an update stops a step early", BOXES, "1 - (max(t, s) - w) // s", "max(-((max(t, s) - w) // s), 1)", STANDING),
    Mutant("boxes: an update goes on until the first tensor ends", BOXES, "max(n, found.get(index(d), 0))", "min(n, found.get(index(d), n))", STANDING),
    Mutant("boxes: an update goes on until the last dimension ends", BOXES, "return min(found.values())", "return max(found.values())", STANDING),
    Mutant("boxes: a window ends where a larger step takes over", BOXES, "or larger and len(d.terms) > 1:", "or larger and len(d.terms) > 9:", STANDING),
    Mutant("boxes: a stack of the same shift reaches no further", BOXES, "if n < s or same)", "if n < s)",
           "tests/test_boxes.py::test_an_update_by_what_a_stack_shifts_goes_on_behind_the_stack"),
    Mutant("boxes: a box is not cut to the one around it", BOXES, "        if w <= v:\n            start", "        if w == v:\n            start", STANDING),
    Mutant("boxes: what an update inside begins with is there yet", BOXES, "[(0, 0)] if i < 0 else [(n, n + 1)", "[(0, 0)] if i < 0 else [(n, n)", STANDING),
    Mutant("boxes: updates inside go on from where they were", BOXES, "else [(turn.trips - 1, 0)]", "else [(0, 0)]", STANDING),
    Mutant("boxes: buffers stay when a level outside goes on", BOXES, "return times * (wanted if i < 0 else wanted - had)",
           "return times * (wanted if i < 0 or not own else wanted - had) // (2 if i < 0 and own else 1)", STANDING),
    Mutant("boxes: what one buffer has nobody asks for", BOXES, "covered(after)\n        total, kept = total + now, kept + now - covered(fresh)",
           "covered(after)\n        total, kept = total + now, kept + max(now - covered(fresh), covered(after) - covered(after[:1]))", STANDING),
    Mutant("boxes: copies of what overlaps are read each by itself", BOXES, "return TOGETHER if joins[turn.over] else ALL", "return ALL", STANDING),
    Mutant("boxes: sums are merged where they are added up only", BOXES, "ways(outer, lambda _: TOGETHER))", "ways(outer, together))", STANDING),
    Mutant("boxes: results come back the first time", BOXES, "n -= first_met(g, p, v, mine) if g.levels[outer] in skips else 0",
           "n -= first_met(g, p, v, mine) if g.levels[v] in skips else 0", STANDING),
    Mutant("boxes: all buffers do all products of their boxes", BOXES, " - sum(done[low:high])", "", STANDING),
    Mutant("boxes: products that nobody can do are left out", BOXES, "(gap := done.find(0)) >= 0:", "(gap := done.find(0)) > 99:", UNCOUNTED),
    Mutant("boxes: results stand in two places", BOXES, "if overlaps(g, g.e.output, d, v):", "if v > 9 and overlaps(g, g.e.output, d, v):", UNCOUNTED),
    Mutant("boxes: words go to buffers that have them", "dse/sim/box_hops.py", "if place not in had]", "if True]", STANDING),
    Mutant("boxes: stacks along one dimension begin at the same lane", "dse/sim/box_hops.py", "if other.over == turn.over)", "if other is turn)", STANDING),
    Mutant("boxes: links of results that are met for the first time", "dse/sim/box_hops.py", "if skips else 0)", "if False else 0)", STANDING),
    Mutant("directives: all of a ring take each part", "dse/sim/box_hops.py", "*(at[turn] for turn in m.parted))", ")", SAME),
    Mutant("directives: a nest is said to slide", WRITTEN, "if not whole and overlap(", "if overlap(",
           "tests/test_directives.py::test_windows_of_nests_are_said_to_come_in_whole"),
    Mutant("directives: windows that slide are a nest", WRITTEN, "0 < by < dict(one.size).get(dim, 0)", "0 < by < 0", PRICED),
    Mutant("directives: shared tiles go round once more", DIRECTED, "* (lanes - 1) / lanes *", "*", SAME),
    Mutant("directives: a bus takes what is asked for together once", DIRECTED, "n = boxes.brought(g, p, v, lambda _: ALL)\n                back",
           "n = boxes.brought(g, p, v, lambda _: boxes.TOGETHER)\n                back", SAME),
    Mutant("the bound of a stage pays for what is handed on", "dse/reuse/floors.py", "[p.tensor in handed or", "[", TABLE),
    Mutant("the bound of a stage pays for pinned weights", "dse/reuse/floors.py", "or p.tensor in pinned or", "or", TABLE),
    Mutant("small: a stage is bounded by itself too", WHOLLY, "in nests) + rest[j + 1]", "in nests) + rest[j]", SMALL),
    Mutant("small: it is all one where what is read lies", WHOLLY, "tuple(at[i] for i in range(j) if", "tuple(at[i] for i in range(0) if", ADDED),
    Mutant("small: nests undercut each other whatever they move", WHOLLY, "found[key] += np.array", "found[ports[0]] += 0 * np.array", LEFT),
    Mutant("small: what leaks thrice", WHOLLY, "- g.arch.leak_mw() / g.arch.clock_ghz * cycles", "- 3 * g.arch.leak_mw() / g.arch.clock_ghz * cycles", CUT),
    Mutant("floors: a word takes a link more", SHARES, "hops = at_once - 1 + (1.0 if", "hops = at_once + (1.0 if", HAND),
    Mutant("floors: a node holds what a stage holds", SHARES, "sizes) * np.where(own, cut / whole, 1.0)", "sizes) * np.ones(cut.shape)", HAND),
    Mutant("floors: slow ways leak as the slowest do", PIPES, "+ leak * slower)", "+ leak * within)", TOLD_APART),
    Mutant("floors: lanes share no word of a buffer", REGISTERS, "np.maximum(p * s, q * s)) / lanes)", "np.maximum(p * s, q * s)))", FETCHED),
    Mutant("registers: a window takes four words more room", REGISTERS, "(r - 1) + 1\n", "(r - 1) + 5\n", ALL_LISTED),
    Mutant("registers: no window slides", REGISTERS, "slid = [(p, r), *", "slid = [(p, r)] or [*", ALL_LISTED),
    Mutant("registers: padding is fetched", REGISTERS, " - w.lost / (w.p * w.r)", "", ALL_LISTED),
    Mutant("registers: boxes that divide nothing", REGISTERS, "for a in found for b in divisors(n)", "for a in found for b in range(1, n + 1)", FETCHED),
    Mutant("registers: what undercuts may serve fewer", REGISTERS, "np.array([1.0, -1, -1, -1, 1, 1, 1])", "np.array([1.0, 1, -1, -1, 1, 1, 1])", FETCHED),
    Mutant("floors: buffers hold half of what they hold", SHARES, "np.minimum(room * (alike", "np.minimum(room / 2 * (alike", AGAIN),
    Mutant("floors: a window's pairs share no word of a buffer", SHARES, "/ (alike if at == IMAGE else 1)", "/ 1", SMALL_BUFFER),
    Mutant("nobody passes registers by", "dse/reuse/floors.py", "np.minimum(sum(use) + filled, past)", "(sum(use) + filled)",
           "tests/test_floors.py::test_no_mapping_costs_less"),
    Mutant("operands: one of them at most lacks a rank", BOUNDS, "tuple(max((sum(", "tuple(max((any(", ASKED),
    Mutant("operands: only lanes that share are lanes", BOUNDS, "max(most, place[0])", "max(most, place[1])", ASKED),
    Mutant("operands: lanes of sums share what is read", BOUNDS, "f.reduce if write else f.multicast", "f.reduce", ASKED),
    Mutant("operands: what main memory is charged is paid twice", BOUNDS, "** (1 / many) - charged", "** (1 / many)", ASKED),
    Mutant("ruled: a cost is taken for another's", "cluster/ruled.py", "self.einsums[workload][place] = ", "self.einsums[workload][0] = ",
           "tests/test_columns.py::test_costs_take_the_place_of_bounds_as_einsums_are_solved"),
    Mutant("ruled: an einsum runs once", "cluster/ruled.py", "[group.count for group in groups]", "[1 for group in groups]",
           "tests/test_columns.py::test_rows_of_machines_that_are_ruled_out_are_those_of_each_alone"),
    Mutant("columns: a level in an array stands once", COLUMNS, "if at <= v]", "if at < v]", ONE_BY_ONE),
    Mutant("columns: a node is the same at every clock", COLUMNS, "[*HEAD, *own]", "own", ONE_BY_ONE),
    Mutant("columns: rows and banks may stand inside of arrays", COLUMNS, 'STRUCTURE = ("kind", "burst", "bank_map")', 'STRUCTURE = ("kind",)', ONE_BY_ONE),
    Mutant("columns: sums are shared as reads are", TWIN, "if m.shares[i, d, way]:", "if m.shares[i, d, 0]:", ONE_BY_ONE),
    Mutant("columns: all words are the machine's", TWIN, "= a.elems[e, x] * (a.bits[e, x] or m.word_bits[i])", "= a.elems[e, x] * m.word_bits[i]",
           ONE_BY_ONE),
    Mutant("columns: a place that nobody shares is looked at alone", TWIN, "if v == near or (alike", "if v == near or near < 0 and (alike", ONE_BY_ONE),
    Mutant("cells: what fits no machine first is the answer, not what does in turn", "dse/stack.py",
           "sorted(other for other in todo[j] if other < place)", "[]", IN_TURN),
    Mutant("cells: a machine that einsums do not fit hears of others", "dse/stack.py", "elif heard and not before and not", "elif heard and not", IN_TURN),
    Mutant("prune: machines are held against what came between", "cluster/known.py", "(n for n in self.fronts if n <= number)", "iter(self.fronts)",
           "tests/test_prune.py::test_a_generation_is_held_against_the_same_front_whenever_it_is_dispatched"),
    Mutant("fronts: what is slower than the limit costs what it costs", KERNELS, "    if latency > m.limit[j]:", "    if False:",
           "tests/test_frontier.py::test_a_front_is_that_of_all_mappings"),
    Mutant("fronts: a room that is left takes others with it", "dse/dataflow/frontier.py", "room = max(member.bits for member in own) - 1",
           "room = min(member.bits for member in own) - 1", "tests/test_frontier.py::test_a_front_is_that_of_all_mappings"),
    Mutant("columns: what is equal dominates", "dse/study/prune.py", " & (values < own).any(axis=1)", "",
           "tests/test_columns.py::test_the_first_that_dominates_is_found_for_many"),
    Mutant("the last of unequal lanes has a whole share", HOPS, "min(low + (i + 1) * c.tile, high)", "low + (i + 1) * c.tile", UNEVEN),
    Mutant("lanes with less work fetch as often", HOPS, "if c.whole % c.tile and c.rank not in one.unshared and (left :=", "if False and (left :=", UNEVEN),
    Mutant("lanes of unequal shares are asked alike", PLACED, "used * Fraction(left[loop.rank], loop.tile)", "used * -(-left[loop.rank] // loop.tile)",
           "tests/test_schedule.py::test_the_lane_that_holds_most_is_asked_most"),
    Mutant("shared sums stay in parts", AROUND, "(mine[0] + total, [own + total / lanes for own in mine[1]])", "mine", SUMS),
    Mutant("shared sums: all lanes that share one hold it", PLACED, "if loop.rank in e.output.ranks():", "if True:",
           "tests/test_schedule.py::test_sums_that_lanes_share_are_added_up_on_the_way_or_refused"),
    Mutant("shared sums: hops to no lane", HOPS, "[c.rank in p.ranks() for c in loops], _first", "[True] * len(loops), _first",
           "tests/test_network.py::test_hops_of_sums_that_lanes_share_are_those_to_the_first_of_them"),
    Mutant("shared sums of what leaves the chip", REFUSED, "node.tensor == tensor for node in b.outer) > 1", "node.tensor == tensor for node in b.outer) > 9",
           "tests/test_schedule.py::test_sums_that_lanes_share_are_added_up_on_the_way_or_refused"),
    Mutant("published: a node holds all that a stage holds", "dse/reuse/published.py", "shape.rows * shape.columns * (g.arch", "(g.arch",
           "tests/test_pipeline.py::test_what_cannot_fit_falls_and_nothing_that_does"),
    Mutant("pipelines: the mapper without reuse is not asked", PIPES, "budget=ALONE) if few else None", "budget=ALONE) if False else None", NO_DEARER),
    Mutant("floors: a word of all else stands where it may pass", STAGES, "dict.fromkeys(bits, 0) if arch.levels[1].bypass else bits", "bits", NO_DEARER),
    Mutant("schedules: einsums in turn are held against what einsums in turn cost at least", GRAPH, "if reuse and isinstance(turns, Solution)", "if False",
           "tests/test_certificates.py::test_no_schedule_costs_less_than_a_certificate_allows"),
    Mutant("floors: other granules are of the space", PIPES, "// node.tile not in GRANULES for", "// node.tile < 1 for", OUTSIDE_SPACE),
    Mutant("segments: what costs the same as the best chain is passed over with a tenth more to spare", PIPES, "through[r] >= _cheapest_chain(g, alone, made)",
           "1.1 * through[r] >= _cheapest_chain(g, alone, made)", PASSED),
    Mutant("segments: what follows a segment begins with its last einsum", PIPES, "+ energy + low[1][r.last + 1]", "+ energy + low[1][r.last]", PASSED),
    Mutant("segments: cycles are passed over by energy", PIPES, "(plain and (through[r]", "((through[r]", PASSED),
    Mutant("segments: one that all buffers hold is none", SEGMENTS, "in members) <= g.arch.instances(1)", "in members) < g.arch.instances(1)",
           f"{OUT}segments_that_are_no_candidates_hold_more_than_all_buffers"),
    Mutant("segments: a pinned weight is like one that is not", SEGMENTS, "key = canonical_key(e), *(p.tensor in pinned(g, e) for p in e.inputs)",
           "key = canonical_key(e), 0", f"{OUT}equal_einsums_of_which_one_is_pinned_are_solved_each"),
    Mutant("segments: alike whatever leaves", SEGMENTS, "in r.handed, e.output.tensor in r.leaving) for", "in r.handed, 0) for", ALIKE),
    Mutant("segments: alike whatever is pinned", SEGMENTS, "tuple(p.tensor in pinned(g, e) for p in e.inputs)) for e in own)", "0) for e in own)", ALIKE),
    Mutant("segments: alike whatever loop is shared", SEGMENTS, "axis, r.tile, len(own)", "r.tile, len(own)", ALIKE),
    Mutant("segments: alike whatever the granule", SEGMENTS, "axis, r.tile, len(own)", "axis, len(own)", ALIKE),
    Mutant("stages: bounds of what is handed are those of what is read", PIPES, "key = canonical_key(e), tuple(e.sizes()), inside, replace",
           "key = canonical_key(e), tuple(e.sizes()), replace", f"{OUT}bounds_of_stages_are_told_apart_by_what_they_are_handed"),
    Mutant("small: what links carry does not tell nests apart", "dse/reuse/whole.py", "np.array([*carried.values()])", "np.zeros(1)",
           f"{OUT}nests_that_ask_other_nodes_less_often_are_not_left_out"),
    Mutant("nodes: scarce ones are not asked for", PIPES, "for n, (energy, choice) in enumerate(best) if energy < inf",
           "for n, (energy, choice) in enumerate(best) if False",
           f"{OUT}choices_are_found_where_nearly_all_need_too_many_nodes"),
    Mutant("nodes: asked once for any home", STAGES,
           "(canonical_key(part), homes, room, price, objective, closer)", "(canonical_key(part), price, objective, closer)", ANEW),
    Mutant("nodes: asked once for any price", STAGES,
           "(canonical_key(part), homes, room, price, objective, closer)", "(canonical_key(part), homes, room, objective, closer)",
           ANEW),
    Mutant("nodes: asked once for any figure", STAGES,
           "(canonical_key(part), homes, room, price, objective, closer)", "(canonical_key(part), homes, room, price, closer)",
           ANEW),
    Mutant("nodes: a home may be in registers", STAGES, "if homes <= _in(nest, own[1].name)]", "if homes <= _in(nest, own[1].name) | _in(nest, own[-1].name)]",
           f"{OUT}a_nest_that_has_a_home_in_registers_only_is_none"),
    Mutant("published: skipped if one tensor is read no less", PUBLISHED, "any(all(a <= b for a, b", "any(any(a <= b for a, b", SKIPPED),
    Mutant("published: what was not solved skips too", PUBLISHED, "                made[scheme.range] = option\n                done.append(scheme)",
           "                made[scheme.range] = option\n            done.append(scheme)", SKIPPED),
    Mutant("published: one chain goes on", PUBLISHED, "chain[2]))[:kept])", "chain[2]))[:1])", f"{OUT}published_segments_are_those_of_the_cheapest_chains"),
    Mutant("published: stages side by side take their times together", PUBLISHED, "cycles = time_of(own, g.arch)",
           "cycles = sum(time_of([one], g.arch) for one in own)", ESTIMATE),
    Mutant("floors: what lanes leak is billed twice", "dse/reuse/floors.py", "replace(bounds.rates(arch), leak_mw=0.0)", "bounds.rates(arch)",
           "tests/test_pipeline.py::test_lanes_that_leak_are_billed_once"),
    Mutant("small: nests undercut each other on unequal parts", WHOLLY, "undercut = equal and any(", "undercut = any(", LEFT),
    Mutant("floors: of tiles that leave as many lanes the largest", SHARES, "np.array(sorted({-(-sizes[rank] // parts) for",
           "np.array(sorted({-(-sizes[rank] // parts) + (parts > 1) for", PARTED),
    Mutant("floors: what is handed on leaves no room for a word of all else", SHARES, "there = (room <= (level", "there = (1.2 * room <= (level", ROOMY),
    Mutant("a rectangle is a row too low", STAGES, "-(-sizes[rest] // outer), -(-outer // tile[rest])", "sizes[rest] // outer, -(-outer // tile[rest])",
           RECTANGLES),
    Mutant("what later ranks bring x 1.1", KERNELS, "min(x.low[q], rows[i + 1, q] * later[i + 1, cell, q])",
           "min(x.low[q], 1.1 * rows[i + 1, q] * later[i + 1, cell, q])"),
    Mutant("later ranks have fewer lanes than are left", KERNELS, "cell += left.cell[d, m.size[d] // used[i + 1, u, d]]",
           "cell += left.cell[d, max(m.size[d] // used[i + 1, u, d] // 2, 1)]"),
    Mutant("lanes that are left: the last way to use the dimensions decides", KERNELS, "x.low[q] = min(x.low[q], rows[i + 1, q] * later",
           "x.low[q] = min(np.inf, rows[i + 1, q] * later"),
    Mutant("later ranks bring what the last way brings", KERNELS, "found[i, j, q] = min(found[i, j, q], c.alone[o, q] * found[i + 1, after, q])",
           "found[i, j, q] = c.alone[o, q] * found[i + 1, after, q]"),
    Mutant("a group of options has the ways of its first one", KERNELS, "c.way[o, 1] if c.alive[o] else 0):\n                known",
           "c.way[o, 1] if o == start[g] else 0):\n                known"),
    Mutant("nothing is left out of the first choices", KERNELS, "bound[:n][::-1].copy(), rest", "bound[:n][::-1].copy(), np.full_like(rest, np.inf)"),
    Mutant("of the first choices one is left out and forgotten", KERNELS, "            lowered(rest, low[0])\n", "", ROUNDED),
    Mutant("of the first choices the lowest is given up", KERNELS, "            at = by_worth(worth[:n])[n - 1]\n            lowered",
           "            at = by_worth(worth[:n])[0]\n            lowered"),
    Mutant("choices of levels: what a tensor costs at least counts beside what it costs", KERNELS, "= parts[x + 1, i] + rest[x + 1, i]",
           "= parts[x + 1, i] + rest[x, i]"),
    Mutant("one option: the ranks on one side have half the lanes that are left", KERNELS, "fitting(caps[j] // (caps[i - 1] + 1 if i else 1), caps)",
           "fitting(max(caps[j] // (caps[i - 1] + 1 if i else 1) // 2, 1), caps)"),
    Mutant("a group of options is as low as its last one", KERNELS, "alone[g, q] = min(alone[g, q], c.alone[o, q])", "alone[g, q] = c.alone[o, q]"),
    Mutant("outer levels that are crowded cost twice", KERNELS, "max(crowds.energy[at, j] - uncrowded(j, t, w), 0.0)", "crowds.energy[at, j]"),
    Mutant("hulls of ranks without lanes yet are those of the last option", KERNELS, "low[n, i] = min(low[n, i], value[at])", "low[n, i] = value[at]"),
    Mutant("first reads come off at their least, not their most", KERNELS,
           "p.span[option[a], k, 1] - 1 if kind == STARTED else p.span[option[a], k, 0]) if a >= 0 else -1\n        other = (p.span[option[b], k, 1] - 1 if",
           "p.span[option[a], k, 0]) if a >= 0 else -1\n        other = (p.span[option[b], k, 0] if"),
    Mutant("what is held at a level passes it too", SEARCH, "for past in range(v, child) if", "for past in range(v, child + 1) if",
           "tests/test_optimal.py::test_no_mapping_on_single_and_double_buffers_is_below_what_was_proven"),
    Mutant("reads are bounded without what is skipped", SEARCH, 'add(parent, "read", kind, mask[parent], shared, scale, not skips)',
           'add(parent, "read", kind, mask[parent], shared, scale, kind not in (kernels.BEGUN, kernels.STARTED))'),
    Mutant("bound of hulls looks at the largest tile only", KERNELS, "for i in range(p.span[option[a], k, 0] if a >= 0 else 0, p.span[option[a], k, 1] if a",
           "for i in range(p.span[option[a], k, 1] - 1 if a >= 0 else 0, p.span[option[a], k, 1] if a"),
    Mutant("smaller tiles of a window cost no less", KERNELS, "if why == BOUND and (x < 0 or not e.part[x, w.rank[d, i]]):", "if why == BOUND:"),
    Mutant("first tiles of nodes to come are no smaller", KERNELS, "        if m.ends:", "        if ends:",
           "tests/test_optimal.py::test_smaller_tiles_outside_wait_less_for_their_first_ones"),
    Mutant("merges cost nothing in the search", SEARCH, "and between and some(arch.compute.merge_pj):", "and between and not levels:"),
    Mutant("all that lanes drain is merged", SEARCH, "(between, -arch.compute.merge_pj)):", "(between, 0.0)):",
           "tests/test_optimal.py::test_sums_that_lanes_hold_are_merged_at_a_price"),
    Mutant("lanes that do not reduce merge nothing, in the search", SEARCH, "(between, -arch.compute.merge_pj)):", "(shared, -arch.compute.merge_pj)):",
           "tests/test_optimal.py::test_sums_that_lanes_hold_are_merged_at_a_price"),
    Mutant("lanes that do not reduce merge nothing", "dse/sim/terms.py", "pick if i > link.parent_at and loop.rank not in link.seen else LANES)",
           "pick if i > link.parent_at and loop.rank not in link.seen and dict((n, r) for n, _, r in s.wires.lanes)[loop.over] else LANES)", "nests"),
    Mutant("no room is no hope", KERNELS, "            elif not roomy(d, w.node[d], False, e, p, m, w):\n                told(d, OVER,",
           "            elif not roomy(d, w.node[d], False, e, p, m, w):\n                told(d, BOUND,"),
    Mutant("nodes that double buffering keeps sink all the same", KERNELS, "x != rules.still and not stays(d, n, r, e, w):", "x != rules.still:"),
    Mutant("nodes stay for dense windows only", KERNELS, "(e.part[y, r] or e.csr[y] > 0)", "e.part[y, r]"),
    Mutant("tiles that stand still need room twice", KERNELS, "* m.bits[x, v] <= m.room[v] < np.inf", "* m.bits[x, v] * 2 <= m.room[v] < np.inf"),
    Mutant("rows of compressed tiles sink", SEARCH, 'if p.format == "csr":', 'if p.format == "no":'),
    Mutant("nodes rise above loops of their own", KERNELS, "if not e.seen[inner, r] and not (", "if not ("),
    Mutant("nodes rise above loops that the one outside sinks through", KERNELS, "if not e.seen[inner, r] and not (parent >= 0 and e.seen[x, r]):",
           "if not e.seen[inner, r]:"),
    Mutant("no loops directly inside a border", SEARCH, " or any(level.double_buffer for level in arch.levels[:b])", ""),
    Mutant("rows change places above a node that sinks", KERNELS, "looped = looped or w.at[d, r] != w.tile[d, r] or w.at[d - 1, r] != w.tile[d - 1, r]",
           "looped = looped or w.at[d, r] != w.tile[d, r]"),
    Mutant("what is beaten inside a border: energy does not count", KERNELS, "            for i in range(parts.shape[1]):\n                worse = worse",
           "            for i in range(1, parts.shape[1]):\n                worse = worse"),
    Mutant("what is beaten inside a border: cycles do not count", KERNELS, "            for i in range(parts.shape[1]):\n                worse = worse",
           "            for i in range(2):\n                worse = worse"),
    Mutant("the first lane's padding is not settled", KERNELS, "            if exact > least:", "            if exact < 0.0:"),
    Mutant("windows: other ranks as they are", KERNELS, "w.largest[w.rank[d, i]] = p.last[w.tile[d, w.rank[d, i]]]",
           "w.largest[w.rank[d, i]] = w.tile[d, w.rank[d, i]]"),
    Mutant("moving tiles are not doubled", KERNELS, "return 2.0 * bits if again else bits", "return bits"),
    Mutant("tiles that sink are not doubled", KERNELS, "again = parent >= 0 and words < hull(x, w.at[d], w.tile[d], -1, e, p)", "again = False"),
    Mutant("sinks into no window", KERNELS, "        if e.part[x, r] and tile[r] != low[r]:", "        if e.part[x, r] and tile[r] < 0:"),
    Mutant("lanes: one dimension decides which way is better", KERNELS, "worse = worse and used[i + 1, j, d] <= used[i + 1, n, d]",
           "worse = worse and (d > 0 or used[i + 1, j, d] <= used[i + 1, n, d])"),
    Mutant("lanes: a way is left out if another is shorter in one dimension", LANES, "if not any(b != a and all(y <= x", "if not any(b != a and any(y < x"),
    Mutant("ragged lanes share out whole ranks only", LANES, "        for u in divisors(top):\n            for t, cuts",
           "        for u in (top,):\n            for t, cuts"),
    Mutant("ragged lanes of two borders are a product", LANES, "sizes[k] = min(sizes[k], key[1])", "sizes[k] = key[1]"),
    Mutant("cuts over one group merge", LANES, "if found and found[-1][0] == group and found[-1][1] % tile == 0:", "if found and found[-1][0] == group:"),
    Mutant("energy stands for energy x delay", KERNELS, "else latency if m.objective == LATENCY else energy * latency",
           "else latency if m.objective == LATENCY else energy"),
    Mutant("a spent budget is a proof", KERNELS, "left_out[j] = bound[:n, j, 0].min()", "left_out[j] = np.inf",
           "tests/test_optimal.py::test_a_spent_budget_is_no_certificate"),
    Mutant("levels of different tensors stand in order", KERNELS, "if inside and (w.nodes[other, 0] == w.nodes[n, 0] or w.nodes[n, 0] < 0):", "if inside:",
           "tests/test_optimal.py::test_levels_of_different_tensors_stand_in_any_order"),
    Mutant("a key drops the sources", "dse/cache.py", "(MODEL_VERSION, SOLVER_VERSION, sources(), question)", "(MODEL_VERSION, SOLVER_VERSION, question)",
           "tests/test_cache.py::test_a_changed_source_moves_every_name"),
    Mutant("lower bound x 1.5", "dse/sim/bounds.py", "total = n.computed * op_pj(n.einsum, arch)", "total = 1.5 * n.computed * op_pj(n.einsum, arch)",
           "bounds"),
    Mutant("bound of traffic ignores multicast", "dse/sim/bounds.py", "return max(pj / shared - charged, 0.0)", "return max(pj - charged, 0.0)",
           "bounds"),
    Mutant("counts: lanes that share are read each", TERMS, "return FIRST if loop.rank not in alone and shared[loop.over] else LANES", "return LANES",
           "nests"),
    Mutant("counts: spilled sums are never read back", TERMS, "AND_FIRST[picks[number]] if skip and loop.rank not in link.seen else picks[number]",
           "picks[number]", "nests"),
    Mutant("counts: rows of a compressed tile are forgotten", TERMS, "    yield Term(sign, (*rows, *outer))\n", "", "nests"),
    Mutant("counts: first reads of compressed outputs are added", TERMS, "    yield Term(sign * 2 * p.density, (*dims, *outer))\n    yield Term(sign,",
           "    yield Term(2 * p.density, (*dims, *outer))\n    yield Term(1,", "nests"),
    Mutant("counts: of a compressed matrix only products are read", TERMS, 'if p is e.output or p.format == "dense":', "if True:", DRAWN),
    Mutant("counts: pointers of a matrix read straight are forgotten", TERMS, "return 2 * p.density + 1 / columns", "return 2 * p.density", DRAWN),
    Mutant("counts: lanes at different nonzeros share a fetch", TERMS, "return p.ranks().union(*(q.ranks() for q in e.inputs if q.density != 1))",
           "return p.ranks()", DRAWN),
    Mutant("counts: lanes at different nonzeros share sums", TERMS, "for q in e.inputs if q.density != 1))",
           "for q in e.inputs if q.density != 1 and p is not e.output))", DRAWN),
    Mutant("search: of a compressed matrix only products are read", SEARCH, "(kernels.POINTS, straight(p, e))", "(kernels.POINTS, nonzero(e))"),
    Mutant("search: lanes at different nonzeros begin sums together", KERNELS,
           "p.lanes[o, k, seen if kind == BEGUN and e.unshared[x, r] else unseen]", "p.lanes[o, k, unseen]"),
    Mutant("search: lanes at different nonzeros share a fetch", SEARCH, "[unshared(p, e) for p in tensors]", "[p.ranks() for p in tensors]"),
    Mutant("counts: padding is fetched", TERMS, "if distinct or (clip and not within(dim, [extent for extent, _ in ranks])):", "if distinct:", "nests"),
    Mutant("what is counted forgets ports", "dse/sim/counts.py", "wiring(arch), _ports(arch), tuple(", "wiring(arch), (), tuple(", "nests"),
    Mutant("counts: the first lane is the busiest", "dse/sim/counts.py", "instances(sums, [tiles])", "[{}]", "nests"),
    Mutant("nodes sink below every loop of their own", TERMS, "        if node.rank not in full:\n            return i + 1\n", "", "nests"),
    Mutant("a fill overlaps without room", "dse/sim/times.py", "        if not c.arch.levels[v].double_buffer:\n", "        if False:\n", TIMES),
    Mutant("a lane that padding spares stands for all", TERMS, "if inside else lanes[:known])", "if True else lanes[:known])", "nests"),
    Mutant("schedules: a reader in another layout than the maker's", "dse/sim/faults.py", "if read != made and not (view", "if False and not (view",
           "tests/test_assign.py::test_a_tensor_lies_in_one_layout_between_einsums"),
    Mutant("schedules: equal einsums are written in the first one's layouts", "dse/schedule.py", "or nests[e.name] != renamed(",
           "or 0 and nests[e.name] != renamed(", "tests/test_assign.py::test_what_is_written_is_read_back"),
    Mutant("schedules: readers of a copy are not written", "dse/schedule.py", "or copies & {owner(p.tensor, copies) for p in e.tensors()}", "or False",
           "tests/test_assign.py::test_what_is_written_is_read_back"),
    Mutant("lower bound: compressed outputs move all elements", "dse/sim/bounds.py", 'min(nonzero(e), 2 * p.density if p.format == "csr" else 1)', "nonzero(e)",
           "tests/test_bounds.py::test_a_compressed_output_moves_less_than_its_elements"),
    Mutant("lower bound: a compressed input moves products only", "dse/sim/bounds.py", 'if p.format == "dense" or p is e.output:', "if True:",
           "tests/test_bounds.py::test_a_compressed_input_moves_all_that_is_stored"),
    Mutant("lower bound: compute asks for more than all that is stored", "dse/sim/bounds.py", "e.points() * straight(p, e) for p",
           "e.points() * (1 + straight(p, e)) for p", "tests/test_bounds.py::test_bound_is_not_above_the_cost_of_any_mapping"),
    Mutant("what constraints forbid costs no cycles", KERNELS, "0] = w.parts[d, w.live[d, a], STEPS] = np.inf", "0] = np.inf",
           "tests/test_optimal.py::test_constraints_hold_whatever_the_objective"),
    Mutant("a local search may fall to lanes that share outputs", "dse/dataflow/improve.py", "if faults(mapping, e, arch) or lanes_overflow",
           "if lanes_overflow", "tests/test_optimal.py::test_a_local_search_gives_lanes_no_rank_through_which_they_share_outputs"),
    Mutant("lanes do not cut what stands still", "dse/dataflow/cost_descending.py", "p.ranks() if still.depth[p.tensor] else p.partial()", "p.partial()",
           "tests/test_cost_descending.py::test_infeasible_is_proven"),
    Mutant("schedules: a reader fills shared nodes again", PLACED, "(users[node.tensor][0] != j and node is not home[node.tensor])", "False", "schedules"),
    Mutant("schedules: what a stage hands on is read from outside", AROUND, 'rows[level, tensor, "read"] = (mine[0] + total, mine[1])',
           'rows[key[0], tensor, "read"] = (total, mine[1])', "schedules"),
    Mutant("schedules: held tiles are filled once per granule", AROUND,
           "rows[key] = (once[key].elems, [once[key].busiest_elems] * many) if key in once else (0, [0] * many)", "pass", "schedules"),
    Mutant("schedules: kept words are loaded", AROUND, "(1 - share) * a[0] + share * z[0]", "a[0] + 0 * z[0]", "schedules"),
    Mutant("schedules: kept tensors keep their tiles", AROUND, "order.index(node.level) <= near)", "order.index(node.level) < near)", "schedules"),
    Mutant("schedules: kept words take no room", GRAPH, "own_room[level] = own_room.get(level, 0) + room", "pass", "schedules"),
    Mutant("schedules: pinned weights leave between segments", GRAPH, "                if j != i:", "                if j < 0:", "schedules"),
    Mutant("schedules: pinned weights leave between branches", GRAPH, "for other in () if f else (*pinned[:j], *pinned[j + 1:]):", "for other in ():",
           "schedules"),
    Mutant("schedules: stages have room of their own where levels are shared", GRAPH, "need[level] = sum(other.get(level, 0) for other in private)", "pass",
           "schedules"),
    Mutant("schedules: one granule is alive at a time", PLACED, "int(min(at[-1] - at[0] + 1, at_once))", "1", "schedules"),
    Mutant("schedules: what is handed on sinks", AROUND, "row = footprints(replace(whole, nodes=whole.nodes[: i + 1]), e)[-1]", "pass",
           "tests/test_schedule.py::test_a_pipeline_may_write_back_what_it_hands_on"),
    Mutant("hops: trees go past one column only", HOPS, "_reach(source[1], columns) + len(columns) * _reach", "_reach(source[1], columns) + _reach", MESH),
    Mutant("hops: lanes of an outer loop lie side by side", HOPS, "[replace(c, stride=c.stride * trips) if c.dim == dim else c for c in found]", "found", MESH),
    Mutant("hops: every lane fetches for itself", HOPS, "[c.rank in one.unshared or not shared[c.dim] or f.dims[c.dim][0] in parted for c in loops]",
           "[True for c in loops]", MESH),
    Mutant("hops: lanes at different nonzeros share a tree", HOPS, "c.rank in one.unshared or not shared", "c.rank in p.ranks() or not shared", NONZEROS),
    Mutant("hops: lanes with fewer nonzeros fetch as much", HOPS, "share.items() if rank in one.unshared}", "share.items() if rank in p.ranks()}", UNLIKE),
    Mutant("hops: pointers are those of a lane's own columns", HOPS, "other.served * one.access / other.access for other", "other.served for other", UNLIKE),
    Mutant("hops: first sums are read", "dse/sim/counts.py", "both = [2 * n + first for", "both = [2 * n for", MESH),
    Mutant("hops: a part of a mesh has corners of its own", HOPS,
           "sources = rim(f.rim, (rows[1], columns[1]))", "sources = rim(f.rim, (f.dims[0][1], f.dims[1][1]))", MESH),
    Mutant("hops: words of a stage come from its first lane", HOPS, "[f.source](one.place, group.rows", "[f.source](held[0].place, group.rows",
           "tests/test_network.py::test_hops_between_stages_are_those_of_all_their_words"),
    Mutant("schedules: shared nodes sink below the fork", AROUND, "fork[number]) if i < len(b.outer)", "found[number]) if i < len(b.outer)",
           "schedules"),
    Mutant("schedules: any loop may be shared", REFUSED, "if named(loop.rank, branch) not in p.full()]", "if False]",
           "tests/test_schedule.py::test_sums_are_not_shared"),
    Mutant("schedules: tensors are cut in any way", REFUSED, "tuple(sorted((shared[rank], c) for rank, c in d.terms if rank in shared))", "()",
           "tests/test_schedule.py::test_rows_are_not_read_as_columns"),
    Mutant("schedules: arrays stay full between einsums", AROUND, "(max(n, trips), [max(n, trips)] * many)", "(n, [n] * many)", "schedules"),
    Mutant("schedules: what the next trip needs is filled during others", "dse/sim/cost.py", "mapping, e, arch, begun)", "mapping, e, arch)",
           "tests/test_schedule_walks.py::test_every_trip_of_shared_loops_starts_with_empty_levels"),
    Mutant("schedules: pipelines start full", GRAPH, "return sum(stages) + (granules - 1) * max(stages)", "return granules * max(stages)",
           "tests/test_schedule_walks.py::test_pipelines_take_what_a_walk_of_granules_takes"),
    Mutant("residency: what spills costs nothing", STAY, "costs[n_x:start] = p.spill[spilling]", "costs[n_x:start] = 0.0 * p.spill[spilling]", WORDS),
    Mutant("residency: outputs spill too", STAY, "if t in made and t not in listed.outputs else 0", "if t in made else 0", WORDS),
    Mutant("residency: an interval leaves a gap too early", STAY, "(q.last[each] * depth + level, x, scale)]",
           "(np.maximum(q.first[each], q.last[each] - 1) * depth + level, x, scale)]", WORDS),
    Mutant("residency: what a phase holds is given away", STAY, "np.minimum(held[:-1], held[1:]))", "0 * held[1:])", WORDS),
    Mutant("residency: bound without the price of room", STAY, "least.sum() - (prices * _room(listed, levels)).sum())", "least.sum())", WORDS),
    Mutant("loops: what crosses a period is not tied", STAY, "while EDGE - 1 <= first // per <= EDGE <=", "while EDGE <= first // per <= EDGE <=", LOOPS),
    Mutant("loops: the last of the periods between counts as all", STAY, "times = np.where(np.arange(few) == EDGE, between - 1.0, 1.0)",
           "times = np.where(np.arange(few) == EDGE, between - 0.0, 1.0)", LOOPS),
    Mutant("loops: room of the periods between counts for one", STAY, "(EDGE * per, per, between)))", "(EDGE * per, per, 2)))", LOOPS),
    Mutant("policy: what is needed as soon goes too", "dse/reuse/residency.py", "if n and self.next[t] > later)", "if n and self.next[t] >= later)",
           "tests/test_residency.py::test_what_is_needed_at_the_same_time_stays"),
    Mutant("policy: the tail that goes is clean", "dse/reuse/residency.py", "lost = max(0, self.dirty[t] - self.kept[t])", "lost = 0", POINTS),
    Mutant("patterns: a rank that a consumer lacks does not bar", "dse/reuse/classify.py", "(rank != \"\" and not all(rank in p.ranks() for p in e.reads))",
           "False", "tests/test_classify.py::test_conjugate_gradients"),
    Mutant("patterns: hold over any path", "dse/reuse/classify.py", "    return longest[edge.target][1]", "    return True",
           "tests/test_classify.py::test_conjugate_gradients"),
    Mutant("pipelines: a group may leave and come back", "dse/reuse/accesses.py",
           "            if e.target in group:\n                return False\n            outside",
           "            outside", "tests/test_accesses.py::test_a_group_has_no_way_out_and_back"),
    Mutant("pipelines: weights take no room", "dse/reuse/accesses.py", "if need is None or need > capacity or", "if need is None or",
           "tests/test_accesses.py::test_a_pipeline_holds_the_weights_that_do_not_stream"),
    Mutant("orders: a swizzled edge pipelines", "dse/reuse/order.py", "            and not _swizzled(link, source, target))", "            )",
           "tests/test_order.py::test_all_assignments_of_small_chains"),
    Mutant("join: dominated whatever room is left", JOIN, "[peaks] * len(self.levels), *[True] * len(part.rooms)]",
           "[peaks] * len(self.levels), *[False] * len(part.rooms)]", CHOICES),
    Mutant("join: dominated by other labels", JOIN, "        group = _groups(part.labels)\n        at = np.lexsort((*passive",
           "        group = _groups(part.labels[:, 1:])\n        at = np.lexsort((*passive", CHOICES),
    Mutant("join: energy stands for energy x delay", JOIN, '"edp": (True, True)', '"edp": (True, False)', CHOICES),
    Mutant("join: one column decides", JOIN, "worse = worse and columns[front[j], c] <= columns[i, c]", "worse = columns[front[j], c] <= columns[i, c]",
           CHOICES),
    Mutant("join: what is to come costs its most", JOIN, "part.values[:, column].min()", "part.values[:, column].max()", CHOICES),
    Mutant("join: what may beat an answer loses", JOIN, "<= self.below * (1 + SAME)", "<= self.below * 0.7", CHOICES),
    Mutant("join: rooms are closed while others add", JOIN, "others = {name for p in rest for name in p.rooms}",
           "others = {name for p in rest[1:] for name in p.rooms}", CHOICES),
    Mutant("join: rooms have no limit", JOIN, "            fits &= values[:, first + i] <= self.limits[name].limit\n", "", CHOICES),
    Mutant("join: peaks of different times add up", JOIN, "np.maximum(values[:, peaks], part.values[rows_of, peaks])",
           "values[:, peaks] + part.values[rows_of, peaks]", CHOICES),
    Mutant("join: beams do not say what fell", JOIN, "float(bound[best[most:]].min())", "float(bound[best[most:]].max())", BEAMS),
    Mutant("join: pairs that never were are no loss", JOIN, "b = self.beam(b, [*rest, a], max(int(len(b.labels) / scale), 1))",
           "b = b.rows(np.arange(max(int(len(b.labels) / scale), 1)))", BEAMS),
    Mutant("fused: homes take room of the search", SEARCH, "0.0 if (t, level.name) in homes else bits[t]", "bits[t]", CHEAPER),
    Mutant("fused: what fills a level to the last bit does not fit", TILED, "if left >= 0 and all(", "if left > 0 and all(", CHEAPER),
    Mutant("fused: what is handed on saves nothing", NESTS, "return cycles if self.objective == \"latency\" else pj + cycles",
           "return 0 * (pj + cycles)", CHEAPER),
    Mutant("fused: nests for less room are best for more", NESTS, "if room == asked or (nest.bits <= room <= asked if",
           "if room == asked or (nest.bits <= room if", CHEAPER),
    Mutant("fused: only neighbours share loops", "dse/reuse/trips.py", "        if all(i >= 0 and at.get(t, i) == i for t, i in mine.items()):",
           "        if mine and all(i >= 0 and at.get(t, i) == i for t, i in mine.items()):", CHEAPER),
    Mutant("fused: a loop cuts columns of a compressed matrix", "dse/reuse/trips.py", "rank in e.output.full() - columns and", "rank in e.output.full() and",
           "tests/test_fused.py::test_loops_are_shared_where_tiles_are_complete"),
    Mutant("fused: a matrix is brought in as if it were not compressed", NESTS, 'return elems if p.format == "dense" else', "return elems if True else",
           SPARSE),
    Mutant("fused: what is brought in whole is what compute reads of it", NESTS, "whole_words(p, trip) * brought", "words * brought", SPARSE),
    Mutant("fused: held tensors are brought in in every trip", NESTS, "total += words * (per_elem(outer, bits) * outer.read_pj",
           "total += 9 * words * (per_elem(outer, bits) * outer.read_pj", CHEAPER),
    Mutant("fused: what comes anew in every trip costs twice", NESTS, "many * max(saved, 0.0)", "2 * many * max(saved, 0.0)",
           "tests/test_fused.py::test_a_tensor_may_come_anew_in_every_trip"),
    Mutant("joint: every trip opens its rows", NESTS, "replace(level, access=replace(level.access, row_pj=0.0, row_cycles=0.0)) if level.access else level for",
           "level for", TOGETHER),
    Mutant("share: cycles on slower machines hold on faster ones", "dse/reuse/family.py", "slower = np.min(np.divide", "slower = np.max(np.divide",
           "tests/test_family.py::test_what_is_claimed_of_shared_schedules_holds_where_machines_are_solved"),
    Mutant("share: leakage of slower machines is bounded by their cycles alone", "dse/reuse/turns.py", "c = leak[i] * slower / leak[k]",
           "c = leak[i] / leak[k]", BETWEEN),
    Mutant("share: the cheapest price decides", "dse/reuse/turns.py", "a = np.min(c.prices[:, asks]", "a = np.max(c.prices[:, asks]", BETWEEN),
    Mutant("share: all prices that are left count, however they are used", "dse/reuse/turns.py", "a[:, None] * of, 0.0) @ units",
           "a[:, None] * of, 0.0) @ (units + 1e3)", BETWEEN),
    Mutant("share: gaps are rounded down", "dse/reuse/turns.py", "np.ceil(gaps / part_of(share))", "np.floor(gaps / part_of(share))", NEAREST),
    Mutant("share: a cell is what the axes that shape say", "cluster/priced.py", "alike(columns.shape)", "alike(columns.shape[:, :1])",
           "tests/test_turns.py::test_machines_of_one_cell_are_of_one_structure"),
    Mutant("share: kept choices are another cell's", "dse/reuse/turns.py", "for part in (self.leak_mw, self.clock_ghz, self.prices, self.priced.of,",
           "for part in (self.leak_mw, self.clock_ghz, self.priced.of,", "tests/test_turns.py::test_other_machines_have_other_tables"),
    Mutant("columns: no memory depends on the silicon", COLUMNS, 'self.kind == "sram")', "False)", ONE_BY_ONE),
    Mutant("columns: a level's shape is its name", COLUMNS, "shape(unpriced(at))", "shape(at.name)", ONE_BY_ONE),
    Mutant("pipelines: one copy where runs follow back to back", "dse/sim/placed.py", "at_once = inf if often else granules(segment, g)",
           "at_once = granules(segment, g)", "tests/test_certificates.py::test_runs_back_to_back_hold_what_is_handed_on_twice"),
    Mutant("share: a bound takes more of a price than there is", "dse/reuse/family.py", "full = np.max(np.divide(used", "full = np.min(np.divide(used",
           "tests/test_family.py::test_what_is_claimed_of_shared_schedules_holds_where_machines_are_solved"),
    Mutant("asked: machines of different ports and rooms are costed together", "dse/asked.py", "else structure(arch).sizeless()",
           "else replace(one := structure(arch).sizeless(), levels=tuple(replace(level, double_buffer=True) for level in one.levels))", COSTED),
    Mutant("asked: all arrays are as large as the first", "dse/asked.py", "found.counts, e, _sizes(together(arches), arches)",
           "found.counts, e, together(arches)", COSTED),
    Mutant("asked: a nest stands in no row group that ends with it", "dse/asked.py", "keys[first] > span.max", "keys[first] >= span.max",
           "tests/test_asked.py::test_nests_are_found_in_whichever_row_group_they_stand"),
    Mutant("resume: the checksum of asks is not looked at", "dse/folder.py", "zlib.crc32(data[:found.start(1)])) == int(found[2])",
           "zlib.crc32(data[:found.start(1)])) >= 0", "tests/test_store.py::test_asks_that_are_not_what_was_written_are_put_away"),
    Mutant("port times: a link moves the same whichever trips are picked", "dse/sim/times.py", "s.link.child_at, span.picks, span.begun if",
           "s.link.child_at, span.begun if", TIMES),
    Mutant("sums: padding is of one rank alone", TERMS, "dim.offset == 0 and dim.size >= sizes[", "dim.offset == 0 or dim.size >= sizes[", "nests"),
    Mutant("asked: names of a statement's own are looked up outside of it", "analysis/computed.py", "len(views) != 1 or named or", "len(views) != 1 or",
           NARROWED),
    Mutant("asked: one of two conditions is enough", "analysis/computed.py", '"CONJUNCTION_AND" else', '"CONJUNCTION_OR" else', NARROWED),
    Mutant("follows: what is nearly right is left out", "dse/study/follows.py", "equal = values.view(np.int64) == right.view(np.int64)",
           "equal = np.isclose(values, right)",
           "tests/test_follows.py::test_what_differs_in_the_last_bit_stays"),
    Mutant("schedules: kept tensors take no time of nests", AROUND, "        whole = inside(whole, tensor, level, arch)\n    return whole, whole.fork",
           "        pass\n    return whole, whole.fork", "tests/test_schedule_walks.py::test_fused_schedules_take_what_a_walk_in_time_of_all_trips_takes"),
)


Problem_ = tuple[int, str, str]  # seed, group, tiles


def problems(number: int) -> list[Problem_]:
    return [(i, "told", tiles) for i, (tiles, _) in enumerate(TOLD.values())] + [
        (seed, GROUPS[seed % len(GROUPS)], "perfect" if seed // len(GROUPS) % 2 else "ragged_lanes") for seed in range(number)]


def made(seed: int, group: str, tiles: str):  # type: ignore[no-untyped-def]
    """On a machine that the search prices as the evaluator does: every answer is to be proven."""
    from tests.nests import searched
    from tests.problems import random_problem, symmetric

    if group == "told":
        return list(TOLD.values())[seed][1]
    rng = Random(f"mutants/{seed}/{group}/{tiles}")
    problem = symmetric(rng) if group == "symmetric" else random_problem(rng, group, tiles, 40_000)
    return replace(problem, arch=searched(problem.arch, problem.einsum))


def answer(asked: Problem_) -> list[float]:
    from tests.enumeration import enumerated

    return list(enumerated(made(*asked), asked[2], "tensors").cost)


def differences(proof: str, answers: list[tuple[Problem_, list[float]]]) -> Iterator[str]:
    """Run in the copy: what a proof finds wrong there."""
    from dse.dataflow import search
    from dse.dataflow.optimal import optimal
    from dse.dataflow.space import least
    from dse.sim.evaluate import lower_bound
    from tests.enumeration import Best
    from tests.nests import rich_case
    from tests.prove.mappers import compared
    from tests.test_counts import mismatch, unlike
    from tests.test_schedule_walks import differences as walked_otherwise

    if proof == "nests":
        yield from filter(None, (mismatch(seed, KINDS) for seed in range(WALKED)))
        yield from filter(None, (unlike(f"rich seed {seed}", *rich_case(Random(seed))) for seed in range(WALKED)))
        return
    if proof == "schedules":
        yield from (line for seed in range(WALKED) for line in walked_otherwise(seed))
        return
    search.EASY = 0  # bounds of what stands outside of all lanes, from the first node on
    for asked, cost in answers:
        problem = made(*asked)
        if proof == "bounds":
            yield from ["bound above"] if lower_bound(problem) > cost[0] * (1 + 1e-9) else []
            continue
        best = Best((cost[0], cost[1], cost[2]), least(problem.einsum, problem.arch) if cost[0] < float("inf") else None, 0)
        found = optimal(problem, asked[2])
        yield from (f"{asked}: {line}" for line in compared(problem, best, found, proof))
        yield from [f"{asked}: {found[0].certificate}"] if isinstance(found, list) and not found[0].proven else []


KINDS = ("gemm", "bmm", "conv", "conv1d", "depthwise", "pool", "transposed", "spmm", "spmv")


def copied(folder: Path, mutant: Mutant | None) -> Path:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    if mutant:
        path = folder / mutant.file
        text = path.read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.file} has {text.count(mutant.old)} times: {mutant.old}")
        path.write_text(text.replace(mutant.old, mutant.new))
    return folder


def told(proof: str, mutant: Mutant | None, answers: Path) -> tuple[str, float]:
    """How a proof ends in a copy of the sources: "" if nothing is wrong there, else what it says; seconds."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dse-mutant-") as home:
        try:
            folder = copied(Path(home), mutant)
        except ValueError as fault:
            return f"NO MUTANT: {fault}", 0.0
        environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_DISABLE_JIT": "1", "DSE_CACHE": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1",
                       "COLUMNS": "240"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "--hypothesis-seed=0", proof] if "::" in proof else \
            [sys.executable, "-c", CHECKED, proof, str(answers)]
        try:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"no answer in {SECONDS} s", SECONDS
    return "" if done.returncode == 0 else _ending(done.stdout, done.stderr, "::" in proof), time.monotonic() - started


def _ending(out: str, err: str, test: bool) -> str:
    """What a proof that failed found wrong, or the exception that ended it."""
    lines, last = out.strip().splitlines(), (err.strip() or "exit").splitlines()[-1]
    if not test:
        return lines[0] if lines else f"CRASH: {last}"
    why = next((line.partition(" - ")[2] for line in lines if line.startswith("FAILED ")), "") or last
    return "the test fails" if why.startswith(("assert", "AssertionError", "Failed")) else f"CRASH: {why}"


def checked(proof: str, answers: Path) -> int:
    """In the copy: 1 at the first difference."""
    for line in differences(proof, [((a[0], a[1], a[2]), cost) for a, cost in json.loads(answers.read_text())]):
        print(line.splitlines()[0])
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=150)
    parser.add_argument("--only", default="")
    given, _ = parser.parse_known_args()
    chosen = [m for m in MUTANTS if given.only in m.rule]
    proofs = list(dict.fromkeys(m.proof for m in chosen))
    with tempfile.TemporaryDirectory(prefix="dse-answers-") as home, ProcessPoolExecutor(2, get_context("spawn")) as pool:
        path, wanted = Path(home) / "answers.json", problems(given.problems) if {"mappers", "bounds"} & set(proofs) else []
        path.write_text(json.dumps(list(zip(wanted, pool.map(answer, wanted, chunksize=4), strict=True))))
        with ThreadPoolExecutor(2) as threads:
            run: Callable[[tuple[str, Mutant | None]], tuple[str, float]] = lambda one: told(one[0], one[1], path)  # noqa: E731
            plain = dict(zip(proofs, threads.map(run, [(proof, None) for proof in proofs]), strict=True))
            false = [f"  the sources as they are fail {proof}: {said}" for proof, (said, _) in plain.items() if said]
            print("\n".join(false) if false else f"  the sources as they are pass all {len(proofs)} proofs", flush=True)
            alive = 0
            for m, (said, seconds) in zip(chosen, threads.map(run, [(m.proof, m) for m in chosen]), strict=True):
                lives = not said or said.startswith(("NO MUTANT", "CRASH"))
                alive += lives
                print(f"  {'LIVES' if lives else 'killed'} {m.rule}: {m.proof}, {seconds:.0f} s{f'; {said[:140]}' if said else ''}", flush=True)
    print(f"  {len(chosen)} mutants, {len(chosen) - alive} killed")
    return int(alive > 0 or bool(false))
