"""Compose files: the commands and environments of their services, from a script and as a source."""

import pytest

from trinity_compat.launch import read_script, read_text

TRAIN = "python3 -m verl.trainer.main_ppo lr=${LR:-none} n=${N:-none}\n"
COMPOSE = """
x-env: &env {N: 3}
services:
  cache: {image: redis}
  train:
    image: verl
    depends_on: [cache]
    env_file: my.env
    environment: {<<: *env, LR: "${LR:-2e-6}"}
    command: bash train.sh
  listed:
    image: verl
    env_file: [{path: nowhere.env, required: false}, my.env]
    environment: ["LR=${RATE-7}", N]
    entrypoint: [bash, -c]
    command: ["bash train.sh"]
  extended:
    extends: {service: listed}
    profiles: [more]
    environment: {N: "$$5"}
  numbers:
    extends: train
    profiles: [more]
    environment: {LR: 1e-6, N: 64}
"""
COMMANDS = [
    ("docker compose run train", "lr=2e-6", "n=3"),
    ("LR=9 docker compose run --rm train", "lr=9", "n=3"),
    ("LR=9; docker compose run train", "lr=2e-6", "n=3"),
    ("export LR=9; docker compose run -T train bash train.sh", "lr=9", "n=3"),
    ("docker compose run -e LR=8 --env N=2 train", "lr=8", "n=2"),
    ("N=6 docker compose run -e N train", "lr=2e-6", "n=6"),
    ("docker compose run --entrypoint 'bash train.sh' listed", "lr=7", "n=5"),
    ("RATE= docker-compose -f compose.yaml run listed", "lr=none", "n=5"),
    ("podman compose --file=compose.yaml run listed", "lr=7", "n=5"),
    ("N=1 RATE=4 docker compose exec listed bash train.sh", "lr=4", "n=1"),
    ("docker compose up -d train", "lr=2e-6", "n=3"),
    ("docker compose --profile more up extended", "lr=7", "n=$5"),
    ("docker compose run numbers", "lr=1e-06", "n=64"),
    ("docker compose --env-file other.env run train", "lr=3", "n=3"),
    ("mkdir -p sub; cd sub; docker compose run train bash ../train.sh", "lr=2e-6", "n=3"),
    ("COMPOSE_FILE=compose.yaml:more.yaml docker compose run train", "lr=2e-6", "n=11"),
    ("docker compose -f compose.yaml -f more.yaml run train", "lr=2e-6", "n=11"),
]
OPEN = [
    "docker compose -f nowhere.yaml run train bash train.sh",
    "docker compose run nobody bash train.sh",
    "docker compose run $(pick) bash train.sh",
    "python3 gen.py > compose.yaml; docker compose run train bash train.sh",
    "sed -i s/3/4/ compose.yaml; docker compose run train bash train.sh",
    "echo 'services: {a: {image: x, env_file: no.env}}' > a.yaml; docker-compose -f a.yaml run a ./train.sh",
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.sh").write_text(TRAIN)
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    (tmp_path / "more.yaml").write_text("services:\n  train:\n    environment: {N: '11'}\n")
    (tmp_path / "my.env").write_text("LR=1\nN='5' # nodes\n")
    (tmp_path / "other.env").write_text("LR=3\n")
    return tmp_path


@pytest.mark.parametrize(("line", "rate", "count"), COMMANDS)
def test_a_service_gets_the_environment_of_its_file(line, rate, count, folder):
    (launch,) = read_text(line + "\n", name="run.sh", cwd=folder).launches
    assert [word.text for word in launch.arguments] == [rate, count]
    assert not any(word.open for word in launch.arguments)
    assert launch.wrapper[0].endswith("compose")


@pytest.mark.parametrize("line", OPEN)
def test_what_a_compose_file_says_is_open_where_it_cannot_be_read(line, folder):
    reading = read_text(line + "\n", name="run.sh", cwd=folder)
    (launch,) = reading.launches
    assert all(word.open for word in launch.arguments)
    assert "TP101" in {note.code for note in reading.diagnostics}


def test_an_unknown_value_of_the_shell_is_open_in_the_service(folder):
    (launch,) = read_text("export LR=$(cmd)\ndocker compose run train\n", name="run.sh", cwd=folder).launches
    assert [bool(word.open) for word in launch.arguments] == [True, False]


def test_the_env_file_beside_a_compose_file_fills_its_references(folder):
    (folder / ".env").write_text("LR=6\n")
    read = [
        read_text(line, name="run.sh", cwd=folder).launches[0].arguments[0].text
        for line in ("docker compose run train\n", "LR=9 docker compose run train\n")
    ]
    assert read == ["lr=6", "lr=9"]


def test_up_starts_each_service_without_a_profile_or_names_what_it_cannot_read(folder):
    reading = read_text("docker compose up\n", name="run.sh", cwd=folder)
    assert [launch.arguments[0].text for launch in reading.launches] == ["lr=2e-6", "lr=7"]
    reading = read_text("docker compose -f nowhere.yaml up\n", name="run.sh", cwd=folder)
    assert not reading.launches
    assert ["nowhere.yaml" in note.message for note in reading.diagnostics if note.code == "TP109"] == [True]


def test_a_compose_file_that_docker_only_builds_stays_known(folder):
    script = "docker compose -f compose.yaml build\ndocker compose -f compose.yaml run train\n"
    (launch,) = read_text(script, name="run.sh", cwd=folder).launches
    assert [word.text for word in launch.arguments] == ["lr=2e-6", "n=3"]


def test_a_command_is_split_as_by_a_shell_with_its_places(folder):
    (folder / "compose.yaml").write_text(
        "services:\n  a:\n    image: x\n    command: >-\n"
        '      bash -c "python3 -m verl.trainer.main_ppo a=$$A \'b=${B:-x y}\' c=\\"1\\""\n'
        "    environment: {A: 4}\n"
    )
    (launch,) = read_script(str(folder / "compose.yaml"), cwd=folder).launches
    assert [word.text for word in launch.arguments] == ["a=4", "b=x y", "c=1"]
    assert launch.where.line == 5


def test_a_compose_file_is_a_source_with_all_of_its_services(folder):
    reading = read_script(str(folder / "compose.yaml"), cwd=folder, env={"LR": "8"})
    assert [word.text for launch in reading.launches for word in launch.arguments] == [
        *("lr=8", "n=3", "lr=7", "n=5", "lr=7", "n=$5", "lr=1e-06", "n=64"),
    ]


MOUNTED = """
services:
  a:
    image: x
    volumes: ["./jobs:/workspace", {type: bind, source: ., target: /top}, "cache:/root/.cache"]
    working_dir: /workspace
    command: COMMAND
"""


@pytest.mark.parametrize(
    "command",
    [
        "bash /workspace/run.sh",
        "bash run.sh",
        "./run.sh",
        "bash -c 'cd /workspace && bash run.sh'",
        "bash -c 'source /top/jobs/set.env; bash /top/jobs/run.sh'",
    ],
)
def test_a_folder_of_the_host_is_read_where_the_container_has_it(command, folder):
    (folder / "jobs").mkdir()
    (folder / "jobs" / "run.sh").write_text(f"cd /workspace; {TRAIN.strip()} p=$PWD d=$(dirname $0)/x\n")
    (folder / "jobs" / "set.env").write_text("export LR=5\n")
    (folder / "compose.yaml").write_text(MOUNTED.replace("COMMAND", command))
    reading = read_text("docker compose up\n", name="run.sh", cwd=folder)
    (launch,) = reading.launches
    assert launch.arguments[0].text == ("lr=5" if "set.env" in command else "lr=none")
    assert launch.arguments[2].text == "p=/workspace"
    (folder / "compose.yaml").write_text(MOUNTED.replace("COMMAND", "x").replace("    volumes", "    x-none"))
    line = f'docker compose run -v "$PWD/jobs:/workspace" -v .:/top -w /workspace a {command}\n'
    (launch,) = read_text(line, name="run.sh", cwd=folder).launches
    assert launch.arguments[2].text == "p=/workspace"
