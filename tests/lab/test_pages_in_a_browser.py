"""Reports as a browser shows them: every picture is there, and nothing is asked from outside."""

import re
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

# what the page says of its own pictures, written where --dump-dom shows it
PROBE = """<script>
window.addEventListener('load', () => {
  const sizes = [...document.images].map(i => i.naturalWidth);
  document.body.dataset.sizes = sizes.join(' ');
  document.body.dataset.wide = document.documentElement.scrollWidth - window.innerWidth;
  const filter = getComputedStyle(document.querySelector('figure img:not(.photos)')).filter;
  document.body.dataset.filter = filter;
  document.body.dataset.asked = performance.getEntriesByType('resource')
    .map(e => e.name).filter(n => !n.startsWith('data:')).join(' ');
});
</script>"""


def chromium(*words, profile):
    return subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", f"--user-data-dir={profile}", *words,
        ],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip


def check(page, tmp_path, pictures):
    """The page as it is has no address in it; with a probe in it, all its pictures have a size."""
    html = page.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href|url\()\s*=?\s*["']?(https?:)?//""", html)
    assert "default-src 'none'" in html
    # the policy of the page forbids scripts: the probe needs a copy that allows this one
    probed = tmp_path / "probed.html"
    html = html.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    probed.write_text(html.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    dom = chromium("--dump-dom", probed.as_uri(), profile=tmp_path / "profile")
    (sizes,) = re.findall(r'data-sizes="([^"]*)"', dom)
    assert len(sizes.split()) == html.count("<img ") >= pictures
    assert all(int(size) > 100 for size in sizes.split())
    assert re.findall(r'data-asked="([^"]*)"', dom) == [""]
    assert re.findall(r'data-filter="([^"]*)"', dom) == ["none"]
    # on a narrow window tables are scrolled, the page is not; in the dark, drawings are turned
    dom = chromium(
        "--window-size=500,900", "--blink-settings=preferredColorScheme=0", "--dump-dom",
        probed.as_uri(), profile=tmp_path / "narrow",
    )  # fmt: skip
    assert int(re.findall(r'data-wide="([^"]*)"', dom)[0]) <= 0
    assert "invert(1)" in re.findall(r'data-filter="([^"]*)"', dom)[0]
    shot = tmp_path / "shot.png"
    chromium(
        f"--screenshot={shot}", "--window-size=1100,1600", page.as_uri(),
        profile=tmp_path / "other",
    )  # fmt: skip
    from PIL import Image

    with Image.open(shot) as picture:
        # not a blank page
        assert len(picture.convert("L").getcolors()) > 50


def test_the_page_of_inspect(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from rich.console import Console

    from bistoch.lab.inspect import run_inspect

    transformers.set_seed(0)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = transformers.ViTConfig(
        num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=19,
        image_size=20, patch_size=5,
    )  # fmt: skip
    transformers.ViTModel(config).save_pretrained(tmp_path / "model")
    from PIL import Image

    Image.effect_noise((20, 20), 90).save(tmp_path / "noise.png")
    page = run_inspect(
        str(tmp_path / "model"), images=[tmp_path / "noise.png"], out=tmp_path / "report",
        console=Console(quiet=True),
    )  # fmt: skip
    check(page, tmp_path, pictures=6)


def test_the_page_of_a_study(tmp_path):
    from rich.console import Console

    from bistoch.lab.reproduce import rank_decay
    from bistoch.lab.study import Settings, run_study

    settings = Settings(tmp_path, seeds=(0,), smoke=True)
    check(run_study(rank_decay.STUDY, settings, Console(quiet=True)), tmp_path, pictures=1)


def test_the_page_of_a_comparison(tmp_path):
    from rich.console import Console

    from bistoch.lab.compare import Comparison, run_compare
    from bistoch.lab.train import Recipe

    model = "vit(patch=(14,14), depth=1, dim=8, heads=2)"
    operators = ("softmax", "elastic(lam=0.5, learn='head')")
    comparison = Comparison(
        "fashion-mnist-small", model, operators, (0,), Recipe(epochs=1, batch_size=1000)
    )
    page = run_compare(comparison, tmp_path / "out", Console(quiet=True), command="bistoch compare")
    check(page, tmp_path, pictures=7)
