"""Write generated/verl/reads/: what stock veRL's main_ppo does with each key of its configuration.

    python scripts/generate/make_verl_reads.py --tree 0.9.1=DIR [--tree …]
    python scripts/generate/make_verl_reads.py --tree 0.9.1=DIR --recall tests/facts/verl_reads.txt
    python scripts/generate/make_verl_reads.py --tree 0.9.1=DIR --trainers

DIR holds a release's unpacked wheel or a checkout (a folder with ``verl/trainer``). Its code is parsed, never
imported. The configuration is our own composition of that release (translators/generated/verl/releases).

The pass follows the configuration through the code: ``main(config)`` gets its root, and each expression has
the set of things that it may be: a place in the configuration, a class, an instance, a function, a module.
These flow through assignments, calls, attributes of instances and return values until nothing is added. One
set holds for all calls of a function and for all instances of a class: so the pass says "read" too often,
and "not read" only where no access can mean the key. An access whose object is unknown counts for every key
of that name. What a person finds about a key goes into ``by_hand/verl/reads.json`` (verl_config/reads.py).

--recall writes nothing: it prints how many of the reads that a run noted the pass has found. --trainers lists
the keys that the pass finds with only one of 0.9's two trainers.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from data_files import dump

from trinity_compat.verl_config.compose import composed_as
from trinity_compat.verl_config.releases import FLAVOURS, release_tree

OUT = Path(__file__).resolve().parents[2] / "translators" / "generated" / "verl" / "reads"
MAIN = "verl.trainer.main_ppo"
SITES = 3  # of a key
NEAR = 3  # lines between a noted access and the statement in which the pass has it
UNUSED = {"NOT READ", "STORED ONLY", "CHECKED ONLY"}
# Trainer → code that runs under the other one alone.
OTHERS = {
    "v1": ("verl.trainer.main_ppo_v0.", "verl.trainer.ppo.ray_trainer.RayPPOTrainer."),
    "v0": ("verl.trainer.ppo.v1.", "verl.trainer.main_ppo.TaskRunnerV1."),
}

# Part of a path → when the code below it runs.
PLACES = {
    "megatron": "Megatron",
    "mcore": "Megatron",
    "veomni": "VeOmni",
    "torchtitan": "TorchTitan",
    "automodel": "Automodel",
    "mindspeed": "MindSpeed",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "vllm": "vLLM",
    "checkpoint_engine": "a checkpoint engine",
    "reward_loop": "the reward loop",
    "distillation": "distillation",
    "profiler": "the profiler",
    "qat": "QAT",
    "v1": "trainer.use_v1=True",
    "main_ppo_v0": "trainer.use_v1=False",
    "separate_async": "trainer.v1.trainer_mode=separate_async",
}
# Called with a section, these use nothing of it.
HARMLESS = {
    *("print", "pprint", "isinstance", "len", "type", "id", "str", "repr", "bool", "hasattr", "open_dict"),
    *("resolve", "set_struct", "set_readonly", "is_config", "is_dict", "is_list", "to_yaml", "get_type"),
    *("debug", "info", "warning", "error", "critical", "log", "warn", "format", "append", "missing_keys"),
    *("super", "setattr", "update"),
}
# Called with a section, these return it or a copy.
COPIES = {
    *(
        "to_container",
        "create",
        "merge",
        "unsafe_merge",
        "deepcopy",
        "copy",
        "dict",
        "list",
        "asdict",
        "cast",
    ),
    *("put", "instantiate", "masked_copy", "replace", "_dc_replace", "to_object", "set", "tuple", "getattr"),
    *("remote", "options", "partial", "DictConfigWrap"),
}
STARTS = {"partial", "submit", "run_in_executor", "to_thread", "Thread", "RayClassWithInitArgs"}
PRINTS = {"print", "pprint", "debug", "info", "warning", "error", "critical", "log", "warn", "to_yaml"}
LOOKUPS = {"get", "pop", "setdefault", "__getitem__"}
ITERATES = {"items", "values", "keys", "to_dict", "__iter__", "__dict__"}
CHECKS = re.compile(r"check_(?!point)|^validate(_|$)|_validate_")  # functions that only check
CONFIG_NAME = re.compile(r"config|cfg|conf$|^args$|option|kwargs|setting")
MODULE = "<module>"  # the function that stands for a module's own statements
NO_ARGUMENTS = ast.arguments([], [], None, [], [], None, [])
PLUMBING = (
    "verl.single_controller",
    "verl.utils.tracking",
)  # hands arguments on; logs the whole configuration
NOT_CODE = {"BaseConfig"}  # its methods are dict's, over the fields of every section


class Value(NamedTuple):
    """One thing that an expression may be: a key, class, instance, super, function, method or module."""

    kind: str
    name: str


class Site(NamedTuple):
    """An access: ``how`` is read, check or store."""

    how: str
    file: str
    line: int


Values = frozenset[Value]
NONE: Values = frozenset()


class Cell(set[Value]):
    """The things that flow to one place; ``readers``: functions to follow again when something is added."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[str] = set()


@dataclass
class Function:
    """A function of the release, with what flows through it."""

    name: str
    module: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: str | None  # class
    outer: Function | None
    env: dict[str, Cell] = field(default_factory=lambda: defaultdict(Cell))
    keywords: dict[str, Cell] = field(default_factory=lambda: defaultdict(Cell))  # of **kwargs
    returns: Cell = field(default_factory=Cell)

    @property
    def decorators(self) -> set[str]:
        return {last_name(each) for each in self.node.decorator_list}

    @property
    def parameters(self) -> list[str]:
        given = self.node.args
        return [each.arg for each in (*given.posonlyargs, *given.args)]

    def takes(self, names: Iterable[str]) -> bool:
        """Return whether the function accepts these keywords."""
        own = {*self.parameters, *(each.arg for each in self.node.args.kwonlyargs)}
        return self.node.args.kwarg is not None or own.issuperset(names)


@dataclass
class Class:
    """A class of the release; ``attributes`` are its instances'."""

    name: str
    module: str
    node: ast.ClassDef
    bases: tuple[str, ...] = ()
    below: set[str] = field(default_factory=set)
    methods: dict[str, str] = field(default_factory=dict)
    fields: dict[str, ast.expr] = field(default_factory=dict)  # name → annotation
    attributes: dict[str, Cell] = field(default_factory=lambda: defaultdict(Cell))


def last_name(node: ast.AST) -> str:
    """Return the last word of a dotted name or call: ``remote`` of ``ray.remote(num_cpus=1)``."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def constant(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


class Sources:
    """The modules of a release that ``main`` imports, wherever the import stands, with their definitions.

    Functions whose name begins with one of ``without`` count as dead.
    """

    def __init__(self, root: Path, main: str, without: tuple[str, ...] = ()) -> None:
        self.root = root
        self.without = without
        self.trees: dict[str, ast.Module] = {}
        self.files: dict[str, str] = {}
        self.names: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)  # module → name → kind, target
        self.stars: dict[str, list[str]] = defaultdict(list)
        self.functions: dict[str, Function] = {}
        self.classes: dict[str, Class] = {}
        self.by_name: dict[str, list[str]] = defaultdict(list)
        self.variables: dict[str, set[str]] = {}  # module → what it assigns
        self.foreign: dict[tuple[str, str], str] = {}  # (module, name) → where any import takes it from
        queue = [main]
        while queue:
            module = queue.pop()
            if module not in self.trees and (path := self._path(module)):
                self.trees[module] = ast.parse(path.read_text(encoding="utf-8"))
                self.files[module] = str(path.relative_to(root))
                queue += [module.rpartition(".")[0], *self._imports(module)]
        for module, tree in self.trees.items():
            self._define(module, tree.body, None, None)
            assigned = [
                n.targets[0] if isinstance(n, ast.Assign) else n.target
                for n in tree.body
                if isinstance(n, ast.Assign | ast.AnnAssign)
            ]
            self.variables[module] = set(map(last_name, assigned))
            body = ast.FunctionDef(MODULE, NO_ARGUMENTS, tree.body, [])
            self.functions[f"{module}.{MODULE}"] = Function(f"{module}.{MODULE}", module, body, None, None)
        for each in self.classes.values():
            found = [self.class_of(base, each.module) for base in each.node.bases]
            each.bases = tuple(base for base in found if base)
        for name in self.classes:
            for above in self.line_of(name)[1:]:
                self.classes[above].below.add(name)
        self._drop_dead()
        self.loads: dict[str, set[str | None]] = defaultdict(set)
        self._note_loads()

    def _path(self, module: str) -> Path | None:
        path = self.root.joinpath(*module.split("."))
        return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)

    def _imports(self, module: str) -> Iterator[str]:
        package = module if self.files[module].endswith("__init__.py") else module.rpartition(".")[0]
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name, (source, _) in self.note_import(node):
                    self.foreign[module, name] = source
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                node.module = ".".join([*above, *([node.module] if node.module else [])])
                node.level = 0
                yield node.module
                yield from (f"{node.module}.{each.name}" for each in node.names)
            elif (text := constant(node)) and re.fullmatch(r"verl(\.\w+)+", text):
                yield text
                yield text.rpartition(".")[0]

    def note_import(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yield the names that an import binds, each with (module, name of the module's or "")."""
        for each in node.names:
            if isinstance(node, ast.Import):
                yield (
                    (each.asname or each.name.split(".")[0]),
                    (
                        each.name if each.asname else each.name.split(".")[0],
                        "",
                    ),
                )
            elif each.name != "*":
                yield (each.asname or each.name), (node.module or "", each.name)

    def _define(
        self, module: str, body: Sequence[ast.stmt], owner: str | None, outer: Function | None
    ) -> None:
        for node in body:
            if isinstance(node, ast.Import | ast.ImportFrom) and outer is None:
                if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                    self.stars[module].append(node.module or "")
                for name, target in self.note_import(node):
                    self.names[module].setdefault(name, target)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                above = owner or (outer.name if outer else module)
                name = f"{above}.{node.name}"
                while name in self.functions:  # a property's setter, a variant under another condition
                    name += "'"
                self.functions[name] = Function(name, module, node, owner, outer)
                self.by_name[node.name].append(name)
                if owner:
                    self.classes[owner].methods.setdefault(node.name, name)
                self._define(module, node.body, None, self.functions[name])
            elif isinstance(node, ast.ClassDef):
                name = f"{owner or (outer.name if outer else module)}.{node.name}"
                self.classes[name] = Class(name, module, node)
                self._define(module, node.body, name, outer)
            elif isinstance(node, ast.AnnAssign) and owner and isinstance(node.target, ast.Name):
                self.classes[owner].fields[node.target.id] = node.annotation
            for inner in ("body", "orelse", "handlers", "finalbody"):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    for each in [getattr(node, inner, [])]:
                        blocks = [x.body for x in each] if inner == "handlers" else [each]
                        for block in blocks:
                            self._define(module, block, owner, outer)

    def find(self, module: str, name: str, seen: tuple[str, ...] = ()) -> Value | None:
        """Return what ``name`` is in ``module``, through imports; None for what is not the release's."""
        full = f"{module}.{name}"
        if full in self.functions:
            return Value("function", full)
        if full in self.classes:
            return Value("class", full)
        if name in self.names[module] and full not in seen:
            source, target = self.names[module][name]
            return self.imported(source, target, (*seen, full))
        for star in self.stars[module]:
            if full not in seen and (found := self.find(star, name, (*seen, full))):
                return found
        return Value("module", full) if full in self.trees else None

    def imported(self, source: str, target: str, seen: tuple[str, ...] = ()) -> Value | None:
        """Return what ``from source import target`` binds; without a target, what ``import source`` does."""
        if not target:
            return Value("module", source) if source in self.trees else None
        return self.find(source, target, seen) if source in self.trees else None

    def class_of(self, node: ast.AST, module: str) -> str | None:
        """Return the class that an annotation or a base names; of Optional[X], X."""
        if isinstance(node, ast.Subscript):
            return self.class_of(node.slice, module) or self.class_of(node.value, module)
        if isinstance(node, ast.BinOp):
            return self.class_of(node.left, module) or self.class_of(node.right, module)
        if text := constant(node):
            node = ast.parse(text, mode="eval").body if re.fullmatch(r"[\w.]+", text) else node
        if isinstance(node, ast.Name):
            found = self.find(module, node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            above = self.find(module, node.value.id)
            found = self.find(above.name, node.attr) if above and above.kind == "module" else None
        else:
            found = None
        return found.name if found and found.kind == "class" else None

    def line_of(self, name: str) -> list[str]:
        """The class and those above it, nearest first."""
        line = [name]
        for each in line:
            line += [base for base in self.classes[each].bases if base not in line]
        return line

    def method(self, owner: str, name: str) -> str | None:
        found = (self.classes[each].methods.get(name) for each in self.line_of(owner))
        return next(filter(None, found), None)

    def _drop_dead(self) -> None:
        """Drop each function whose name no living code mentions; a decorator may register it."""
        harmless = {"staticmethod", "classmethod", "property", "abstractmethod", "contextmanager", "wraps"}
        names: dict[str, set[str]] = {}

        def mentioned(node: ast.AST, at: str) -> set[str]:
            found = names.setdefault(at, set())
            for each in ast.iter_child_nodes(node):
                if isinstance(each, ast.Assign) and last_name(each.targets[0]) == "__all__":
                    continue
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    for part in (*each.decorator_list, *each.args.defaults):
                        mentioned(part, at)
                    continue
                if isinstance(each, ast.Name | ast.Attribute):
                    found.add(last_name(each))
                elif text := constant(each):
                    found |= {text, text.rpartition(".")[2]}
                mentioned(each, at)
            return found

        living: set[str] = set()
        for module, tree in self.trees.items():
            living |= mentioned(tree, module)
        waiting = {
            name: each
            for name, each in self.functions.items()
            if not (self.without and f"{name}.".startswith(self.without))
        }
        self.alive: set[str] = set()
        while True:
            born = [
                name
                for name, each in waiting.items()
                if each.node.name in living
                or each.node.name.startswith(("__", MODULE))
                or (each.node.decorator_list and not each.decorators <= harmless)
                or each.outer is not None
            ]
            born = [n for n in born if not (o := waiting[n].outer) or o.name in self.alive or o.name in born]
            if not born:
                break
            for name in born:
                living |= mentioned(waiting.pop(name).node, name)
                self.alive.add(name)

    def _note_loads(self) -> None:
        """Note for each attribute the classes that load it from ``self``, and None for any other load."""
        for name in self.alive:
            function = self.functions[name]
            own = function.parameters[0] if function.owner and function.parameters else None
            for node in ast.walk(function.node) if function.node.name != MODULE else ():
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    from_self = isinstance(node.value, ast.Name) and node.value.id == own
                    self.loads[node.attr].add(function.owner if from_self else None)
                elif isinstance(node, ast.Call) and last_name(node) == "getattr" and len(node.args) > 1:
                    self.loads[constant(node.args[1]) or ""].add(None)

    def forget(self) -> None:
        """Forget what has flowed."""
        for function in self.functions.values():
            function.env.clear()
            function.keywords.clear()
            function.returns.clear()
        for each in self.classes.values():
            each.attributes.clear()


class Pass:
    """The configuration's way through the sources; see the module's text."""

    def __init__(self, sources: Sources, tree: Mapping[str, Any]) -> None:
        self.sources = sources
        self.tree = tree
        self.leaves: dict[str, object] = {}
        self.classes: dict[str, set[str]] = defaultdict(set)  # key of a section → dataclasses
        self.extra: dict[tuple[str, str], Cell] = defaultdict(Cell)  # attributes that code adds to keys
        self.sites: dict[str, set[Site]] = defaultdict(set)
        self.passed: dict[str, set[Site]] = defaultdict(set)
        self.loose: dict[str, set[tuple[tuple[str, ...], Site]]] = defaultdict(
            set
        )  # name → (what stands before it, site)
        self.strings: dict[str, set[Site]] = defaultdict(set)
        self.waiting = set(sources.alive)
        self.last = False
        self.how = "read"
        self._flatten("", tree)
        for name in sources.functions:
            self._seed(sources.functions[name])

    def _flatten(self, prefix: str, node: Mapping[str, Any]) -> None:
        target = node.get("_target_")
        if isinstance(target, str):
            self._set_class(prefix.rstrip("."), target)
        for key, value in node.items():
            if isinstance(value, dict) and value:
                self._flatten(f"{prefix}{key}.", value)
            elif not str(key).startswith("_"):
                self.leaves[f"{prefix}{key}"] = value

    def _set_class(self, key: str, target: str) -> None:
        module, _, name = target.rpartition(".")
        found = self.sources.find(module, name)
        if found is None or found.kind != "class" or found.name in self.classes[key]:
            return
        self.classes[key].add(found.name)
        self.waiting = set(self.sources.alive)
        for above in self.sources.line_of(found.name):
            for child, annotation in self.sources.classes[above].fields.items():
                inner = self.sources.class_of(annotation, self.sources.classes[above].module)
                node = self._node(f"{key}.{child}")
                if inner and isinstance(node, dict) and "_target_" not in node:
                    self._set_class(f"{key}.{child}", inner)

    def _seed(self, function: Function) -> None:
        if function.owner and function.parameters and "staticmethod" not in function.decorators:
            kind = "class" if "classmethod" in function.decorators else "instance"
            function.env[function.parameters[0]].add(Value(kind, function.owner))
        if function.module == MAIN and function.node.name == "main":
            function.env[function.parameters[0]].add(Value("key", ""))

    def _node(self, key: str) -> Any:
        node: Any = self.tree
        for part in key.split(".") if key else []:
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def _has(self, key: str) -> bool:
        above, _, name = key.rpartition(".")
        node = self._node(above)
        return isinstance(node, dict) and name in node

    def _place(self, key: str) -> str:
        """The key itself, or the section for which it stands: ``rollout.mtp: ${…model.mtp}``."""
        value = self._node(key)
        found = (
            re.fullmatch(r"\$\{(?:oc\.select:)?([\w.]+)(?:,.*)?\}", value) if isinstance(value, str) else None
        )
        return found[1] if found and isinstance(self._node(found[1]), dict) else key

    def run(self) -> None:
        """Follow until nothing is added, then note what is left open."""
        while self.waiting:
            names, self.waiting = sorted(self.waiting), set()
            self._walk(names)
        self.last = True
        self._walk(sorted(self.sources.alive))

    def _walk(self, names: Iterable[str]) -> None:
        for name in names:
            function = self.sources.functions[name]
            if not function.owner or function.owner.rpartition(".")[2] not in NOT_CODE:
                self.function, self.module = function, function.module
                self.how = "check" if CHECKS.search(function.node.name) else "read"
                self._open_parameters()
                self._block(function.node.body)

    def _open_parameters(self) -> None:
        """A dataclass's own methods are about each section of that class; so are parameters of that type."""
        sections = defaultdict(set)
        for key, names in self.classes.items():
            for name in names:
                for above in self.sources.line_of(name):
                    sections[above].add(Value("key", key))
        env = self.function.env
        if self.function.owner and self.function.parameters and self.function.owner in sections:
            self._add(env[self.function.parameters[0]], sections[self.function.owner])
        given = self.function.node.args
        for each in (*given.posonlyargs, *given.args, *given.kwonlyargs):
            if each.annotation is not None and not env[each.arg]:
                named = self.sources.class_of(each.annotation, self.module)
                if named:
                    self._add(env[each.arg], sections.get(named) or {Value("instance", named)})

    def _add(self, to: Cell, values: Iterable[Value]) -> None:
        new = set(values) - to
        if new:
            to |= new
            self.waiting |= to.readers

    def _from(self, cell: Cell | None) -> Values:
        if cell is None:
            return NONE
        cell.readers.add(self.function.name)
        return frozenset(cell)

    # Statements

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._definition(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for name, (source, member) in self.sources.note_import(node):
                if found := self.sources.imported(source, member):
                    self._add(self.function.env[name], {found})
        elif isinstance(node, ast.Assign):
            values = self._as("store" if self._never_loaded(node.targets) else self.how, node.value)
            for target in node.targets:
                self._assign(target, values)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._assign(node.target, self._value(node.value))
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, self._value(node.value))
            self._value(node.target)
        elif isinstance(node, ast.Return):
            self._add(self.function.returns, self._value(node.value))
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._assign(node.target, self._parts(self._value(node.iter), node))
            self._block([*node.body, *node.orelse])
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                values = self._value(item.context_expr)
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, values)
            self._block(node.body)
        elif isinstance(node, ast.If):
            only_checks = is_complaint(node)
            self._as("check" if only_checks else self.how, node.test)
            how, self.how = self.how, "check" if only_checks else self.how
            self._block([*node.body, *node.orelse])
            self.how = how
        elif isinstance(node, ast.Assert) or (isinstance(node, ast.Expr) and is_complaint(node)):
            self._as("check", node)
        elif isinstance(node, ast.Delete):
            return
        elif isinstance(node, ast.Raise):
            self._as("check", node)
        else:
            for each in ast.iter_child_nodes(node):
                if isinstance(each, ast.stmt):
                    self._statement(each)
                elif isinstance(each, ast.ExceptHandler | ast.match_case):
                    self._block(each.body)
                else:
                    self._value(each)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """A decorator that registers gets what it decorates; a class's body has its attributes."""
        above = self.module if self.function.node.name == MODULE else self.function.name
        name = f"{above}.{node.name}"
        kind = "class" if name in self.sources.classes else "function"
        for decorator in node.decorator_list:
            if "regist" in last_name(decorator) and (kind == "class" or name in self.sources.functions):
                for value in self._value(decorator):
                    if value.kind in ("function", "method"):
                        self._bind(value, [frozenset({Value(kind, name)})], {})
        if isinstance(node, ast.ClassDef) and name in self.sources.classes:
            for each in node.body:
                # ``_mutable_fields = {"name", …}`` only lists names.
                if isinstance(each, ast.Assign) and not last_name(each.targets[0]).endswith("_fields"):
                    values = self._value(each.value)
                    for target in each.targets:
                        self._add(self.sources.classes[name].attributes[last_name(target)], values)

    def _never_loaded(self, targets: Sequence[ast.expr]) -> bool:
        """Return whether what is assigned goes nowhere: an attribute whose name no code loads."""
        family: set[str | None] = {None}
        if self.function.owner:
            family |= {
                *self.sources.line_of(self.function.owner),
                *self.sources.classes[self.function.owner].below,
            }
        return all(
            isinstance(each, ast.Attribute) and not family & self.sources.loads[each.attr] for each in targets
        )

    def _assign(self, target: ast.expr, values: Values) -> None:
        if isinstance(target, ast.Name):
            self._add(self.function.env[target.id], values)
        elif isinstance(target, ast.Attribute):
            for owner in self._value(target.value):
                if owner.kind in ("instance", "super", "class"):
                    self._add(self.sources.classes[owner.name].attributes[target.attr], values)
                elif owner.kind == "key" and values:
                    own = Value("key", self._child(owner.name, target.attr))
                    self._add(self.extra[owner.name, target.attr], values - {own})
        elif isinstance(target, ast.Subscript):
            for owner in self._value(target.value):
                if owner.kind == "key" and (name := constant(target.slice)) and values:
                    self._add(self.extra[owner.name, name], values)
            held = target.value
            while isinstance(held, ast.Subscript):
                held = held.value
            if isinstance(held, ast.Name) and held.id in self.sources.variables[self.module]:
                self._add(self._module_env()[held.id], values)
            if isinstance(held, ast.Name | ast.Attribute):  # a dictionary holds it
                self._assign(held, values)
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._assign(each, values)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, values)

    def _module_env(self) -> dict[str, Cell]:
        return self.sources.functions[f"{self.module}.{MODULE}"].env

    # Expressions

    def _as(self, how: str, node: ast.AST) -> Values:
        before, self.how = self.how, how
        values = self._value(node) if isinstance(node, ast.expr) else self._inside(node)
        self.how = before
        return values

    def _inside(self, node: ast.AST) -> Values:
        return frozenset().union(*(self._value(each) for each in ast.iter_child_nodes(node)))

    def _value(self, node: ast.AST | None) -> Values:
        """Return what an expression may be. Notes the accesses in it."""
        if node is None:
            return NONE
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Attribute):
            return self._member(node, self._value(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return self._item(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Constant):
            if self.last and isinstance(node.value, str):
                self.strings[node.value].add(self._site(node))
            return NONE
        if isinstance(node, ast.Compare):
            name = constant(node.left)
            if name and isinstance(node.ops[0], ast.In | ast.NotIn):
                self._as("check", ast.copy_location(ast.Subscript(node.comparators[0], node.left), node))
            else:
                self._inside(node)
            return NONE
        if isinstance(node, ast.Lambda):
            return self._value(node.body)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            for each in node.generators:
                self._assign(each.target, self._parts(self._value(each.iter), node))
                for test in each.ifs:
                    self._value(test)
            if isinstance(node, ast.DictComp):
                return self._value(node.key) | self._value(node.value)
            return self._value(node.elt)
        if isinstance(node, ast.NamedExpr):
            values = self._value(node.value)
            self._assign(node.target, values)
            return values
        if isinstance(node, ast.IfExp):
            self._value(node.test)
            return self._value(node.body) | self._value(node.orelse)
        if isinstance(node, ast.Yield | ast.YieldFrom):
            self._add(self.function.returns, self._value(node.value))
            return NONE
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    self._note_whole(self._value(value), node)
                elif constant(key) is None:
                    self._value(key)
            return NONE.union(*map(self._value, node.values))
        values = self._inside(node)
        return (
            NONE if isinstance(node, ast.JoinedStr | ast.FormattedValue | ast.BinOp | ast.UnaryOp) else values
        )

    def _site(self, node: ast.AST) -> Site:
        return Site(self.how, self.sources.files[self.module], getattr(node, "lineno", 0))

    def _name(self, name: str) -> Values:
        function: Function | None = self.function
        while function:
            if values := self._from(function.env[name]):
                return values
            if (inner := f"{function.name}.{name}") in self.sources.functions:
                return frozenset({Value("function", inner)})
            if inner in self.sources.classes:
                return frozenset({Value("class", inner)})
            function = function.outer
        found = self.sources.find(self.module, name)
        return (
            frozenset({found})
            if found
            else self._from(self._module_env()[name]) | self._imported_variable(name)
        )

    def _imported_variable(self, name: str) -> Values:
        source, target = self.sources.names[self.module].get(name, ("", ""))
        other = self.sources.functions.get(f"{source}.{MODULE}")
        return self._from(other.env[target]) if other and target else NONE

    def _child(self, key: str, name: str) -> str:
        key = self._place(key)
        return f"{key}.{name}" if key else name

    def _member(self, node: ast.AST, owners: Values, name: str) -> Values:
        """The attribute or item ``name`` of ``owners``; a key of the configuration is an access."""
        out: set[Value] = set()
        for owner in owners:
            if owner.kind == "key":
                out |= self._key_member(node, owner, name)
            elif owner.kind == "module":
                if found := self.sources.find(owner.name, name):
                    out.add(found)
            elif owner.kind in ("instance", "class", "super"):
                out |= self._class_member(owner, name)
            elif owner.kind in ("function", "method") and name in ("remote", "options"):
                out.add(owner)
        if self.last and not owners:
            self.loose[name].add((tuple(chain(node)[:-1]), self._site(node)))
        return frozenset(out)

    def _key_member(self, node: ast.AST, owner: Value, name: str) -> set[Value]:
        key = self._child(owner.name, name)
        out = set(self._from(self.extra[owner.name, name]))
        if self._has(key):
            if key not in self.leaves:
                return out | {Value("key", key)}
            self.sites[key].add(self._site(node))
            # Where a leaf goes is not followed, but for a section that stands there.
            return out | ({Value("key", key)} if self._place(key) != key else set())
        for target in self.classes[self._place(owner.name)]:
            method = self.sources.method(target, name)
            if method and "property" in self.sources.functions[method].decorators:
                out |= self._from(self.sources.functions[method].returns)
            elif method:
                out.add(Value("method", method))
            else:
                out |= self._from(self.sources.classes[target].attributes[name])
        if name == "__dict__":
            self._note_whole(frozenset({owner}), node)
        return out

    def _class_member(self, owner: Value, name: str) -> set[Value]:
        out: set[Value] = set()
        line = self.sources.line_of(owner.name)
        below = [] if owner.kind == "super" else sorted(self.sources.classes[owner.name].below)
        for each in (*line, *below):
            out |= self._from(self.sources.classes[each].attributes[name])
        methods = {
            self.sources.method(line[0], name),
            *(self.sources.classes[b].methods.get(name) for b in below),
        }
        for method in filter(None, methods):
            function = self.sources.functions[method]
            if function.decorators & {"property", "cached_property"}:
                out |= self._from(function.returns)
            else:
                out.add(Value("method", method))
                if owner.kind == "class" and "classmethod" in function.decorators:
                    self._add(function.env[function.parameters[0]], {owner})
        if name in ("remote", "options") and not out:
            out.add(owner)
        return out

    def _item(self, node: ast.Subscript) -> Values:
        owners = self._value(node.value)
        name = constant(node.slice)
        if name is not None:
            found = self._member(node, owners, name)
            held = {v for v in owners if v.kind != "key"}  # a dictionary of them
            return found or frozenset(held)
        self._value(node.slice)
        if isinstance(node.slice, ast.Constant | ast.Slice):
            return owners
        return self._parts(owners, node) - only_keys(owners)

    def _parts(self, values: Values, node: ast.AST) -> Values:
        """Return what a loop over ``values`` gives: of a section also everything in it."""
        self._note_whole(values, node)
        inner = [(v.name, self._node(self._place(v.name))) for v in values if v.kind == "key"]
        sections = {
            Value("key", self._child(key, name))
            for key, content in inner
            if isinstance(content, dict)
            for name, value in content.items()
            if isinstance(value, dict)
        }
        return values | sections

    def _note_whole(self, values: Values, node: ast.AST) -> None:
        """Note that a section is used as a whole: looped over, unpacked, or handed to foreign code."""
        for value in values:
            key = self._place(value.name) if value.kind == "key" else ""
            if (
                key
                and key not in self.leaves
                and self.how != "print"
                and not self.module.startswith(PLUMBING)
            ):
                self.passed[key].add(self._site(node))

    # Calls

    def _call(self, node: ast.Call) -> Values:
        callee = last_name(node.func)
        if callee in PRINTS:
            self._as("print", ast.Tuple([*node.args, *(k.value for k in node.keywords)]))
            return NONE
        if isinstance(node.func, ast.Attribute):
            owners = self._value(node.func.value)
            name = constant(node.args[0]) if node.args else None
            if node.func.attr in LOOKUPS and name is not None:
                rest = [self._value(each) for each in node.args[1:]]
                own = self.function.node.args.kwarg
                if own and isinstance(node.func.value, ast.Name) and node.func.value.id == own.arg:
                    return self._from(self.function.keywords[name]).union(*rest)
                held = frozenset(v for v in owners if v.kind != "key")
                return (self._member(node, owners, name) or held).union(*rest)
            if node.func.attr in LOOKUPS and node.args and only_keys(owners):
                rest = [self._value(each) for each in node.args]
                return (self._parts(owners, node) - only_keys(owners)).union(*rest)
            if node.func.attr in ITERATES and any(v.kind == "key" for v in owners):
                self._note_whole(owners, node)
                return owners
            if node.func.attr in ("select", "update") and len(node.args) > 1 and constant(node.args[1]):
                return self._path(node, self._value(node.args[0]), constant(node.args[1]) or "")
        if callee in ("getattr", "hasattr", "setattr") and len(node.args) > 1:
            owners, name = self._value(node.args[0]), constant(node.args[1])
            if name is None:
                self._value(node.args[1])
                return self._parts(owners, node) - only_keys(owners)
            rest = [self._value(each) for each in node.args[2:]]
            if callee == "setattr":
                self._assign(ast.copy_location(ast.Attribute(node.args[0], name), node), rest[0])
                return NONE
            if callee == "hasattr":
                before, self.how = self.how, "check"
                self._member(node, owners, name)
                self.how = before
                return NONE
            return self._member(node, owners, name).union(*rest)
        if callee == "super" and self.function.owner:
            bases = self.sources.classes[self.function.owner].bases
            return frozenset(Value("super", base) for base in bases)
        callees = self._value(node.func)
        positional = [self._value(each) for each in node.args if not isinstance(each, ast.Starred)]
        for each in node.args:
            if isinstance(each, ast.Starred):
                self._value(each.value)
        keywords = {each.arg: self._value(each.value) for each in node.keywords if each.arg}
        for keyword in node.keywords:
            if keyword.arg is None:
                values = self._value(keyword.value)
                own = self.function.node.args.kwarg
                if isinstance(keyword.value, ast.Name) and own and own.arg == keyword.value.id:
                    keywords |= {
                        k: self._from(v) for k, v in self.function.keywords.items() if k not in keywords
                    }
                else:
                    self._note_whole(values, node)
        if callee == "omega_conf_to_dataclass":
            self._note_dataclass(positional, keywords)
            return positional[0] if positional else keywords.get("config", NONE)
        if callee == "options" and callees:  # of a Ray actor's class
            self._note_whole(NONE.union(*keywords.values()), node)
            return callees
        known = [value for value in callees if value.kind in ("function", "method", "class")]
        out: set[Value] = set()
        for value in known:
            out |= self._bind(value, positional, keywords)
        given = frozenset().union(*positional, *keywords.values())
        sections = any(value.kind == "key" for value in given)
        if sections and callee in STARTS:
            self._bind_given(positional, keywords)
        if known:
            return frozenset(out)
        if sections:
            unknown = isinstance(node.func, ast.Attribute) and callee not in HARMLESS | COPIES
            if unknown and not any(value.kind in ("key", "module") for value in owners):
                for name in self.sources.by_name.get(callee, ()):
                    if self.sources.functions[name].owner and name in self.sources.alive:
                        out |= self._bind(Value("method", name), positional, keywords, surely=False)
            if not out:
                self._bind_by_names(keywords)
            if callee not in HARMLESS | COPIES and self._is_foreign(node.func):
                self._note_whole(given, node)
        same = given if callee in COPIES else NONE
        if callee in ("remote", "options", "partial"):
            same -= only_keys(same)
        return frozenset(out) | same | (callees if callee in ("remote", "options") else NONE)

    def _is_foreign(self, node: ast.expr) -> bool:
        """Return whether a callee is of another package."""
        while isinstance(node, ast.Attribute | ast.Call):
            node = node.value if isinstance(node, ast.Attribute) else node.func
        name = node.id if isinstance(node, ast.Name) else ""
        source = self.sources.foreign.get((self.module, name), "")
        return bool(source) and source.partition(".")[0] not in ("verl", "logging", "warnings")

    def _bind_given(self, positional: list[Values], keywords: Mapping[str, Values]) -> None:
        """``partial(f, …)``, ``submit(f, …)``, ``RayClassWithInitArgs(cls=C, …)``: calls of what is given."""
        first = positional[0] if positional else NONE
        named = frozenset().union(*(keywords.get(name, NONE) for name in ("cls", "target", "func")))
        for value in first | named:
            if value.kind in ("function", "method", "class"):
                others = {k: v for k, v in keywords.items() if k not in ("cls", "target", "func")}
                self._bind(value, positional[1:] if first else [], others)

    def _path(self, node: ast.AST, owners: Values, path: str) -> Values:
        for part in path.split("."):
            owners = self._member(node, owners, part)
        return owners

    def _note_dataclass(self, positional: list[Values], keywords: dict[str, Values]) -> None:
        named = keywords.get("dataclass_type") or (positional[1] if len(positional) > 1 else NONE)
        for value in positional[0] if positional else keywords.get("config", NONE):
            for found in named:
                if value.kind == "key" and found.kind == "class":
                    self._set_class(self._place(value.name), found.name)

    def _bind(
        self, callee: Value, positional: list[Values], keywords: Mapping[str, Values], *, surely: bool = True
    ) -> set[Value]:
        """Let the arguments flow into a function or a class. Returns what comes back."""
        if callee.kind == "class":
            made = self.sources.method(callee.name, "__init__")
            if made is None:
                fields = [
                    f
                    for c in reversed(self.sources.line_of(callee.name))
                    for f in self.sources.classes[c].fields
                ]
                for name, values in (*zip(fields, positional, strict=False), *keywords.items()):
                    if name in fields:
                        self._add(self.sources.classes[callee.name].attributes[name], values)
                return {Value("instance", callee.name)}
        else:
            made = callee.name
        function = self.sources.functions[made]
        names = function.parameters
        if callee.kind == "class" or (function.owner and "staticmethod" not in function.decorators):
            names = names[1:]
        if not surely and not (function.takes(keywords) and (positional or keywords)):
            return set()
        if not surely:  # by its name alone: only the configuration flows
            positional = [only_keys(values) for values in positional]
            keywords = {name: only_keys(values) for name, values in keywords.items()}
        for name, values in zip(names, positional, strict=False):
            self._add(function.env[name], values)
        own = {*names, *(each.arg for each in function.node.args.kwonlyargs)}
        for name, values in keywords.items():
            if name in own:
                self._add(function.env[name], values)
            elif function.node.args.kwarg and surely:
                self._add(function.keywords[name], values)
                self._add(function.env[function.node.args.kwarg.arg], values)
        return (
            {Value("instance", callee.name)} if callee.kind == "class" else set(self._from(function.returns))
        )

    def _bind_by_names(self, keywords: Mapping[str, Values]) -> None:
        """A class that is looked up at run time: every one that takes arguments of these names."""
        names = set(keywords) - {"config", "name", "cls"}
        for name, each in self.sources.classes.items():
            made = each.methods.get("__init__")
            taken = names.intersection(self.sources.functions[made].parameters) if made else set()
            if len(taken) >= 2 and 4 * len(taken) >= 3 * len(names):
                given = {k: values for k, values in keywords.items() if k in taken | {"config"}}
                self._bind(Value("class", name), [], given, surely=False)

    # Answers

    def answers(self) -> dict[str, list[Any]]:
        """Key → [label, sites, condition or key], sorted."""
        labels = {key: self._label(key) for key in self.leaves}
        for _ in range(3):
            for key, value in self.leaves.items():
                if not isinstance(value, str) or labels[key][0] in UNUSED:
                    continue
                for name in re.findall(r"\$\{(?:oc\.select:)?([\w.]+)", value):
                    for other in [k for k in labels if k == name or k.startswith(name + ".")]:
                        if labels[other][0] in UNUSED:
                            labels[other] = ["READ VIA", labels[key][1], key]
        return {key: [part for part in labels[key] if part] for key in sorted(labels)}

    def _label(self, key: str) -> list[Any]:
        sites = self.sites[key]
        reads = [site for site in sites if site.how == "read"]
        if reads:
            places = {place(site.file) for site in reads}
            only = "" if "" in places else ", ".join(sorted(places))
            return ["READ IF" if only else "READ", shown(reads), only]
        above = [key.rsplit(".", depth)[0] for depth in range(1, key.count(".") + 1)]
        if passed := [site for name in (key, *above) for site in self.passed.get(name, ())]:
            return ["PASSED ON", shown(passed), ""]
        name = key.rpartition(".")[2]
        sections = {part for each in self.leaves for part in each.split(".")[:-1]}
        loose = [site for before, site in self.loose.get(name, ()) if may_be(key, before, sections)]
        if loose := [site for site in loose if site.how != "print"]:
            return ["AMBIGUOUS", shown(loose), ""]
        for how, label in (("check", "CHECKED ONLY"), ("store", "STORED ONLY")):
            if found := {site for site in sites if site.how == how}:
                return [label, shown(found), ""]
        if "_" in name and (strings := self.strings.get(name)):
            return ["NAME AS STRING", shown(strings), ""]
        return ["NOT READ", [], ""]


def chain(node: ast.AST) -> list[str]:
    """The words of an access: ``config, data, seed`` of ``config["data"].get("seed")``, "" for others."""
    if isinstance(node, ast.Attribute):
        return [*chain(node.value), node.attr]
    if isinstance(node, ast.Subscript):
        return [*chain(node.value), constant(node.slice) or ""]
    if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
        return [*chain(node.func.value), constant(node.args[0]) or ""]
    if isinstance(node, ast.Call) and len(node.args) > 1:  # getattr
        return [*chain(node.args[0]), constant(node.args[1]) or ""]
    return [node.id if isinstance(node, ast.Name) else ""]


def may_be(key: str, before: tuple[str, ...], sections: set[str]) -> bool:
    """Return whether the last word of ``key`` after the words ``before``, of an unknown object, may be it."""
    *above, name = key.split(".")
    for word in reversed(before):
        plain = re.sub(r"_(config|cfg)$", "", word)
        if plain not in sections:
            break
        if not above or above.pop() != plain:
            return False
    return len(above) < key.count(".") or "_" in name or bool(CONFIG_NAME.search(before[-1]))


def only_keys(values: Values) -> Values:
    """Return those that are places of the configuration."""
    return frozenset(value for value in values if value.kind == "key")


def is_complaint(node: ast.stmt) -> bool:
    """Return whether a statement only checks, raises or logs."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return last_name(node.value.func) in PRINTS or bool(CHECKS.search(last_name(node.value.func)))
    if isinstance(node, ast.If):
        return all(map(is_complaint, (*node.body, *node.orelse)))
    return isinstance(node, ast.Raise | ast.Pass | ast.Assert)


def place(file: str) -> str:
    """Return when the code of a file runs; "" for always."""
    parts = set(re.split(r"[/._]", file)) | set(file.removesuffix(".py").split("/"))
    return next((when for part, when in PLACES.items() if part in parts or f"_{part}" in file), "")


def shown(sites: Iterable[Site]) -> list[str]:
    """At most SITES of them as file:line, those of no condition first."""
    ordered = sorted(sites, key=lambda site: (bool(place(site.file)), site.file, site.line))
    return list(dict.fromkeys(f"{site.file.removeprefix('verl/')}:{site.line}" for site in ordered))[:SITES]


def read(root: Path, version: str) -> dict[str, Any]:
    """The answers for a release: those under FSDP, and those that differ under Megatron."""
    sources = Sources(root, MAIN)
    out: dict[str, dict[str, list[Any]]] = {}
    for flavour in FLAVOURS:
        sources.forget()
        found = Pass(sources, composed_as(release_tree(version), flavour))
        found.run()
        first = next(iter(out.values()), {})
        out[flavour] = {key: got for key, got in found.answers().items() if first.get(key) != got}
    return out


def follow(root: Path, version: str, without: tuple[str, ...] = ()) -> Pass:
    """Return the finished pass over a release under FSDP."""
    found = Pass(Sources(root, MAIN, without), composed_as(release_tree(version), FLAVOURS[0]))
    found.run()
    return found


def recall(root: Path, version: str, facts: Path) -> None:
    """Print how many of the noted reads (``KEY FILE:LINE``) the pass has found, and name the others."""
    found = follow(root, version)
    rows = [line.split() for line in facts.read_text(encoding="utf-8").splitlines()]
    rows = [(key, noted) for key, noted in rows if key in found.leaves]
    elsewhere = [(key, noted) for key, noted in rows if not has_site(found, key, noted)]
    labels = found.answers()
    unread = [key for key, _ in rows if labels[key][0] == "NOT READ"]
    print(f"{len(rows)} keys that a run read: {len(rows) - len(unread)} found, {unread} said to be unread")
    print(f"{len(rows) - len(elsewhere)} at the noted place, give or take {NEAR} lines; not there:")
    for key, noted in elsewhere:
        print(f"  {key} {noted}: {labels[key][0]} {labels[key][1:2]}")


def has_site(found: Pass, key: str, noted: str) -> bool:
    """Return whether the pass has an access to ``key`` at the noted place."""
    file, _, line = noted.rpartition(":")
    above = [key.rsplit(".", depth)[0] for depth in range(1, key.count(".") + 1)]
    sites = {*found.sites[key], *(site for name in (key, *above) for site in found.passed.get(name, ()))}
    sites |= {site for _, site in found.loose.get(key.rpartition(".")[2], ())}
    return any(site.file == file and abs(site.line - int(line)) <= NEAR for site in sites)


def trainers(root: Path, version: str) -> None:
    """Print the keys that the pass finds read with one of the two trainers alone."""
    by = {name: follow(root, version, other).answers() for name, other in OTHERS.items()}
    for key in by["v0"]:
        v0, v1 = (by[name][key] for name in ("v0", "v1"))
        if (v0[0] in UNUSED) != (v1[0] in UNUSED):
            print(f"{key}: v0 {v0}, v1 {v1}")


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--tree", action="append", required=True, metavar="VERSION=DIR")
    cli.add_argument("--recall", type=Path, metavar="FACTS")
    cli.add_argument("--trainers", action="store_true")
    options = cli.parse_args()
    if options.recall or options.trainers:
        for spec in options.tree:
            version, _, folder = spec.partition("=")
            if options.recall:
                recall(Path(folder), version, options.recall)
            if options.trainers:
                trainers(Path(folder), version)
        return
    OUT.mkdir(parents=True, exist_ok=True)
    for spec in options.tree:
        version, _, folder = spec.partition("=")
        content = read(Path(folder), version)
        (OUT / f"{version}.json").write_text(dump(content), encoding="utf-8")


if __name__ == "__main__":
    main()
