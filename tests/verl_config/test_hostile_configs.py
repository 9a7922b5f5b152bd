"""Bombs and broken nesting in configurations: an error at a line of the user's, and little work."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.common.limits import ARGUMENTS, KEYS
from trinity_compat.launch import read_argv, read_text
from trinity_compat.verl_config import config_from_yaml, effective_config

MAIN = "python3 -m verl.trainer.main_ppo"


def refusal(path):
    with pytest.raises(UserError) as caught:
        config_from_yaml(path)
    return str(caught.value).replace(f"{path.parent}/", "")


def doubled(form, of, last):
    """``b0: <form of b1>``, ``b1: <form of b2>`` … up to ``of``."""
    return "".join(f"b{i}: {form.replace('X', f'${{b{i + 1}}}')}\n" for i in range(of)) + f"b{of}: {last}\n"


BOMBS = {
    "doubled texts": (doubled('"XX"', 40, "aaaaaaaaaaaaaaaa"), "too much text"),
    "lists of references": (doubled('["X", "X", "X", "X", "X", "X", "X", "X"]', 12, "1"), "too many steps"),
    "dictionaries of references": (doubled('{k0: "X", k1: "X", k2: "X"}', 30, "1"), "too many steps"),
    "texts of lists": (doubled('["XX", "XX", "XX"]', 20, "1"), "references are not followed"),
    "defaults of a resolver": (
        doubled("${oc.select:nothing,X}${oc.select:nothing,X}", 40, "aaaa"),
        "too much text",
    ),
}


@pytest.mark.parametrize("bomb, said", BOMBS.values(), ids=BOMBS.keys())
@pytest.mark.parametrize("seen_from", ["", 'trainer: {project_name: "${b0}"}\n'])
def test_references_are_followed_within_limits(tmp_path, bomb, said, seen_from):
    path = tmp_path / "x.yaml"
    path.write_text(f"data: {{}}\n{seen_from}{bomb}")
    found = refusal(path)
    lines = path.read_text().splitlines()
    place, key, why = found.split(": ", 2)
    assert said in why and lines[int(place.split(":")[1]) - 1].startswith(f"{key.split('.')[0]}:")


def test_references_of_arguments_are_followed_within_limits():
    words = [f"'+b{i}=${{b{i + 1}}}${{b{i + 1}}}'" for i in range(40)]
    script = f"{MAIN} +b40=aaaaaaaa \\\n" + " \\\n".join(words)
    with pytest.raises(UserError, match=r"^-:2[0-9]: b[12][0-9]: its references .* too much text"):
        effective_config(read_text(script).launches[0])


def test_a_chain_of_references_ends():
    words = [f"+b{i}=${{b{i + 1}}}" for i in range(200)]
    notes = effective_config(read_argv([*MAIN.split(), *words]).launches[0]).diagnostics
    assert any("references" in note.message and note.severity == "error" for note in notes)


def hydra(tmp_path, **files):
    for name, text in files.items():
        path = tmp_path / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    launch = read_text(f"{MAIN} --config-path=$PWD --config-name=x0", cwd=tmp_path).launches[0]
    with pytest.raises(UserError) as caught:
        effective_config(launch, root=tmp_path)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_a_defaults_list_of_defaults_lists_ends(tmp_path):
    files = {
        f"x{i}": f"a: 1\ndefaults: [{', '.join(f'x{i + 1}@p{j}' for j in range(8))}]\n" for i in range(13)
    }
    assert hydra(tmp_path, **files, x13="z: 1\n").startswith(
        "x12.yaml:2: the defaults lists name more than 1000 files"
    )


@pytest.mark.parametrize(
    "files",
    [
        {"x0": "defaults: [x0]\n"},
        {"x0": "defaults: [y@p, x0, _self_]\n", "y": "defaults: [x0, y, y, x0]\n"},
        {"x0": "defaults: [g: a]\n", "g__a": "defaults: [/g@below: a]\n"},
    ],
)
def test_a_defaults_list_that_names_itself_ends(tmp_path, files):
    assert "yaml:1: the defaults lists name each other more than 60 files deep" in hydra(tmp_path, **files)


def test_a_file_at_many_packages_ends(tmp_path):
    many = "".join(f"k{i}: {i}\n" for i in range(2000))
    found = hydra(tmp_path, x0=f"defaults: [{', '.join(f'y@p{i}' for i in range(500))}]\n", y=many)
    assert found == f"y.yaml: the files of the defaults list have more than {4 * KEYS} keys"


def test_a_package_of_many_parts_is_refused(tmp_path):
    found = hydra(tmp_path, x0=f"defaults: ['y@{'.'.join('a' * 3000)}']\n", y="z: 1\n")
    assert found == "y.yaml: the package of a file has more than 100 parts"


@pytest.mark.parametrize(
    "text, line, said",
    [
        ("data:\n  a: " + "[" * 60000 + "]" * 60000, 2, "nested too deeply"),
        ("data:\n  a: " + "{a: " * 60000 + "1" + "}" * 60000, 2, "nested too deeply"),
        ("data: {}\n" + "".join(" " * i + "a:\n" for i in range(900)), 101, "nested too deeply"),
        (
            "data:\n- &a0 [1]\n" + "".join(f"- &a{i + 1} [*a{i}]\n" for i in range(400)),
            101,
            "nested too deeply once",
        ),
        ("data: {}\nx: &a [*a]\n", 2, "too large once its aliases are followed"),
        ("data:\n  seed: " + "9" * 5000, 2, "a number of more than 400 digits"),
        ("data:\n  seed: 0x" + "f" * 50000, 2, "a number of more than 400 digits"),
        ("data:\n  seed: 1" + ":59" * 50000, 2, "a number of more than 400 digits"),
        ("data:\n  seed: !!int x", 2, "a value that YAML cannot read"),
        ("data: {}\n" + "? " + "a." * 20000 + "a\n: 1", 2, "a key of more than 100 parts"),
        ("data: {}\n" + "- 1\n" * 60000, 2, "not a YAML file"),
        ("data:\n" + "- 1\n" * 60000, 49_999, "more than 50000 values"),
        (
            "data:\n" + "".join(f"  k{i}: 1\n" for i in range(KEYS + 1)),
            None,
            f"more than {KEYS} keys is not read",
        ),
        ("data:\n  a: '" + "x" * (1 << 20) + "'", 0, "larger than 1 MiB"),
        ("data:\n  a: \0\n", 0, "x.yaml"),
    ],
)
def test_hostile_yaml_is_refused_at_its_line(tmp_path, text, line, said):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    found = refusal(path)
    assert said in found
    if line:
        assert found.startswith(f"x.yaml:{line}: "), found


@pytest.mark.parametrize(
    "word, said",
    [
        ("+" + ".".join("a" * 20000) + "=1", "a key of more than 100 parts"),
        ("+a=" + "[" * 300 + "]" * 300, "100 in each other"),
        ("data.seed=" + "9" * 5000, "a number of more than 400 digits"),
        ("data.seed=[1,{a:" + "9" * 5000 + "}]", "a number of more than 400 digits"),
    ],
)
def test_hostile_overrides_are_refused(word, said):
    (note,) = [
        note
        for note in effective_config(read_argv([*MAIN.split(), word]).launches[0]).diagnostics
        if note.severity == "error"
    ]
    assert said in note.message and str(note.where) == "argv:3"


def test_a_launch_of_too_many_overrides_is_refused_at_its_line():
    words = " \\\n".join(f"+data.a{i}=1" for i in range(ARGUMENTS + 1))
    with pytest.raises(UserError, match=f"^-:{ARGUMENTS + 2}: a launch of more than {ARGUMENTS} overrides"):
        effective_config(read_text(f"{MAIN} \\\n{words}").launches[0])
