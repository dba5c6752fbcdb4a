-- Actions and energy per point, einsum, level, tensor and action, of all runs of the einsum; leakage is not in it.
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
WHERE c.action <> 'enter';
