"""Running a syntax tree: lists, pipes, loops, conditions, functions, redirections.

Where bash's next step depends on something that cannot be known, the step that keeps the script going
is taken and noted (TP101); the rules are in docs/parse.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from trinity_compat.common import limits
from trinity_compat.launch import entrypoints
from trinity_compat.launch.bash import machines
from trinity_compat.launch.bash.shell import assignments, code, conditions, redirections, simple_command
from trinity_compat.launch.bash.state import Discard, Exit, Jump, Return, Shell, ShellFunction, Variable
from trinity_compat.launch.bash.traced_text import Value, text_of, uncounted
from trinity_compat.launch.bash.tree import Node
from trinity_compat.launch.bash.words import expansion
from trinity_compat.launch.bash.words.arithmetic import BadArithmetic
from trinity_compat.launch.bash.wrappers import external
from trinity_compat.launch.model import EnvRef, UnknownPiece

# A command of these is a pipeline of one; the others leave PIPESTATUS to the commands in them.
# What always holds as the condition of a loop.
ALWAYS = re.compile(
    r"true|/bin/true|:|sleep +[^\s;&|]+|\[\[? *(true|1)( *(-eq|==?) *1)? *\]\]?|\(\( *1 *\)\)"
)
WAITED = "the loop is assumed to get what it waits for"
PATIENCE = 100  # rounds of a loop that waits; those that count their tries have ended by then
TESTS = {"[", "test", "command", "type", "which", "hash", *external.COMPARES}
EFFECTS = {".", "source", "eval", "cd", "pushd", "set", "shift", "read", "mapfile", "unset", "bash", "sh"}
PRINTS = {"echo", "printf", "cat"}
READS = {"read", "mapfile", "readarray", "getopts"}
STEPS = {"CallExpr", "DeclClause", "ForClause", "CaseClause", "ArithmCmd", "LetClause", "TestClause"}
PIPELINES = {"CallExpr", "DeclClause", "Subshell", "ArithmCmd", "LetClause", "TestClause"}


def run_list(sh: Shell, statements: list[Node]) -> int:
    """Statements one after the other."""
    for statement in statements:
        run_statement(sh, statement)
    return sh.status


def run_isolated(sh: Shell, statements: list[Node]) -> int:
    """Statements in a shell that is a copy already: what leaves it ends here."""
    sh.loops = sh.overdue = 0
    try:
        run_list(sh, statements)
    except (Exit, Return) as left:
        sh.status = left.status
    except Discard:
        sh.status = 1
    except Jump:  # a break in a subshell ends only that
        pass
    sh.status = code.end(sh, sh.status)
    return sh.status


def run_statement(sh: Shell, statement: Node) -> int:
    """One statement with its redirections, ``!`` and ``&``."""
    sh.budget.step()
    sh.where = sh.unit.where(statement)
    sh.doubt_before = sh.doubt
    if statement.get("Background") or statement.get("Coprocess"):
        # a copy: what it changes doesn't come back, and nobody waits for its status
        shell = sh.copy()
        shell.stdout = None
        shell.background = sh.background or (sh.where, sh.unit.text(statement))
        launches, known = len(sh.log.launches), set(sh.log.diagnostics)
        run_isolated(shell, [{**statement, "Background": False, "Coprocess": False}])
        if len(sh.log.launches) == launches:  # a monitor, whose loop needs no end
            for key in [key for key in sh.log.diagnostics if key[0] == "TP103" and key not in known]:
                del sh.log.diagnostics[key]
        sh.status, sh.doubt = 0, None
        return 0
    negated = bool(statement.get("Negated"))
    sh.guarded += negated
    try:
        if statement.get("Redirs"):
            status = redirections.run(sh, statement, _run_command)
        else:
            status = _run_command(sh, statement)
    finally:
        sh.guarded -= negated
    if (statement.get("Cmd") or {}).get("Type") in PIPELINES:
        sh.pipe_statuses = (sh.status_value(status, sh.doubt, sh.where),)
    sh.status = int(status == 0) if negated else status
    _errexit(sh, statement, negated)
    return sh.status


def _errexit(sh: Shell, statement: Node, negated: bool) -> None:
    """``set -e`` and ``trap … ERR``; a status that is a guess never ends the script."""
    if sh.guarded or negated or (sh.status == 0 and sh.doubt is None):
        return
    command = statement.get("Cmd") or {}
    if command.get("Type") == "BinaryCmd" and command["Op"] in ("&&", "||"):
        return
    # the command in it that failed has been checked already, unless it was in a condition
    if command.get("Type") in ("IfClause", "WhileClause", "ForClause", "CaseClause", "Block", "FuncDecl"):
        return
    if sh.doubt is not None:
        if "e" not in sh.options:
            code.open_by_trap(sh, "ERR", sh.doubt)
        return
    code.run_trap(sh, "ERR")
    if "e" in sh.options:
        sh.ended_at = sh.where
        raise Exit(sh.status)


def _run_command(sh: Shell, statement: Node) -> int:
    command = statement.get("Cmd")
    if not command:
        return 0
    if command["Type"] in STEPS:
        code.open_by_trap(sh, "DEBUG", UnknownPiece("trap … DEBUG", sh.where))
    if command["Type"] not in HANDLERS:
        sh.warn("TP109", f"{command['Type']} is not read", sh.unit.where(command))
        return 0
    return HANDLERS[command["Type"]](sh, command)


def _binary(sh: Shell, node: Node) -> int:
    if node["Op"] in ("|", "|&"):
        return _pipe(sh, node)
    sh.guarded += 1
    sh.lacking = None
    try:
        status = run_statement(sh, node["X"])
    finally:
        sh.guarded -= 1
    wanted = (status == 0) == (node["Op"] == "&&")
    if _ends_overdue(sh, [node["Y"]]):
        _note_overdue(sh, node["X"])
        return run_statement(sh, node["Y"])
    if sh.doubt is None and wanted and _turned_for_a_file(sh, node, [node["Y"]]):
        return int(node["Op"] == "&&")
    if sh.doubt is not None:
        if sh.tries:
            _try(sh, [node["Y"]])
        ends_wait = sh.waits and _ends_loop([node["Y"]])  # `while true; do check && break; …`
        goes_on = not ends_wait and leaves(sh, [node["Y"]])  # `check || exit 1`: the check is taken to hold
        if ends_wait:
            wanted, status = True, int(node["Op"] == "||")
        if _turned(sh, node):
            wanted = goes_on or not wanted
            status = int(wanted != (node["Op"] == "&&"))
            _note_turned(sh, node, f"what follows {node['Op']} {'runs' if wanted else 'does not run'}")
            sh.doubt = None
        elif goes_on:
            _note_guess(sh, "the script is assumed to go on")
            sh.doubt = None
            return 0
        elif ends_wait:
            _note_guess(sh, WAITED)
            sh.doubt = None
        elif isinstance(sh.doubt, UnknownPiece) and sh.doubt is not sh.noted and _counts(sh, node):
            _note_guess(sh, f"what follows {node['Op']} {'runs' if wanted else 'does not run'}")
            sh.noted = sh.doubt
    if not wanted:
        return status
    return run_statement(sh, node["Y"])


def _counts(sh: Shell, node: Node) -> bool:
    """Return whether a launch may depend on the guess at the left side of ``&&`` or ``||``.

    A program is taken to succeed, which needs no word unless a variable is set by it. Within the condition
    of an ``if`` or a loop that says what it assumes.
    """
    return not sh.deciding and (
        _sets_variables(node["Y"]) or (_is_test(node["X"]) and _is_effect(sh, node["Y"]))
    )


def _name_of(command: Node) -> str:
    parts = ((command.get("Args") or [{}])[0]).get("Parts") or [{}]
    return str(parts[0].get("Value", "")) if len(parts) == 1 else ""


def _is_test(statement: Node) -> bool:
    command = statement.get("Cmd") or {}
    if command.get("Type") == "BinaryCmd":
        return _is_test(command["Y"])
    return command.get("Type") in ("TestClause", "ArithmCmd", "LetClause") or _name_of(command) in TESTS


def _sets_variables(statement: Node) -> bool:
    command = statement.get("Cmd") or {}
    return command.get("Type") == "DeclClause" or (
        command.get("Type") == "CallExpr" and bool(command.get("Assigns")) and not command.get("Args")
    )


def _is_effect(sh: Shell, statement: Node) -> bool:
    """Return whether a statement may change what is launched, or launch it, or print what is read."""
    command = statement.get("Cmd") or {}
    if command.get("Type") in ("Block", "Subshell"):
        return any(_is_effect(sh, inner) for inner in command.get("Stmts") or [])
    if command.get("Type") == "BinaryCmd":
        return _is_effect(sh, command["X"]) or _is_effect(sh, command["Y"])
    if command.get("Type") != "CallExpr" or _sets_variables(statement):
        return True
    name = _name_of(command)
    if name in EFFECTS or name in sh.functions or (sh.stdout is not None and name in PRINTS):
        return True
    return entrypoints.may_start_training(sh.unit.text(command))


def _calls(statements: list[Node]) -> Iterator[Node]:
    """The simple commands that run in any case: those of blocks, and of both sides of ``&&``."""
    for command in (statement.get("Cmd") or {} for statement in statements):
        if command.get("Type") == "Block":
            yield from _calls(command.get("Stmts") or [])
        elif command.get("Type") == "BinaryCmd" and command["Op"] == "&&":
            yield from _calls([command["X"], command["Y"]])
        elif command.get("Type") == "CallExpr" and command.get("Args"):
            yield command


def leaves(sh: Shell, statements: list[Node], depth: int = 0) -> bool:
    """Return whether statements end the script for certain (``exit``, or a function that does)."""
    for name in map(_name_of, _calls(statements)) if depth <= 3 else ():
        function = sh.functions.get(name)
        if name in ("exit", "return") or (name in ("break", "continue") and sh.loops):
            return True
        if function is not None and leaves(sh, [function.body], depth + 1):
            return True
    return False


def _words_of(command: Node) -> list[str]:
    return [(arg.get("Parts") or [{}])[0].get("Value", "") for arg in command["Args"]]


def _ends_loop(statements: list[Node]) -> bool:
    """Return whether statements end the loop around them.

    By ``break``, or by ``return`` without a failure.
    """
    calls = map(_words_of, _calls(statements))
    return any(words[0] == "break" or words in (["return"], ["return", "0"]) for words in calls)


def _ends_overdue(sh: Shell, statements: list[Node]) -> bool:
    """Return whether statements leave the loop that is overdue, from however many loops inside it."""
    for words in map(_words_of, _calls(statements)) if sh.overdue else ():
        match words:
            case ["break", *levels]:
                count = int(levels[0] if levels and levels[0].isdecimal() else 1)
                if count > sh.loops - sh.overdue:
                    return True
            case ["exit" | "return"] | ["exit" | "return", "0"]:
                return True
    return False


def _note_overdue(sh: Shell, condition: Node) -> None:
    awaited = sh.unit.text(condition).strip(" ;")
    message = f"assumed: the loop gets what it waits for; it did not end in {PATIENCE} rounds"
    sh.warn("TP114", f"{message} ({awaited})", sh.unit.where(condition))
    sh.doubt = None


def _turned(sh: Shell, node: Node) -> bool:
    """Return whether the guess at ``node`` is turned round.

    That a variable is unset is known, not guessed.
    """
    return isinstance(sh.doubt, UnknownPiece) and sh.log.guesses.turns(sh.unit.where(node))


def _note_turned(sh: Shell, node: Node, taken: str) -> None:
    if isinstance(sh.doubt, UnknownPiece):
        why = f"this depends on {sh.doubt.expression}, which is known only at run time"
        text = f"assumed: {taken}; {why}, and otherwise the script ends without any training"
        sh.warn("TP114", text, sh.unit.where(node))


def _turned_for_a_file(sh: Shell, node: Node, taken: list[Node]) -> bool:
    """Tell whether to skip ``taken``, a branch that ends the script because a file is missing.

    On the machine that trains the file will exist.
    """
    if sh.lacking is None or not leaves(sh, taken) or not sh.log.guesses.turns(sh.unit.where(node)):
        return False
    why = f"this depends on {sh.lacking.expression}, and nothing is there now"
    text = f"assumed: it is there; {why}, and otherwise the script ends without any training"
    sh.warn("TP114", text, sh.unit.where(node))
    return True


def _note_guess(sh: Shell, taken: str) -> None:
    doubt = sh.doubt
    if isinstance(doubt, EnvRef):
        message = f"this depends on ${doubt.name}, which is not set; {taken}"
        sh.warn("TP102", f"{message} (set it with --env {doubt.name}=…)")
    elif doubt is not None:
        sh.warn("TP101", f"this depends on {doubt.expression}, which is known only at run time; {taken}")


def _pipe(sh: Shell, node: Node) -> int:
    stages = [node["Y"]]
    left = node["X"]
    while (left.get("Cmd") or {}).get("Type") == "BinaryCmd" and left["Cmd"]["Op"] in ("|", "|&"):
        if left.get("Redirs") or left.get("Negated"):  # of the inner pipe as a whole: a stage of its own
            break
        stages.insert(0, left["Cmd"]["Y"])
        left = left["Cmd"]["X"]
    stages.insert(0, left)
    data: Value | None = sh.stdin
    statuses: list[Value] = []
    failed = status = 0
    before = len(sh.log.launches)
    for index, stage in enumerate(stages):
        last = index == len(stages) - 1
        here = last and "lastpipe" in sh.options
        shell = replace(sh) if here else sh.copy()
        shell.stdin = data
        shell.fed_by_launch = len(sh.log.launches) > before
        shell.stdout = sh.stdout if last else []
        status = run_list(shell, [stage]) if here else run_isolated(shell, [stage])
        failed = status or failed
        statuses.append(sh.status_value(status, shell.doubt, sh.where))
        sh.doubt = shell.doubt or (sh.doubt if index else None)
        if not last:
            data = tuple(shell.stdout or ())
    sh.pipe_statuses = tuple(statuses)
    return failed if "pipefail" in sh.options else status


def _if(sh: Shell, node: Node) -> int:
    sh.lacking = None
    taken = _condition(sh, node.get("Cond") or [])
    doubt = sh.doubt
    other = node.get("Else") or {}
    rest = [] if other.get("Cond") else other.get("Then") or []
    if _ends_overdue(sh, node.get("Then") or []) != _ends_overdue(sh, rest):
        taken = _ends_overdue(sh, node.get("Then") or [])
        _note_overdue(sh, node["Cond"][0])
        doubt = None
    if doubt is None and _turned_for_a_file(sh, node, (node.get("Then") or []) if taken else rest):
        taken = not taken
    if doubt is not None:
        body, rest = node.get("Then") or [], other.get("Then") or []
        away, stays = (body, rest) if taken else (rest, body)
        if sh.tries:
            _try(sh, stays)
        # a script is written to reach its launch: the way that ends it is taken to be the exception
        waited = sh.waits and _ends_loop(body) != _ends_loop(rest)
        if waited:
            taken = _ends_loop(body)
        elif leaves(sh, away) and not leaves(sh, stays) and not other.get("Cond"):
            taken = not taken
        if _turned(sh, node):
            taken = not taken
            _note_turned(sh, node, f"the condition is {'true' if taken else 'false'}")
        else:
            _note_guess(sh, WAITED if waited else f"taken as {'true' if taken else 'false'}")
    sh.doubt = None
    if taken:
        return run_list(sh, node.get("Then") or [])
    if not other:
        return 0
    if other.get("Cond"):
        return _if(sh, other)
    return run_list(sh, other.get("Then") or [])


def _condition(sh: Shell, statements: list[Node]) -> bool:
    sh.guarded += 1
    deciding, sh.deciding = sh.deciding, True
    try:
        return run_list(sh, statements) == 0
    finally:
        sh.guarded -= 1
        sh.deciding = deciding


def _while(sh: Shell, node: Node) -> int:
    until = bool(node.get("Until"))

    reads = [_name_of(each.get("Cmd") or {}) for each in node.get("Cond") or []] == ["read"]
    rounds, before = 0, dict(sh.variables)
    unknown: UnknownPiece | EnvRef | None = None

    def more() -> bool:
        nonlocal rounds, unknown
        going = _condition(sh, node.get("Cond") or []) != until
        rounds += 1
        if sh.doubt is not None:
            going, unknown = reads and rounds == 1, sh.doubt  # as `for` over an open list
            _note_guess(sh, "the loop is read as one round" if reads else "the loop is assumed to end")
            sh.doubt = None
        return going

    # whether the condition is written out as one that never changes
    condition = node.get("Cond") or []
    text = sh.unit.text(condition[0]).strip(" ;\n") if len(condition) == 1 else ""
    waits = text == "false" if until else bool(ALWAYS.fullmatch(text))
    # that of a file's lines, or of the options
    has_an_end = any(words[0] in READS for words in map(_words_of, _calls(condition)))
    status = _loop(sh, more, node.get("Do") or [], endless=not has_an_end, waits=waits)
    _open_rounds(sh, [*condition, *(node.get("Do") or [])], unknown, before)
    return status


def _open_rounds(
    sh: Shell, body: list[Node], why: UnknownPiece | EnvRef | None, before: Mapping[str, Variable]
) -> None:
    """Open what the rounds of a loop change since ``before`` where their number is not known."""
    if why is None or sh.tries:
        return

    def run(other: Shell) -> None:
        other.tries, other.loops = True, other.loops + 1
        _try(other, body)
        changed = [name for name, now in other.variables.items() if before.get(name) is not now]
        other.open_alone(why, changed)  # a later round begins with what one before it has left
        if other.positional != sh.positional:
            sh.positional = other.positional = [uncounted('"$@"', sh.where)]
        _try(other, body)

    code.open_changes(sh, run, why, before)


def _try(sh: Shell, statements: list[Node]) -> None:
    doubt = sh.doubt
    for statement in statements:
        with suppress(Exit, Return, Jump, Discard):
            run_statement(sh, statement)
    sh.doubt = doubt


def _loop(
    sh: Shell, more: Callable[[], bool], body: list[Node], *, endless: bool, waits: bool = False
) -> int:
    """Rounds of a loop until it ends; one without an end is read as a single round."""
    before, first, status, rounds, where = len(sh.log.launches), None, 0, 0, sh.where
    around, sh.waits = (sh.waits, sh.overdue), waits
    state: tuple[dict[str, Variable], list[Value]] | None = None
    sh.loops += 1
    try:
        while more():
            rounds += 1
            sh.budget.step()
            if endless and not waits and rounds in (PATIENCE, PATIENCE + 1):
                state, last = (dict(sh.variables), list(sh.positional)), state
                waits = sh.waits = state == last  # all rounds to come are the same
            if waits and rounds > PATIENCE:
                sh.overdue = sh.loops
            # `while true` around a launch is one launch that is started again and again. What a whole round
            # did not leave though it is overdue has no end: a monitor in the background.
            most = PATIENCE + 1 if waits else limits.LOOP
            if rounds > most or (endless and len(sh.log.launches) - before > 256):
                sh.warn("TP103", f"no end of this loop after {rounds - 1} rounds; read as one round", where)
                del sh.log.launches[first or before :]
                break
            try:
                status = run_list(sh, body)
            except Jump as jump:
                status = 0
                if jump.levels > 1 and sh.loops > 1:
                    raise Jump(jump.levels - 1, again=jump.again) from None
                if not jump.again:
                    break
            first = len(sh.log.launches) if first is None else first
    finally:
        sh.loops -= 1
        sh.waits, sh.overdue = around
    return status


def _for(sh: Shell, node: Node) -> int:
    loop = node["Loop"]
    if loop["Type"] == "CStyleLoop":
        return _c_style(sh, node, loop)
    if node.get("Select"):
        sh.warn("TP101", "select waits for input; its body is not read")
        return 0
    if "Items" in loop or loop.get("InPos", {}).get("Line"):
        words = loop.get("Items") or []
        items = expansion.expand_words(sh, sh.unit, words)
        if len(words) == 1:
            machines.note_loop(sh, node, words[0], items)
    else:
        items = list(sh.positional)
        sh.note_arguments(items)
    # an item may stand for any number of rounds: `for i in $(seq 3)`
    sh.doubt = conditions.doubt_in(item for item in items if not text_of(item))
    _note_guess(sh, "the loop is read as one round")
    unknown, sh.doubt = sh.doubt, None
    name = loop["Name"]["Value"]
    remaining, before = iter(items), dict(sh.variables)

    def more() -> bool:
        item = next(remaining, None)
        if item is not None and sh.variables.refers(name):
            sh.variables.refer(name, item)
        elif item is not None:
            sh.set_scalar(name, item)
        return item is not None

    status = _loop(sh, more, node.get("Do") or [], endless=False)
    _open_rounds(sh, node.get("Do") or [], unknown, before)
    return status


def _c_style(sh: Shell, node: Node, loop: Node) -> int:
    rounds, before = 0, dict(sh.variables)
    unknown: UnknownPiece | EnvRef | None = None

    def step(key: str) -> None:
        if loop.get(key):
            expansion.evaluate(sh, sh.unit, loop[key])

    def more() -> bool:
        nonlocal rounds, unknown
        try:
            step("Init" if rounds == 0 else "Post")
            rounds += 1
            number, used = (
                expansion.evaluate_or_open(sh, sh.unit, loop["Cond"]) if loop.get("Cond") else (1, [])
            )
            sh.doubt = conditions.doubt_in(used)
            if sh.doubt is None:
                return number != 0
            _note_guess(sh, "the loop is read as one round")
            unknown, sh.doubt = sh.doubt, None
            return rounds == 1
        except BadArithmetic as error:
            sh.warn("TP108", f"for ((…)): {error}", severity="error")
            return False

    status = _loop(sh, more, node.get("Do") or [], endless=True, waits=not loop.get("Cond"))
    _open_rounds(sh, node.get("Do") or [], unknown, before)
    return status


def _case(sh: Shell, node: Node) -> int:
    subject = expansion.expand_single(sh, sh.unit, node["Word"], tilde="word")
    sh.doubt = conditions.doubt_in([subject])
    if sh.doubt is not None:
        _note_guess(sh, f"read as {text_of(subject)!r}")
    known, sh.doubt = sh.doubt is None, None
    for item in (node.get("Items") or []) if sh.tries and not known else ():
        _try(sh, item.get("Stmts") or [])
    status, falls = 0, False
    for item in node.get("Items") or []:
        matches = falls or any(
            conditions.fits(sh, sh.unit, pattern, text_of(subject)) for pattern in item["Patterns"]
        )
        if known and sh.doubt is not None:
            _note_guess(sh, f"{text_of(subject)!r} is assumed {'to match' if matches else 'not to match'}")
        sh.doubt = None
        if matches:
            status = run_list(sh, item["Stmts"]) if item.get("Stmts") else 0
            if item["Op"] == ";;":
                break
            falls = item["Op"] == ";&"
    return status


def _subshell(sh: Shell, node: Node) -> int:
    with sh.nested():
        shell = sh.copy()
        status = run_isolated(shell, node.get("Stmts") or [])
    sh.doubt = shell.doubt
    return status


def _function(sh: Shell, node: Node) -> int:
    sh.functions[node["Name"]["Value"]] = ShellFunction(node["Body"], sh.unit, sh.scripts[-1])
    return 0


def _arithmetic(sh: Shell, node: Node) -> int:
    number, used = expansion.evaluate_or_open(sh, sh.unit, node["X"])
    sh.doubt = conditions.doubt_in(used)
    return int(number == 0)


def _let(sh: Shell, node: Node) -> int:
    status = 1
    for expression in node.get("Exprs") or []:
        status = _arithmetic(sh, {"X": expression})
    return status


def _coproc(sh: Shell, node: Node) -> int:
    shell = sh.copy()
    shell.stdout = None
    run_isolated(shell, [node["Stmt"]])
    return 0


HANDLERS: dict[str, Callable[[Shell, Node], int]] = {
    "CallExpr": simple_command.run,
    "DeclClause": assignments.declare,
    "BinaryCmd": _binary,
    "IfClause": _if,
    "WhileClause": _while,
    "ForClause": _for,
    "CaseClause": _case,
    "Block": lambda sh, node: run_list(sh, node.get("Stmts") or []),
    "Subshell": _subshell,
    "FuncDecl": _function,
    "ArithmCmd": _arithmetic,
    "LetClause": _let,
    "TimeClause": lambda sh, node: run_statement(sh, node["Stmt"]) if node.get("Stmt") else 0,
    "CoprocClause": _coproc,
    "TestClause": lambda sh, node: conditions.run_clause(sh, sh.unit, node),
}
