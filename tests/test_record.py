"""Every column has a type, a unit and a meaning; keys and metadata are what readers rely on."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dse.run import record
from dse.run.record import Column

UNITS = {
    "_pj": "pJ",
    "_ns": "ns",
    "_cycles": "cycles",
    "_mw": "mW",
    "_mm2": "mm2",
    "_bytes": "B",
    "_bits": "bit",
    "_ghz": "GHz",
    "_pj_ns": "pJ ns",
}


@pytest.mark.parametrize("table", record.TABLES)
def test_columns_are_explained_and_named_by_their_unit(table: str) -> None:
    for name, column in record.TABLES[table].items():
        assert column.meaning, name
        ends = [end for end in UNITS if name.endswith(end)]
        if ends:
            assert column.unit == UNITS[max(ends, key=len)], name
    assert set(record.KEYS[table]) <= set(record.TABLES[table])


@pytest.mark.parametrize("table", record.TABLES)
def test_schema_survives_parquet_with_units_and_a_studys_own_columns(table: str) -> None:
    schema = record.schema(table, {"array_x": Column("int64", "", "parameter array.x of the machine")})
    file = io.BytesIO()
    pq.write_table(schema.empty_table(), file)
    back = pq.read_schema(file)
    assert back.names == [*record.TABLES[table], "array_x"]
    for name, column in record.TABLES[table].items():
        assert back.field(name).metadata[b"unit"].decode() == column.unit
        assert back.field(name).metadata[b"meaning"].decode() == column.meaning
    assert back.field("array_x").type == pa.int64()
