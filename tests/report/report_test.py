"""Tests `python -m sparsesync.report`: pages for all outputs of the program, opened in a browser; hostile names; bad files."""
# ctest: COST 35 SLOW browser light_and_dark console

import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cli"))

numpy = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")

from compare_support import write_trace  # noqa: E402 - it imports numpy
from conftest import program_path  # noqa: E402 - its folder is put on the path above

SCRIPT = "<script>alert('$x$ & \"y\"')<script>"
HOSTILE = SCRIPT + "\x1b[31m\x9b\u202eevil\u202c"
SHOWN = SCRIPT + r"\x1b[31m\x9b\u202eevil\u202c"

ALL = ["profile.json", "compare.json", "plan.json", "NETWORK.json", "simulate.json", "steps.json"]


def report(*arguments, folder):
    return subprocess.run(
        [sys.executable, "-m", "sparsesync.report", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Makes a folder with the JSON of all commands, for a trace with two tensors; one has a hostile name."""
    folder = tmp_path_factory.mktemp("report")
    random = numpy.random.default_rng(1)
    tensors = [
        {"name": HOSTILE, "rows": 5000, "width": 8, "dtype": "f32"},
        {"name": "plain", "rows": 300, "width": 4, "dtype": "f32"},
    ]
    write_trace(folder / "T", tensors, 4, 3, lambda w, s, t: (random.zipf(1.4, 200) % t["rows"], None))

    def run(*words):
        done = subprocess.run([program_path(), *map(str, words)], cwd=folder, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr

    run("profile", "T", "--json", "profile.json")
    run("compare", "T", "--rate", "1gbit", "--latency", "10us", "--clock", "virtual", "--repeat", 1, "--json", "compare.json")
    run("plan", "T", "--rate", "1gbit", "--latency", "10us", "--workers", "2..256", "--json", "plan.json")
    layers = [{"name": HOSTILE if i == 0 else f"l{i}", "forward_s": 0.001, "backward_s": 0.002, "bytes": 1_000_000} for i in range(4)]
    (folder / "model.json").write_text(json.dumps({"name": HOSTILE, "layers": layers}))
    link = ("--rate", "1gbit", "--latency", "10us")
    run("simulate", "model.json", *link, "--workers", "2..64", "--json", "simulate.json")
    run("simulate", "model.json", *link, "--workers", 8, "--schedules", "wfbp,dear", "--timeline", "steps.json", "--json", "eight.json")
    run("calibrate", "--transport", "local", "--workers", 2, "--repeat", 3, "--rate", "1mbit", "--latency", "1ms", "--out", "NETWORK.json")
    return folder


@pytest.fixture(scope="module")
def page(files):
    made = report(*ALL, "-o", "page.html", folder=files)
    assert made.returncode == 0, made.stderr
    assert not made.stderr
    return files / "page.html"


class Elements(html.parser.HTMLParser):
    """Counts elements, collects ids and texts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.ids, self.texts, self.links = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            elif name in ("src", "href", "xlink:href"):
                self.links.append(value)

    def handle_data(self, data):
        self.texts.append(data)

    def of(self, tag):
        return [attrs for name, attrs in self.found if name == tag]


def test_everything_is_in_the_page_and_nothing_comes_from_outside(page):
    text = page.read_text(encoding="utf-8")
    elements = Elements(text)
    # Six pictures for each of two tensors, two of compare, two of plan, two of a simulation, one of timelines.
    assert len(elements.of("figure")) == 2 * 6 + 2 + 2 + 2 + 1
    assert len(elements.of("svg")) == len(elements.of("figure"))
    assert all(attrs["role"] == "img" and len(attrs["aria-label"]) > 20 for attrs in elements.of("svg"))
    assert not elements.of("script") and not elements.of("link") and not elements.of("iframe") and not elements.of("img")
    assert all(link.startswith("#") for link in elements.links), elements.links
    assert not re.search(r"url\((?!#)", text)
    assert len(elements.ids) == len(set(elements.ids))
    assert {link[1:] for link in elements.links} <= set(elements.ids)
    assert "width=device-width" in text


def test_numbers_of_the_files_are_in_the_page(page, files):
    text = " ".join(Elements(page.read_text(encoding="utf-8")).texts)
    profile = json.loads((files / "profile.json").read_text(encoding="utf-8"))
    for tensor in profile["tensors"]:
        assert f"{tensor['densification']['4']:.3f}" in text
        assert f"{100 * tensor['row_density']['mean']:.4g}%" in text
    compare = json.loads((files / "compare.json").read_text(encoding="utf-8"))
    for scheme in compare["schemes"]:
        assert scheme["name"] in text
    assert compare["provenance"]["commit"] in text


def cells_of(text, title):
    """Returns the rows of a picture's table as lists of strings."""
    figure = re.search(rf"<figure(?:(?!</figure>).)*{title}.*?</figure>", text, re.DOTALL).group()
    rows = re.findall(r"<tr>(.*?)</tr>", figure, re.DOTALL)
    return [[html.unescape(cell.strip()) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)] for row in rows]


def seconds_of(text):
    number, unit = text.split()
    return float(number) * {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1}[unit]


def test_steps_of_a_simulation_are_what_its_file_says(page, files):
    told = json.loads((files / "simulate.json").read_text(encoding="utf-8"))["results"]
    most = {each["schedule"]: each for each in told if each["workers"] == 64}
    _, *rows = cells_of(page.read_text(encoding="utf-8"), "Duration of a step with each schedule")
    assert [row[0] for row in rows] == list(most)
    for name, step, computed, crosses, exposed, _ in rows:
        for shown, key in ((step, "iteration_s"), (computed, "compute_s"), (crosses, "communication_s"), (exposed, "exposed_s")):
            assert seconds_of(shown) == pytest.approx(most[name][key], rel=0.006), (name, key)
    header, *rows = cells_of(page.read_text(encoding="utf-8"), "Duration of a step by number of workers")
    assert header == ["workers", *most] and [row[0] for row in rows] == ["2", "4", "8", "16", "32", "64"]


def test_timelines_distinguish_hidden_and_exposed(page, files):
    eight = json.loads((files / "eight.json").read_text(encoding="utf-8"))["results"]
    _, *rows = cells_of(page.read_text(encoding="utf-8"), "Communication over time")
    assert [row[0] for row in rows] == ["wfbp, 8 workers", "dear, 8 workers"]
    for (_, _, passes, hidden, exposed), step in zip(rows, eight, strict=True):
        assert seconds_of(passes) == pytest.approx(3 * step["compute_s"], rel=0.006)
        # Three steps are simulated. Communication after the last passes is not part of the timeline.
        assert 2 * step["exposed_s"] * 0.99 <= seconds_of(exposed) <= 3 * step["exposed_s"] * 1.01
        crossed = seconds_of(hidden) + seconds_of(exposed)
        assert 2 * step["communication_s"] * 0.99 <= crossed <= 3 * step["communication_s"] * 1.01


def changed(change):
    trace = {
        "traceEvents": [
            {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "p"}},
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "passes"}},
            {"name": "l forward", "ph": "X", "pid": 0, "tid": 0, "ts": 0.0, "dur": 5.0},
        ]
    }
    change(trace["traceEvents"])
    return trace


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda events: None, None),
        (lambda events: events[1]["args"].update(name="GPU 0"), "no row of a trace is called passes"),
        (lambda events: events.pop(), "no row of a trace"),
        (lambda events: events[2].update(dur=-1), "a span of l forward"),
        (lambda events: events[2].update(ts="soon"), "soon"),
        (lambda events: events[2].pop("dur"), "dur"),
    ],
    ids=["good", "other_rows", "no_spans", "negative", "words", "no_length"],
)
def test_traces_of_others_are_refused_in_one_line(tmp_path, change, part):
    (tmp_path / "t.json").write_text(json.dumps(changed(change)), encoding="utf-8")
    made = report("t.json", "-o", "page.html", folder=tmp_path)
    assert (made.returncode == 0) == (part is None), made.stderr
    if part:
        assert part in made.stderr and made.stderr.count("\n") == 1
        assert not (tmp_path / "page.html").exists()


def test_of_many_timelines_the_first_are_drawn(tmp_path):
    trace = {"traceEvents": []}
    for process in range(10):
        for event in changed(lambda events: None)["traceEvents"]:
            trace["traceEvents"].append({**event, "pid": process})
    (tmp_path / "t.json").write_text(json.dumps(trace), encoding="utf-8")
    assert report("t.json", "-o", "page.html", folder=tmp_path).returncode == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "10 timelines of the last steps. The picture shows the first 8." in text
    assert len(cells_of(text, "Communication over time")) == 1 + 8


def test_a_hostile_name_is_text(page):
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text.lower()
    shown = "".join(Elements(text).texts)
    assert SHOWN in shown
    assert all(each.isprintable() or each in "\n\t" for each in shown)


def test_the_same_files_make_the_same_page(files, page):
    before = page.read_bytes()
    assert report(*ALL, "-o", "again.html", folder=files).returncode == 0
    assert (files / "again.html").read_bytes() == before


@pytest.mark.parametrize("steps, workers, rows", [(1, 1, []), (1, 1, [3]), (2, 3, []), (1, 2, [0, 1, 2])])
def test_odd_traces(tmp_path, steps, workers, rows):
    tensors = [{"name": "t", "rows": 3, "width": 1, "dtype": "f32"}]
    write_trace(tmp_path / "T", tensors, workers, steps, lambda *_: ([row % 3 for row in rows], None))
    commands = [("profile", "T")]
    if workers > 1:
        commands.append(("plan", "T", "--rate", "1gbit", "--workers", "2..8"))
        commands.append(("compare", "T", "--rate", "1gbit", "--clock", "virtual", "--repeat", "1"))
    for command in commands:
        words = [program_path(), *command, "--json", f"{command[0]}.json"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        made = report(f"{command[0]}.json", "-o", "page.html", folder=tmp_path)
        assert made.returncode == 0 and not made.stderr, made.stderr
        assert Elements((tmp_path / "page.html").read_text(encoding="utf-8")).of("figure")


@pytest.mark.parametrize(
    "content, parts",
    [
        (None, ["bad.json", "No such file"]),
        ("{", ["bad.json", "is not JSON"]),
        ("[1, 2]", ["bad.json", "not a kind of document"]),
        ("[" * 200_000, ["bad.json", "is not JSON"]),
        ('{"a":' + "[" * 64 + "]" * 64 + "}", ["bad.json", "is not JSON", "nests values more than 64 deep"]),
        ('{"a":' + "[" * 63 + "]" * 63 + "}", ["bad.json", "is not a kind of document"]),
        ("\ufeff{}", ["bad.json", "is not JSON"]),
        ('{"a": NaN}', ["bad.json", "is not JSON", "NaN"]),
        ('{"a": -Infinity}', ["bad.json", "is not JSON", "Infinity"]),
        ('{"tensors": [{"densification": {}, "overlap": {}}]}', ["as sparsesync writes it"]),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, content, parts):
    if content is not None:
        (tmp_path / "bad.json").write_text(content, encoding="utf-8")
    made = report("bad.json", "-o", "page.html", folder=tmp_path)
    assert made.returncode == 2
    assert made.stderr.startswith("sparsesync.report: ") and made.stderr.count("\n") == 1, made.stderr
    for part in parts:
        assert part in made.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda tensor: tensor["overlap"].update(histogram=[]),
        lambda tensor: tensor.update(rows=10**400),
        lambda tensor: tensor["row_density"].update(mean=10**400),
        lambda tensor: tensor["densification"].update({"1" + "0" * 400: 1}),
        lambda tensor: tensor.update(hot_rows=7),
        lambda tensor: tensor.pop("skewness"),
        lambda tensor: tensor.update(zipf={"s": "steep"}),
    ],
    ids=["no_bins", "rows", "mean", "workers", "hot_rows", "skewness", "zipf"],
)
def test_a_file_that_is_damaged_is_refused_in_one_line(tmp_path, files, damage):
    content = json.loads((files / "profile.json").read_text(encoding="utf-8"))
    damage(content["tensors"][0])
    (tmp_path / "bad.json").write_text(json.dumps(content), encoding="utf-8")
    made = report("bad.json", "-o", "page.html", folder=tmp_path)
    assert made.returncode == 2, made.stderr
    assert made.stderr.startswith("sparsesync.report: ") and made.stderr.count("\n") == 1, made.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path, files):
    (tmp_path / "folder").mkdir()
    for place in ("no/such/page.html", "folder", "", "no/such\nplace"):
        made = report(files / "profile.json", "-o", place, folder=tmp_path)
        assert made.returncode == 2 and made.stderr.count("\n") == 1, (place, made.stderr)
        assert [path.name for path in tmp_path.iterdir()] == ["folder"], place
        assert not list((tmp_path / "folder").iterdir())


def test_text_of_a_picture_is_not_taken_for_markup(tmp_path, files):
    content = json.loads((files / "compare.json").read_text(encoding="utf-8"))
    ran = [each for each in content["schemes"] if "skipped" not in each]
    ran[0]["name"] = '#010101 id="z" url(#a)'
    ran[1]["name"] = "half of a character: \ud800"
    (tmp_path / "odd.json").write_text(json.dumps(content), encoding="utf-8")
    made = report("odd.json", "-o", "page.html", folder=tmp_path)
    assert made.returncode == 0 and not made.stderr, made.stderr
    texts = Elements((tmp_path / "page.html").read_text(encoding="utf-8")).texts
    assert any('#010101 id="z" url(#a)' in text for text in texts)
    assert any("half of a character: ?" in text for text in texts)


# In a browser.


def browse(page, *options):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    profile = page.parent / "browser"
    done = subprocess.run(
        [*command, f"--user-data-dir={profile}", *options, page.as_uri()], capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    console = [line for line in done.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line]
    return done.stdout.decode(), console


def test_a_browser_shows_every_figure_and_complains_of_nothing(page):
    dom, console = browse(page, "--dump-dom")
    assert not console
    shown = Elements(dom)
    assert len(shown.of("figure")) == len(shown.of("svg")) == 19


def test_the_check_of_the_console_can_fail(tmp_path):
    (tmp_path / "bad.html").write_text("<script>console.error('oops'); nothing.there</script>", encoding="utf-8")
    _, console = browse(tmp_path / "bad.html", "--dump-dom")
    assert any("oops" in line for line in console) and any("nothing is not defined" in line for line in console)


@pytest.mark.parametrize("width", [1200, 500])
def test_light_and_dark_are_what_they_are_called(page, width):
    import matplotlib.image

    means = {}
    for scheme, setting in (("light", 1), ("dark", 0)):
        shot = page.parent / f"{scheme}-{width}.png"
        browse(page, f"--window-size={width},2400", f"--blink-settings=preferredColorScheme={setting}", f"--screenshot={shot}")
        pixels = matplotlib.image.imread(shot)[..., :3]
        assert pixels.shape[1] == width
        means[scheme] = pixels.mean()
        # The picture is not blank, from top to bottom.
        for part in numpy.array_split(pixels, 6):
            assert part.std() > 0.02
    assert means["light"] > 0.8
    assert means["dark"] < 0.25
