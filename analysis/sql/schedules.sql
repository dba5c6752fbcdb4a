-- Einsums in turn, for which nothing is stored: a row for what stands in einsums and not among the stored schedules.
SELECT machine, schedule, workload, 'streamed' AS weights, count(*)::INTEGER AS segments, 0 AS fused, 0 AS pipelined
FROM einsums ANTI JOIN (SELECT machine, schedule, workload FROM (FROM stored)) USING (machine, schedule, workload) GROUP BY ALL
