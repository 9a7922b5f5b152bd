# ruff: noqa: E501
"""Texts by grammar: YAML of veRL and Trinity, folders of Hydra, job manifests, launchers and notebooks of Python.

Each is mostly well formed, so that it gets past the parser, with the values that break what comes behind it:
references to each other, long numbers, deep nesting, wrong kinds.
"""

import json

NAMES = ["a", "b", "c", "d", "x0", "y"]
VERL = [
    "data.train_batch_size", "data.train_files", "data.max_prompt_length", "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.model.path", "algorithm.adv_estimator",
    "actor_rollout_ref.actor.optim.lr", "trainer.logger", "trainer.n_gpus_per_node", "trainer.project_name",
    "trainer.total_epochs", "trainer.save_freq", "hydra.searchpath", "critic", "reward_model", "trainer.nnodes",
]  # fmt: skip
TRINITY = [
    "mode", "name", "project", "checkpoint_root_dir", "algorithm.algorithm_type", "algorithm.repeat_times",
    "algorithm.optimizer.lr", "model.model_path", "model.max_model_len", "cluster.node_num",
    "cluster.gpu_per_node", "buffer.batch_size", "buffer.total_epochs", "buffer.explorer_input.taskset.path",
    "buffer.explorer_input.taskset.default_workflow_type", "explorer.rollout_model.engine_num",
    "trainer.trainer_config", "trainer.trainer_type", "synchronizer.sync_interval", "synchronizer.sync_method",
    "monitor.monitor_args", "stages", "service.data_juicer", "buffer.explorer_input.eval_tasksets",
]  # fmt: skip
JOB = [
    "resources", "run", "setup", "envs", "num_nodes", "resources.accelerators", "entrypoint", "runtime_env",
    "runtime_env.env_vars", "apiVersion", "kind", "spec.containers", "spec", "image", "command", "args", "name",
]  # fmt: skip
LAUNCH = "python3 -m verl.trainer.main_ppo data.train_batch_size=8 trainer.project_name="
ATOMS = [
    "1", "0", "-1", "8", "1e-6", "0.5", "null", "true", "~", "''", '""', "grpo", "ppo", "both", "train", "???",
    "9" * 400, "9" * 5000, "0x" + "f" * 5000, "1" + ":59" * 900, ".inf", "-.inf", ".nan", "1e999", "!!int x",
    "!!binary x", "!!float y", "!!bool z", "!!set {a, b}", "!!omap [a: 1]", "!!python/name:os.system", "2024-13-45",
    "2024-01-01", "{}", "[]", "a.b.c", "a" * 3000, '"\\0"', '"\\ud800"', "é", '"\\n\\n"', "/dev/zero", "x.parquet",
    "checkpoint", "nccl", "simple_workflow", "H100:8", "{H100: 8}", "[[[[]]]]", "? [a, b]", "*a", "*b", "&a [1]",
    "[" * 90 + "]" * 90, "[" * 300 + "]" * 300, "{a: " * 95 + "1" + "}" * 95, "{" + ".".join("a" * 300) + ": 1}",
    json.dumps(LAUNCH + "x"), "'${oc.env:HOME}'", "'${oc.select:a,1}'", "'${oc.decode:\"[1\"}'", "'${.a}'",
    "'${....a}'", "'${a'", "'${a.${b}}'", "'\\${a}'", "${{ matrix.x }}", "{{ template }}",
]  # fmt: skip


def value(rng, keys, depth=0):
    """A value in YAML's flow style."""
    kind = rng.random()
    if kind < 0.55 or depth > 4:
        return rng.choice(ATOMS if rng.random() < 0.15 else ATOMS[:16])
    if kind < 0.75:
        return (
            '"' + "".join(f"${{{rng.choice([*NAMES, *keys])}}}" for _ in range(rng.choice([1, 2, 9]))) + '"'
        )
    parts = [value(rng, keys, depth + 1) for _ in range(rng.choice([0, 1, 3, 12]))]
    if kind < 0.87:
        return f"[{', '.join(parts)}]"
    return "{" + ", ".join(f"{rng.choice(NAMES)}{number}: {part}" for number, part in enumerate(parts)) + "}"


def mapping(rng, keys, few=12):
    """A mapping in block style, its keys by their sections."""
    tree = {}
    for key in rng.sample([*keys, *NAMES], min(few, len(keys))):
        *path, last = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {}) if isinstance(node, dict) else node
        if isinstance(node, dict):
            node[last] = value(rng, keys)
    return "".join(block(tree, ""))


def block(tree, indent):
    """Yield the lines of nested dictionaries whose leaves are YAML already."""
    for name, below in tree.items():
        if isinstance(below, dict):
            yield f"{indent}{name}:\n"
            yield from block(below, indent + "  ")
        else:
            yield f"{indent}{name}: {below}\n"


def defaults(rng, files):
    """A defaults list over ``files``, groups and packages among them."""
    lines = []
    for _ in range(rng.choice([0, 1, 2, 8])):
        name = rng.choice([*files, "ppo_trainer", "nothing", "/a", "../x0", "_self_"])
        package = rng.choice(
            ["", "", "@p", "@_global_", "@_here_", "@" + ".".join("p" * rng.choice([3, 150]))]
        )
        group = rng.choice(["g", "override g", "optional g", "g@p", "model_engine", "a"])
        lines.append(
            rng.choice([f"'{name}{package}'", f"{{{group}: {name}}}", f"{{'{group}': '${{g}}'}}", "5", "[a]"])
        )
    return f"defaults: [{', '.join(lines)}]\n"


def hydra_folder(rng):
    """{path: text} of a folder of config files; ``x0`` is the one to start from."""
    files = [*NAMES, "g/a", "g/b"]
    header = ["", "", "# @package _global_\n", "# @package a.b\n", "# @package _group_\n"]
    made = {
        name: rng.choice(header) + defaults(rng, files) + mapping(rng, VERL, 6)
        for name in {"x0", *rng.sample(files, 4)}
    }
    return {f"{name}.yaml": text for name, text in made.items()}


def verl_yaml(rng):
    return rng.choice(["", "", defaults(rng, ["ppo_trainer"])]) + mapping(rng, VERL, 12)


def trinity_yaml(rng):
    return "algorithm:\n  repeat_times: 2\n" * (rng.random() < 0.2) + mapping(rng, TRINITY, 14)


def job(rng):
    return "---\n".join(mapping(rng, JOB, 10) for _ in range(rng.choice([1, 1, 3])))


def expression(rng, depth=0):
    """An expression of Python."""
    kind = rng.random()
    if depth > 3 or kind < 0.3:
        return rng.choice(
            [*NAMES, '"aaaaaaaa"', "1", "0x" + "f" * 3000, "None", '"a\\nb"', "os.environ", "sys.argv"]
        )
    one, other = expression(rng, depth + 1), expression(rng, depth + 1)
    return rng.choice([
        f"({one} + {other})", f"({one} * {other})", f"({one} % {other})", f"[{one}, {other}, *{one}]",
        f"{{'a': {one}, **{other}}}", f'f"{{{rng.choice(NAMES)}}}{{{rng.choice(NAMES)}:>99{{{rng.choice(NAMES)}}}}}"',
        f"{one}.replace({other}, {one})", f"{one}.join({other})", f"str({one})", f"({one} if {other} else {one})",
        f"[{one} for a in {other} if {one}]", f"{one}[{other}]", f"{one}[1:{other}]", f"len({one})",
        f"os.path.join({one}, {other})", f"Path({one}) / {other}", f"{one}.split({other})", f"f({one}, a={other})",
        f"{one}.format({other})", f"lambda: {one}", f"-{one}", f"({one} ** {other})", f"({one} == {other})",
        f"os.environ.get({one}, {other})", f"{one}.a.b.c", f"({one} << {other})", f"isinstance({one}, str)",
    ])  # fmt: skip


def statement(rng, indent=""):
    """A statement of Python, with what is in it."""
    name, made = rng.choice(NAMES), expression(rng)
    inner = "".join(statement(rng, indent + "    ") for _ in range(rng.choice([1, 2]) * (len(indent) < 12)))
    inner = inner or f"{indent}    pass\n"
    return indent + rng.choice([
        f"{name} = {made}\n", f"{name} = {made}\n", f"{name} += {made}\n", f"{name} = {name} + {name}\n" * 1,
        f"{name}.append({made})\n", f"{name}.extend({name})\n", f"{name}['a'] = {made}\n", f"({name}, a) = {made}\n",
        f"for {name} in {made}:\n{inner}", f"if {made}:\n{inner}", f"while {made}:\n{inner}",
        f"def f({name}, a=1):\n{inner}", f"def f(a):\n{indent}    return f({made})\n", f"try:\n{inner}{indent}finally:\n{inner}",
        f"os.environ['A'] = {made}\n", f"os.chdir({made})\n", f"exit({made})\n", f"global {name}\n",
        f'subprocess.run(["python3", "-m", "verl.trainer.main_ppo", {made}, f"a={{{name}}}"], env={name})\n',
        f'os.system(f"{LAUNCH}{{{name}}}")\n', f"subprocess.run({made}, shell=True)\n", f"class A:\n{inner}",
        f"parser.add_argument({made}, default={name}, type=int)\n", f"{name} = parser.parse_args()\n",
        f"compose(config_name={made}, overrides={name})\n",
    ])  # fmt: skip


def python(rng):
    head = "import argparse, os, subprocess, sys\nparser = argparse.ArgumentParser()\n"
    body = "".join(statement(rng) for _ in range(rng.choice([2, 6, 15])))
    repeated = "".join(statement(rng) for _ in range(2)) * rng.choice([1, 40])
    return head + body + repeated + f'os.system("{LAUNCH}x")\n'


def notebook(rng):
    cells = []
    for _ in range(rng.choice([1, 3, 6])):
        source = rng.choice([
            python(rng), f"!{LAUNCH}$a {{b}} '$c'", "%%bash\n" + LAUNCH, f"%env A={rng.choice(ATOMS)}\n!echo {{a:>9}}",
            "%%writefile x.sh\n" + LAUNCH, "%cd {a}\n!bash x.sh", "!" + "$a" * 500 + "'", "!" + "{a}" * 300 + "{",
        ])  # fmt: skip
        cell = {"cell_type": rng.choice(["code", "code", "code", "markdown", 5]), "source": source}
        cell["source"] = rng.choice([source, source.splitlines(keepends=True), source, [], None, 5, {"a": 1}])
        cells.append(rng.choice([cell, cell, cell, cell, [], None, "x", {}]))
    return json.dumps(rng.choice([{"cells": cells}, {"cells": cells}, {"cells": {"a": cells}}, cells, {}]))
