"""Preflight check: files, columns, ports, disk and packages, before anything starts.

Each check raises UserError with what is wrong and what to do. None imports torch, ray or verl.
"""

from __future__ import annotations

import ast
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_compat.common import optional_packages
from trinity_compat.common.database_url import file_of
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, section_at, value_at
from trinity_compat.common.path_ownership import check_checkpoint, check_job
from trinity_compat.common.paths import from_home
from trinity_compat.common.releases import VERL
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.explorer.rewards.reward_model.address import is_served
from trinity_compat.explorer.rewards.reward_model.models import MODEL as REWARD
from trinity_compat.explorer.rewards.reward_model.models import NO_HEAD, architectures_in, needs_head
from trinity_compat.job import dynamic_dataset
from trinity_compat.job.checkpoints import check_named, last_step
from trinity_compat.job.distillation import teacher_entries
from trinity_compat.job.run_spec import RowFormat, RowsSpec, RunSpec
from trinity_compat.job.served_models import served_models
from trinity_compat.run.checks import loggers, teachers, upstream_symbols
from trinity_compat.run.job_dir import resume_point
from trinity_compat.run.plan import overlay
from trinity_compat.run.plan.file_rows import SUFFIXES
from trinity_compat.run.plan.micro_batches import has_critic
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.translate.sections.reward import AUXILIARY, TEACHER
from trinity_compat.translate.verl_names import REWARD_MANAGERS
from trinity_compat.trinity.pipelines import SECTION as PIPELINE
from trinity_compat.trinity.pipelines.juicer import PACKAGE as JUICER
from trinity_compat.trinity.pipelines.juicer import SECTION as TASK_PIPELINE

if TYPE_CHECKING:
    import pyarrow

_ROWS = (".parquet", ".json", ".jsonl")  # what HF datasets reads without a script
_RAYS_COPY = "working_dir_files"  # of a job's working_dir, on each machine
_MIN_FREE = 256 * 2**20  # bytes


def check(plan: RunPlan) -> None:
    """Run every check, cheapest first."""
    spec, verl = plan.spec, plan.spec.verl
    check_job(plan.job.root)
    optional_packages.need_for_a_run()
    if starts_juicer(verl):
        optional_packages.need(JUICER)
    if spec.serve:
        check_models(verl, cwd=plan.cwd)
        check_port(spec.serve.host, spec.serve.port)
    else:
        check_vllm(spec)
        if spec.mode not in ("explore", "bench"):
            overlay.check_flash_attn(verl, spec.device)
        loggers.check(verl)
        check_juicer(verl)
        check_models(verl, cwd=plan.cwd)
        if spec.rows:
            check_file_rows(spec.rows)
        else:
            check_dataset_class(spec, cwd=plan.cwd)
            check_data(verl, cwd=plan.cwd)
            check_cache()
        if spec.experts:
            check_file_rows(spec.experts.rows)
        check_reward_function(verl, cwd=plan.cwd)
        if spec.mode != "explore":
            check_resume(plan)
    check_disk(plan.job.root)
    check_ports(plan.ray)
    check_database(spec.database_url, plan.job.root)


def missing(plan: RunPlan) -> Iterator[UserError]:
    """Models, data and reward functions that a run would refuse.

    A dry run reports them as notes, as it may run on another machine.
    """
    # Not disk, ports or packages: those of the machine that runs it count.
    of_rows, experts = plan.spec.rows, plan.spec.experts
    models = partial(check_models, plan.spec.verl, cwd=plan.cwd)
    looks: list[Callable[[], None]] = (
        [models]
        if plan.spec.serve
        else [
            models,
            partial(check_juicer, plan.spec.verl),
            partial(check_dataset_class, plan.spec, cwd=plan.cwd),
            partial(check_file_rows, of_rows)
            if of_rows
            else partial(check_data, plan.spec.verl, cwd=plan.cwd),
            *([partial(check_file_rows, experts.rows)] if experts else []),
            partial(check_reward_function, plan.spec.verl, cwd=plan.cwd),
        ]
    )
    for look in looks:
        try:
            look()
        except UserError as error:
            yield error
        except ModuleNotFoundError as error:
            if (explanation := optional_packages.explained(error)) is None:
                raise
            yield UserError(f"the files were not checked: {explanation.message}", hint=explanation.hint)


def check_juicer(verl: Tree) -> None:
    """Files of tasks that Data-Juicer reads, and its configurations, exist."""
    operators = value_at(verl, f"{PIPELINE}.operators") or ()
    named = [
        *(("config_path", value_at(each, "args.config_path")) for each in operators),
        ("config_path", value_at(verl, f"{TASK_PIPELINE}.asked.config_path")),
        *(("inputs", path) for path in value_at(verl, f"{TASK_PIPELINE}.asked.inputs") or ()),
    ]
    for key, path in named:
        if path and not Path(str(path)).is_file():
            raise UserError(f"Data-Juicer's {key} names {path}, which does not exist")


def starts_juicer(verl: Tree) -> bool:
    """Return whether this run starts Data-Juicer's service, for its tasks or its answers."""
    operators = value_at(verl, f"{PIPELINE}.operators")
    services = [
        value_at(verl, f"{TASK_PIPELINE}.service"),
        *(value_at(each, "args.service_config") for each in operators or ()),
    ]
    return any(isinstance(each, Mapping) and "server_url" not in each for each in services)


def check_vllm(spec: RunSpec) -> None:
    """Raise UserError where the run's engines are vLLM's on GPUs, and the installed one cannot serve them."""
    engines = spec.mode != "train" and spec.rows is None
    if engines and spec.device != "cpu" and (fault := upstream_symbols.unfit_for_gpus()):
        raise UserError(fault, hint=optional_packages.install_command("gpu"))


def check_models(verl: Tree, *, cwd: Path) -> None:
    """Model folders exist and hold a config.json; names on a hub are left to the hub."""
    critic = ["critic.model.path"] if has_critic(verl) else []
    reward = [REWARD] if is_served(verl) else []
    teacher = [TEACHER] if value_at(verl, TEACHER) else []
    taught = (f"{entry.section}.model_path" for entry in teacher_entries(verl))
    named = ("actor_rollout_ref.model.path", *critic, *reward, *teacher, *taught)
    further = enumerate(served_models(verl)[1:], 1)
    for key, value in (
        *((key, value_at(verl, key)) for key in named),
        *((f"{AUXILIARY}.{place}.model_path", each.path) for place, each in further),
    ):
        if not value or "://" in str(value):
            continue
        path = _local(str(value), cwd)
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise UserError(f"{key}={value}: the folder holds no config.json, so it is not a model")
        elif _is_path(str(value)):
            raise UserError(
                f"{key}={value}: no such folder",
                hint="download the model there first, or name a folder that has one",
            )


def remarks(plan: RunPlan) -> Iterator[str]:
    """Yield notes that are no errors, for the start of a run and a dry run."""
    verl = plan.spec.verl
    model = _local(str(value_at(verl, REWARD)), plan.cwd)
    if is_served(verl) and needs_head(verl, architectures_in(model)):
        yield f"warning: {REWARD}={value_at(verl, REWARD)}: {NO_HEAD}"
    yield from teachers.tokenizer_remarks(verl, cwd=plan.cwd)
    if _RAYS_COPY in plan.job.root.parts:
        yield (
            "warning: the job's folder is in Ray's copy of the working directory, which ends with the"
            " cluster; the same command after an edit finds no checkpoint there: --job DIR (or"
            " trainer.default_local_dir) names a folder that every machine sees"
        )
    named, used = os.environ.get("TMPDIR"), tempfile.gettempdir()
    if named and Path(named).absolute() != Path(used):
        yield f"warning: TMPDIR={named} cannot be written to: {used} is used"


def check_resume(plan: RunPlan) -> None:
    """The checkpoint that the trainer will load is whole; veRL reads a folder …/global_step_N."""
    trainer = section_at(plan.spec.verl, "trainer")
    if trainer.get("resume_mode") != "resume_path":
        if trainer.get("resume_mode") == "auto" and plan.spec.resume and plan.spec.mode != "bench":
            point = resume_point.of(plan.job.root, plan.spec)
            point.check()
            if point.step is not None:
                check_checkpoint(plan.job.root / f"global_step_{point.step}")
        return
    named = str(trainer.get("resume_from_path") or "")
    path = _local(named, plan.cwd)
    if not named or not named.rsplit("global_step_", 1)[-1].isdigit():
        raise UserError(
            f"trainer.resume_mode=resume_path needs trainer.resume_from_path=…/global_step_N, not {named!r}",
            hint="trainer.resume_mode=auto takes the job's newest checkpoint by itself",
        )
    if not (path / "actor").is_dir():
        checkpoints = ", ".join(sorted(other.name for other in path.parent.glob("global_step_*/"))) or "none"
        raise UserError(
            f"trainer.resume_from_path={named}: no checkpoint there (no folder {path}/actor)",
            hint=f"checkpoints in {path.parent}: {checkpoints}",
        )
    check_named(path, resume_point.roles_of(plan.spec))
    check_checkpoint(path)


def _is_path(text: str) -> bool:
    """``/a/b``, ``./m``, ``~/m`` and deeper paths; ``org/name`` and ``name`` are names on a hub."""
    return text.startswith(("/", ".", "~")) or text.count("/") > 1


def _local(text: str, cwd: Path) -> Path:
    return cwd / from_home(text)


def check_dataset_class(spec: RunSpec, *, cwd: Path) -> None:
    """The class of ``data.custom_cls`` does not change its rows by what is trained; bench trains nothing."""
    if not spec.rows and spec.mode != "bench":
        dynamic_dataset.check_source(spec.verl, cwd=cwd)


def check_data(verl: Tree, *, cwd: Path) -> None:
    """Parquet files exist and hold the columns that veRL's dataset and reward read; tasksets exist."""
    data = section_at(verl, "data")
    made_first = value_at(verl, f"{TASK_PIPELINE}.asked.output_dir")
    for taskset in section_at(data, "tasksets").values():
        if str(_local(str(value_at(taskset, "path")), cwd)) != made_first:
            _check_taskset(taskset, cwd)
    if value_at(verl, "data.custom_cls.path"):
        return
    for key in ("train_files", "val_files"):
        for text in _listed(data.get(key)):
            if "://" not in text:
                _check_file(f"data.{key}", _local(text, cwd), data)
    _check_rows([_local(text, cwd) for text in _listed(data.get("train_files"))], data)


def _check_taskset(taskset: object, cwd: Path) -> None:
    """A path is a file or a folder with something in it; another name is the hub's."""
    named, place = str(value_at(taskset, "path")), value_at(taskset, "place")
    path = _local(named, cwd)
    if value_at(taskset, "storage_type") == "sql":  # a table: who reads it names what is wrong with it
        return
    if path.is_dir():
        if not any(file.suffix in _ROWS for file in path.rglob("*")):
            raise UserError(f"{place}.path={named}: the folder holds no {', '.join(_ROWS)} file")
    elif not path.is_file() and (_is_path(named) or path.suffix in _ROWS):
        raise UserError(f"{place}.path={named}: no such file or folder")
    _check_prompts(taskset, path)


def _check_prompts(taskset: object, path: Path) -> None:
    """Some Parquet file of it has the column of the prompts. A plugin's workflow may read others."""
    column = value_at(taskset, "format.prompt_key")
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    files = [file for file in files if file.suffix == ".parquet"]
    if not column or not files or value_at(taskset, "plugin") or value_at(taskset, "program"):
        return
    key = f"{value_at(taskset, 'place')}.format.prompt_key"
    have = sorted(set().union(*(_columns(key, file) for file in files)))
    if column not in have:
        raise UserError(f"{key}={column}: {path} has no such column; it has {', '.join(have)}")


def _check_rows(files: Sequence[Path], data: Tree) -> None:
    """Check that the files have one batch of rows, before veRL drops long ones."""
    import pyarrow.parquet

    if not all(path.suffix == ".parquet" and path.is_file() for path in files):
        return
    rows = sum(pyarrow.parquet.read_metadata(path).num_rows for path in files)
    if rows < (batch := data["train_batch_size"]):
        raise UserError(
            f"data.train_batch_size={batch}, but data.train_files hold {rows} rows",
            hint="lower data.train_batch_size (and ppo_mini_batch_size with it), or give more data",
        )


def _listed(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)] if value else []


def _check_file(key: str, path: Path, data: Tree) -> None:
    if not path.is_file():
        raise UserError(f"{key}: {path} does not exist")
    if path.suffix != ".parquet":
        return
    have = _columns(key, path)
    _check_types(key, path)
    wanted = {"data.prompt_key": "prompt", "data.reward_fn_key": "data_source"}
    for name, default in wanted.items():
        if (column := data.get(name.removeprefix("data.")) or default) not in have:
            near = question(nearest(str(column), have))
            raise UserError(
                f"{name}={column}: {path} ({key}) has no such column; it has {', '.join(sorted(have))}",
                hint=near or f"set {name} to the column that has it",
            )
    if "reward_model" not in have:
        raise UserError(
            f"{key}: {path} has no column 'reward_model' (veRL's reward managers); it has"
            f" {', '.join(sorted(have))}",
            hint="veRL's rows need prompt, data_source, reward_model (with ground_truth) and extra_info",
        )


def _check_types(key: str, path: Path) -> None:
    """Check that ``datasets`` reads the type of each column: veRL's dataset opens the file with it.

    The types are those of ``_arrow_to_datasets_dtype`` in 5.2. Values that it reads reach rewards and agent
    loops unchanged.
    """
    import pyarrow.parquet

    for field in pyarrow.parquet.read_schema(path):
        if unread := _unread(field.type):
            instead = next(text for begin, text in _INSTEAD.items() if unread.startswith(begin))
            raise UserError(
                f"{key}: {path}: the column {field.name!r} holds {unread}, which datasets (veRL's loader)"
                " does not read",
                hint=f"write it as {instead}",
            )


# Arrow types by the beginning of their name, each with what to write instead.
_INSTEAD = {
    "map<": "a list of structs with key and value",
    "decimal32": "decimal128",
    "decimal64": "decimal128",
    "list_view": "a list",
    "large_list_view": "a list",
    "extension<": "the type of its storage (text, bytes, lists)",
}
_READ = ("extension<arrow.json", "extension<datasets.")


def _unread(kind: pyarrow.DataType) -> str:
    """The first part of an Arrow type that ``datasets`` does not read; "" where there is none."""
    name = str(kind)
    if name.startswith(tuple(_INSTEAD)) and not name.startswith(_READ):
        return name
    parts = (kind.field(place).type for place in range(kind.num_fields))
    return next(filter(None, map(_unread, parts)), "")


def _columns(key: str, path: Path) -> set[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        return set(pyarrow.parquet.read_schema(path).names)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{key}: {path} is not a Parquet file ({str(error).splitlines()[0]})") from error


def check_reward_function(verl: Tree, *, cwd: Path) -> None:
    """The custom reward function's file defines the function. The file is read, not run."""
    custom = section_at(verl, "reward.custom_reward_function")
    path, name = custom.get("path"), custom.get("name") or "compute_score"
    if not path or "://" in str(path) or str(path).startswith("pkg:"):
        return
    file = _local(str(path), cwd)
    if not file.is_file():
        raise UserError(f"reward.custom_reward_function.path={path}: no such file")
    try:
        tree = ast.parse(file.read_text())
    except SyntaxError as error:
        raise UserError(f"{file}:{error.lineno}: {error.msg}") from error
    if name not in set(_names(tree)):
        raise UserError(
            f"{file} does not define {name!r}",
            hint="set reward.custom_reward_function.name to a function of that file",
        )
    _check_manager(verl, tree, file)


def _check_manager(verl: Tree, tree: ast.Module, file: Path) -> None:
    """A reward manager that nothing but the function's file can register is registered there."""
    manager = section_at(verl, "reward.reward_manager")
    name = manager.get("name")
    if name in (None, *REWARD_MANAGERS) or manager.get("source") not in (None, "register"):
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    registered = {arg.value for call in calls for arg in call.args[:1] if isinstance(arg, ast.Constant)}
    if name not in registered:
        raise UserError(
            f"reward.reward_manager.name={name}: neither veRL {VERL} nor {file} registers it",
            hint=f"use one of {', '.join(REWARD_MANAGERS)}, or write @register({name!r}) over its class",
        )


def _names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def check_disk(root: Path) -> None:
    """Raise UserError where a database and the start of a checkpoint have no room."""
    folder = next(parent for parent in (root, *root.parents) if parent.exists())
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder} is not writable", hint="name another place with --job DIR")
    free = shutil.disk_usage(folder).free
    if free < _MIN_FREE:
        raise UserError(
            f"{free // 2**20} MiB are free under {folder}; a run needs at least {_MIN_FREE // 2**20} MiB",
            hint="free some space, or name another place with --job DIR",
        )


def check_cache() -> None:
    """The folder in which ``datasets`` prepares rows, in the home folder unless named, can be made."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = os.environ.get("HF_HOME") or f"{home}/huggingface"
    cache = from_home(os.environ.get("HF_DATASETS_CACHE") or f"{root}/datasets")
    folder = next((parent for parent in (cache, *cache.parents) if parent.exists()), cache)
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(
            f"{folder} is not writable: datasets, veRL's loader, keeps its cache in {cache}",
            hint="export HF_HOME=DIR names a folder for it",
        )


def check_ports(ray: Tree) -> None:
    """Ports that the launch or the environment names are free."""
    named: dict[str, object] = {name: os.environ.get(name) for name in ("MASTER_PORT", "VLLM_PORT")}
    if ray.get("include_dashboard"):
        named["ray_kwargs.ray_init.dashboard_port"] = ray.get("dashboard_port")
    for name, value in named.items():
        port = str(value or "")
        if port.isdigit() and not is_free(int(port)):
            raise UserError(
                f"{name}={value}: that port is taken{holder(int(port))}",
                hint=f"end that process, or unset {name}: a run then takes a free port",
            )


def check_port(host: str, port: int) -> None:
    """An endpoint can listen there; port 0 is a free one."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise UserError(
            f"explorer.proxy_port={port}: nothing can listen on {host}:{port} ({error.strerror or error})"
            f"{holder(port)}",
            hint="end what listens there, or write another port, 0 for a free one",
        ) from None


def is_free(port: int) -> bool:
    """Return whether this process could listen on ``port``."""
    with socket.socket() as probe:
        # Else the closed connections of a run that just ended would count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """Return the process that listens on ``port`` as words to append; "" where it cannot be seen."""
    try:
        import psutil
    except ModuleNotFoundError:  # doctor says that it is missing
        return ""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return ""
    return ""


def check_database(url: str, job: Path) -> None:
    """A server's driver is installed, and its URL can be read; a file that a job has used is not empty."""
    from trinity_compat.buffer.database import WITHOUT_IT, check_url

    file = file_of(url)
    if file is not None:
        wal = file.with_name(f"{file.name}-wal")
        is_empty = file.is_file() and not file.stat().st_size and not wal.exists()
        if is_empty and last_step(job) is not None:
            raise UserError(f"{file} is empty, though the job has trained: it was cut off", hint=WITHOUT_IT)
    else:
        optional_packages.need("psycopg")
        check_url(url)


def check_file_rows(rows: RowsSpec) -> None:
    """Raises UserError for a file that is missing, or a Parquet file without a column.

    What lies in a folder or under a dataset's name the trainer finds out.
    """
    for path in map(Path, (*rows.paths, *rows.val_paths)):
        if path.suffix in SUFFIXES and not path.is_file():
            raise UserError(f"{path} does not exist")
        if path.suffix == ".parquet":
            _check_row_columns(path, columns_of_rows(rows.schema, rows.format))


def columns_of_rows(schema: str, form: RowFormat) -> list[str]:
    """Return the columns that each row needs."""
    answers = [form.chosen_key, form.rejected_key] if schema == "dpo" else []
    if form.prompt_type == "messages":
        return [form.messages_key, *answers]
    system = [form.system_prompt_key] if form.system_prompt_key and schema != "cpt" else []
    return [*system, form.prompt_key, *([form.response_key] if schema == "sft" else answers)]


def _check_row_columns(path: Path, wanted: Sequence[str]) -> None:
    import pyarrow
    import pyarrow.parquet

    try:
        have = pyarrow.parquet.read_schema(path).names
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a Parquet file ({str(error).splitlines()[0]})") from error
    for column in wanted:
        if column not in have:
            raise UserError(
                f"{path} has no column {column!r}; it has {', '.join(sorted(have))}",
                hint="its format section names the columns: messages_key, prompt_key, chosen_key, …",
            )
