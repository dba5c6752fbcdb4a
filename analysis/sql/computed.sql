-- What is not stored, computed for the rows that are asked for (dse/explain/derived.py): a filter on machines goes below the functions, into the parts.
-- [positions]: of a workload's distinct einsums, from 1 on.

-- The workloads of the study; of the argument only that there is one counts.
CREATE OR REPLACE VIEW workloads AS
SELECT unnest(workloads_of(0), recursive := true);

CREATE OR REPLACE VIEW choices AS
FROM internal.choices
UNION ALL BY NAME
SELECT machine, schedule, workload, position, einsum, einsum_key, kind, occurrences, mapping_key
FROM (SELECT machine, schedule, workload, unnest([positions]) AS position, unnest(keys) AS mapping_key FROM internal.packed)
JOIN internal.uniques USING (workload, position)
UNION ALL BY NAME
SELECT machine, schedule, workload, position, einsum, einsum_key, kind, occurrences, mapping_key FROM internal.not_unfused;

CREATE OR REPLACE VIEW einsums AS
SELECT * EXCLUDE (clock_ghz, peak_tops), [ratios of einsums] FROM (
    SELECT e.*, m.clock_ghz, m.peak_tops FROM internal.stored_einsums e JOIN main.machines m USING (machine)
    UNION ALL BY NAME
    SELECT machine, schedule, workload, unnest(einsums_of(machine, workload, keys, space, places, gaps, spaces), recursive := true) FROM internal.packed);

CREATE OR REPLACE VIEW workload_costs AS
SELECT * EXCLUDE (clock_ghz, peak_tops), [ratios of workload_costs] FROM (
    SELECT w.*, m.clock_ghz, m.peak_tops FROM internal.stored_workload_costs w JOIN main.machines m USING (machine)
    UNION ALL BY NAME
    SELECT machine, schedule, workload, unnest(workload_of(machine, workload, keys, space, places, gaps, spaces), recursive := true) FROM internal.packed);

CREATE OR REPLACE VIEW prices AS
FROM internal.prices
UNION ALL BY NAME
SELECT machine, unnest(levels_of(machine), recursive := true) FROM internal.built;

-- Unfused schedules, for which nothing is stored: each distinct einsum is a segment.
CREATE OR REPLACE VIEW schedules AS
FROM internal.stored_schedules
UNION ALL BY NAME
SELECT machine, schedule, workload, 'streamed' AS weights, len(list_filter(keys, lambda key: key IS NOT NULL))::INTEGER AS segments, 0 AS fused, 0 AS pipelined
FROM internal.packed;

CREATE OR REPLACE VIEW segments AS
FROM internal.stored_segments
UNION ALL BY NAME
SELECT machine, schedule, workload, position AS segment, einsum AS einsums, occurrences, energy_pj, latency_cycles
FROM (SELECT machine, schedule, workload, unnest(einsums_of(machine, workload, keys, space, places, gaps, spaces), recursive := true) FROM internal.packed);

-- Actions and energy per point, einsum, level, tensor and action, of all occurrences of the einsum. Leakage of a level (action leak) is billed over the cycles of the
-- einsum; of stages of a pipeline over those of their segment, which stands for the einsum. What a machine's vector unit does is counted at MAC, and named VECTOR here.
CREATE OR REPLACE VIEW internal.priced AS
SELECT machine, schedule, workload, einsum, kind, occurrences, mapping_key, unnest(levels) AS p, has_vector
FROM (SELECT machine, schedule, workload, unnest([positions]) AS position, unnest(keys) AS mapping_key, levels, has_vector
      FROM (SELECT *, list_contains([one.level FOR one IN levels], 'VECTOR') AS has_vector
            FROM (SELECT *, levels_of(machine) AS levels FROM internal.packed)))
JOIN internal.uniques USING (workload, position)
UNION ALL
SELECT machine, schedule, workload, einsum, kind, occurrences, mapping_key, unnest(levels) AS p, list_contains([one.level FOR one IN levels], 'VECTOR') AS has_vector
FROM (SELECT *, levels_of(machine) AS levels FROM internal.not_unfused);

CREATE OR REPLACE VIEW internal.moved AS
SELECT e.* EXCLUDE (has_vector), CASE WHEN has_vector AND kind <> 'mac' AND c.level = 'MAC' THEN 'VECTOR' ELSE c.level END AS level, c.tensor, c.action, c.elems, c.bits
FROM internal.priced e JOIN main.counts c ON (c.mapping_key = e.mapping_key AND c.level = e.p.level)
WHERE c.action NOT IN ('fold', 'fill', 'drain');

CREATE OR REPLACE VIEW internal.timed AS
SELECT machine, schedule, workload, einsum, occurrences * cycles AS cycles, levels
FROM (SELECT machine, schedule, workload, unnest([positions]) AS position, unnest(cycles) AS cycles, levels
      FROM (SELECT *, cycles_of(machine, workload, keys) AS cycles, levels_of(machine) AS levels FROM internal.packed))
JOIN internal.uniques USING (workload, position)
UNION ALL
SELECT machine, schedule, workload, einsum, cycles, levels_of(machine) AS levels FROM (
    SELECT machine, schedule, workload, einsum, occurrences * latency_cycles AS cycles FROM internal.not_unfused e
    WHERE NOT EXISTS (FROM internal.stored_segments s WHERE pipeline_tiles IS NOT NULL AND (s.machine, s.schedule, s.workload) = (e.machine, e.schedule, e.workload)
                      AND list_contains(string_split(s.einsums, ' | '), e.einsum))
    UNION ALL
    SELECT machine, schedule, workload, einsums, latency_cycles FROM internal.stored_segments WHERE pipeline_tiles IS NOT NULL);

CREATE OR REPLACE VIEW traffic AS
SELECT
    machine, schedule, workload, einsum, level, tensor, action,
    occurrences * elems AS elems,
    occurrences * elems * coalesce(bits, p.word_bits) / 8 AS bytes,
    CASE action
        WHEN 'read' THEN p.read_pj * coalesce(bits, p.word_bits) / p.width_bits
        WHEN 'write' THEN p.write_pj * coalesce(bits, p.word_bits) / p.width_bits
        WHEN 'unused_read' THEN p.read_pj / p.width_bits
        WHEN 'unused_write' THEN p.write_pj / p.width_bits
        WHEN 'modify' THEN p.read_pj / p.width_bits
        WHEN 'open_read' THEN p.row_pj
        WHEN 'open_write' THEN p.row_pj
        WHEN 'merge' THEN p.merge_pj
        WHEN 'hop' THEN p.hop_pj * coalesce(bits, p.word_bits)
        WHEN 'rotate' THEN p.hop_pj * coalesce(bits, p.word_bits)
        WHEN 'endpoint' THEN p.endpoint_pj * coalesce(bits, p.word_bits)
        WHEN 'rotate_endpoint' THEN p.endpoint_pj * coalesce(bits, p.word_bits)
        WHEN 'compute' THEN CASE kind WHEN 'mac' THEN p.mac_pj WHEN 'copy' THEN 0 ELSE p.alu_pj END
        WHEN 'fold' THEN 0
        ELSE error('traffic: no price for the action ' || action)
    END * occurrences * elems AS energy_pj
FROM internal.moved
UNION ALL BY NAME
SELECT machine, schedule, workload, einsum, p.level AS level, '-' AS tensor, 'leak' AS action, cycles * p.leak_mw * p.instances / p.clock_ghz AS energy_pj
FROM (SELECT *, unnest(levels) AS p FROM internal.timed) WHERE p.leak_mw > 0;

-- Area and energy per point, workload and component; a component without traffic has its area.
CREATE OR REPLACE VIEW components AS
SELECT machine, schedule, workload, component, max(instances) AS instances, sum(area_mm2) AS area_mm2, sum(dynamic_pj) AS dynamic_pj, sum(static_pj) AS static_pj,
    sum(dynamic_pj + static_pj) AS energy_pj
FROM (
    SELECT machine, schedule, workload, level AS component, NULL::BIGINT AS instances, 0.0::DOUBLE AS area_mm2,
        CASE WHEN action = 'leak' THEN 0 ELSE energy_pj END AS dynamic_pj, CASE WHEN action = 'leak' THEN energy_pj ELSE 0 END AS static_pj
    FROM traffic
    UNION ALL
    SELECT machine, schedule, workload, p.level, p.instances, coalesce(p.area_mm2, 0) * p.instances, 0, 0
    FROM (SELECT machine, schedule, workload, unnest(levels_of(machine)) AS p
          FROM (SELECT machine, schedule, workload FROM internal.packed UNION SELECT machine, schedule, workload FROM internal.not_unfused)))
GROUP BY ALL;

-- Points at other prices, each of these multiplied by a factor: FROM what_if({dram_pj: 0.5, 'gbuf.read_pj': 1.2}). Mappings are chosen again among all of the run that fit; how many
-- distinct einsums got another one is `remapped`; a search at these prices may find less energy by `optimality_gap` at most. Machines without a schedule are left out. machines := [17, 18]: of these alone.
CREATE OR REPLACE MACRO what_if(factors, machines := 'all') AS TABLE
SELECT w.machine, [axes of m]w.* EXCLUDE (machine), m.* EXCLUDE (machine, area_mm2, bound_energy_pj[axes])
FROM (SELECT unnest(what_if_of(to_json(factors)::VARCHAR, to_json(machines)::VARCHAR), recursive := true)) w JOIN main.machines m USING (machine);

-- The share of samples of prices in which a point is on the front, mappings chosen again: FROM robust({dram_pj: 0.2, sram_pj: 0.1}, 100). Each price is multiplied by (1 + spread) ** z,
-- z of a standard normal distribution. machines := [17, 18]: on the front of these alone.
CREATE OR REPLACE MACRO robust(spreads, samples, seed := 0, machines := 'all') AS TABLE
SELECT r.share_on_front, d.*
FROM (SELECT unnest(robust_of(to_json(spreads)::VARCHAR, samples::BIGINT, seed::BIGINT, to_json(machines)::VARCHAR), recursive := true)) r JOIN main.designs d USING (machine);
