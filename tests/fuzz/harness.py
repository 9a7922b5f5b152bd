"""Mutated scripts, trees and argument vectors through parse → translate → audit, under watch."""

import copy
import functools
import json
import random
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import yaml

from trinity_compat.audit.collect import AuditOptions, audit_config, audit_launch
from trinity_compat.common.errors import UserError
from trinity_compat.common.limits import Budget
from trinity_compat.common.nested import put
from trinity_compat.launch import read_argv, read_script, read_text
from trinity_compat.launch.bash import tree
from trinity_compat.translate import Status, TranslateOptions
from trinity_compat.translate.verl_script import verl_script
from trinity_compat.trinity.config.read import parse
from trinity_compat.verl_config import config_from_yaml, effective_config

from . import grammars

SEEDS = Path(__file__).parent / "seeds"
SECONDS = 60  # the promise is 2 of a core of one's own; a shared machine may be slower, a hang is not
ENV = {"HOME": "/home/user", "USER": "tester", "SOURCE_DATE_EPOCH": "1767323045"}
STATUSES = {status.value for status in Status}

SPITE = [
    "trainer.nnodes=1e9", "trainer.n_gpus_per_node=1e5", "data.train_batch_size=" + "9" * 400,
    "", " ", "=", "+", "~", "++a.b=1", "~data", "data=1", "data.train_batch_size", "a.b.c=", "x={", "x=[1,",
    "x='", 'x="', "data.train_batch_size=0", "data.train_batch_size=-1", "data.train_batch_size=1e9",
    "data.train_batch_size=null", "data.train_batch_size=[1]", "data.train_batch_size={a:1}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=0", "actor_rollout_ref.rollout.n=null",
    "actor_rollout_ref.rollout.n=${data.train_batch_size}", "a=${a}", "a.b=${c.d}", "data.seed=${oc.env:X}",
    "actor_rollout_ref.actor.optim.lr=nan", "trainer.n_gpus_per_node=inf", "trainer.nnodes=1.5",
    "trainer.total_epochs=true", "trainer.logger=x", "trainer.logger=[]", "trainer.logger=[[1]]",
    "data.train_files=null", "data.train_files=[]", "data.train_files=[a,[b]]", "data.train_files={}",
    "actor_rollout_ref=null", "algorithm=null", "critic={}", "reward_model=5",
    "+actor_rollout_ref.actor.x.y.z=1", "--config-path=/etc", "--config-name=../../x", "--cfg", "job",
    "--multirun", "hydra.run.dir=/tmp/x", "-m", "--", "a=\udcff", "a=\x00", "é=ü",
    "data.prompt_key=" + "k" * 5000, "data.train_files=???", "trainer.device=???",
    "actor_rollout_ref.actor.strategy=nonsense", "actor_rollout_ref.rollout.name=hf", "trainer=ppo_trainer",
    "actor@actor_rollout_ref.actor=dp_actor", "model_engine=megatron", "trainer.save_freq=9" * 30,
    "algorithm.adv_estimator=[gae]", "algorithm.kl_ctrl=fixed", "data.max_prompt_length=-5", "a,b=1",
    "a=1,2", "data.train_files=1e-6", "data.val_files=[1.5]", "data.train_batch_size=inf",
    "trainer.total_epochs=nan", "actor_rollout_ref.actor.optim.lr=[1]", "data.max_prompt_length=abc",
    "actor_rollout_ref.rollout.gpu_memory_utilization={a:1}", "data.train_max_samples=x",
    "actor_rollout_ref.rollout.expert_parallel_size=x", "trainer.save_freq=-inf",
    "++actor_rollout_ref.model.lora_rank=8", "++actor_rollout_ref.model.target_modules=5",
]  # fmt: skip


class Violation(AssertionError):
    """An input did what none may."""


class Watch:
    """Sees what the interpreter does while an input is read: processes, files written, sockets."""

    PROCESSES = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "pty.spawn")
    WRITES = (
        "os.remove",
        "os.rename",
        "os.mkdir",
        "os.rmdir",
        "os.symlink",
        "os.link",
        "os.truncate",
        "os.chmod",
    )

    def __init__(self):
        self.on, self.seen = False, []
        sys.addaudithook(self._hook)

    def _hook(self, event, arguments):
        if not self.on:
            return
        if event == "subprocess.Popen" and not str(arguments[0]).endswith("shfmt"):
            self.seen.append(f"process {arguments[0]}")
        elif (event.startswith(self.PROCESSES) and event != "os.posix_spawn") or event.startswith("socket."):
            self.seen.append(event)
        elif event in self.WRITES:
            self.seen.append(f"{event} {arguments[0]}")
        elif event == "open" and _writes(*arguments[:2]):
            self.seen.append(f"write {arguments[0]}")

    @contextmanager
    def __call__(self):
        self.seen.clear()
        self.on = True
        try:
            yield
        finally:
            self.on = False
        if self.seen:
            raise Violation(f"{self.seen}")


def _writes(file, mode):
    """A file by name, opened for writing; the pipe to shfmt is a number."""
    return not isinstance(file, int) and isinstance(mode, str) and bool(set("wax+") & set(mode))


WATCH = Watch()


@contextmanager
def deadline():
    def ring(*_):
        raise Violation(f"no answer after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def seed_texts(folder=SEEDS):
    return [path.read_text(errors="surrogateescape") for path in sorted(folder.rglob("*.sh"))]


def seed_argvs(texts):
    return [
        ["python3", "-m", launch.module, *(word.text for word in launch.arguments)]
        for text in texts
        for launch in read_text(text, env=ENV).launches
    ]


def check_text(text, audit=True, cwd=SEEDS):
    """One script; returns how many launches it has."""
    return _check(lambda: read_text(text, env=ENV, cwd=cwd), audit, cwd)


def check_argv(argv, audit=True, cwd=SEEDS):
    """One command line."""
    return _check(lambda: read_argv(argv, env=ENV), audit, cwd)


def _check(read, audit, cwd):
    with deadline(), WATCH():
        try:
            reading = read()
        except UserError:
            return 0
        for launch in reading.launches:
            for word in launch.arguments:
                if "".join(part.text for part in word.parts) != word.text:
                    raise Violation(f"{word} does not add up")
        if audit:
            for launch in reading.launches:
                check_audit(launch, cwd)
    return len(reading.launches)


def check_audit(launch, cwd):
    """Every key has one status, and the sums are right (LaunchAudit asserts it)."""
    _check_statuses(audit_launch(launch, AuditOptions(cwd=cwd, env=ENV, options=TranslateOptions(env=ENV))))


def _check_statuses(result):
    for finding in result.findings:
        if finding.status not in STATUSES:
            raise Violation(f"{finding} has no status")


@functools.cache
def yaml_folder():
    """Where the YAML under test is written, before the watch begins."""
    return tempfile.TemporaryDirectory(prefix="tc-fuzz-")


def check_yaml(text):
    """One veRL YAML, translated and audited."""
    path = Path(yaml_folder().name) / "config.yaml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    request = AuditOptions(cwd=path.parent, env=ENV, options=TranslateOptions(env=ENV))
    with deadline(), WATCH():
        try:
            config = config_from_yaml(path)
        except UserError:
            return
        _check_statuses(audit_config(config, request))


def check_hydra(files):
    """A folder of config files, composed from a command line, translated and audited."""
    folder = Path(tempfile.mkdtemp(dir=yaml_folder().name))
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    words = f"python3 -m verl.trainer.main_ppo --config-path={folder} --config-name=x0 +data.x=1"
    try:
        return _check(lambda: read_text(words, env=ENV, cwd=folder), True, folder)
    finally:
        shutil.rmtree(folder)


def check_file(name, text):
    """A notebook, a Python launcher or a job manifest, and the launches that it starts."""
    path = Path(yaml_folder().name) / name
    path.write_bytes(text.encode(errors="surrogateescape"))
    return _check(lambda: read_script(path, env=ENV, cwd=path.parent), True, path.parent)


def check_trinity(text):
    """A YAML of Trinity's, read and written as a script of veRL."""
    with deadline(), WATCH():
        try:
            verl_script(parse(text, "x.yaml"), "x.yaml")
        except UserError:
            return


GRAMMARS = {
    "hydra": lambda rng: (check_hydra, (grammars.hydra_folder(rng),)),
    "verl": lambda rng: (check_yaml, (grammars.verl_yaml(rng),)),
    "trinity": lambda rng: (check_trinity, (grammars.trinity_yaml(rng),)),
    "notebook": lambda rng: (check_file, ("x.ipynb", grammars.notebook(rng))),
    "python": lambda rng: (check_file, ("x.py", grammars.python(rng))),
    "job": lambda rng: (check_file, ("x.yaml", grammars.job(rng))),
}


def seed_yamls(argvs):
    """What the launches set, as configs of one's own: alone, and over ``defaults``."""
    out = []
    for argv in argvs:
        for launch in read_argv(argv, env=ENV).launches:
            try:
                config = effective_config(launch)
            except UserError:
                continue
            tree = {}
            for key in config.set_keys:
                put(tree, key, config.settings[key].value)
            header = f"defaults: [{config.flavour or 'ppo_trainer'}, _self_]\n"
            searchpath = "hydra:\n  searchpath: [pkg://verl.trainer.config]\n"
            body = yaml.safe_dump(tree, sort_keys=False)
            out += [body, header + searchpath + body]
    return out


def mutate_yaml(rng, text, pool):
    """Change lines, values and characters of a YAML."""
    lines = text.splitlines()
    for _ in range(rng.randint(1, 4)):
        at, other = rng.randrange(len(lines) + 1), rng.choice(pool).splitlines()
        kind = rng.random()
        if kind < 0.3:
            lines.insert(at, rng.choice(other))
        elif kind < 0.5 and at < len(lines):
            lines.pop(at)
        elif kind < 0.8 and at < len(lines):
            lines[at] = lines[at].partition(":")[0] + ": " + rng.choice(SPITE).partition("=")[2]
        else:
            return mutate_text(rng, "\n".join(lines), rng.choice(SPITE)) + "\n"
    return "\n".join(lines) + "\n"


def mutate_argv(rng, argv, pool):
    """A few changes: drop, double, swap, replace by another launch's word or by a spiteful one, edit text."""
    argv = list(argv)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(3, len(argv) + 1)
        kind = rng.random()
        if kind < 0.3:
            argv.insert(at, rng.choice(SPITE))
        elif kind < 0.5:
            argv.insert(at, rng.choice(rng.choice(pool)[3:] or [""]))
        elif at == len(argv):
            argv.append(argv[rng.randrange(2, len(argv))])
        elif kind < 0.65:
            argv.pop(at)
        elif kind < 0.8:
            argv[at] = argv[at].partition("=")[0] + "=" + rng.choice(rng.choice(pool)).partition("=")[2]
        else:
            argv[at] = mutate_text(rng, argv[at], rng.choice(SPITE))
    return argv


def mutate_text(rng, text, other):
    """Change a text: cut, repeat or move a piece, put another's piece in, change a character."""
    if not text:
        return other
    a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    b = min(b, a + rng.choice([1, 3, 20, 200]))
    piece = text[a:b]
    start = rng.randrange(len(other) + 1)
    return rng.choice(
        [
            text[:a] + text[b:],
            text[:b] + piece + text[b:],
            text[:a] + other[start : start + rng.choice([1, 5, 40])] + text[b:],
            text[:a] + rng.choice("\"'`$(){}[]<>|&;\\\n\t #=!*?~+-,:/%@^0aA\udc80") + text[b:],
            text[:a] + piece[::-1] + text[b:],
        ]
    )


class Trees:
    """Syntax trees of the seeds, mutated in memory: no parser is started per input."""

    def __init__(self, texts):
        self.texts, self.trees, self.slots = [], [], {}
        for text in texts:
            source = text.encode(errors="surrogateescape")
            nodes, _ = tree.parse(source, Budget())
            self.texts.append(text)
            self.trees.append(json.dumps({"Stmts": nodes}))
            self._collect({"Stmts": nodes}, "")

    def _collect(self, node, slot):
        if isinstance(node, list):
            for item in node:
                self._collect(item, slot)
        elif isinstance(node, dict):
            if slot:
                self.slots.setdefault(slot, []).append(node)
            for name, child in node.items():
                if name not in ("Pos", "End", "Position", "ValuePos", "ValueEnd"):
                    self._collect(child, _slot(node, name))

    def check(self, rng):
        """Evaluate one mutated tree; returns how many launches it has."""
        number = rng.randrange(len(self.trees))
        root = json.loads(self.trees[number])
        for _ in range(rng.randint(1, 4)):
            self._mutate(rng, root)
        nodes = root["Stmts"]
        original = tree.parse
        tree.parse = lambda source, budget: (nodes, None)
        try:
            return _check(lambda: read_text(self.texts[number], env=ENV, cwd=SEEDS), False, SEEDS)
        finally:
            tree.parse = original

    def _mutate(self, rng, root):
        places = []
        _places(root, places)
        holder, name = rng.choice(places)
        child, slot = holder[name], _slot(holder, name)
        if isinstance(child, list) and child:
            at = rng.randrange(len(child))
            action = rng.random()
            if action < 0.3:
                child.pop(at)
            elif action < 0.5:
                child.insert(rng.randrange(len(child) + 1), copy.deepcopy(child[at]))
            elif isinstance(child[at], dict):
                child[at] = self._another(rng, slot, child[at])
        elif isinstance(child, dict):
            holder[name] = self._another(rng, slot, child)
        elif isinstance(child, str):
            holder[name] = mutate_text(rng, child, rng.choice(SPITE))

    def _another(self, rng, slot, node):
        kin = self.slots.get(slot)
        return copy.deepcopy(rng.choice(kin)) if kin else node


def _slot(holder, name):
    """Where a node may stand: arguments of a call are words, those of `declare` are assignments."""
    return f"{holder.get('Type', '')}.{name}"


def _places(node, out):
    if isinstance(node, dict):
        for name, child in node.items():
            if name in ("Pos", "End") or name.endswith("Pos"):
                continue
            if isinstance(child, (dict, list)) or (name == "Value" and isinstance(child, str)):
                out.append((node, name))
            _places(child, out)
    elif isinstance(node, list):
        for item in node:
            _places(item, out)


@functools.lru_cache(maxsize=1)
def _pool(kind, texts):
    """What a kind mutates: argument vectors, trees, YAML texts."""
    argvs = seed_argvs(texts) if kind in ("argv", "parse", "yaml") else []
    return argvs, Trees(texts) if kind == "tree" else None, seed_yamls(argvs) if kind == "yaml" else []


def run(kind, count, seed, texts, on_failure):
    """Run ``count`` inputs of a kind; ``on_failure(input description, error)`` for each violation."""
    rng = random.Random(seed)
    argvs, trees, yamls = _pool(kind, tuple(texts))
    for number in range(count):
        case = random.Random(rng.getrandbits(64))
        try:
            if kind == "tree":
                made = f"tree {number}"
                trees.check(case)
            elif kind == "text":
                made = rng.choice(texts)
                for _ in range(case.randint(1, 5)):
                    made = mutate_text(case, made, case.choice(texts))
                check_text(made)
            elif kind in GRAMMARS:
                check, made = GRAMMARS[kind](case)
                check(*made)
            elif kind == "yaml":
                made = mutate_yaml(case, case.choice(yamls), yamls)
                check_yaml(made)
            else:
                made = mutate_argv(case, case.choice(argvs), argvs)
                check_argv(made, audit=kind == "argv")
        except Exception as error:
            on_failure(made, error)
