-- Einsums in turn, for which nothing is stored: each different one is a segment.
SELECT machine, schedule, workload, place AS segment, einsum AS einsums, count, energy_pj, latency_cycles
FROM einsums ANTI JOIN (SELECT machine, schedule, workload FROM (FROM stored)) USING (machine, schedule, workload)
