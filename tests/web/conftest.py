"""The page, built once and opened in chromium."""

import pytest
from browser import launched, new_pages
from web_page import built, serving, with_limit


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The built page's folder."""
    return built(tmp_path_factory.mktemp("web") / "site")


@pytest.fixture(scope="module")
def server(site, tmp_path_factory):
    """A server of the page with thirty times its limits, which a busy machine does not reach."""
    with serving(with_limit(site, tmp_path_factory.mktemp("web") / "patient", 300)) as server:
        yield server


@pytest.fixture(scope="module")
def browser():
    with launched() as made:
        yield made


@pytest.fixture(scope="module")
def opened(browser, server):
    """Open the page; at the module's end nothing was refused by its policy or failed in it."""
    with new_pages(browser, server) as new_page:

        def go(size="wide", **given):
            page = new_page(size, **given)
            page.wait_for_selector("html[data-worker=ready]")
            return page

        yield go


@pytest.fixture(scope="module")
def shared(opened):
    """A page for tests that leave it as any other would."""
    return opened(permissions=["clipboard-read", "clipboard-write"], accept_downloads=True)


@pytest.fixture
def page(shared, server):
    """The shared page without a text, on its first tab."""
    shared.get_by_role("tab", name="YAML").click()
    shared.evaluate("document.getElementById('translate').reset()")
    shared.evaluate("Translate.load('run.sh', '')")
    shared.wait_for_selector("#translate:not([data-waits])")
    return shared
