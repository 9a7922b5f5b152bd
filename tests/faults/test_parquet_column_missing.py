import re

import pyarrow as pa
import pyarrow.parquet as pq


def test_the_column_and_what_asks_for_it_are_named(run, tmp_path):
    file = tmp_path / "bare.parquet"
    pq.write_table(pa.table({"prompt": ["a"], "data_source": ["b"]}), file)
    one = run(f"data.train_files={file}").start().finish()
    assert one.code == 2
    (told,) = one.errors
    assert told.startswith("error: ") and told.endswith(
        f".sh: data.train_files: {file} has no column 'reward_model' (veRL's reward managers);"
        " it has data_source, prompt"
    )
    assert not one.job.exists()


def test_a_file_that_is_no_parquet(run, tmp_path):
    file = tmp_path / "text.parquet"
    file.write_text("no")
    one = run(f"data.val_files={file}").start().finish()
    assert one.code == 2
    assert f"data.val_files: {file} is not a Parquet file" in one.errors[0]


def test_fewer_rows_than_a_batch(run, tmp_path):
    file = tmp_path / "few.parquet"
    row = {"prompt": [{"role": "user", "content": "1"}], "data_source": "x", "reward_model": {"a": "1"}}
    pq.write_table(pa.Table.from_pylist([row] * 7), file)
    one = run(f"data.train_files={file}").start().finish()
    assert one.code == 2
    said = r"error: \S+\.sh:\d+: data.train_batch_size=8, but data.train_files hold 7 rows"
    assert re.fullmatch(said, one.errors[0])
    assert not one.job.exists()
