"""Traces each column of a statement's result to the column of a view whose values, or values like these, it
shows. Units come from that column, never from an alias.

Plain references are followed, and functions whose result is in the unit of their first argument (min, avg,
sum), sums and differences of one unit, products with weights, through subqueries, WITH, joins, set operations
and fronts. Any other expression (x / y, CASE, a cast)
is no column of a view, and neither is anything that cannot be followed with certainty. The names found are
compared with those that DuckDB gave the result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from analysis.computed import literal, nodes
from dse.explain.units import steps_of

# table functions whose rows are rows of the table in their first argument
FRONTS = ("pareto", "pareto2", "epsilon_front", "knee")
# calls of macros whose columns are named as those of views, and in their units
REPRICED = {"what_if": "what_if({dram_pj: 1.0})", "robust": "robust({dram_pj: 0.1}, 1)"}
# functions, aggregates and window functions whose result has the unit of their first argument
SAME_UNIT = {
    *(
        "abs",
        "greatest",
        "least",
        "any_value",
        "approx_quantile",
        "arg_max",
        "arg_min",
        "avg",
        "ceil",
        "first",
        "first_value",
    ),
    *(
        "floor",
        "lag",
        "last",
        "last_value",
        "lead",
        "max",
        "max_by",
        "mean",
        "median",
        "min",
        "min_by",
        "mode",
    ),
    *("nth_value", "quantile", "quantile_cont", "quantile_disc", "round", "stddev", "stddev_pop"),
    *("stddev_samp", "sum"),
}
COUNTS = ("weight", "occurrences")  # columns by which costs are multiplied
PLAIN = re.compile(r"[a-z_]\w*")  # names that DuckDB gives to columns, never to expressions
# keys of a `*` in the syntax tree that this module understands
PLAIN_STAR = {
    "class",
    "type",
    "query_location",
    "relation_name",
    "exclude_list",
    "replace_list",
    "rename_list",
    "columns",
}

# (name in lower case, "" where DuckDB generates one; column of a view that it shows or has the unit of, "" if
# none)
Column = tuple[str, str]
Columns = tuple[Column, ...]
Node = Mapping[str, Any]
Tables = Callable[[str], Columns | None]  # table name -> its columns; None: unknown


@dataclass(frozen=True, slots=True)
class Scope:
    """The columns that a FROM clause provides."""

    relations: Mapping[str, Columns | None]  # alias -> columns; None: unknown
    star: Columns | None  # columns of `*`, in order; None: unknown
    ambiguous: frozenset[str] = frozenset()  # columns of USING whose sides may show different view columns


def columns(con: duckdb.DuckDBPyConnection, text: str, names: Sequence[str]) -> list[str]:
    """Returns for each result column of a statement the column of a view that it shows, or has the unit of,
    or "". names: of the result's columns.

    >>> con = duckdb.connect()
    >>> _ = con.execute("CREATE VIEW points AS SELECT 1.5 AS energy_pj, 2.0 AS area_mm2")
    >>> query = "SELECT energy_pj AS e, energy_pj / area_mm2 AS pj_per_mm2, p.* FROM points p"
    >>> columns(con, query, ["e", "pj_per_mm2", "energy_pj", "area_mm2"])
    ['energy_pj', '', 'energy_pj', 'area_mm2']
    >>> query = "SELECT min(energy_pj), count(area_mm2) FROM points"
    >>> columns(con, query, ["min(energy_pj)", "count(area_mm2)"])
    ['energy_pj', '']
    """
    try:
        found = _parsed(con, text, lambda name: _view(con, name))
    except (KeyError, TypeError, AttributeError):  # a syntax tree of a form that is not known here
        found = None
    if found is None or len(found) != len(names):
        return ["" for _ in names]
    return [
        source if own == name.lower() or (not own and "(" in name) else ""
        for name, (own, source) in zip(names, found, strict=True)
    ]


def _view(con: duckdb.DuckDBPyConnection, name: str) -> Columns | None:
    """Returns the columns of a view of the run, or of its table where several runs are asked together; None
    if there is neither.
    """
    if not con.execute(
        "SELECT 1 FROM (SELECT schema_name, view_name AS name FROM duckdb_views() WHERE NOT internal "
        "UNION ALL SELECT schema_name, table_name FROM duckdb_tables()) "
        "WHERE schema_name = 'main' AND lower(name) = " + literal(name)
    ).fetchall():
        return None
    quoted = name.replace('"', '""')
    return tuple((row[0].lower(), row[0]) for row in con.execute(f'DESCRIBE main."{quoted}"').fetchall())


def _parsed(con: duckdb.DuckDBPyConnection, text: str, tables: Tables) -> Columns | None:
    """Returns the columns of a statement; None if it is no SELECT."""
    tree = json.loads(con.execute(f"SELECT json_serialize_sql({literal(text)})").fetchall()[0][0])
    if tree["error"] or len(tree["statements"]) != 1:
        return None
    return _query(con, tree["statements"][0]["node"], tables)


def _query(con: duckdb.DuckDBPyConnection, node: Node, tables: Tables) -> Columns | None:
    for entry in node.get("cte_map", {}).get("map", []):
        cte = entry["value"]
        tables = _with(
            tables,
            entry["key"].lower(),
            _named(_query(con, cte["query"]["node"], tables), cte.get("aliases", ())),
        )
    match node.get("type"):
        case "SELECT_NODE":
            return _selected(_from(con, node.get("from_table") or {}, tables), node["select_list"])
        case "SET_OPERATION_NODE" if "left" in node:
            left, right = (_query(con, node[side], tables) for side in ("left", "right"))
            return _united(left, right, node["setop_type"] == "UNION_BY_NAME")
    return None


def _with(tables: Tables, name: str, found: Columns | None) -> Tables:
    return lambda wanted: found if wanted == name else tables(wanted)


def _united(left: Columns | None, right: Columns | None, by_name: bool) -> Columns | None:
    """Returns the columns of a set operation. A column is one of a view if it is the same one on both
    sides.
    """
    if left is None or right is None:
        return None
    if by_name:
        left_sources, right_sources = dict(left), dict(right)
        unique = len(left_sources) == len(left) and len(right_sources) == len(right)
        names = dict.fromkeys([*left_sources, *right_sources])
        return (
            tuple((name, _same(left_sources.get(name), right_sources.get(name))) for name in names)
            if unique
            else None
        )
    if len(left) != len(right):
        return None
    return tuple((name, _same(source, other)) for (name, source), (_, other) in zip(left, right, strict=True))


def _same(one: str | None, other: str | None) -> str:
    """Returns the view column that both columns show, else "". None: that side of a set operation lacks the
    column, so its rows are NULL.
    """
    known = {source for source in (one, other) if source is not None}
    return known.pop() if len(known) == 1 else ""


def _named(found: Columns | None, aliases: Sequence[str]) -> Columns | None:
    """Returns the columns of a subquery or WITH, the first ones renamed by aliases. Where a name occurs
    twice, no column counts as one of a view, because DuckDB renames the second one.
    """
    if found is None or len(aliases) > len(found):
        return None
    names = [*map(str.lower, aliases), *(name for name, _ in found[len(aliases) :])]
    given_names = list(filter(None, names))
    unique = len(set(given_names)) == len(given_names)
    return tuple((name, source if unique else "") for name, (_, source) in zip(names, found, strict=True))


def _from(con: duckdb.DuckDBPyConnection, node: Node, tables: Tables) -> Scope:
    found: Columns | None = None
    alias = node.get("alias", "")
    match node.get("type"):
        case "EMPTY":
            return Scope({}, ())
        case "JOIN":
            return _joined(node, _from(con, node["left"], tables), _from(con, node["right"], tables))
        case "SUBQUERY":
            found = _query(con, node["subquery"]["node"], tables)
        case "BASE_TABLE":
            alias = alias or node["table_name"]
            found = (
                tables(node["table_name"].lower()) if node["schema_name"].lower() in ("", "main") else None
            )
        case "TABLE_FUNCTION":
            alias = alias or node["function"]["function_name"]
            found = _front(con, node["function"], tables)
    found = _named(found, node.get("column_name_alias", ()))
    return Scope({alias.lower(): found}, found)


def _front(con: duckdb.DuckDBPyConnection, function: Node, tables: Tables) -> Columns | None:
    """Returns the columns of the table that pareto or pareto2 takes its rows from, those of sensitivity,
    whose values are a parameter's, and those of other prices; None for other functions.
    """
    if call := REPRICED.get(function["function_name"].lower()):
        try:
            return tuple((row[0].lower(), row[0]) for row in con.execute(f"DESCRIBE FROM {call}").fetchall())
        except duckdb.Error:  # several runs that are asked together have no such macro
            return None
    if function["function_name"].lower() == "sensitivity":
        named = [one.get("value", {}).get("value") for one in function["children"]]
        parameter = named[2] if len(named) > 2 and isinstance(named[2], str) else ""
        return ("value", parameter), ("rows", ""), ("paired", ""), ("times_the_mean", "")
    first = next(iter(function.get("children", ())), {})
    table = (
        first.get("value", {}).get("value")
        if first.get("type") == "VALUE_CONSTANT"
        else "".join(first.get("column_names", ())[-1:])
    )
    if function["function_name"].lower() not in FRONTS or not isinstance(table, str):
        return None
    return _parsed(con, f"FROM {table} t", tables) if table.startswith("(") else tables(table.lower())


def _joined(node: Node, left: Scope, right: Scope) -> Scope:
    """Returns the scope of a join. A column of USING occurs once, at its position in the left table; it is
    one of a view where both sides agree.
    """
    if node["join_type"] in ("SEMI", "ANTI"):
        return left
    relations = {**left.relations, **right.relations}
    if len(relations) < len(left.relations) + len(right.relations):
        return Scope(dict.fromkeys(relations), None)
    if node["ref_type"] == "NATURAL" and (left.star is None or right.star is None):
        return Scope(dict.fromkeys(relations), None)
    left_sources, right_sources = dict(left.star or ()), dict(right.star or ())
    shared = (
        {name.lower() for name in node.get("using_columns", ())}
        if node["ref_type"] != "NATURAL"
        else left_sources.keys() & right_sources.keys()
    )
    ambiguous = {
        name
        for name in shared
        if left.star is None or right.star is None or left_sources.get(name) != right_sources.get(name)
    }
    star = (
        None
        if left.star is None or right.star is None
        else (*left.star, *(column for column in right.star if column[0] not in shared))
    )
    return Scope(relations, star, left.ambiguous | right.ambiguous | ambiguous)


def _selected(scope: Scope, select_list: Sequence[Node]) -> Columns | None:
    """Columns of a SELECT; None where an expression may stand for several."""
    found: list[Column] = []
    for expression in select_list:
        if expression["type"] == "STAR":
            starred = _starred(scope, expression)
            if starred is None:
                return None
            found += starred
        elif expression["type"] == "COLUMN_REF":
            *relation, name = map(str.lower, expression["column_names"])
            found.append((expression["alias"].lower() or name, _looked_up(scope, relation, name)))
        elif any(
            inner.get("type") == "STAR" or inner.get("function_name") == "unnest"
            for inner in nodes(expression)
        ):
            return None
        else:
            found.append((expression["alias"].lower(), _unit_source(scope, expression)))
    return tuple(found)


def _unit_source(scope: Scope, expression: Node) -> str:
    """Returns the column of a view in whose unit an expression is; "" where that is not certain. A sum or
    difference is in the unit that both sides have; a product with a number of runs (COUNTS) in that of the
    other side.
    """
    if expression["type"] == "COLUMN_REF":
        *relation, name = map(str.lower, expression["column_names"])
        return _looked_up(scope, relation, name)
    name, children = expression.get("function_name", "").lower(), expression.get("children") or ()
    if expression.get("schema") or not children:
        return ""
    if name in SAME_UNIT:
        return _unit_source(scope, children[0])
    sources = [_unit_source(scope, child) for child in children]
    if name in ("+", "-") and all(map(steps_of, sources)) and len({*map(steps_of, sources)}) == 1:
        return sources[0]
    others = [source for source in sources if source not in COUNTS]
    return others[0] if name == "*" and len(others) == 1 else ""


def _looked_up(scope: Scope, relation: Sequence[str], name: str) -> str:
    """The column of a view that a reference means; "" where it is none, or may be something else."""
    if (
        (name in scope.ambiguous and not relation)
        or not PLAIN.fullmatch(name)
        or len(relation) > 2
        or relation[:-1] not in ([], ["main"])
    ):
        return ""
    candidates = [scope.relations.get(relation[-1])] if relation else list(scope.relations.values())
    sources = {source for columns in candidates for own, source in columns or () if own == name}
    return sources.pop() if len(sources) == 1 else ""


def _starred(scope: Scope, star: Node) -> Columns | None:
    """Returns the columns of `*` or `t.*` without those of EXCLUDE. Columns made by REPLACE or RENAME are no
    columns of a view.
    """
    if any(value for key, value in star.items() if key not in PLAIN_STAR) or star["columns"]:
        return None
    given = scope.relations.get(star["relation_name"].lower()) if star["relation_name"] else scope.star
    if given is None:
        return None
    excluded = {name.lower() for name in star["exclude_list"]}
    replaced = {one["key"].lower() for one in star["replace_list"]} | (
        frozenset() if star["relation_name"] else scope.ambiguous
    )
    renamed = {one["key"]["column"].lower(): one["value"].lower() for one in star["rename_list"]}
    remaining = [(name, source) for name, source in given if name not in excluded]
    return tuple(
        (renamed.get(name, name), "" if name in replaced or name in renamed else source)
        for name, source in remaining
    )
