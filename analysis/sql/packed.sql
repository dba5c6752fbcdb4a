-- What the computed views (computed.sql) read. [only]: "", or a join with the machines that a statement names (computed.py); [only points]: the same of stored points; [keys]: columns of a workload's mappings.
CREATE OR REPLACE VIEW internal.packed AS
SELECT machine, schedule, workload, [keys] AS keys, coalesce(space, '') AS space, coalesce(places, []) AS places, coalesce(gaps, []) AS gaps,
    coalesce(spaces, []) AS spaces
FROM internal.stored_chosen [only];

CREATE OR REPLACE VIEW internal.point_rows AS
FROM internal.stored_points [only points];

-- Machines that can be built and were not pruned before.
CREATE OR REPLACE VIEW internal.built AS
SELECT machine FROM main.machines [only] WHERE status IN ('ok', 'infeasible') AND area_mm2 IS NOT NULL;

-- Einsums of schedules that are not unfused.
CREATE OR REPLACE VIEW internal.not_unfused AS
FROM internal.stored_einsums [only];

-- The distinct einsums of each workload; of the argument only that there is one counts.
CREATE OR REPLACE VIEW internal.uniques AS
SELECT unnest(uniques_of(0), recursive := true);
