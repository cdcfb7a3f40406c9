"""Tests scripts/docs: the site builds without warnings, its reference has every public name, and its pictures are up to date."""
# ctest: NEEDS ANALYSIS PYTHON COST 40

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from trees import ROOT

BUILD = Path(os.environ.get("SPARSESYNC_BUILD_DIR", ROOT / "build/dev"))
pytestmark = pytest.mark.skipif(shutil.which("doxygen") is None, reason="doxygen is not installed")


def build_site(root):
    done = subprocess.run([root / "scripts/docs", BUILD], capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Makes a separate checkout, so that other tests do not see a half-built site."""
    root = tmp_path_factory.mktemp("site") / "checkout"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    (root / ".venv").symlink_to(ROOT / ".venv")
    return root


@pytest.fixture(scope="module")
def site(checkout):
    status, output = build_site(checkout)
    assert status == 0, output
    return checkout / "build/site/html"


def text_of(site, page):
    return (site / f"{page}.html").read_text(encoding="utf-8")


def test_every_page_is_reachable(site):
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    navigation = text_of(site, "index")
    assert len(sources) > 50
    assert [str(page) for page in sorted(sources) if f'href="{page}"' not in navigation and str(page) != "index.html"] == []


def test_the_reference_has_every_public_header(site):
    headers = [path.name for path in (ROOT / "include").rglob("*.h") if path.name != "sparsesync.h"]
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/reference/cpp").glob("*.md"))
    assert [name for name in headers if f"```{{doxygenfile}} {name}\n" not in pages] == []
    assert "sparsesync7SessionE" in text_of(site, "reference/cpp/sessions")


@pytest.mark.parametrize("module", ["sparsesync", "sparsesync.torch"])
def test_the_reference_has_every_public_name_of(module, site):
    code = f"import json, {module} as module; print(json.dumps(sorted(module.__all__)))"
    environment = os.environ | {"PYTHONPATH": str(BUILD / "python")}
    run = subprocess.run([ROOT / ".venv/bin/python", "-c", code], capture_output=True, text=True, check=True, env=environment)
    pages = "".join(path.read_text(encoding="utf-8") for path in (site / "reference/python").glob("*.html"))
    names = json.loads(run.stdout)
    assert len(names) > 10
    documented = set(re.findall(r'id="sparsesync\.(?:torch\.|analysis\.)?(\w+)"', pages))
    assert [name for name in names if name not in documented] == []


def test_the_reference_has_every_command(site):
    page = html.unescape(re.sub(r"<[^>]+>", "", text_of(site, "reference/cli")))

    def help_of(*command):
        run = subprocess.run([BUILD / "bin/sparsesync", *command, "--help"], capture_output=True, text=True, check=True)
        return run.stdout

    def commands_in(text):
        return re.findall(r"^  ([\w-]+) ", text.partition("Subcommands:\n")[2].partition("\n\n")[0], flags=re.MULTILINE)

    commands = [(name, *rest) for name in commands_in(help_of()) for rest in [(each,) for each in commands_in(help_of(name))] or [()]]
    assert len(commands) > 8
    assert [command for command in commands if help_of(*command).strip() not in page] == []


def test_the_pictures_are_up_to_date(tmp_path):
    subprocess.run([ROOT / ".venv/bin/python", ROOT / "docs/pictures/draw.py", "--out", tmp_path], check=True)
    drawn = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.svg"))
    assert len(drawn) > 15
    different = [str(name) for name in drawn if (ROOT / "docs/pictures" / name).read_bytes() != (tmp_path / name).read_bytes()]
    assert different == [], "run docs/pictures/draw.py"


def test_finds_faults(checkout, site):
    (checkout / "docs/guide/orphan.md").write_text("# Orphan\n", encoding="utf-8")
    with (checkout / "docs/concepts/index.md").open("a", encoding="utf-8") as page:
        page.write("\n[a page](gone.md) [a heading](schemes.md#no-such-heading)\n")
    status, output = build_site(checkout)
    assert status == 1
    for fault in ("gone.md", "no-such-heading", "orphan.md: WARNING: document isn't included in any toctree"):
        assert fault in output
