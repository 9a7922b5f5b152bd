"""The pages that make_reference.py writes: the mapping, the fields of a Trinity YAML, the codes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trinity_compat.common.releases import TRINITY, VERL, VERL_RELEASES
from trinity_compat.translate.explain import HOW_READS, all_keys, codes, reading_codes, releases_with, spans
from trinity_compat.translate.rows import MappingRow, MappingTable, no_effect_when_decoupled
from trinity_compat.translate.trinity_fields import FieldTreatment, Kind, fate_of, fields
from trinity_compat.trinity.config.schema import schema
from trinity_compat.verl_config import FLAVOURS
from trinity_compat.verl_config.reads import FOLLOWED, read_of, read_until, table_of

_SECTIONS = {
    "data": "data",
    "algorithm": "algorithm",
    "actor_rollout_ref.actor": "actor",
    "actor_rollout_ref.ref": "reference model",
    "actor_rollout_ref.model": "model",
    "actor_rollout_ref.rollout": "rollout",
    "critic": "critic",
    "reward": "reward",
    "trainer": "trainer",
}
_HEAD = """# Mapping reference

Generated from `translators/by_hand/rows/` by `scripts/site/make_reference.py`.

How each veRL key becomes Trinity's. A name that ends in `.*` is a rule for everything below it, one
that begins with `*.` for a last part. r = data.train_batch_size ÷ actor.ppo_mini_batch_size. Keys of
older veRL releases are first carried forward to {verl}'s names ([versions](../versions.md)).

{count} keys in the union of all veRL releases ({releases}, both flavours); {covered} of them have a
row or fall under a rule."""


def mapping_page(rows: MappingTable) -> str:
    """reference/mapping.md."""
    keys = all_keys()
    covered = sum(rows.find(key) is not None for key in keys)
    parts = [_HEAD.format(verl=VERL, releases=spans(list(VERL_RELEASES)), count=len(keys), covered=covered)]
    left = sorted(rows.all(), key=lambda row: (row.key.endswith("*"), row.key))
    for prefix, title in _SECTIONS.items():
        mine = [row for row in left if row.key.startswith(prefix + ".")]
        left = [row for row in left if row not in mine]
        parts.append(_table(title, mine))
    parts.append(_table("everything else", left))
    parts.append(_meaningless())
    return "\n\n".join(parts) + "\n"


def _table(title: str, rows: Iterable[MappingRow]) -> str:
    head = "| veRL | how | Trinity | why | code | veRL releases |"
    lines = [f"## {title}", "", head, "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_line, rows)])


def _line(row: MappingRow) -> str:
    paths = [f"`{path}`" for path in row.to]
    paths += [f"`{path}` ({target})" for target, named in row.targets.items() for path in named]
    if row.how == "pass":
        paths.append("`trainer.trainer_config.` + the key")
    how = HOW_READS[row.how] + (f" (`{row.by}`)" if row.by else "")
    code = f"[{row.code}](../findings.md#{row.code.lower()})"
    versions = spans(releases_with(row.key)) if "*" not in row.key else ""
    return f"| `{row.key}` | {how} | {'<br>'.join(paths) or '–'} | {row.why} | {code} | {versions} |"


_IGNORED_HEAD = """# Keys that veRL accepts and ignores

Generated from `translators/generated/verl/reads/` by `scripts/site/make_reference.py`.

For each release the keys of `main_ppo`'s configuration that none of its code reads, that are only stored, or
that are only checked, so that another value changes nothing. `trinity-compat ignored run.sh` lists those that
a script sets. How this was found, and how precise it is: [stock-reads.md](../stock-reads.md)."""


def ignored_page() -> str:
    """reference/ignored.md."""
    parts = [_IGNORED_HEAD]
    for version in reversed(FOLLOWED):
        head = "| key | stock veRL | read until | with |"
        rows = [f"## veRL {version}", "", head, "|---|---|---|---|", *_ignored_rows(version)]
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _ignored_rows(version: str) -> Iterator[str]:
    for key in sorted({key for flavour in FLAVOURS for key in table_of(version, flavour)}):
        found = {flavour: read_of(key, version, flavour) for flavour in FLAVOURS}
        here = {flavour: read for flavour, read in found.items() if read is not None}
        if ignored := {flavour: read for flavour, read in here.items() if read.ignored}:
            flavour, read = next(iter(ignored.items()))
            engines = "" if len(ignored) == len(here) == 2 else ", ".join(map(_ENGINES.__getitem__, ignored))
            yield f"| `{key}` | {read.words} | {read_until(key, version, flavour)} | {engines} |"


_ENGINES = {"ppo_trainer": "FSDP", "ppo_megatron_trainer": "Megatron"}


def _meaningless() -> str:
    lines = [
        "## Without effect when decoupled",
        "",
        "These have no effect once explorer and trainer are separate.",
        "",
    ]
    return "\n".join([*lines, *(f"- `{key}`: {why}" for key, why in no_effect_when_decoupled().items())])


_READING_HEAD = """# Codes of reading

Generated from `translators/by_hand/reading_codes.json` by `scripts/site/make_reference.py`.

TP0… and TP1… come from [reading a script](../parse.md), TP2… from [composing a launch](../versions.md).
Of TP2… 205, 210, 213 and 214 are warnings, the others errors.

| code | meaning |
|---|---|"""


def reading_page() -> str:
    """reference/reading.md."""
    escaped = ((code, text.replace("|", "\\|")) for code, text in reading_codes().items())
    return "\n".join([_READING_HEAD, *(f"| {code} | {text} |" for code, text in escaped), ""])


_FINDINGS_HEAD = """# Findings and cautions

Generated from `translators/by_hand/codes.json` by `scripts/site/make_reference.py`.

The keys of each code are in the [mapping reference](reference/mapping.md); `trinity-compat explain TC021`
says the same."""


def findings_page() -> str:
    """Return findings.md: each code under a heading of its own, to which links lead."""
    return "\n\n".join([_FINDINGS_HEAD, *map(_of_code, codes())]) + "\n"


def _of_code(code: str) -> str:
    entry = codes()[code]
    hint = f"\n\nWhat to do: {entry['hint']}" if entry["hint"] else ""
    return f"## {code}\n\n**{entry['title']}.** {entry['text']}{hint}"


def fields_page() -> str:
    """Return reference/trinity.md: every field with its treatment."""
    paths = dict.fromkeys(path for path in fields(schema(TRINITY)) if not path.startswith("stages."))
    fates = {path: fate_of(path) for path in paths}
    counts = {kind: sum(fate is not None and fate.kind == kind for fate in fates.values()) for kind in _KINDS}
    lines = [
        "# Fields of a Trinity YAML",
        "",
        "Generated from `translators/by_hand/trinity_fields.json` by `scripts/site/make_reference.py`.",
        "",
        "What [a run](../trinity.md) makes of each field of trinity-rft 0.6.0 in a file by hand.",
        "`*` is a position in a list, or any name. Refused is a value that is not upstream's default. In a",
        "stage a field is what it is in the whole.",
        "",
        f"{len(paths)} fields: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()) + ".",
        "",
        "| field | a run | why |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *(_field_row(path, fate) for path, fate in fates.items() if fate), ""])


_KINDS: tuple[Kind, ...] = ("read", "no effect", "refused")


def _field_row(path: str, fate: FieldTreatment) -> str:
    why = "; ".join(text for text in (fate.why, fate.hint) if text)
    return f"| `{path}` | {fate.kind} | {why} |"
