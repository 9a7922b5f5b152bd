"""Tasksets of ``storage_type: sql``: the rows of a table that trinity-rft writes its tasks to.

Source: ``TaskModel`` in buffer/schema/sql_schema.py of trinity-rft 0.6.0: the table has the taskset's name,
an ``id`` and the row itself as JSON in ``raw_task``; rows come in the order of their ids.
"""

from __future__ import annotations

from pathlib import Path

import datasets
import sqlalchemy as sa

from trinity_compat.common import database_url
from trinity_compat.common.errors import UserError
from trinity_compat.common.redaction import without_passwords


def table_rows(path: str, table: str, place: str) -> datasets.Dataset:
    """The rows of ``table``.

    ``path``: a database's URL, or an SQLite file; ``place``: of the taskset, for messages. Raises UserError
    where there is no such table, or one without rows.
    """
    url = path if "://" in path else database_url.of_file(Path(path))
    tasks = sa.table(table, sa.column("id"), sa.column("raw_task", sa.JSON))
    where = f"{place}.path={without_passwords(path)}"
    try:
        engine = sa.create_engine(url)
        if not sa.inspect(engine).has_table(table):
            raise UserError(f"{where}: it has no table {table!r}", hint="the table has the taskset's name")
        with engine.connect() as connection:
            found = connection.execute(sa.select(tasks.c.raw_task).order_by(tasks.c.id)).scalars().all()
    except (sa.exc.SQLAlchemyError, ModuleNotFoundError) as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise UserError(
            f"{where}: the table {table!r} cannot be read ({without_passwords(reason)})",
            hint="write sqlite:///FILE or postgresql+psycopg://…; the table has the taskset's name",
        ) from error
    if not found:
        raise UserError(f"{where}: the table {table!r} has no rows")
    return datasets.Dataset.from_list(found)
