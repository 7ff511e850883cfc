"""The site in a real browser, opened as files: it searches, fits a phone and asks nobody."""

import json
import shutil
import time

import pytest
from making import site

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium is not installed"),
]

# pages with wide tables, long formulas, large pictures and long names
WIDE = (
    "index", "docs/tutorial", "docs/choosing", "docs/gallery", "docs/glossary", "docs/retrieval",
    "docs/operators/elastic", "docs/reference/bistoch", "docs/reference/nn",
)  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    site.build(folder / "build", folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def wait_for(find, seconds=60):
    """What is found, as soon as there is something."""
    end = time.monotonic() + seconds
    while not (found := find()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def resize(browser, width):
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def test_search_finds_names_and_words(built, browser):
    resize(browser, 1280)
    browser.get(f"{built.as_uri()}/index.html")
    for words, page in (("dustbin", "matching.html"), ("elastic_attention", "reference/")):
        box = browser.find_element("css selector", "input.md-search__input")
        box.click()
        box.clear()
        box.send_keys(words)

        def links(page=page):
            found = browser.find_elements("css selector", "a.md-search-result__link")
            return [link for link in found if page in (link.get_attribute("href") or "")]

        assert wait_for(links), f"no result for {words}"


@pytest.mark.parametrize("page", WIDE)
def test_no_page_is_wider_than_the_screen(built, browser, page):
    for width in (390, 1280):
        resize(browser, width)
        browser.get(f"{built.as_uri()}/{page}.html")
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width


def test_colours_follow_the_system(built, browser):
    for scheme, light in (("light", True), ("dark", False)):
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
        browser.get(f"{built.as_uri()}/docs/tutorial.html")
        colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        red = int(colour.partition("(")[2].partition(",")[0])
        assert (red > 127) == light


def test_no_script_error_and_no_request(browser):
    # of all pages that the tests above have opened
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"].endswith("WillBeSent")]
    assert asked
    assert not [url for url in asked if not url.startswith(("file:", "data:", "about:"))]
