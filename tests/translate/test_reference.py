"""The generated pages have what the site shows."""

import sys
from pathlib import Path

from trinity_compat.common.releases import TRINITY
from trinity_compat.translate.explain import all_keys, codes, reading_codes
from trinity_compat.translate.rows import load_rows
from trinity_compat.translate.trinity_fields import fate_of, fields
from trinity_compat.trinity.config.schema import schema

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "site"))

from reference_pages import fields_page, findings_page, ignored_page, mapping_page, reading_page


def test_the_page_of_the_findings_has_a_heading_for_each_code_with_what_it_means():
    parts = dict(part.split("\n\n", 1) for part in findings_page().split("\n## ")[1:])
    assert list(parts) == list(codes())
    assert all(f"**{about['title']}.** {about['text']}" in parts[code] for code, about in codes().items())
    assert all(about["hint"] in parts[code] for code, about in codes().items())


def test_the_page_of_the_mapping_has_each_row_with_a_link_to_its_code():
    page, rows = mapping_page(load_rows()), load_rows().all()
    links = {row.key: f"[{row.code}](../findings.md#{row.code.lower()})" for row in rows}
    lines = [line for key in links for line in page.splitlines() if line.startswith(f"| `{key}` |")]
    assert len(lines) == len(links) > 300
    assert all(links[line.split("`")[1]] in line for line in lines)
    count = len(all_keys())
    assert f"{count} keys in the union of all veRL releases" in page
    assert f"; {count} of them have a" in page


def test_the_page_of_ignored_keys_has_a_key_with_where_stock_verl_reads_it_last():
    (newest, *_) = (
        line.split(" | ")
        for line in ignored_page().splitlines()
        if line.startswith("| `actor_rollout_ref.actor.ppo_micro_batch_size` |")
    )
    assert newest[1] == (
        "only checks it (verl/workers/config/actor.py:200): the engine takes ppo_micro_batch_size_per_gpu"
    )
    assert newest[2] == "0.7.0"


def test_the_page_of_the_codes_of_reading_has_each():
    page = reading_page()
    assert [line.split(" | ")[0][2:] for line in page.splitlines() if line.startswith("| TP")] == list(
        reading_codes()
    )
    assert "| TP201 | the release has no such key" in page


def test_the_page_of_the_fields_has_each_with_its_fate():
    page = fields_page().splitlines()
    paths = {path for path in fields(schema(TRINITY)) if not path.startswith("stages.")}
    assert {line.split("`")[1]: line.split(" | ")[1] for line in page if line.startswith("| `")} == {
        path: fate_of(path).kind for path in paths
    }
    assert (
        "| `algorithm.enable_router_replay` | refused | the buffer does not store expert routes;"
        " write false |" in page
    )
