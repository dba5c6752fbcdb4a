-- Fronts for any table, view or "(SELECT ...)": all rows that no other row dominates, ties and duplicates included.
-- A row with a NULL or NaN in an objective is never on a front; infinities compare as numbers.
-- An objective is a column; '-x' and 'x:max' maximise, 'x:min' and 'x' minimise.

CREATE MACRO quoted(name) AS '"' || replace(name, '"', '""') || '"';

CREATE MACRO objective_sql(objective) AS
    CASE WHEN starts_with(objective, '-') <> ends_with(objective, ':max') THEN '-' ELSE '' END
    || 't.' || quoted(regexp_replace(regexp_replace(objective, ':(min|max)$', ''), '^-', '')) || '::DOUBLE';

CREATE MACRO values_sql(objectives) AS
    '[' || array_to_string(list_transform(objectives, lambda o: '0.0 + (' || objective_sql(o) || ')'), ', ') || ']';

CREATE MACRO table_sql(tbl) AS
    CASE WHEN starts_with(tbl, '(') THEN tbl ELSE quoted(tbl) END || ' t';

-- pareto_front, registered by db.connect: DOUBLE[][] -> DOUBLE[][], its different non-dominated rows.
CREATE MACRO pareto_sql(tbl, objectives, grp) AS
    'WITH fronts AS (SELECT '
    || array_to_string(list_transform(grp, lambda g, i: 't.' || quoted(g) || ' AS g' || i || ', '), '')
    || 'pareto_front(list(' || values_sql(objectives) || ')) AS front FROM ' || table_sql(tbl) || ' WHERE '
    || array_to_string(list_transform(objectives, lambda o: 'coalesce(NOT isnan(' || objective_sql(o) || '), false)'), ' AND ')
    || CASE WHEN len(grp) > 0 THEN ' GROUP BY ALL' ELSE '' END
    || '), best AS (SELECT * EXCLUDE (front), unnest(front) AS found FROM fronts) SELECT t.* FROM ' || table_sql(tbl) || ' SEMI JOIN best ON (' || values_sql(objectives) || ' = best.found'
    || array_to_string(list_transform(grp, lambda g, i: ' AND t.' || quoted(g) || ' IS NOT DISTINCT FROM best.g' || i), '')
    || ')';

-- FROM pareto('points', ['energy_pj', 'throughput:max'], grp := ['workload'])
CREATE MACRO pareto(tbl, objectives, grp := []::VARCHAR[]) AS TABLE
    FROM query(pareto_sql(tbl, objectives, grp));

-- Two objectives in SQL alone (works in any DuckDB): FROM pareto2(points, energy_pj, -throughput)
CREATE MACRO pareto2(tbl, first, second) AS TABLE
    WITH lowest AS (
        SELECT pareto_x, min(pareto_y) AS pareto_y
        FROM (SELECT (first)::DOUBLE AS pareto_x, (second)::DOUBLE AS pareto_y FROM query_table(tbl))
        WHERE NOT isnan(pareto_x) AND NOT isnan(pareto_y)
        GROUP BY pareto_x
    ), stairs AS (
        SELECT *, min(pareto_y) OVER (ORDER BY pareto_x ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS pareto_before
        FROM lowest
    )
    FROM query_table(tbl)
    SEMI JOIN (FROM stairs WHERE pareto_before IS NULL OR pareto_y < pareto_before) AS step
    ON ((first)::DOUBLE = pareto_x AND (second)::DOUBLE = pareto_y);
