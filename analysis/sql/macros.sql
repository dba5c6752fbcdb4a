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

CREATE MACRO numbers_sql(objectives) AS
    array_to_string(list_transform(objectives, lambda o: 'coalesce(NOT isnan(' || objective_sql(o) || '), false)'), ' AND ');

CREATE MACRO scaled_sql(objectives) AS list_transform(objectives, lambda o, i: '(' || objective_sql(o) || ' - front_scales.low' || i || ') / front_scales.width' || i);

CREATE MACRO beats_sql(objectives, other) AS
    'coalesce(' || array_to_string(list_transform(objectives, lambda o, i: objective_sql(o) || ' < ' || other || i), ' OR ')
    || ' OR (' || array_to_string(list_transform(objectives, lambda o, i: objective_sql(o) || ' = ' || other || i), ' AND ') || '), true)';

-- Common table expressions that end with `front_kept`: all rows but those that a pivot dominates, one of the two rows with the least sum and the least maximum of scaled objectives.
-- Few rows are left to be compared with each other.
CREATE MACRO kept_sql(tbl, objectives) AS
    'front_scales AS (SELECT ' || array_to_string(list_transform(objectives, lambda o, i:
        'min(' || objective_sql(o) || ') AS low' || i || ', greatest(max(' || objective_sql(o) || ') - min(' || objective_sql(o) || '), 1e-300) AS width' || i), ', ')
    || ' FROM ' || table_sql(tbl) || ' WHERE ' || numbers_sql(objectives)
    || '), front_found AS (SELECT arg_min(' || values_sql(objectives) || ', ' || array_to_string(scaled_sql(objectives), ' + ') || ') AS a, '
    || 'arg_min(' || values_sql(objectives) || ', greatest(' || array_to_string(scaled_sql(objectives), ', ') || ')) AS b'
    || ' FROM ' || table_sql(tbl) || ', front_scales WHERE ' || numbers_sql(objectives)
    || '), front_pivots AS (SELECT ' || array_to_string(list_transform(objectives, lambda o, i: 'front_found.a[' || i || '] AS a' || i || ', front_found.b[' || i || '] AS b' || i), ', ') || ' FROM front_found'
    || '), front_kept AS MATERIALIZED (SELECT t.* FROM ' || table_sql(tbl) || ', front_pivots WHERE ' || numbers_sql(objectives)
    || ' AND ' || beats_sql(objectives, 'front_pivots.a') || ' AND ' || beats_sql(objectives, 'front_pivots.b') || ')';

-- The rows of a table that a function picks, per group, ordered by group, then the best in the first objective first. before, after: SQL around the list of its points, DOUBLE[][], that makes a list of points of it.
CREATE MACRO picked_sql(tbl, objectives, grp, before, after) AS
    'WITH ' || CASE WHEN len(grp) > 0 THEN '' ELSE kept_sql(tbl, objectives) || ', ' END || 'fronts AS (SELECT '
    || array_to_string(list_transform(grp, lambda g, i: 't.' || quoted(g) || ' AS g' || i || ', '), '')
    || before || 'list(' || values_sql(objectives) || ')' || after || ' AS front FROM ' || CASE WHEN len(grp) > 0 THEN table_sql(tbl) ELSE 'front_kept t' END || ' WHERE ' || numbers_sql(objectives)
    || CASE WHEN len(grp) > 0 THEN ' GROUP BY ALL' ELSE '' END
    || '), best AS (SELECT * EXCLUDE (front), unnest(front) AS found FROM fronts) SELECT t.* FROM ' || CASE WHEN len(grp) > 0 THEN table_sql(tbl) ELSE 'front_kept t' END
    || ' SEMI JOIN best ON (' || values_sql(objectives) || ' = best.found'
    || array_to_string(list_transform(grp, lambda g, i: ' AND t.' || quoted(g) || ' IS NOT DISTINCT FROM best.g' || i), '')
    || ') ORDER BY ' || array_to_string(list_transform(grp, lambda g: 't.' || quoted(g) || ', '), '') || values_sql(objectives);

-- FROM pareto('points', ['energy_pj', 'throughput:max'], grp := ['workload'])
CREATE MACRO pareto(tbl, objectives, grp := []::VARCHAR[]) AS TABLE
    FROM query(picked_sql(tbl, objectives, grp, 'pareto_front(', ')'));

-- Few rows of the front, so that each of its rows has one of them that is worse by at most this share of its value in every objective; the best of each objective.
-- FROM epsilon_front('points', ['energy_pj', 'latency_ns'], 0.05)
CREATE MACRO epsilon_front(tbl, objectives, epsilon, grp := []::VARCHAR[]) AS TABLE
    FROM query(picked_sql(tbl, objectives, grp, 'epsilon_rows(pareto_front(', '), ' || epsilon::DOUBLE || ')'));

-- The knee of the front: with each objective scaled to 0 (best on the front) .. 1 (worst), the row of least sum; of two objectives, furthest below the line between the ends.
-- Of equal sums the one whose worst objective is best, then the best in the first objective, the second ...; rows with the same objectives as it are there, too.
CREATE MACRO knee(tbl, objectives, grp := []::VARCHAR[]) AS TABLE
    FROM query(picked_sql(tbl, objectives, grp, 'knee_rows(pareto_front(', '))'));

-- Hypervolume of the front, as dse status shows it: in the box of all rows (of all groups, so that these compare), each axis from 0 (best) to 1 (worst), logarithmic where all values
-- have one sign, up to 1.1, the `reference`. With a reference, a value of each objective in its own unit: the volume up to there in these units. Rows beyond the reference add nothing.
CREATE MACRO hypervolume(tbl, objectives, reference := []::DOUBLE[], grp := []::VARCHAR[]) AS TABLE
    FROM query('WITH box AS (SELECT '
    || array_to_string(list_transform(['min', 'max'], lambda f, row: '[' || array_to_string(list_transform(objectives, lambda o:
        f || '(0.0 + (' || objective_sql(o) || ')) FILTER (isfinite(' || objective_sql(o) || '))'), ', ') || '] AS ' || CASE row WHEN 1 THEN 'low' ELSE 'high' END), ', ')
    || ' FROM ' || table_sql(tbl) || '), volumes AS (SELECT '
    || array_to_string(list_transform(grp, lambda g: 't.' || quoted(g) || ', '), '')
    || 'hypervolume_of(list(' || values_sql(objectives) || '), ['
    || array_to_string(list_transform(reference, lambda r, i: CASE WHEN starts_with(objective_sql(objectives[i]), '-') THEN -r ELSE r END), ', ')
    || ']::DOUBLE[], [any_value(box.low), any_value(box.high)]) AS found FROM ' || table_sql(tbl) || ', box' || CASE WHEN len(grp) > 0 THEN ' GROUP BY ALL' ELSE '' END
    || ') SELECT * EXCLUDE (found), found[1] AS hypervolume, list_transform(found[2:], lambda r, i: r * ['
    || array_to_string(list_transform(objectives, lambda o: CASE WHEN starts_with(objective_sql(o), '-') THEN '-1' ELSE '1' END), ', ')
    || '][i]) AS reference FROM volumes' || CASE WHEN len(grp) > 0 THEN ' ORDER BY ' || array_to_string(list_transform(grp, lambda g: 'volumes.' || quoted(g)), ', ') ELSE '' END);

-- What a parameter does, all else equal: the geometric mean of a metric at each of its values, over the mean of rows that agree in the columns `given`; NULL: in all other axes of the study.
-- Rows without a partner, one that agrees with them and has another value, are counted in `rows` alone: each would be a factor of 1. `paired`: rows with one.
-- FROM sensitivity('designs', 'energy_pj', 'array_x')
CREATE MACRO given_axes(parameter, given) AS
    CASE WHEN given IS NOT NULL THEN given WHEN list_contains(study_axes(), parameter) THEN list_filter(study_axes(), lambda a: a <> parameter)
    ELSE error(parameter || ' is no axis of the study; give one (' || array_to_string(study_axes(), ', ') || '), or as fourth argument the columns in which compared rows agree') END;

CREATE MACRO rows_given(parameter, given) AS
    CASE WHEN len(given_axes(parameter, given)) > 0 THEN 'PARTITION BY ' || array_to_string(list_transform(given_axes(parameter, given), lambda g: 't.' || quoted(g)), ', ') ELSE '' END;

CREATE MACRO sensitivity(tbl, metric, parameter, given := NULL) AS TABLE
    FROM query('SELECT value, count(*) AS rows, count(*) FILTER (has_partner) AS paired, exp(avg(ln(metric / mean)) FILTER (has_partner)) AS times_the_mean FROM (SELECT t.'
    || quoted(parameter) || ' AS value, t.' || quoted(metric) || '::DOUBLE AS metric, exp(avg(ln(t.' || quoted(metric) || '::DOUBLE)) OVER agreeing) AS mean, min(t.'
    || quoted(parameter) || ') OVER agreeing <> max(t.' || quoted(parameter) || ') OVER agreeing AS has_partner FROM ' || table_sql(tbl) || ' WHERE t.' || quoted(metric)
    || ' > 0 WINDOW agreeing AS (' || rows_given(parameter, given) || ')) GROUP BY value ORDER BY value');

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
