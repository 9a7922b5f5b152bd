"""A job's checkpoints as veRL writes them: ``global_step_N/actor``, and a marker with the last step.

``damage`` decides what a whole checkpoint is, ``newest`` from which one a run continues. Neither opens a
pickle: a shard's archive is read, not its tensors.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypedDict

from trinity_compat.common import regular_files
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.common.training_engines import engine_of
from trinity_compat.job.state_cell import StateCell

MARKER = "latest_checkpointed_iteration.txt"
HELD = "latest_checkpointed_iteration.held"  # of a checkpoint whose step is not logged yet
STATE = "trinity.json"
LAST = "data.pt"  # the last file of a checkpoint that veRL writes
BENCHED = StateCell[str]("bench")  # fingerprint with which mode bench has evaluated a step's
_STEP = re.compile(r"global_step_(\d{1,18})")
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_SHARD = re.compile(r"(\w+)_world_size_(\d{1,7})_rank_(\d{1,7})\.pt")
_SHARDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}  # by veRL's load_contents
# Types of trinity.json's values, as JSON has them; those of its position are buffer.stream_position's.
_KINDS: Mapping[str, tuple[type, ...]] = {"step": (int,), "kl_coef": (int, float, type(None)), "position": ()}
_POSITION: Mapping[str, tuple[type, ...]] = {
    "below": (int,),
    "beyond": (list,),
    "buffer": (str, type(None)),
    "history": (int,),
    "stream": (int, type(None)),
}
_LONGEST_HEADER = 100 << 20  # bytes, as safetensors itself admits


class CheckpointState(TypedDict, total=False):
    """State stored beside a checkpoint, in ``trinity.json``.

    Its step, the adaptive KL coefficient, and the position in the task stream (``Buffer.position``).
    """

    step: int
    kl_coef: float | None
    position: Tree


@dataclass(frozen=True, slots=True)
class LoadedRole:
    """A part of a checkpoint that a resume loads: ``actor`` or ``critic``.

    ``shards``: kinds of FSDP's files that each rank loads, () for another engine's checkpoint.
    ``everywhere``: whether all ranks write into this machine's folder.
    """

    name: str
    shards: tuple[str, ...] = ()
    everywhere: bool = True


def loaded_roles(verl: Tree, *, critic: bool) -> tuple[LoadedRole, ...]:
    """Return what a resume under veRL's configuration loads; ``critic``: whether it trains one."""
    sections = {"actor": "actor_rollout_ref.actor", **({"critic": "critic"} if critic else {})}
    here = int(value_at(verl, "trainer.nnodes") or 1) == 1
    return tuple(LoadedRole(name, _shards(verl, section), here) for name, section in sections.items())


def _shards(verl: Tree, section: str) -> tuple[str, ...]:
    if engine_of(value_at(verl, f"{section}.strategy")).merger != "fsdp":
        return ()
    contents = value_at(verl, f"{section}.checkpoint.load_contents")
    if isinstance(contents, str):  # veRL's default refers to what is saved
        contents = value_at(verl, f"{section}.checkpoint.save_contents")
    named = tuple(_SHARDS) if contents is None or isinstance(contents, str) else contents
    return tuple(_SHARDS[name] for name in named if name in _SHARDS)


def last_step(job: Path) -> int | None:
    """Return the step of the marker, from which a resume continues; None without one, or for other text."""
    return _step_in(job / MARKER)


def _step_in(marker: Path) -> int | None:
    try:
        text = regular_files.followed_text(marker).strip()
    except (OSError, ValueError):
        return None
    return int(text) if _NUMBER.fullmatch(text) else None


def folders(job: Path) -> dict[int, Path]:
    """Return the folders of checkpoints by step, whole or not."""
    found = ((_STEP.fullmatch(path.name), path) for path in job.glob("global_step_*"))
    return {int(match[1]): path for match, path in found if match}


def actor_of(job: Path, step: int) -> Path:
    """Return the folder of a step's actor."""
    return job / f"global_step_{step}" / "actor"


def whole_steps(job: Path) -> tuple[int, ...]:
    """Return the steps with an actor to evaluate or serve.

    veRL writes the marker last, so a folder of a later step is half a checkpoint.
    """
    last = last_step(job)
    whole = [step for step in folders(job) if any(actor_of(job, step).glob("*"))]
    return tuple(sorted(step for step in whole if last is None or step <= last))


def newest_finished(job: Path) -> int | None:
    """Return the step of the folder whose last file was written last; None without one.

    A folder of a higher step may be one that a resume has voided.
    """
    ages = {
        step: (folder / LAST).stat().st_mtime_ns
        for step, folder in folders(job).items()
        if (folder / LAST).exists() and (folder / "actor").is_dir()
    }
    return max(ages, key=lambda step: (ages[step], step), default=None)


def read_state(folder: Path) -> CheckpointState:
    """Read the state of a checkpoint; empty for one of stock veRL. Raises UserError for a damaged one."""
    path = folder / STATE
    try:
        kept: CheckpointState = json.loads(regular_files.followed_text(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} {_why(error) or 'is not JSON: it was cut off or changed'}") from error
    if not isinstance(kept, dict) or not all(_is_valid(name, value) for name, value in kept.items()):
        raise UserError(f"{path} is not the state of a checkpoint: it was changed")
    if "step" in kept and folder.name.rpartition("_")[2] != str(kept["step"]):
        raise UserError(f"{path} is of step {kept['step']}: its folder was renamed to {folder.name}")
    return kept


def _is_valid(name: str, value: object) -> bool:
    kinds = _KINDS.get(name)
    if name == "position" and isinstance(value, Mapping):
        return "below" in value and all(
            isinstance(part, _POSITION.get(key, ())) for key, part in value.items()
        )
    return kinds is None or isinstance(value, kinds)


def damage(folder: Path, roles: Sequence[LoadedRole]) -> str:
    """Return '' for a checkpoint that a resume can load, else a sentence that names the damaged file."""
    if not folder.is_dir():
        return f"{folder} is missing: it was moved or deleted, or its disk is not mounted"
    try:
        read_state(folder)
    except UserError as error:
        return error.message
    return next((found for role in roles if (found := _damage_of_role(folder / role.name, role))), "")


def _damage_of_role(folder: Path, role: LoadedRole) -> str:
    if not folder.is_dir():
        return f"{folder} is missing"
    files = sorted(path for path in folder.rglob("*") if not path.is_dir())
    if not files:
        return f"{folder} is empty"
    if missing := _missing_shard(folder, role):
        return f"{missing} is missing"
    for path in files:
        if found := _damage_of_file(path, folder):
            return f"{path} {found}"
    return ""


def _missing_shard(folder: Path, role: LoadedRole) -> Path | None:
    """Return the first file that some rank would not find; None where all are there."""
    if not role.everywhere:
        return None
    have = {match.groups() for path in folder.iterdir() if (match := _SHARD.fullmatch(path.name))}
    missing = []
    for size in sorted({size for _, size, _ in have} or {"1"}, key=int):
        ranks = [(kind, str(rank)) for kind in role.shards for rank in range(int(size))]
        absent = next(((kind, rank) for kind, rank in ranks if (kind, size, rank) not in have), None)
        if absent is None:  # another number of ranks may have written there before
            return None
        missing.append(folder / f"{absent[0]}_world_size_{size}_rank_{absent[1]}.pt")
    return missing[-1]


def _damage_of_file(path: Path, role: Path) -> str:
    """Return what is wrong with a file, as the end of a sentence; '' for one that is whole or unknown."""
    look = _LOOKS.get(path.suffix if path.name != ".metadata" else path.name)
    # Beside the shards are those of a Hugging Face model, of which a resume reads weights at most.
    if look is None or (look is _json_damage and path.parent != role):
        return ""
    try:
        with regular_files.followed(path) as file:
            return "is empty" if not file.read(1) else look(file)
    except OSError as error:
        return _why(error)


def _torch_damage(file: BinaryIO) -> str:
    """A file of torch.save is a zip archive: its directory, at the end, has the place of each part."""
    file.seek(0)
    if file.read(1) == b"\x80":  # a pickle without an archive, as torch before 1.6 wrote it
        return ""
    try:
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return "is truncated, or not a file of torch.save: the end of its zip archive is missing"
    at = sorted(part.header_offset for part in parts)
    if not at or at[0]:
        return "is damaged: bytes of its archive are missing"
    for offset in at:
        file.seek(offset)
        if file.read(4) != b"PK\x03\x04":
            return f"is damaged: its archive has no part at byte {offset}"
    return ""


def _safetensors_damage(file: BinaryIO) -> str:
    file.seek(0)
    size = int.from_bytes(file.read(8), "little")
    if not 2 <= size <= _LONGEST_HEADER:
        return "is damaged: it does not begin with a safetensors header"
    try:
        parts = json.loads(file.read(size))
        ends = [int(part["data_offsets"][1]) for name, part in parts.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return "is truncated or damaged: its header is not a safetensors header"
    wanted = 8 + size + max(ends, default=0)
    have = file.seek(0, 2)
    return f"is truncated: it has {have} of {wanted} bytes" if have < wanted else ""


def _json_damage(file: BinaryIO) -> str:
    file.seek(0)
    try:
        json.loads(file.read())
    except (ValueError, RecursionError):
        return "is not JSON: it was cut off or changed"
    return ""


def _pickle_damage(file: BinaryIO) -> str:
    file.seek(-1, 2)
    return "" if file.read(1) == b"." else "is truncated: the end of its pickle is missing"


_LOOKS: Mapping[str, Callable[[BinaryIO], str]] = {
    ".pt": _torch_damage,
    ".safetensors": _safetensors_damage,
    ".json": _json_damage,
    ".metadata": _pickle_damage,
}


def _why(error: BaseException) -> str:
    """Return the end of a sentence for an error of a read, '' for one of the content."""
    if not isinstance(error, OSError):
        return ""
    text = error.strerror or str(error)
    return text if text.startswith("is ") else f"cannot be read: {text}"


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """The checkpoint from which a job continues. ``step`` is None without one: it starts from the beginning.

    ``problem`` is '' or says why it cannot be continued from, and ``hint`` what to write instead.
    """

    step: int | None
    problem: str = ""
    hint: str = ""

    def check(self) -> None:
        """Raise UserError where a run would not continue from it."""
        if self.problem:
            raise UserError(self.problem, hint=self.hint)


def check_named(folder: Path, roles: Sequence[LoadedRole]) -> None:
    """Raise UserError where a resume cannot load the checkpoint that ``trainer.resume_from_path`` names."""
    if problem := damage(folder, roles):
        last = last_step(folder.parent)
        raise UserError(
            f"trainer.resume_from_path={folder}: {problem}",
            hint=instead(folder.parent, int(folder.name.rpartition("_")[2]), roles)
            if last is not None
            else None,
        )


def newest(
    job: Path, roles: Sequence[LoadedRole], *, is_ours: Callable[[int, CheckpointState], bool] | None = None
) -> NewestCheckpoint:
    """Return the checkpoint from which a run of ``job`` continues, and what is wrong with it.

    ``is_ours`` says whether a checkpoint is on the line that the job has trained last, and not on a branch
    that a resume has left; it is asked only where another checkpoint than the newest is offered.
    """
    step = last_step(job)
    if step is None:
        return _unmarked(job, roles, is_ours)
    folder = job / f"global_step_{step}"
    if not (problem := damage(folder, roles)):
        return NewestCheckpoint(step)
    problem = f"{job / MARKER} names step {step}, but {problem}"
    return NewestCheckpoint(step, problem, instead(job, step, roles, is_ours))


def _unmarked(
    job: Path, roles: Sequence[LoadedRole], is_ours: Callable[[int, CheckpointState], bool] | None
) -> NewestCheckpoint:
    """A marker that is missing or torn.

    veRL truncates the marker before it writes the step, after ``data.pt``: a torn one means the folder that
    was finished last. Without a marker no checkpoint may be finished but the first one, whose step was not
    logged before a death.
    """
    marker = job / MARKER
    if marker.exists() and (step := newest_finished(job)) is not None:
        problem = damage(job / f"global_step_{step}", roles)
        return NewestCheckpoint(step, problem, instead(job, step, roles, is_ours) if problem else "")
    first = _step_in(job / HELD)
    finished = [step for step, folder in folders(job).items() if (folder / LAST).exists() and step != first]
    if not finished:
        return NewestCheckpoint(None)
    names = ", ".join(f"global_step_{step}" for step in sorted(finished)[-3:])
    problem = f"{marker} is missing, which names the newest checkpoint, though {names} is in the job"
    return NewestCheckpoint(None, problem, instead(job, None, roles, is_ours))


def instead(
    job: Path,
    newest_step: int | None,
    roles: Sequence[LoadedRole],
    is_ours: Callable[[int, CheckpointState], bool] | None = None,
) -> str:
    """Return what to write to continue from the newest whole checkpoint but one, or to start over."""
    over = "trainer.resume_mode=disable starts over, and renames this job"
    finished = {
        step: folder
        for step, folder in sorted(folders(job).items(), reverse=True)
        if step != newest_step and (folder / LAST).exists()
    }
    # A later folder may be half written, or on a branch that a resume has left.
    offered = [step for step in finished if newest_step is None or step < newest_step]
    if is_ours and (ours := [step for step, folder in finished.items() if _asked(is_ours, step, folder)]):
        offered = ours
    chosen = next((step for step in offered if not damage(finished[step], roles)), None)
    if chosen is None:
        return f"put it back; no other checkpoint of this run is whole. {over}"
    return (
        f"put it back, or continue from the newest whole checkpoint, that of step {chosen}, with"
        f" trainer.resume_mode=resume_path trainer.resume_from_path={finished[chosen]}. {over}"
    )


def _asked(is_ours: Callable[[int, CheckpointState], bool], step: int, folder: Path) -> bool:
    try:
        return is_ours(step, read_state(folder))
    except UserError:  # damaged too
        return False
