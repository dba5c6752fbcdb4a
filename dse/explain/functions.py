"""Functions that the views of a run call in SQL (analysis/sql): what is computed when SQL asks for it.

Here stand their names and types, and what follows from the study alone. Costs are computed by
dse/explain/derived.py, which is imported at their first call: questions of what is stored start fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter, Signature
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dse.run import record
from dse.study import packed_columns, pareto
from dse.study import study as studies
from dse.study.study import Study
from hw import die
from workloads import catalog
from workloads.graph import unique

KEY = ("machine", "schedule", "workload")
EINSUMS_FIELDS = [name for name in record.TABLES["einsums"] if name not in KEY]
WORKLOADS_FIELDS = [name for name in record.TABLES["workload_costs"] if name not in KEY]
PRICES_FIELDS = [name for name in record.TABLES["prices"] if name != "machine"]
MACHINE_FIELDS = ["clock_ghz", "peak_tops"]  # columns of machines of which ratios are made
# of a workload and its distinct einsums: columns of `einsums` that are equal on all machines, and the weight
UNIQUES_FIELDS = [*("workload", "position", "einsum", "einsum_key", "kind", "occurrences", "macs"), "weight"]
# fields that are columns of another table than the one that the function is about
TABLE_OF = dict.fromkeys(MACHINE_FIELDS, "machines") | {"weight": "workload_costs"}
SQL_TYPES = {"string": "VARCHAR", "int64": "BIGINT", "int32": "INTEGER", "float64": "DOUBLE"}
Compute = Callable[..., pa.Array]  # name of a function of `derived`, Arrow columns -> one column


class Function(NamedTuple):
    """A function for SQL: Arrow columns in, one column out."""

    name: str
    call: Callable[..., pa.Array]
    inputs: tuple[str, ...]  # SQL types
    dtype: str  # SQL type of the result
    may_be_null: bool = False  # it takes and returns NULL


def functions(study: Study, compute: Compute) -> list[Function]:
    """Returns the functions that the views of a run call (analysis/sql). For a machine that cannot be built
    they return no rows.
    """
    choice_types = ("BIGINT", "VARCHAR", "VARCHAR[]")
    proof_types = (*choice_types, "VARCHAR", "INTEGER[]", "DOUBLE[]", "VARCHAR[]")
    formula_types = ("DOUBLE",) * len(packed_columns.FORMULA_INPUTS)
    computed = [
        ("cycles_of", choice_types, "DOUBLE[]"),
        ("einsums_of", proof_types, _struct("einsums", [*EINSUMS_FIELDS, *MACHINE_FIELDS])),
        ("workload_of", proof_types, _struct("workload_costs", [*WORKLOADS_FIELDS, *MACHINE_FIELDS])),
        ("levels_of", ("BIGINT",), _struct("prices", PRICES_FIELDS)),
        ("what_if_of", ("VARCHAR", "VARCHAR"), _what_if_struct(study)),
        (
            "robust_of",
            ("VARCHAR", "BIGINT", "BIGINT", "VARCHAR"),
            "STRUCT(machine BIGINT, share_on_front DOUBLE)[]",
        ),
    ]
    return [
        *(
            Function(f"follows_{name}", packed_columns.formula(name), formula_types, "DOUBLE")
            for name in packed_columns.FORMULAS
        ),
        *OF_ANY_RUN,
        Function("macs_of", partial(_macs, study), ("BIGINT",), "DOUBLE"),
        Function("workloads_of", partial(_workloads, study), ("BIGINT",), _workloads_struct(study)),
        Function("uniques_of", partial(_uniques, study), ("BIGINT",), _struct("einsums", UNIQUES_FIELDS)),
        *(
            Function(name, _of_columns(partial(compute, name), len(inputs)), inputs, dtype)
            for name, inputs, dtype in computed
        ),
    ]


def point_columns(study: Study) -> list[str]:
    """Returns the columns of points that are numbers decided by costs, as `studies.points` makes them."""
    metrics = [*record.METRICS, "area_mm2", *(o.column for o in study.objectives)]
    return list(dict.fromkeys([*metrics, *studies.columns(study, "points")]))


def _what_if_struct(study: Study) -> str:
    numbers = ", ".join(f'"{name}" DOUBLE' for name in ("optimality_gap", *point_columns(study)))
    return f"STRUCT(machine BIGINT, remapped BIGINT, feasible BOOLEAN, {numbers})[]"


def _of_columns(call: Callable[..., pa.Array], count: int) -> Callable[..., pa.Array]:
    """Returns the function with as many parameters as it has columns, which DuckDB counts."""
    columns = [Parameter(f"column_{i}", Parameter.POSITIONAL_ONLY) for i in range(count)]
    call.__signature__ = Signature(columns)  # type: ignore[attr-defined]
    return call


def ratios() -> dict[str, str]:
    """Returns for each view with ratios the SQL of these columns."""
    return {
        view: ", ".join(f"{record.RATIOS[name].sql()} AS {name}" for name in names)
        for view, names in record.RATIOS_OF.items()
    }


def _rows_of_uniques(study: Study) -> list[dict[str, Any]]:
    """Returns a row per workload and distinct einsum."""
    return [
        {
            "workload": ref.name,
            "position": position,
            "einsum": group.einsum.name,
            "einsum_key": group.key,
            "kind": group.einsum.kind,
            "occurrences": group.occurrences,
            "macs": group.einsum.macs(),
            "weight": ref.weight,
        }
        for ref, workload in zip(study.workloads, studies.workloads_of(study), strict=True)
        for position, group in enumerate(unique(workload), 1)
    ]


def _workload_rows(study: Study) -> list[dict[str, Any]]:
    """Returns the rows of the view `workloads`: sizes of a run, and parameters that the study gives, as
    columns workload_<parameter>.
    """
    rows = []
    for ref in study.workloads:
        samples, tokens = catalog.run_sizes(ref.text)
        given = {
            f"workload_{pareto.slug(key)}": value
            for key, value in (catalog.given_in(ref.text) | {k: str(v) for k, v in ref.bind}).items()
        }
        rows.append(
            {"workload": ref.name, "weight": ref.weight, "samples": samples, "tokens": tokens} | given
        )
    return rows


def _workload_types(study: Study) -> dict[str, str]:
    """Returns the columns of the view `workloads`, each with its SQL type: parameters are numbers where all
    of their values are.
    """
    types = {name: SQL_TYPES[column.dtype] for name, column in record.VIEWS["workloads"].items()}
    rows = _workload_rows(study)
    for name in dict.fromkeys(chain.from_iterable(rows)):
        values = [row[name] for row in rows if name in row]
        if name not in types:
            types[name] = "BIGINT" if all(catalog.NUMBER.fullmatch(value) for value in values) else "VARCHAR"
    return types


def _workloads_struct(study: Study) -> str:
    columns = ", ".join(f'"{name}" {dtype}' for name, dtype in _workload_types(study).items())
    return f"STRUCT({columns})[]"


def _workloads(study: Study, numbers: Any) -> pa.Array:
    """Returns the rows of the view `workloads`, for each of some numbers."""
    kinds = {"VARCHAR": pa.string(), "BIGINT": pa.int64(), "DOUBLE": pa.float64()}
    types = _workload_types(study)
    rows = [
        {
            name: int(row[name]) if types[name] == "BIGINT" and row.get(name) is not None else row.get(name)
            for name in types
        }
        for row in _workload_rows(study)
    ]
    struct = pa.struct([(name, kinds[dtype]) for name, dtype in types.items()])
    return pa.array([rows] * len(numbers), pa.list_(struct))


def _uniques(study: Study, numbers: Any) -> pa.Array:
    """Returns the rows of distinct einsums, for each of some numbers."""
    return list_array("einsums", UNIQUES_FIELDS, [_rows_of_uniques(study)] * len(numbers))


def _macs(study: Study, machines: Any) -> pa.Array:
    """Returns, per machine, the MACs of a point: of all workloads, each as often as its weight says."""
    macs = sum(row["weight"] * row["occurrences"] * row["macs"] for row in _rows_of_uniques(study))
    return pa.repeat(float(macs), len(machines))


def _die_costs(area_mm2: Any, node_nm: Any) -> pa.Array:
    """Returns what dies of these areas cost, each at its node; NULL where that is not known."""
    costs = [
        die.cost_usd(area or 0.0, node or 0.0)
        for area, node in zip(area_mm2.to_pylist(), node_nm.to_pylist(), strict=True)
    ]
    return pa.array([None if cost != cost else cost for cost in costs], pa.float64())


# functions that need no study
OF_ANY_RUN = (Function("die_cost_usd", _die_costs, ("DOUBLE", "DOUBLE"), "DOUBLE", may_be_null=True),)


def _struct(table: str, names: Sequence[str]) -> str:
    return f"STRUCT({', '.join(f'{name} {SQL_TYPES[_dtype(table, name)]}' for name in names)})[]"


def _dtype(table: str, name: str) -> str:
    return record.TABLES[TABLE_OF.get(name, table)][name].dtype


def list_array(table: str, names: Sequence[str], found: Sequence[Sequence[dict[str, Any]]]) -> pa.Array:
    """Returns an Arrow array with one list of structures per row. found: by row, the structures as dicts."""
    flat = list(chain.from_iterable(found))
    arrays = [pa.array([one.get(name) for one in flat], record.dtype(_dtype(table, name))) for name in names]
    offsets = pa.array(np.cumsum([0, *map(len, found)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(arrays, names=list(names)))
