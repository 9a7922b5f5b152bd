"""The state of one shell: variables, positional parameters, options, place, files it wrote."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from trinity_compat.common import limits
from trinity_compat.common.errors import Where
from trinity_compat.common.limits import Budget, BudgetExceeded
from trinity_compat.launch.bash.branch_search import Guesses
from trinity_compat.launch.bash.files import PathFacts, absolute
from trinity_compat.launch.bash.slurm import SlurmVariable
from trinity_compat.launch.bash.traced_text import (
    EMPTY,
    TextPiece,
    Value,
    as_one_word,
    literal,
    named,
    text_of,
    uncounted,
)
from trinity_compat.launch.bash.tree import Node, ParsedText
from trinity_compat.launch.bash.words.segments import Segs
from trinity_compat.launch.model import Diagnostic, EnvRef, Launch, MachineLine, RayStart, Start, UnknownPiece

# The long names of ``set -o`` and ``bash -o``; the others (pipefail) have no letter.
OPTION_LETTERS = {
    "errexit": "e",
    "nounset": "u",
    "xtrace": "x",
    "allexport": "a",
    "noglob": "f",
    "errtrace": "E",
    "functrace": "T",
}
_REFERENCES = 8  # to each other, as many as bash follows
# The option that hands the trap of an event on to functions and subshells; EXIT's has none.
INHERITED = {"ERR": "E", "DEBUG": "T", "RETURN": "T"}


class Exit(Exception):
    """The shell ends."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Return(Exception):
    """A function or a sourced file ends."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Discard(Exception):
    """An error in an expansion: bash drops the whole command and goes on with the next."""


class Jump(Exception):
    """``break`` or ``continue`` out of ``levels`` loops."""

    def __init__(self, levels: int, *, again: bool) -> None:
        super().__init__(levels)
        self.levels = levels
        self.again = again


@dataclass(frozen=True, slots=True)
class Variable:
    """One shell variable. A scalar has ``value``; arrays have ``array`` (int or str keys).

    ``value`` is None for one that is declared but unset. ``given`` says that it came through the
    known environment and the script hasn't touched it. ``exported`` is None for one that bash exports only
    where the script's environment has it (``X=5`` alone).
    """

    value: Value | None = None
    array: dict[Any, Value] | None = None  # keys: int, or str in an associative array
    exported: bool | None = False
    given: bool = False
    readonly: bool = False
    attributes: frozenset[str] = frozenset()  # of "i l u A a"

    @property
    def is_table(self) -> bool:
        """An associative array."""
        return "A" in self.attributes


class Variables(dict[str, Variable]):
    """Variables by name; that of a reference (``declare -n``) is the one that it refers to.

    What walks through them meets the references themselves.
    """

    def target(self, name: str) -> str:
        """Return the name that a name stands for; empty for a reference that refers to nothing yet."""
        for _ in range(_REFERENCES):
            found = super().get(name)
            if found is None or "n" not in found.attributes:
                break
            name = text_of(found.value or EMPTY)
        return name

    def own(self, name: str) -> Variable | None:
        """Return what stands under the name itself."""
        return super().get(name)

    def set_own(self, name: str, variable: Variable | None) -> None:
        """Put this under the name itself; None takes it away."""
        if variable is None:
            super().pop(name, None)
        else:
            super().__setitem__(name, variable)

    def refers(self, name: str) -> bool:
        """Return whether a name is a reference."""
        return (found := self.own(name)) is not None and "n" in found.attributes

    def refer(self, name: str, target: Value) -> None:
        """``declare -n name=target``."""
        self.set_own(name, Variable(value=target, attributes=frozenset("n")))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(self.target(str(name)))

    def __getitem__(self, name: str) -> Variable:
        return super().__getitem__(self.target(name))

    def get(self, name: str, default: Any = None) -> Any:
        """Return the variable of a name."""
        return super().get(self.target(name), default)

    def __setitem__(self, name: str, variable: Variable) -> None:
        if target := self.target(name):
            super().__setitem__(target, variable)
        else:
            self.refer(name, variable.value or EMPTY)

    def pop(self, name: str, default: Any = None) -> Any:
        """Take the variable of a name away."""
        return super().pop(self.target(name), default)


def _bucket(key: str) -> int:
    """The bucket of bash's table that a key falls into: FNV-1 over its bytes, 1024 buckets.

    Tables of more than 2048 entries, where bash grows it, aren't followed.
    """
    value = 2166136261
    for byte in key.encode(errors="surrogateescape"):
        value = (value * 16777619 & 0xFFFFFFFF) ^ byte
    return value & 1023


@dataclass(frozen=True, slots=True)
class ShellFunction:
    """A shell function and the text that it was written in."""

    body: Node
    unit: ParsedText
    script: Value


@dataclass(slots=True)
class UserVariable:
    """A variable that the user gave, and what became of its value: it counts once anything reads it."""

    value: Value
    read: bool = False
    replaced: Where | None = None  # where the script first put another value in its place


@dataclass(slots=True)
class SchedulerVariable:
    """A variable that the scheduler will set, as far as the job's own file says."""

    name: str
    value: Value
    setting: SlurmVariable
    read: bool = False


@dataclass(frozen=True, slots=True)
class Reach:
    """The part of the script's surroundings that reaches a command of a shell (see ``Start``).

    ``through``: something of the shell's own stands before the command (``exec``, a program that runs it).
    ``start``: what a program started that starts the rest by itself (``ray job submit``).
    """

    hooked: bool = False
    through: bool = False
    path_known: bool = True
    elsewhere: str = ""
    travels: bool = False
    start: Start | None = None


@dataclass(frozen=True, slots=True)
class BackgroundCommand:
    """A command that the script starts in the background, before its launch number ``before`` (from 0)."""

    text: str
    before: int


@dataclass(slots=True)
class ReadingLog:
    """Results of a whole reading, over all of its shells."""

    launches: list[Launch] = field(default_factory=list)
    diagnostics: dict[tuple[str, str, int], Diagnostic] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)  # diagnostics by severity
    given: dict[str, UserVariable] = field(default_factory=dict)
    scheduled: list[SchedulerVariable] = field(default_factory=list)
    unread: list[Value] = field(default_factory=list)  # the script's own arguments that nothing took so far
    lacking: set[int] = field(default_factory=set)  # numbers of those that a line reads and nobody gave
    # what `tmux setenv` and the like set for later: launcher → name → (of which session or pod, value)
    kept: dict[str, dict[str, tuple[str, Value]]] = field(default_factory=dict)
    typed: dict[str, list[Value]] = field(default_factory=dict)  # lines for a terminal's shell, by session
    guesses: Guesses = field(default_factory=Guesses)
    background: dict[Where, BackgroundCommand] = field(default_factory=dict)
    mains: Mapping[str, str] = field(default_factory=dict)  # the main that each module of --main is taken for
    surroundings: dict[str, Where] = field(default_factory=dict)  # see `Reading`
    source: tuple[str, str] = ("", "")  # the script's name and text
    ray: list[RayStart] = field(default_factory=list)
    stopped: int = 0  # so many of ``ray``, by ``ray stop``
    unsplit: list[MachineLine] = field(default_factory=list)  # see `Machines`

    def warn(self, code: str, message: str, where: Where, severity: str = "warning") -> None:
        """Record a diagnostic, once per code and line."""
        key = (code, where.file, where.line)
        # a very large script must not give a very large report
        if key not in self.diagnostics and self.counted.get(severity, 0) < limits.DIAGNOSTICS:
            self.counted[severity] = self.counted.get(severity, 0) + 1
            self.diagnostics[key] = Diagnostic(code, message, where, severity)

    def launch(self, launch: Launch) -> None:
        """Record a launch."""
        if len(self.launches) >= limits.LAUNCHES:
            raise BudgetExceeded(f"more than {limits.LAUNCHES} launches")
        self.launches.append(launch)


@dataclass(slots=True)
class Shell:
    """One bash process, as far as a launch script can see it."""

    unit: ParsedText
    budget: Budget
    log: ReadingLog
    files: PathFacts
    name: Value
    run: Callable[[Shell, list[Node]], int]  # statements in a shell of their own
    run_statement: Callable[[Shell, Node], int]
    expand_parameter: Callable[[Shell, ParsedText, Node, bool], Segs]
    variables: Variables = field(default_factory=Variables)
    functions: dict[str, ShellFunction] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    positional: list[Value] = field(default_factory=list)
    options: set[str] = field(default_factory=set)
    cwd: Value = EMPTY
    mounts: tuple[tuple[str, str], ...] = ()  # folders of a container, each with the host's that is there
    directories: list[Value] = field(default_factory=list)  # of pushd; replaced, never changed
    stdin: Value | None = None
    stdout: list[TextPiece] | None = None
    status: int = 0
    doubt: UnknownPiece | EnvRef | None = None  # why the last status is a guess
    doubt_before: UnknownPiece | EnvRef | None = None  # the same of the status in ``$?``
    deciding: bool = False  # in the condition of an if or a loop, which says what it assumes
    noted: UnknownPiece | EnvRef | None = None  # the doubt of an && or || that has been said
    lacking: UnknownPiece | None = None  # a test that is false because a file isn't there, now
    pipe_statuses: tuple[Value, ...] = ()  # PIPESTATUS
    traps: dict[str, Value] = field(default_factory=dict)  # the code for EXIT, ERR, DEBUG and RETURN
    trapping: tuple[str, ...] = ()  # those whose code runs now
    where: Where = field(default_factory=lambda: Where(""))
    depth: int = 0
    loops: int = 0
    tries: bool = False  # every branch of what is not known, to see what it changes
    waits: bool = False  # the innermost loop ends by what is in it only: ``while true``
    overdue: int = 0  # of the loops in each other that of which so many rounds were read that it must end now
    calls: int = 0  # functions and sourced files in each other
    guarded: int = 0  # inside a condition: set -e doesn't count
    fed_by_launch: bool = False  # its stdin is what a training main prints
    capturing: str = ""  # the text of the $(…) around, the expression of what it can't know
    substitution_status: int | None = None
    touched: set[str] = field(default_factory=set)  # set or unset by the script; "*": all unset (`env -i`)
    # what a shell around has assigned without export: this one has it only where the environment has the name
    unexported: dict[str, Value] = field(default_factory=dict)
    # of the functions that run: what stood in place of each local name, and whether it was touched
    scopes: list[dict[str, tuple[Variable | None, bool]]] = field(default_factory=list)
    scripts: list[Value] = field(default_factory=list)  # BASH_SOURCE, innermost last
    frames: list[str] = field(default_factory=list)  # FUNCNAME
    getopts_at: tuple[int, int] = (1, 0)
    assigned_unread: UnknownPiece | EnvRef | None = None  # what isn't known and may have set any variable
    vanished: UnknownPiece | EnvRef | None = None  # what took a word of this command with it
    ended_at: Where | None = None
    wrapper: tuple[str, ...] = ()  # the programs that started this shell
    reach: Reach = Reach()
    background: tuple[Where, str] | None = None  # the command with ``&`` that this shell is

    def warn(self, code: str, message: str, where: Where | None = None, severity: str = "warning") -> None:
        """Record a diagnostic at ``where``, or at the command that runs now."""
        self.log.warn(code, message, where or self.where, severity)

    def scalar(self, name: str) -> Value | None:
        """Return the value of ``$name`` (of an array: of its element 0); None when it is unset."""
        self.note_read(name)
        found = self.variables.get(name)
        if found is None:
            return None
        return found.value if found.array is None else found.array.get("0" if found.is_table else 0)

    def exported(self, name: str) -> Value:
        """Return the value of a variable for a program that starts now; empty where it is not exported."""
        found = self.variables.get(name)
        return found.value or EMPTY if found is not None and found.exported else EMPTY

    def variable(self, name: str) -> Variable:
        """Return a variable as it is before an assignment."""
        name = self.variables.target(name)
        inherits = self.from_surroundings(name) or name in self.unexported
        return self.variables.get(name) or Variable(exported=None if inherits else False)

    def from_surroundings(self, name: str) -> bool:
        """Return whether an unset name could still come from the environment of the script."""
        return self.touched.isdisjoint((name, "*"))

    def note_read(self, name: str) -> None:
        """The variable's value is used. Counts where it is still what the user gave."""
        given = self._still_given(name)
        if given is not None:
            given.read = True
        variable = self.variables.get(name)
        for scheduled in self.log.scheduled if variable else ():
            scheduled.read = scheduled.read or (variable is not None and variable.value is scheduled.value)

    def note_arguments(self, taken: Iterable[Value]) -> None:
        """Some of the positional parameters are used."""
        if self.log.unread:
            names = {id(value) for value in taken}
            self.log.unread = [value for value in self.log.unread if id(value) not in names]

    def note_lacking_argument(self, number: int) -> None:
        """A parameter that is not set is used. Those of functions and of other scripts are their own."""
        if not self.frames and len(self.scripts) <= 1:
            self.log.lacking.add(number)

    def schedule(self, settings: Mapping[str, SlurmVariable]) -> dict[str, Value]:
        """The values of a job's variables, without those that the environment has or the script set."""
        found: dict[str, Value] = {}
        for name, setting in settings.items():
            if name not in self.variables:
                found[name] = literal(setting.value, setting.where)
                self.log.scheduled.append(SchedulerVariable(name, found[name], setting))
        return found

    def _note_replaced(self, name: str, value: Value | None = None) -> None:
        given = self._still_given(name)
        if given is not None and (value is None or text_of(value) != text_of(given.value)):
            given.replaced = given.replaced or self.where

    def _still_given(self, name: str) -> UserVariable | None:
        given, variable = self.log.given.get(name), self.variables.get(name)
        return given if given and variable and variable.value is given.value else None

    def put(self, name: str, variable: Variable) -> None:
        """Set a variable as a whole."""
        self._note_replaced(name, variable.value)
        self.variables[name] = variable
        self.touched.add(self.variables.target(name))
        if len(self.variables) > limits.FIELDS:
            raise BudgetExceeded("too many variables")

    def set_scalar(self, name: str, value: Value, *, append: bool = False) -> None:
        """``name=value`` or ``name+=value``."""
        old = self.variable(name)
        if old.readonly:
            self.warn("TP107", f"{name} is readonly; bash refuses to change it")
            return
        if old.array is not None:
            self.set_element(name, "0" if old.is_table else 0, value, append=append)
            return
        if append:
            self.note_read(name)
        else:
            value = self.user_value(name, value)
        value = self._shaped(old, old.value or EMPTY, value, append)
        exported = "a" in self.options or old.exported
        self.put(name, replace(old, value=value, exported=exported, given=False))

    def user_value(self, name: str, value: Value) -> Value:
        """Return the user's value of ``name`` where the script sets it to the output of a program."""
        value = as_one_word(value)
        opened = next((bit.source for bit in value if isinstance(bit.source, UnknownPiece)), None)
        if opened is None:
            return value
        given = self.log.given.get(name)
        if given is None:
            single = len(value) == 1 and not opened.variable
            return (replace(value[0], source=replace(opened, variable=name)),) if single else value
        given.read = True
        reason = f"{name} is set to {opened.expression}, which is known only at run time"
        self.warn("TP117", f"{reason}; the value given for {name} stands for it")
        return given.value

    def _shaped(self, old: Variable, before: Value, value: Value, append: bool) -> Value:
        """The value under the variable's attributes (-i, -l, -u)."""
        if append and "i" not in old.attributes:
            value = before + value
        shape = old.attributes & {"l", "u"}
        if shape:
            change = str.lower if "l" in shape else str.upper
            value = tuple(TextPiece(change(bit.text), bit.where, bit.source) for bit in value)
        self.budget.make(sum(len(bit.text) for bit in value))
        if len(value) > 2000:  # so many origins cost more time than they tell
            value = literal(text_of(value), self.where)
        return value

    def set_element(
        self,
        name: str,
        key: str | int,
        value: Value,
        *,
        append: bool = False,
        doubt: UnknownPiece | EnvRef | None = None,
    ) -> None:
        """``name[key]=value``; the key is already evaluated.

        ``doubt``: why the key is not known; then it may be any element, or one more.
        """
        old = self.variables.get(name) or Variable()
        if old.readonly:
            self.warn("TP107", f"{name} is readonly; bash refuses to change it")
            return
        array = self.as_array(old)
        slot: Any = key if old.is_table else int(key)
        if not old.is_table and slot < 0:
            slot += max(array, default=-1) + 1
        array[slot] = self._shaped(old, array.get(slot, EMPTY), value, append)
        if doubt is not None:
            array = dict.fromkeys(array, uncounted(f"{name}[{named(doubt)}]", self.where))
        self.budget.fields(len(array))
        exported = "a" in self.options or old.exported
        self.put(name, replace(old, value=None, array=array, exported=exported, given=False))

    def unset_element(self, name: str, key: str | int, doubt: UnknownPiece | EnvRef | None) -> None:
        """``unset name[key]``; ``doubt``: why the key is not known."""
        old = self.variables[name]
        if isinstance(key, int) and key < 0:
            key += max(self.as_array(old), default=-1) + 1
        array = {k: v for k, v in self.as_array(old).items() if k != key or doubt is not None}
        if doubt is not None:
            array = dict.fromkeys(array, uncounted(f"{name}[{named(doubt)}]", self.where))
        self.put(name, replace(old, array=array))

    @staticmethod
    def as_array(variable: Variable) -> dict[Any, Value]:
        """The elements of a variable seen as an array; the dict itself when it is one."""
        if variable.array is not None:
            return variable.array
        return {0: variable.value} if variable.value is not None else {}

    def keys(self, variable: Variable) -> list[Any]:
        """The keys of an array in the order in which bash goes through them."""
        keys = list(self.as_array(variable))
        if not variable.is_table:
            return sorted(keys)
        keys.reverse()  # within a bucket the newest comes first
        return sorted(keys, key=_bucket)

    def may_set_any(self, what: str, why: UnknownPiece | EnvRef) -> None:
        """Say that ``what``, a command with words that aren't known, may set any variable, and open them."""
        self.warn(
            "TP101", f"{what} of {named(why)}, which is known only at run time: it may set any variable"
        )
        self.open_variables(why)

    def open_variables(self, why: UnknownPiece | EnvRef, names: Collection[str] | None = None) -> None:
        """Something that isn't known may have set any variable: none (of ``names``) has a known value now.

        Those that the user gave, or that bash keeps, stay.
        """
        self.assigned_unread = why
        kept = {"PATH", "HOME", "PWD", "OLDPWD", "IFS"}
        for name in list(self.variables) if names is None else names:
            variable = self.variables[name]
            if variable.given or variable.readonly or name in kept:
                continue
            value, array = variable.value, variable.array
            if value is not None:
                value = (TextPiece(text_of(value), self.where, UnknownPiece(named(why), self.where, name)),)
            if array is not None:
                array = {"" if variable.is_table else 0: uncounted(named(why), self.where)}
            exported = variable.exported or None
            self.variables[name] = replace(variable, value=value, array=array, exported=exported)
        self.touched.intersection_update(self.variables)

    def open_alone(self, why: UnknownPiece | EnvRef, names: Collection[str]) -> None:
        """Open these variables, and no other that may be set."""
        before = self.assigned_unread, set(self.touched)
        self.open_variables(why, names)
        self.assigned_unread, self.touched = before

    def unset(self, name: str) -> None:
        """``unset name``."""
        self._note_replaced(name)
        name = self.variables.target(name)
        self.variables.pop(name, None)
        self.unexported.pop(name, None)
        self.touched.add(name)

    def make_local(self, name: str) -> None:
        """``local name``: remembered, and put back when the function returns."""
        scope = self.scopes[-1] if self.scopes else None
        if scope is not None and name not in scope:
            self._note_replaced(name)  # for the function, and all that it calls
            scope[name] = self.variables.own(name), name in self.touched
            # unset until it is assigned, but a variable that was exported stays so
            self.variables.set_own(name, Variable(exported=self.variable(name).exported))
            self.touched.add(name)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """The variables of one function call."""
        self.scopes.append({})
        try:
            yield
        finally:
            for name, (variable, touched) in self.scopes.pop().items():
                self.variables.set_own(name, variable)
                if not touched:
                    self.touched.discard(name)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Nest one level deeper while the block runs. Raises BudgetExceeded beyond the limit."""
        self.depth += 1
        self.budget.step()
        if self.depth > limits.DEPTH:
            self.depth -= 1
            raise BudgetExceeded(f"more than {limits.DEPTH} functions or scripts in each other")
        try:
            yield
        finally:
            self.depth -= 1

    def copy(self) -> Shell:
        """Return a subshell: it begins with the same state, and its changes do not come back."""
        self.budget.step(1 + len(self.variables) // 50)
        variables = Variables(
            (name, replace(var, array=dict(var.array)) if var.array is not None else var)
            for name, var in self.variables.items()
        )
        return replace(
            self,
            variables=variables,
            functions=dict(self.functions),
            aliases=dict(self.aliases),
            positional=list(self.positional),
            options=set(self.options),
            touched=set(self.touched),
            unexported=dict(self.unexported),
            scopes=[dict(scope) for scope in self.scopes],
            scripts=list(self.scripts),
            frames=list(self.frames),
            traps=self._inherited_traps(),
        )

    def _inherited_traps(self) -> dict[str, Value]:
        return {name: code for name, code in self.traps.items() if INHERITED.get(name) in self.options}

    @contextmanager
    def traps_of_function(self) -> Iterator[None]:
        """Hide the traps that a function does not inherit while it runs. One that it sets stays."""
        kept = self._inherited_traps() | {k: code for k, code in self.traps.items() if k == "EXIT"}
        hidden = {name: code for name, code in self.traps.items() if name not in kept}
        self.traps = kept
        try:
            yield
        finally:
            self.traps = hidden | self.traps

    def child(self, prefix: Mapping[str, Value]) -> Shell:
        """Return the state of a new bash process, which gets exported variables only."""
        shell = self.copy()
        shell.variables = Variables((name, var) for name, var in shell.variables.items() if var.exported)
        shell.unexported = self.assigned_alone()
        # what the script unset, or doesn't export, can't come from the surroundings
        shell.touched |= self.variables.keys() - shell.variables.keys()
        for name, value in prefix.items():
            shell.variables[name] = Variable(value=value, exported=True)
            shell.touched.add(name)
        shell.functions, shell.aliases, shell.options, shell.scopes, shell.traps = {}, {}, set(), [], {}
        shell.loops = shell.overdue = shell.calls = shell.guarded = 0
        shell.waits = False
        shell.frames = []
        shell.reach = replace(self.reach, hooked=False, through=False)
        return shell

    def assigned_alone(self) -> dict[str, Value]:
        """Variables that a program gets only where the script's environment has them, with their values."""
        own = {name: var.value for name, var in self.variables.items() if var.exported is None and var.value}
        return {k: v for k, v in self.unexported.items() if k not in self.variables} | own

    @contextmanager
    def reaching(self, **changes: Any) -> Iterator[None]:
        """Change the reach while a command runs that has another one, such as ``exec`` or ``nohup``."""
        before, self.reach = self.reach, replace(self.reach, **changes)
        try:
            yield
        finally:
            # the command is over, what it may have done to PATH is not
            self.reach = replace(before, path_known=before.path_known and self.reach.path_known)

    def status_value(self, status: int, doubt: UnknownPiece | EnvRef | None, where: Where) -> Value:
        """Return a status as the value of ``$?``: an unknown piece where the status is a guess."""
        text = str(status)
        return (TextPiece(text, where, UnknownPiece("$?", where)),) if doubt else literal(text, where)

    def write(self, value: Value) -> None:
        """Output to stdout; kept only where something reads it."""
        if self.stdout is not None:
            self.budget.make(sum(len(bit.text) for bit in value))
            self.stdout.extend(value)

    def write_line(self, value: Value) -> int:
        """Output of one line, and the status of the command whose whole output it is."""
        self.write((*value, TextPiece("\n", self.where)))
        return 0

    def files_path(self, value: Value) -> str:
        """The absolute path that a value names from the shell's directory, outside of its container."""
        path = absolute(text_of(self.cwd), text_of(value))
        inside = (each for each in self.mounts if f"{path}/".startswith(f"{each[0]}/"))
        target, host = next(inside, ("", ""))
        return absolute(host, path[len(target) :].lstrip("/")) if target else path

    def unknown(self, expression: str, where: Where) -> TextPiece:
        """A piece that cannot be known here; inside ``$(…)`` the whole substitution is named."""
        return TextPiece("", where, UnknownPiece(self.capturing or expression, where))
