-- Actions and energy per point, einsum, level, tensor and action, of all runs of the einsum. Leakage of a level (action leak) is billed over the cycles of the
-- einsum; of stages of a pipeline over those of their segment, which stands for the einsum, and back to back where the segment is the whole schedule.
CREATE OR REPLACE VIEW traffic AS
SELECT
    e.machine, e.schedule, e.workload, e.einsum, c.level, c.tensor, c.action,
    e.count * c.elems AS elems,
    e.count * c.elems * coalesce(c.bits, p.word_bits) / 8 AS bytes,
    CASE c.action
        WHEN 'read' THEN p.read_pj * coalesce(c.bits, p.word_bits) / p.width_bits
        WHEN 'write' THEN p.write_pj * coalesce(c.bits, p.word_bits) / p.width_bits
        WHEN 'unused_read' THEN p.read_pj / p.width_bits
        WHEN 'unused_write' THEN p.write_pj / p.width_bits
        WHEN 'modify' THEN p.read_pj / p.width_bits
        WHEN 'open_read' THEN p.row_pj
        WHEN 'open_write' THEN p.row_pj
        WHEN 'merge' THEN p.merge_pj
        WHEN 'hop' THEN p.hop_pj * coalesce(c.bits, p.word_bits)
        WHEN 'rotate' THEN p.hop_pj * coalesce(c.bits, p.word_bits)
        WHEN 'lane' THEN p.lane_pj * coalesce(c.bits, p.word_bits)
        WHEN 'rotate_lane' THEN p.lane_pj * coalesce(c.bits, p.word_bits)
        ELSE CASE e.kind WHEN 'mac' THEN p.mac_pj WHEN 'copy' THEN 0 ELSE p.alu_pj END
    END * e.count * c.elems AS energy_pj
FROM einsums e JOIN counts c USING (mapping_key) JOIN prices p ON (p.machine = e.machine AND p.level = c.level)
WHERE c.action <> 'enter'
UNION ALL BY NAME
SELECT t.machine, t.schedule, t.workload, t.einsum, p.level, '-' AS tensor, 'leak' AS action, t.cycles * p.leak_mw * p.instances / m.clock_ghz AS energy_pj
FROM (
    SELECT machine, schedule, workload, einsum, count * latency_cycles AS cycles FROM einsums e
    WHERE NOT EXISTS (FROM segments s WHERE granules IS NOT NULL AND (s.machine, s.schedule, s.workload) = (e.machine, e.schedule, e.workload)
                      AND list_contains(string_split(s.einsums, ' | '), e.einsum))
    UNION ALL
    SELECT s.machine, s.schedule, s.workload, s.einsums, CASE w.segments WHEN 1 THEN s.steady_cycles ELSE s.latency_cycles END
    FROM segments s JOIN schedules w USING (machine, schedule, workload) WHERE granules IS NOT NULL
) t JOIN machines m USING (machine) JOIN prices p USING (machine)
WHERE p.leak_mw > 0;
