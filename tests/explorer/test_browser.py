"""The explorer in a real browser: what it shows is what Python computes."""

import shutil
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bistoch.explorer.app import make_app
from bistoch.explorer.link import read_link, write_link
from bistoch.explorer.serve import listen, make_server
from bistoch.explorer.text import minilm_is_installed
from bistoch.explorer.view import look, python_lines

webdriver = pytest.importorskip("selenium.webdriver")
By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.skipif(DRIVER is None, reason="chromium-driver is not installed"),
]

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1280,1000",
)  # fmt: skip
PATIENCE = 60


@contextmanager
def serving(*subjects):
    """The address of a server of some models."""
    server = make_server(make_app({subject.name: subject for subject in subjects}), listen(0))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join(timeout=30)
        server.server_close()


class Page:
    """A browser with the page of a server."""

    def __init__(self, driver, address):
        self.driver, self.address = driver, address

    def open(self, query=""):
        self.driver.get(self.address + query)
        self.wait_for(lambda: self.text("after-peak"))

    def find(self, name):
        return self.driver.find_element(By.ID, name)

    def text(self, name):
        found = self.driver.find_elements(By.ID, name)
        return found[0].get_property("textContent") if found else ""

    def wait_for(self, condition):
        until = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert time.monotonic() < until, f"waited in vain; the page says {self.problems()}"
            time.sleep(0.05)
        return found

    def problems(self):
        return [self.text(name) for name in ("problem", "link-problems", "upload-problem")]

    def press(self, name, *keys):
        for key in keys:
            self.find(name).send_keys(key)

    def emulate(self, width, height, dark=False):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})

    def run(self, script):
        return self.driver.execute_script(f"return {script}")

    def script_errors(self):
        return [line["message"] for line in self.driver.get_log("browser")
                if line["level"] == "SEVERE"]  # fmt: skip

    def shows(self, subject, state):
        """Wait until the numbers, plans and bars of the page are those of Python."""
        view = look(subject, state)
        wanted = [f"{side.peak:.4f}" for side in (view.before, view.after)]
        wanted += [f"{side.entropy:.4f}" for side in (view.before, view.after)]
        names = ("before-peak", "after-peak", "before-entropy", "after-entropy")
        self.wait_for(lambda: [self.text(name) for name in names] == wanted)
        # the bars are drawn a moment after the numbers are written
        sums = pytest.approx(view.after.sums.tolist(), abs=1e-5)
        self.wait_for(lambda: self.drawn("after-plan", 1, "y") == sums)
        output = pytest.approx(sorted(view.after.output.values()), abs=1e-5)
        self.wait_for(lambda: sorted(self.drawn("output", 0, "x")) == output)
        assert self.text("python") == python_lines(subject, state)
        assert read_link(self.link(), {subject.name: subject}) == (state, [])

    def drawn(self, graph, trace, axis):
        """The numbers of a trace; none as long as it is not drawn."""
        plot = f"document.querySelector('#{graph} .js-plotly-plot')"
        return self.run(f"Array.from({plot}?.data?.[{trace}]?.{axis} ?? [])")

    def link(self):
        return self.run("window.location.search")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(folder)})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.folder = folder
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(vit, request):
    # with MiniLM if it is installed, which then opens
    texts = [request.getfixturevalue("minilm")] if minilm_is_installed() else []
    with serving(*texts, vit) as address:
        yield address


@pytest.fixture
def page(driver, address):
    made = Page(driver, address)
    made.emulate(1280, 1000)
    yield made
    assert made.script_errors() == []


def test_sliders_and_operators_change_the_numbers_to_what_python_says(page, vit):
    page.open("?model=vit")
    page.shows(vit, vit.opening)
    # by keyboard: the ends, and single steps
    page.press("lam", Keys.HOME)
    page.shows(vit, replace(vit.opening, lam=0.0))
    page.press("lam", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.press("iters", Keys.ARROW_RIGHT)
    page.press("eps", Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    page.press("layer", Keys.HOME)
    state = replace(vit.opening, lam=0.03, iters=11, eps=0.794, layer=0)
    page.shows(vit, state)
    # an operator from the list
    page.press("operator", Keys.ENTER)
    options = "[...document.querySelectorAll('[role=option]')]"
    page.wait_for(lambda: page.run(f"{options}.some(one => one.textContent == 'softmax')"))
    page.run(f"{options}.find(one => one.textContent == 'softmax').click()")
    page.shows(vit, replace(state, operator="softmax"))
    enabled = [page.find(name).is_enabled() for name in ("lam", "eps", "iters")]
    assert enabled == [False, True, False]
    # a head from the map of heads
    page.wait_for(lambda: page.drawn("heads", 0, "z"))
    cells = page.driver.find_element(By.CSS_SELECTOR, "#heads .nsewdrag")
    page.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", cells)
    mouse = webdriver.ActionChains(page.driver)
    mouse.move_to_element_with_offset(cells, -cells.size["width"] // 3, 0).click().perform()
    page.wait_for(lambda: page.text("head-shown") == "0")
    page.shows(vit, read_link(page.link(), {"vit": vit})[0])


def test_a_link_restores_the_state_and_a_bad_one_gives_sentences(page, vit):
    state = replace(vit.opening, picture="3", layer=1, head=2, operator="entmax", where="model",
                    eps=0.5)  # fmt: skip
    page.open(write_link(state, vit))
    page.shows(vit, state)
    assert page.problems() == ["", "", ""]
    page.open("?model=vit&lam=7&head=x&picture=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    said = page.text("link-problems")
    assert "lam must be a number from 0 to 1, but it is '7'" in said
    assert "head must be a whole number from 0 to 3, but it is 'x'" in said
    page.shows(vit, vit.opening)


def test_pictures_of_the_user_and_pictures_for_the_user(page, vit, tmp_path):
    from PIL import Image

    page.open("?model=vit&layer=1&head=3&lam=0.5")
    upload = page.driver.find_element(By.CSS_SELECTOR, "#upload input[type=file]")
    (tmp_path / "words.png").write_text("no picture")
    upload.send_keys(str(tmp_path / "words.png"))
    page.wait_for(lambda: "The file cannot be read as a picture" in page.text("upload-problem"))
    Image.effect_noise((60, 80), 90).save(tmp_path / "noise.png")
    upload.send_keys(str(tmp_path / "noise.png"))
    page.wait_for(lambda: "picture=eN" in page.link())
    # the link holds the picture itself
    state, problems = read_link(page.link(), {"vit": vit})
    assert (problems, len(state.picture) > 500) == ([], True)
    page.shows(vit, state)
    assert page.problems() == ["", "", ""]

    page.find("save-png").click()
    file = Path(page.driver.folder) / "vit-layer1-head3-elastic.png"
    page.wait_for(file.exists)
    with Image.open(file) as picture:
        assert picture.size == (2400, 1520)
        assert len(picture.convert("L").getcolors()) > 50
    allowed = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.driver.execute_cdp_cmd("Browser.grantPermissions", allowed)
    page.find("copy-python").click()
    page.wait_for(lambda: page.text("done") == "Python copied.")


def test_phones_and_the_dark(page):
    page.emulate(390, 844)
    page.open("?model=vit")
    ink = "document.querySelector('#after-plan .js-plotly-plot')?.layout?.font?.color"
    paper = "getComputedStyle(document.body).backgroundColor"
    for width in (390, 820, 1280):
        page.emulate(width, 844)
        page.wait_for(lambda: page.run("document.documentElement.scrollWidth") <= width)  # noqa: B023
    page.wait_for(lambda: (page.run(ink), page.run(paper)) == ("#1c2430", "rgb(245, 246, 248)"))
    page.emulate(390, 844, dark=True)
    page.wait_for(lambda: (page.run(ink), page.run(paper)) == ("#e6e9ef", "rgb(15, 17, 21)"))
    # the sliders stay in sight while the plots scroll
    page.run("window.scrollTo(0, 700)")
    assert 0 <= page.run("document.getElementById('lam').getBoundingClientRect().top") < 100


def test_texts(page, minilm, vit):
    page.open()
    page.shows(minilm, minilm.opening)
    text = "<b>x</b> <img src=x> &amp; '"
    page.press("text", Keys.CONTROL + "a", text)
    page.shows(minilm, replace(minilm.opening, text=text))
    # plotly reads tags: what is drawn is what was written
    labels = "[...document.querySelectorAll('#after-plan .xtick text')].map(one => one.textContent)"
    page.wait_for(lambda: page.run(labels)[1:6] == ["<", "b", ">", "x", "<"])
    assert page.run("document.querySelectorAll('img[src=x]').length") == 0
    page.press("text", Keys.CONTROL + "a", "a " * 150)
    page.wait_for(lambda: page.text("problem").startswith("The text has 152 tokens"))
    page.press("text", Keys.CONTROL + "a", Keys.BACKSPACE)
    page.wait_for(lambda: "write at least one word" in page.text("problem"))
    # another model opens with a view of its own
    page.driver.find_element(By.CSS_SELECTOR, "#model input[value=vit]").click()
    page.shows(vit, vit.opening)
    assert page.problems() == ["", "", ""]
