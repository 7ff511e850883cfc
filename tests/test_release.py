"""What is released: one version everywhere, whole archives, and an install that moves nothing."""

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import bistoch

ROOT = Path(__file__).parents[1]


def test_one_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {bistoch.__version__}\n" in citation
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[(.+?)\]", changelog, re.MULTILINE)[1] == bistoch.__version__


def run(*command, folder):
    # programs of another environment must not find our sources by this way
    hidden = () if command[0] == sys.executable else ("PYTHONPATH", "PYTHONHOME")
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The wheel and the sdist; the wheel is built from the sdist."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.slow
def test_archives_are_whole_and_clean(archives):
    wheel, sdist = archives
    with zipfile.ZipFile(wheel) as file:
        packed = set(file.namelist())
    sources = [path for path in (ROOT / "src").rglob("*") if path.is_file()]
    wanted = {str(path.relative_to(ROOT / "src")) for path in sources if path.suffix != ".pyc"}
    wanted = {path for path in wanted if "__pycache__" not in path and ".egg-info" not in path}
    assert wanted <= packed
    assert {path.split("/")[0] for path in packed} == {
        "bistoch",
        f"bistoch-{bistoch.__version__}.dist-info",
    }
    with tarfile.open(sdist) as file:
        packed = {name.partition("/")[2] for name in file.getnames()}
    tops = {path.partition("/")[0] for path in packed}
    assert {"src", "tests", "docs", "examples", "README.md", "LICENSE", "mkdocs.yml"} <= tops
    # what pip needs is added by itself
    assert tops <= {*(path.name for path in ROOT.iterdir()), "PKG-INFO"}
    junk = r"__pycache__|\.pyc$|^\.venv|^site/|^build/|^dist/|^\.ci|^\.github|\.egg-info|\.nb[ic]$"
    assert not [path for path in packed if re.search(junk, path)]


def needed(name, extras=(), found=None):
    """Distributions that an installation of a package brings along, by what they declare."""
    found = {} if found is None else found
    try:
        owner = distribution(name)
    except PackageNotFoundError:
        return found
    for text in owner.requires or ():
        need = Requirement(text)
        asked = (
            [need.marker.evaluate({"extra": extra}) for extra in ("", *extras)]
            if need.marker
            else [True]
        )
        if any(asked) and (need.name, *need.extras) not in found:
            found[need.name, *need.extras] = need.name
            needed(need.name, need.extras, found)
    return found


@pytest.fixture(scope="module", params=["", "lab"], ids=["core", "lab"])
def environment(request, tmp_path_factory):
    """A new environment that sees this one, of which it sees what an extra needs and no more."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    # venv brings an old one, which would hide that of the existing environment
    run(programs / "pip", "uninstall", "--yes", "setuptools", folder=folder)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    linked = folder / "existing"
    linked.mkdir()
    extras = (request.param,) if request.param else ()
    for name in set(needed("bistoch", extras).values()) - {"bistoch"}:
        try:
            owner = distribution(name)
        except PackageNotFoundError:
            continue
        tops = {file.parts[0] for file in owner.files if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            (linked / top).exists() or (linked / top).symlink_to(owner.locate_file(top))
    (packages / "existing.pth").write_text(f"{linked}\n")
    return request.param, programs, packages


def blocks_of_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```pycon\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
def test_the_wheel_installs_beside_an_existing_torch(archives, environment, tmp_path):
    extra, programs, packages = environment
    wheel = f"{archives[0]}[{extra}]" if extra else archives[0]
    # no index: whatever would be fetched or moved is an error
    run(programs / "pip", "install", "--isolated", "--no-index", wheel, folder=tmp_path)
    installed = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert installed - {"pip"} == {"bistoch"}
    assert (
        run(programs / "bistoch", "--version", folder=tmp_path)
        == f"bistoch {bistoch.__version__}\n"
    )
    # the first example of the README, and the first lines with tensors
    search, six_lines = blocks_of_readme()[:2]
    (tmp_path / "readme.txt").write_text(f"{search}\n{six_lines}\n")
    code = "import doctest, sys; sys.exit(doctest.testfile('readme.txt', False).failed)"
    run(programs / "python", "-W", "error", "-c", code, folder=tmp_path)
    where = "import bistoch, torch; print(bistoch.__file__, torch.__file__, sep='\\n')"
    ours, theirs = run(programs / "python", "-c", where, folder=tmp_path).splitlines()
    assert Path(ours).is_relative_to(packages)
    assert not Path(theirs).is_relative_to(packages)
    if extra:
        run(programs / "bistoch", "demo", "--out", tmp_path / "demo", folder=tmp_path)
        assert any((tmp_path / "demo").glob("*.html"))
    else:
        run(programs / "bistoch", "show", folder=tmp_path)


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.stem)
def test_workflows_run_what_exists(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 45
        for command in (step["run"] for step in job["steps"] if "run" in step):
            for target in re.findall(r"^make (\w+)", command):
                assert f"\n{target}: " in makefile
            for file in re.findall(r"tests/\w+\.py", command):
                assert (ROOT / file).is_file()
