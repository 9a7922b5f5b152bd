"""The GitHub action over a hostile pull request: what its reader must not reach is in none of its outputs.

Each script reads each place in one way, and hands on what it finds, as it is and changed. A file of the pull
request itself is one of the places: what that holds must be found, or the search could not find anything.
"""

import base64
import codecs
import os
import re
import subprocess

import pytest
from test_action import ACTION, ROOT, SCRIPT, call, commit, variables

OWN = "ghsOwn5Qx8Zk3Wv7Jf1Bt9Hy4Nd6"  # in a file of the pull request
TOKEN = "ghsRt2Kq9Wm4Zx7Vb8Nc5Lp3Gd1Ys"  # in the environment of the steps, and in files around the repository
PIECE = 6  # characters that are a find: other texts have no such piece of a token

READS = {  # the content of PLACE becomes X
    "source": "source PLACE\nX=$GH_TOKEN$DEPLOYMENT$FIRST",
    "dot": "P=PLACE\n. $P\nX=$GH_TOKEN$DEPLOYMENT$FIRST",
    "substitution": 'X="$(< PLACE)"',
    "cat": 'X="$(cat PLACE)"',
    "copy": 'cp PLACE copy.txt\nX="$(cat copy.txt)"',
    "loop": 'while IFS= read -r LINE; do X="$X$LINE"; done < PLACE',
    "mapfile": 'mapfile -t LINES < PLACE\nX="${LINES[*]}"',
    "tee": 'X="$(tee other.txt < PLACE)"',
}
WAYS = {  # X is handed on
    "plain": "$X",
    "upper": "${X^^}",
    "lower": "${X,,}",
    "replaced": "${X//[aeiou]/.}",
    "cut": "${X:0:16} ${X:16:12} ${X:28}",
    "halves": "${X##*GH_TOKEN=} ${X%%5*}",
    "reversed": "$R",
    "spaced": "$S",
    "rot13": "$(echo \"$X\" | tr 'a-zA-Z' 'n-za-mN-ZA-M')",
}
TURNED = 'R=; S=; for ((i = 0; i < ${#X} && i < 60; i++)); do R="${X:i:1}$R"; S="$S${X:i:1}-"; done'
YAML = (
    "actor_rollout_ref: {actor: {optim: {lr: 2e-6}}}\ntrainer: {project_name: %s}\ndata: {}\nalgorithm: {}\n"
)


def hostile(read, places):
    lines = ["FIRST=; WORDS=()"]
    for number, place in enumerate(places):
        lines += ["X=; GH_TOKEN=; DEPLOYMENT=", READS[read].replace("PLACE", place), TURNED]
        lines += [f"WORDS+=(\"+p{number}.{way}='{text}'\")" for way, text in WAYS.items()]
    return "\n".join([*lines, SCRIPT.rstrip() + ' "${WORDS[@]}" trainer.group_name=$DEPLOYMENT', ""])


@pytest.fixture
def repository(tmp_path):
    """A pull request of scripts, links and configurations that look for a token outside of it."""
    folder, outside = tmp_path / "repository", tmp_path / "outside"
    for place in (folder / "scripts", folder / "conf", outside):
        place.mkdir(parents=True)
    call(folder, "git", "init", "-q")
    (outside / "secret").write_text(f"GH_TOKEN={TOKEN}\n")
    (outside / "secret.yaml").write_text(YAML % TOKEN)
    fork = outside / "verl" / "trainer" / "config"
    fork.mkdir(parents=True)
    (fork / "ppo_trainer.yaml").write_text(YAML % TOKEN)
    (outside / "run.sh").write_text(SCRIPT.rstrip() + f" trainer.project_name={TOKEN}\n")
    (folder / ".git" / "token").write_text(f"GH_TOKEN={TOKEN}\n")  # actions/checkout keeps one there
    (folder / "own.txt").write_text(f"GH_TOKEN={OWN}\n")
    links = {
        "environ": "/proc/self/environ",
        "root": "/",
        "away": outside,
        "near": outside / "secret",
        "kept": ".git/token",
        "conf/linked.yaml": outside / "secret.yaml",
        "scripts/environ.sh": "/proc/self/environ",
        "scripts/away.sh": outside / "run.sh",
        "linked.yaml": outside / "secret.yaml",
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)
    process = os.getpid()
    places = [
        "own.txt",
        *(
            f"{start}proc/self/environ"
            for start in ("/", "//", "/./", "/proc/self/root/", "root/", "/dev/../")
        ),
        f"/proc/{process}/environ",
        f"/proc/{process}/task/{process}/environ",
        "/proc/$PPID/environ",
        "environ",
        "/dev/fd/../environ",
        *(f"{outside}/secret", f"/{outside}/secret", "../outside/secret", "away/secret", "near"),
        *(".git/token", "./.git/../.git/token", "kept", f"{folder}/.git/token"),
    ]
    scripts = {f"{read}.sh": hostile(read, places) for read in READS}
    there = f"cd {outside}\n{SCRIPT.rstrip()}"
    scripts["hydra.sh"] = f"{there} --config-dir=. --config-name=secret\n"
    scripts["fork.sh"] = f"{there}\n"  # of whose tree of veRL the launch takes its defaults
    scripts["folder.sh"] = SCRIPT.rstrip() + f" --config-path={outside} --config-name=secret\n"
    scripts["searched.sh"] = (
        SCRIPT.rstrip()
        + f" hydra.searchpath=[file://{outside},file://away] --config-dir=conf --config-name=linked\n"
    )
    written = SCRIPT.rstrip()
    scripts["written.sh"] = f"cat > {outside}/run.sh <<'END'\n{written}\nEND\nbash {outside}/run.sh\n"
    for name in scripts:
        (folder / name).write_text(SCRIPT)
    commit(folder)
    for name, text in scripts.items():
        (folder / name).write_text(text)
    commit(folder)
    return folder


def pieces(token):
    """Every short piece of a token, as the scripts' encodings make it; all in small letters."""
    plain = token.casefold()
    cut = [text[at : at + PIECE] for text in (plain, plain[::-1]) for at in range(len(plain) - PIECE + 1)]
    turned = [codecs.encode(piece, "rot13") for piece in cut]
    coded = [base64.b64encode(b"." * shift + token.encode()).decode().casefold()[4:-4] for shift in range(3)]
    return {*cut, *turned, *coded, token.encode().hex()}


def found(token, text):
    """The pieces of a token that a text has, whatever stands between their characters."""
    letters = re.sub(r"[^a-z0-9]", "", text.casefold())
    return {piece for piece in pieces(token) if piece in letters}


def ran(folder, name, code=0, **given):
    """Return the output of a script of the action, errors too."""
    environ = os.environ | variables(folder) | given
    command = ["bash", str(ROOT / "scripts" / "action" / name)]
    done = subprocess.run(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def told(folder, monkeypatch):
    """Everything that the steps of action.yml tell, each with what action.yml lets it have and more."""
    binaries = folder.parent / "bin"
    binaries.mkdir()
    (binaries / "gh").write_text('#!/bin/sh\necho "$@"\ncat "$7"\n')
    (binaries / "gh").chmod(0o755)
    for name in ("GH_TOKEN", "DEPLOYMENT", "ACTIONS_RUNTIME"):
        monkeypatch.setenv(name, TOKEN)
    given = {
        "SOURCES": "\n".join([*(path.name for path in folder.glob("*.sh")), "scripts"]),
        "BASE": call(folder, "git", "rev-parse", "HEAD~1").strip(),
        "NUMBER": "7",
        "PATH": f"{binaries}:{os.environ['PATH']}",
    }
    runs = [each["run"] for each in ACTION["runs"]["steps"] if "scripts/action/" in each.get("run", "")]
    names = [re.search(r"scripts/action/([\w.]+)", run)[1] for run in runs]
    assert names == ["audit.sh", "diff.sh", "comment.sh"]
    shown = [ran(folder, "audit.sh", **given | {"SOURCES": "linked.yaml"}, code=2)]
    shown += [ran(folder, name, **given) for name in names]
    written = (path for path in (folder.parent / "runner").rglob("*") if path.is_file())
    return [*shown, *(path.read_text(errors="replace") for path in written)]


def test_no_piece_of_a_token_is_in_an_output(repository, monkeypatch):
    texts = told(repository, monkeypatch)
    everything = "\n".join(texts)
    assert len(pieces(OWN) & found(OWN, everything)) > PIECE * 10  # the search finds what may be found
    assert not found(TOKEN, everything)


def test_the_token_of_the_comment_is_in_the_environment_of_no_reader():
    steps = {each["run"]: each.get("env", {}) for each in ACTION["runs"]["steps"] if "run" in each}
    given = {
        run for run, env in steps.items() if any("token" in str(value).lower() for value in env.values())
    }
    assert len(given) == 1 and "comment.sh" in given.pop()


@pytest.mark.parametrize("name", ["audit.sh", "diff.sh"])
def test_a_reader_has_no_environment_of_the_job(repository, monkeypatch, name):
    stub = repository.parent / "reader"
    stub.write_text('#!/bin/sh\nenv\n[ "$1" != diff ] || exit 1\n')
    stub.chmod(0o755)
    monkeypatch.setenv("DEPLOYMENT", TOKEN)
    base = call(repository, "git", "rev-parse", "HEAD~1").strip()
    code = 2 if name == "audit.sh" else 0  # the stub writes no audit
    shown = ran(repository, name, code, BASE=base, SOURCES="cat.sh", TRINITY_COMPAT=str(stub))
    shown += (repository.parent / "runner" / "trinity-compat.md").read_text() if code == 0 else ""
    assert "HOME=" in shown and TOKEN not in shown
