"""The page without a server in a real browser: the command line's bytes, nothing sent, and its own limits."""

import base64
import json
import random
import shlex
import tempfile
import zipfile
import zlib
from pathlib import Path

import facts
import pytest
from browser import WAIT_MS, at_each_size, fits, is_whole
from playwright.sync_api import expect
from translate_texts import HOSTILE, ROOT, command_lines, scripts
from web_page import serving, with_limit

pytestmark = pytest.mark.browser
EXAMPLES = ROOT / "docs" / "try" / "examples"
GRPO = (EXAMPLES / "grpo.sh").read_text()
FOLDER = "/home/scripts"  # where a script of the page finds itself
CONFIG = """
hydra: {searchpath: [pkg://verl.trainer.config]}
defaults: [ppo_trainer, _self_]
data: {train_batch_size: 48}
actor_rollout_ref: {actor: {ppo_mini_batch_size: 48}}
"""
LAUNCH = "cd repo\npython3 -m verl.trainer.main_ppo --config-path=$PWD/config --config-name=mine\n"


_OPENED = """async ([name, text]) => {
  const isThere = () => Translate.opened().name === name && Translate.text() === text;
  while (!isThere()) await new Promise(done => setTimeout(done, 20));
}"""


def give(page, name, text):
    """Open a file whose lines end in LF, and wait for its translation."""
    page.set_input_files("#file", {"name": name, "mimeType": "text/plain", "buffer": text.encode()})
    page.evaluate(_OPENED, [name, text])
    settled(page)


def give_zip(page, packed):
    page.set_input_files("#file", {"name": "x.zip", "mimeType": "application/zip", "buffer": packed})


def settled(page):
    page.wait_for_selector("#translate:not([data-waits])")


def tab(page, name):
    page.get_by_role("tab", name=name).click()
    page.wait_for_selector(f"#{name.split()[0].lower()}:not([hidden]):not([data-waits])")


def taken(page):
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    return Path(download.value.path()).read_bytes()


def translation(page):
    return page.locator("#right .cm-content")


def zipped(folder, files):
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return (folder / "x.zip").read_bytes()


@pytest.fixture
def folder():
    """A folder whose path is as long as that of the page's: comments shorten long values."""
    with tempfile.TemporaryDirectory(prefix="", dir="/tmp") as name:
        assert len(name) == len(FOLDER)
        yield Path(name)


def assert_the_command_line_s_bytes(page, folder, texts):
    """Give each text to the page, whose YAML is what the command that it shows prints; return the results."""
    shown, commands = {}, []
    for name, text in texts.items():
        give(page, name, text)
        expect(page.locator("#left-name")).to_have_text(name)
        offered = page.get_by_role("button", name="Download").is_enabled()
        shown[name] = taken(page) if offered else b""
        commands.append(page.locator("#command").inner_text())
    ran = command_lines(commands, texts, folder)
    outputs = [out.replace(bytes(folder), FOLDER.encode()) for _, out, _ in ran]
    printed = dict(zip(texts, outputs, strict=True))
    assert [name for name in texts if printed[name] != shown[name]] == []
    return ran


def test_scripts_of_all_kinds_are_the_command_line_s_byte_for_byte(page, folder):
    examples = {path.name: path.read_text() for path in EXAMPLES.glob("*.sh")}
    ran = assert_the_command_line_s_bytes(page, folder, {**scripts(), **examples, "hostile.sh": HOSTILE})
    assert sum(1 for code, out, _ in ran if code == 0 and out) > 15
    assert page.evaluate("window.stolen") is None


@pytest.mark.parametrize("most", [60, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_recorded_launches_are_the_command_line_s_byte_for_byte(page, folder, most):
    launches = [launch for script in facts.public_scripts() for launch in script["launches"]]
    chosen = random.Random(10).sample(launches, min(most, len(launches)))
    texts = {
        f"launch-{number}.sh": shlex.join(["python3", "-m", launch["module"], *launch["args"]]) + "\n"
        for number, launch in enumerate(chosen)
    }
    ran = assert_the_command_line_s_bytes(page, folder, texts)
    assert sum(1 for code, out, _ in ran if code == 0 and out) > len(texts) / 2


def test_the_page_opens_with_an_example_that_is_translated(opened):
    page = opened()
    expect(page.locator("#left-name")).to_have_text("grpo.sh")
    settled(page)
    expect(translation(page)).to_contain_text("project: grpo_gsm8k")
    page.close()


def test_a_link_s_text_stands_in_the_example_s_place(opened):
    page = opened()
    give(page, "mine.sh", "python3 -m verl.trainer.main_ppo trainer.project_name=mine\n")
    page.get_by_role("button", name="Copy a link").click()
    expect(page.locator("#share-note")).not_to_have_text("")
    page.reload()
    expect(page.locator("#left-name")).to_have_text("mine.sh")
    settled(page)
    expect(page.locator("#left-name")).to_have_text("mine.sh")
    page.close()


def test_ten_examples_are_one_click_away(page):
    buttons = page.locator("#examples button")
    expect(buttons).to_have_count(10)
    for number in range(10):
        buttons.nth(number).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#left-name")).to_have_text(buttons.nth(number).get_attribute("data-name"))
        settled(page)
        expect(page.locator("#problem")).to_be_hidden()
        expect(page.locator("#state")).to_contain_text("keys")


def test_other_tabs_show_the_commands_of_the_same_text(page):
    give(page, "old.sh", (EXAMPLES / "old_release.sh").read_text())
    tab(page, "Audit")
    expect(page.locator("#audit-table tbody")).to_contain_text("algorithm.kl_ctrl.kl_coef")
    tab(page, "Upgrade")
    expect(page.locator("#upgraded .cm-changedLine").first).to_contain_text(
        "reward.custom_reward_function.path"
    )
    expect(page.locator("#reasons")).to_contain_text("moved below reward in 0.8")
    tab(page, "Diff")
    page.locator("#against").select_option("0.8.0")
    page.wait_for_selector("#diff:not([data-waits])")
    expect(page.locator("#diff-table tbody")).to_contain_text("reinforce_plus_plus")
    tab(page, "Ignored keys")
    expect(page.locator("#ignored-note")).to_contain_text("veRL 0.")
    tab(page, "Advise")
    expect(page.locator("#advise-table tbody tr").first).to_contain_text("stock veRL, lockstep")


def test_keys_are_completed_and_open_values_are_fields(page):
    give(
        page,
        "run.sh",
        GRPO.replace("total_epochs=15", "total_epochs=$EPOCHS trainer.project_name=$SLURM_JOB_ID"),
    )
    page.get_by_label("EPOCHS").fill("7")
    settled(page)
    expect(page.locator("#command")).to_contain_text("--env=EPOCHS=7")
    assert b"total_epochs: 7" in taken(page)
    expect(page.locator("#open input")).to_have_count(1)
    page.get_by_label("EPOCHS").fill("")
    give(page, "run.sh", "")
    page.locator("#left .cm-content").click()
    page.keyboard.type("python3 -m verl.trainer.main_ppo rollout.tensor_mod")
    expect(page.locator(".cm-tooltip-autocomplete li").first).to_contain_text("tensor_model_parallel_size")
    page.keyboard.press("Escape")


def test_an_error_is_shown_with_its_line_and_hint(page):
    give(page, "run.sh", GRPO.replace("train_batch_size=1024", "train_batch_size=ten"))
    expect(page.locator("#problem")).to_contain_text("run.sh:12: ")
    page.locator("#messages").get_by_role("button", name="line 12").first.click()
    expect(page.locator("#left .cm-activeLine")).to_contain_text("train_batch_size=ten")


def test_a_script_finds_the_configuration_in_its_zip(page, tmp_path):
    files = {
        "repo/run.sh": "echo",
        "run.sh": LAUNCH,
        "repo/config/mine.yaml": CONFIG,
        "repo/model.bin": b"\0\1\2",
    }
    give_zip(page, zipped(tmp_path, files))
    expect(page.locator("#tree-note")).to_have_text("3 files, 1 left out")
    page.locator("#tree-name").select_option("run.sh")
    settled(page)
    assert b"batch_size: 48" in taken(page)
    give(page, "alone.sh", LAUNCH)
    expect(page.locator("#tree")).to_be_hidden()
    expect(page.locator("#problem")).to_be_visible()


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (None, "This is not a zip."),
        ({"a.txt": "x"}, "holds no script and no YAML"),
        ({"../run.sh": "x", "/run.sh": "x", "a/./b.sh": "x"}, "holds no script and no YAML"),
        ({"big.sh": "x" * (2 << 20)}, "holds no script and no YAML"),
        ({f"{n}.sh": "x" * (1 << 20) for n in range(17)}, "It holds too much text."),
        ({f"{n}.sh": "" for n in range(2001)}, "It holds 2001 files."),
    ],
    ids=["not a zip", "no script", "outside", "too large", "too much", "too many"],
)
def test_a_zip_beyond_the_limits_is_refused(page, tmp_path, files, told):
    give_zip(page, b"PK" if files is None else zipped(tmp_path, files))
    expect(page.locator("#problem")).to_contain_text(told)


def test_a_zip_that_understates_its_sizes_costs_no_more(page, tmp_path):
    packed = bytearray(zipped(tmp_path, {"bomb.sh": "x" * (64 << 20)}))
    place = packed.rindex(b"PK\x01\x02")
    packed[place + 24 : place + 28] = (10).to_bytes(4, "little")
    give_zip(page, bytes(packed))
    expect(page.locator("#problem")).to_contain_text("holds no script and no YAML")


def test_a_link_holds_the_text_and_the_options(page, server):
    give(page, "mine.sh", GRPO)
    page.get_by_label("GPUs a node").fill("4")
    settled(page)
    before = taken(page)
    page.get_by_role("button", name="Copy a link with this text").click()
    expect(page.locator("#share-note")).to_contain_text("copied")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(f"{server.address}#text=") and "gsm8k" not in link
    page.evaluate("document.getElementById('translate').reset()")
    give(page, "other.sh", "")
    page.evaluate("link => { location.hash = ''; location.href = link; }", link)
    expect(page.locator("#left-name")).to_have_text("mine.sh")
    settled(page)
    assert taken(page) == before
    assert page.get_by_label("GPUs a node").input_value() == "4"


def fragment(content):
    packed = zlib.compress(content, wbits=-15)
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


@pytest.mark.parametrize(
    "given",
    [
        "%%%",
        fragment(b"no JSON"),
        fragment(json.dumps({"text": "x"}).encode()),
        fragment(json.dumps([["text", 5]]).encode()),
        fragment(json.dumps([["text", "x" * (8 << 20)]]).encode()),
        "A" * 50_000,
    ],
    ids=["letters", "no JSON", "no list", "no text", "bomb", "long"],
)
def test_a_damaged_link_is_told(page, given):
    page.evaluate("text => { location.hash = `#text=${text}`; }", given)
    expect(page.locator("#problem")).to_have_text("The link is damaged, or was made by something else.")
    page.evaluate("location.hash = ''")


def test_fields_that_the_page_lacks_are_left_out_of_a_link(page):
    fields = [["file", "/x"], ["length", "9"], ["csrf", "x"], ["text", GRPO], ["name", "a.sh"]]
    page.evaluate("text => { location.hash = `#text=${text}`; }", fragment(json.dumps(fields).encode()))
    expect(page.locator("#left-name")).to_have_text("a.sh")
    settled(page)
    expect(page.locator("#problem")).to_be_hidden()
    page.evaluate("location.hash = ''")


def test_a_text_that_is_too_long_has_no_link(page):
    give(
        page, "run.sh", GRPO + "".join(f"# {zlib.crc32(bytes([n % 251, n % 241]))}\n" for n in range(40_000))
    )
    page.get_by_role("button", name="Copy a link with this text").click()
    expect(page.locator("#share-note")).to_have_text("The text is too long for a link.")


def test_the_page_is_whole_and_accessible_with_and_without_a_text(opened):
    page = opened()
    is_whole(page)
    give(page, "run.sh", GRPO)
    for name in ("Audit", "Upgrade", "Diff", "Ignored keys", "Advise"):
        tab(page, name)
        for _ in at_each_size(page):
            fits(page)
    page.evaluate("for (const panel of document.querySelectorAll('.panel, #tree')) panel.hidden = false")
    is_whole(page)  # once for all tabs, since axe takes seconds


def test_a_worker_that_does_not_answer_is_ended_and_another_started(browser, site, tmp_path):
    with serving(with_limit(site, tmp_path / "impatient", 3)) as server:
        context = browser.new_context()
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.goto(server.address)
        page.wait_for_selector("html[data-worker=ready]")
        page.wait_for_selector("body[data-page='1']")
        settled(page)  # the opening example, whose end would make the page ask once more
        page.workers[0].evaluate("() => { setTimeout(() => { for (;;); }); }")
        give(page, "run.sh", GRPO)
        expect(page.locator("#problem")).to_contain_text("This was ended: more than 3 s.")
        page.wait_for_selector("html[data-worker=ready]")
        assert (
            page.workers[0].evaluate("typeof answer") == "undefined"
        )  # a module of its own, so another worker
        context.close()


def test_no_text_leaves_the_page(opened, server):
    page = opened()
    page.locator("#offline").wait_for()
    requests = []
    page.context.on("request", lambda request: requests.append(request))
    del server.asked[:]
    give(page, "secret-name.sh", GRPO.replace("grpo_gsm8k", "secret-project"))
    for name in ("Audit", "Upgrade", "Diff", "Ignored keys", "Advise"):
        tab(page, name)
    page.get_by_role("button", name="Copy a link with this text").click()
    expect(page.locator("#share-note")).not_to_be_empty()
    page.reload()
    page.wait_for_selector("html[data-worker=ready]")
    expect(page.locator("#left-name")).to_have_text("secret-name.sh")
    assert requests and all(each.url.removeprefix("blob:").startswith(server.address) for each in requests)
    assert not any("?" in each.url or each.post_data for each in requests)
    assert not [each for each in server.asked if "secret" in each or "text=" in each]


def test_neither_the_page_nor_its_worker_can_reach_another_origin(browser, server, site):
    context = browser.new_context()
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto(server.address)
    page.wait_for_selector("html[data-worker=ready]")
    with serving(site) as other:
        fetching = "address => fetch(address, {mode: 'no-cors'}).then(() => 'sent', () => 'refused')"
        assert page.evaluate(fetching, other.address) == "refused"
        assert page.workers[0].evaluate(fetching, other.address) == "refused"
        assert page.evaluate(fetching, server.address) == "sent"
        assert other.asked == []
    context.close()


def test_the_page_works_offline_from_the_files_of_one_build(opened, browser, server):
    context = browser.new_context()
    context.set_default_timeout(WAIT_MS)
    context.add_init_script("caches.open('trinity-compat-old')")
    page = context.new_page()
    page.goto(server.address)
    page.locator("#offline").wait_for()
    assert len(page.evaluate("caches.keys()")) == 1
    context.set_offline(True)
    del server.asked[:]
    page.reload()
    page.wait_for_selector("html[data-worker=ready]")
    page.get_by_role("button", name="Megatron").click()
    settled(page)
    expect(translation(page)).to_contain_text("algorithm_type: grpo")
    assert not [each for each in server.asked if "/sw.js" not in each]  # asked for a new build
    context.close()
