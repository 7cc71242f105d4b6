from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import html.parser
import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from spade_jax import structs
from spade_jax.designer.memory import Memory
from spade_jax.reporting import charts, comparison, heatmap, hostile, sections, sources
from spade_jax.reporting.write import write_report
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.metrics import MetricWriter
from spade_jax.runtime.transcripts import transcript_path, write_transcripts

ATTACK = (
    "</pre></p>\"'><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>\u202egnp\x1b[31m\ud800"
)
EMPTY = np.zeros(0, np.int32)


def a_record(name: str, *, valid: bool = True, hint: str = "Halve the range.", regret: float = 0.2):
    verdicts = (
        structs.CheckVerdict("parse", True, "one class"),
        structs.CheckVerdict("contract", valid, "12 steps" if valid else f"step raised {ATTACK}"),
    )
    return structs.EnvironmentRecord(
        id=f"id-{name}",
        source=f"class {name}:\n    pass  # {name.lower()} source\n",
        class_name=name,
        skill="optimization",
        document_id="topic#1",
        hint=hint,
        report=structs.GateReport(verdicts, None if valid else "crash", valid),
        statistics={"regret": regret, "regret_se": 0.05, "win_rate": 0.25} if valid else {},
    )


def an_episode(environment: str, arm: str, *, text: str = "Guess.", status: str = structs.SUCCESS, seed_index: int = 0):
    turn = structs.Turn(text, EMPTY, EMPTY, EMPTY, EMPTY, f"{text} answer", "go", 1.0)
    return structs.Episode(environment, structs.AGENT, arm, seed_index, 7, (turn,), 1.0, status)


def fill(workdir, steps: int = 4):
    """A small finished run; programs Early and Late, a rejected one, and one that attacks the page."""
    (workdir / "config.json").write_text(
        json.dumps({"run": {"steps": steps, "seed": 3}, "method": {"preset": "strict"}})
    )
    writer = MetricWriter(workdir / "metrics")
    for step in range(steps):
        writer.scalars(
            step,
            {
                "designer/regret": 0.1 * step,
                "designer/regret_se": 0.05,
                "designer/regret_null": 0.2 if step == 0 else 0.01,
                "designer/valid_share": 0.75,
                "designer/reject/parse": 0.25,
                "designer/reject/contract": 0.0,
                "agent/win_rate": 0.1 + 0.1 * step,
                "agent/win_rate_hinted": 0.5,
                "learner/loss": float("nan") if step == 1 else -0.5,
                "perf/seconds/play": 2.0,
                "selfplay/nim/draw_rate": 0.5,
            },
        )
        if step in (0, steps - 1):
            writer.scalars(
                step, {"eval/probe/all": 0.2 + 0.1 * step, "eval/probe/range": 0.3, "eval/range/grid_walk": 0.4}
            )
    writer.close()
    encodable = ATTACK.replace("\ud800", "")
    attack = dataclasses.replace(
        a_record("Attack", hint=ATTACK + "x" * 5000),
        source=f'"""{ATTACK}"""\n# {"W" * 20_000}',
        class_name=encodable,
        document_id=encodable,
        skill=encodable,
    )
    with Memory(workdir / "environments.sqlite") as memory:
        memory.add(0, [a_record("Early"), a_record("Rejected", valid=False)])
        memory.add(2, [a_record("Late"), attack])
    episodes = [an_episode(i, arm) for i in ("id-Early", "id-Late") for arm in (structs.PLAIN, structs.HINTED)]
    episodes += [an_episode("id-Attack", arm, text=ATTACK + "y" * 5000) for arm in (structs.PLAIN, structs.HINTED)]
    write_transcripts(workdir / "transcripts", 2, episodes)
    return workdir


class Page(html.parser.HTMLParser):
    """Tags with attributes, and the text, as a browser would see them."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == [], f"unclosed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = write_report(fill(tmp_path_factory.mktemp("run")))
    return path.read_text(encoding="utf-8")


def test_shows_every_part_of_a_run(report):
    page = Page(report)
    for words in (
        "of 4 planned",
        "20.0 → 50.0 %",  # the probe's two evaluations
        "within two standard errors of zero in 3 of 4 steps",
        "fails parse",
        "grid walk",
        "Early",
        "rejected: crash",
        "without the hint: success; with the hint: success",
        "Guess. answer",
        "+0.200",
        "selfplay/nim/draw_rate",
        "run.seed",
    ):
        assert words in page.text, words
    sections_shown = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert sections_shown == [
        *("regret", "agent", "designer", "probe", "gallery", "learner", "performance", "others", "config")
    ]
    assert report.index(">Early</h3>") < report.index(">Late</h3>") < report.index(">Rejected</h3>")


def test_is_self_contained(report):
    page = Page(report)
    loads = {"src", "srcset", "poster", "action", "formaction", "data", "xlink:href", "style"}
    for tag, attributes in page.tags:
        assert not loads & attributes.keys(), (tag, attributes)
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
        assert tag not in ("img", "link", "iframe", "object", "embed", "base", "form")
    style = report[report.index("<style>") : report.index("</style>")]
    assert "url(" not in style and "@import" not in style
    (policy,) = [a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert [tag for tag, _ in page.tags].count("script") == 1


def test_policy_allows_exactly_the_style_and_script_of_the_page(report):
    for name in ("style", "script"):
        (text,) = re.findall(rf"<{name}>(.*?)</{name}>", report, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in html.unescape(report)


def test_hostile_text_is_escaped_made_visible_and_cut(report):
    assert "<script>alert" not in report and "<img" not in report
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", report)
    text = Page(report).text
    assert r"\u202egnp\x1b[31m" in text
    assert "W" * 9000 not in report and "x" * 900 not in report and "y" * 1300 not in report
    assert "more characters" in text


def test_visible():
    assert hostile.visible("a\tb\r\nc") == "a\tb\nc"
    assert hostile.visible("\x00\x9b\u200b\u2066\ud800") == r"\x00\x9b\u200b\u2066\ud800"
    assert hostile.visible("e" + "\u0301" * 50) == "e" + "\u0301" * 2
    assert hostile.visible("naïve 日本 😀") == "naïve 日本 😀"


def test_python_is_coloured_without_changing_it():
    source = 'def f(x):  # "no" <string>\n    return """a\n# b""" + \'c\' + 1.5e3 + definition'
    coloured = hostile.python(source, 10_000)
    assert html.unescape(re.sub(r"<[^>]+>", "", coloured)) == source
    assert '<span class="py-keyword">def</span> f' in coloured
    assert '<span class="py-comment"># &quot;no&quot; &lt;string&gt;</span>' in coloured
    assert '<span class="py-string">&quot;&quot;&quot;a\n# b&quot;&quot;&quot;</span>' in coloured
    assert "definition" in coloured.rsplit("</span>", 1)[1]


def test_a_fresh_run_says_what_is_missing(tmp_path):
    (tmp_path / "metrics").mkdir()
    text = Page(write_report(tmp_path).read_text(encoding="utf-8")).text
    for sentence in (
        "No regret has been logged yet.",
        "No episode has been logged yet.",
        "No evaluation has been logged yet.",
        "This workdir has no environments.sqlite.",
        "This workdir has no config.json.",
    ):
        assert sentence in text


def test_a_run_on_bundled_programs_shows_how_they_are_played(tmp_path):
    fill(tmp_path)
    (tmp_path / "environments.sqlite").unlink()
    with Memory(tmp_path / "environments.sqlite") as memory:
        memory.add(0, [dataclasses.replace(a_record(name), report=None) for name in ("Early", "Late")])
    text = Page(write_report(tmp_path).read_text(encoding="utf-8")).text
    gallery = text[text.index("GalleryThe") :]
    assert "environments written02 bundled ones are played" in text and "Valid programs by skill" not in text
    assert "passed the gate" not in gallery and "No program" not in gallery
    assert gallery.index("Earlybundledoptimization") < gallery.index("Latebundledoptimization")
    assert gallery.count("Guess. answer") == 4  # two programs, two arms


def test_a_run_of_one_step(tmp_path):
    page = Page(write_report(fill(tmp_path, steps=1)).read_text(encoding="utf-8"))
    assert "a single point" in page.text
    assert not any("nan" in value for _, attributes in page.tags for value in attributes.values() if value)


def test_damaged_inputs_become_sentences(tmp_path):
    fill(tmp_path)
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "environments.sqlite").write_bytes(b"no database " * 100)
    whole = transcript_path(tmp_path / "transcripts", 2).read_bytes()
    transcript_path(tmp_path / "transcripts", 3).write_bytes(whole[: len(whole) // 2])
    text = Page(write_report(tmp_path).read_text(encoding="utf-8")).text
    assert "config.json cannot be read" in text
    assert "environments.sqlite cannot be read: file is not a database" in text
    assert "could not be read: step_000003.jsonl.gz" in text


def test_reading_a_run_that_still_writes_disturbs_nothing(tmp_path):
    fill(tmp_path)
    with Memory(tmp_path / "environments.sqlite") as memory:
        memory.add(3, [a_record("Newest")])
        before = memory.digest()
        assert "Newest" in write_report(tmp_path).read_text(encoding="utf-8")
        assert memory.digest() == before
    at_rest = sorted(path.name for path in tmp_path.iterdir())
    write_report(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == at_rest


def test_same_run_same_page(tmp_path):
    fill(tmp_path)
    assert write_report(tmp_path).read_bytes() == write_report(tmp_path, tmp_path / "again.html").read_bytes()


def test_plays_pair_arms_of_one_seed_and_avoid_void_ones(tmp_path):
    plain, hinted = structs.PLAIN, structs.HINTED
    write_transcripts(
        tmp_path / "transcripts",
        0,
        [
            an_episode("e", plain, seed_index=0, status=structs.VOID),
            an_episode("e", hinted, seed_index=0),
            an_episode("e", plain, seed_index=1),
            an_episode("lonely", hinted, seed_index=5),
        ],
    )
    write_transcripts(tmp_path / "transcripts", 1, [an_episode("e", arm, seed_index=4) for arm in (hinted, plain)])
    (tmp_path / "metrics").mkdir()
    plays = sources.read_run(tmp_path).plays
    assert {arm: (play.step, play.seed_index) for arm, play in plays["e"].items()} == {plain: (1, 4), hinted: (1, 4)}
    assert plays["lonely"].keys() == {hinted}


@pytest.mark.parametrize("name", ["absent", "file", "empty"])
def test_bad_workdir(tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=f"--workdir=.*{name} .*; give the folder that a training run wrote"):
        write_report(tmp_path / name)


def test_bad_out(tmp_path):
    fill(tmp_path)
    for out in (tmp_path / "absent" / "report.html", tmp_path / "metrics"):
        with pytest.raises(UsageError, match=f"--out={out} cannot be written"):
            write_report(tmp_path, out)
    assert not list(tmp_path.glob(".*partial"))


def test_binary(tmp_path):
    fill(tmp_path)

    def run(*arguments):
        code = "import sys; from spade_jax import report\ntry: report.run()\nfinally: assert 'jax' not in sys.modules"
        return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)

    done = run(f"--workdir={tmp_path}", f"--out={tmp_path}/page.html")
    assert (done.returncode, done.stdout) == (0, f"wrote {tmp_path}/page.html\n"), done.stderr
    assert (tmp_path / "page.html").exists()
    wrong = run("--workdir=/nowhere")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: --workdir=/nowhere is not a directory")
    missing = run()
    assert missing.returncode == 2 and "--workdir is missing" in missing.stderr


def test_nice_steps():
    assert [charts.nice_step(span, 5) for span in (1.0, 0.9, 1.1, 7.0)] == pytest.approx([0.2, 0.2, 0.25, 2.0])
    assert [charts.nice_step(span, 5, whole=True) for span in (1, 7, 23, 400)] == [1, 2, 5, 100]


def test_written():
    assert charts.written(0.254, "share") == "25.4 %"
    assert charts.written(-0.05, "difference") == "−0.050"
    assert charts.written(2.04e-6, "number") == "2.0e−6"
    assert charts.written(12345.6, "per second") == "12,346 /s"
    assert charts.written(float("nan"), "number") == "none"


def test_line_chart_geometry():
    """Values 0 and 0.1 on an axis of [0, 0.1]: the line goes from the bottom left to the top right."""
    line = charts.Line("a", np.array([0, 10]), np.array([0.0, 0.1]), "c1")
    svg = charts.line_chart([line], title="t", size=charts.SMALL, unit="number", steps=(0, 10))
    (points,) = re.findall(r'<polyline class="line c1" points="([^"]+)"', svg)
    (x0, y0), (x1, y1) = (tuple(map(float, point.split(","))) for point in points.split())
    assert (y0, y1) == (charts.SMALL.height - 22, 8) and x1 == charts.SMALL.width - 10 and x0 < 60
    hover = json.loads(html.unescape(re.search('data-hover="([^"]+)"', svg)[1]))
    assert hover["at"] == [0, 10] and hover["x"] == [x0, x1] and hover["rows"] == [["a", "c1", ["0.000", "0.100"]]]


def test_gap_where_a_value_is_not_finite():
    values = np.array([1.0, np.nan, 2.0, 3.0, np.inf])
    svg = charts.line_chart(
        [charts.Line("a", np.arange(5), values, "c1")], title="t", size=charts.HALF, unit="number", steps=(0, 4)
    )
    assert [len(p.split()) for p in re.findall(r'polyline class="line c1" points="([^"]+)"', svg)] == [1, 2]
    assert "infinite" in svg and "inf," not in svg


def test_running_mean():
    values = np.arange(48.0)
    values[10] = np.nan
    smooth = charts.running_mean(values)  # a window of 5
    assert charts.window(48) == 5 and charts.window(47) == 0
    assert smooth[20] == 20.0 and smooth[0] == 1.0 and smooth[10] == pytest.approx((8 + 9 + 11 + 12) / 4)


def test_stacked_bars_add_up():
    layers = [charts.Layer("a", np.array([0.5, 1.0]), "c1"), charts.Layer("b", np.array([0.5, 0.0]), "c2")]
    svg = charts.stacked_chart(layers, np.array([0, 2]), title="t", size=charts.WIDE, unit="share", steps=(0, 3))
    a, b = re.findall(r'<path class="bar c\d[^"]*" d="([^"]*)"', svg)
    top, bottom = 12.0, charts.WIDE.height - 40
    middle = (top + bottom) / 2
    assert [float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)h[\d.]+V", a)] == [middle, top]
    assert [float(y) for y in re.findall(r"V([\d.]+)", a)] == [bottom, bottom]
    assert re.findall(r"M[\d.]+ ([\d.]+)h[\d.]+V([\d.]+)", b) == [(f"{top:.1f}", f"{middle:.1f}")]


def test_headline_ends_are_means_over_a_fifth():
    values = np.array([0.0, 0.2, *[0.5] * 6, 0.6, 0.8, np.nan])
    assert sections.ends((np.arange(11), values)) == (pytest.approx(0.1), pytest.approx(0.7), 2)


def test_the_mean_over_runs_is_taken_where_all_runs_have_the_step():
    runs = [(np.array([0, 2, 4]), np.array([0.1, 0.2, 0.9])), (np.array([0, 1, 2]), np.array([0.3, 0.8, 0.6]))]
    steps, means, errors = comparison.mean_over_runs(runs)
    assert steps.tolist() == [0, 2]
    np.testing.assert_allclose(means, [0.2, 0.4])
    np.testing.assert_allclose(errors, [0.1, 0.2])  # sd with one degree of freedom, over sqrt(2)
    assert np.isnan(comparison.mean_over_runs(runs[:1])[2]).all()


def test_runs_of_several_seeds_are_drawn_on_one_chart(tmp_path):
    for name, offset in (("a", 0.0), ("b", 0.2)):
        writer = MetricWriter(tmp_path / name / "metrics")
        for step in range(3):
            writer.scalars(step, {"agent/win_rate": 0.1 * step + offset})
        writer.close()
    runs = [str(tmp_path / name) for name in "ab"]
    drawing = ElementTree.parse(comparison.write_comparison(runs, ["agent/win_rate"], str(tmp_path / "new/c.svg")))
    svg = "{http://www.w3.org/2000/svg}"
    (line,) = drawing.iter(f"{svg}polyline")
    (band,) = drawing.iter(f"{svg}polygon")
    heights = [float(point.split(",")[1]) for point in line.get("points").split()]
    edges = [float(point.split(",")[1]) for point in band.get("points").split()]
    assert heights[0] > heights[1] > heights[2] and len(edges) == 6
    assert edges[0] - heights[0] == pytest.approx(heights[0] - edges[-1], abs=0.2)
    with pytest.raises(UsageError, match="cannot be written .Is a directory"):
        comparison.write_comparison(runs, ["agent/win_rate"], str(tmp_path / "new"))
    with pytest.raises(UsageError, match="has no eval/probe"):
        comparison.write_comparison(runs, ["eval/probe/all"], str(tmp_path / "c.svg"))
    with pytest.raises(UsageError, match="at most 9"):
        comparison.write_comparison(runs, ["agent/win_rate"] * 10, str(tmp_path / "c.svg"))


def test_a_run_of_self_play_shows_its_games(tmp_path):
    config = {
        "method": {"algorithm": "spiral"}, "run": {"seed": 3, "steps": 9},
        "selfplay": {"games": ["kuhn_poker"], "opponent": ATTACK},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    tags = (
        "selfplay/kuhn_poker/win_rate_seat0", "selfplay/kuhn_poker/response_tokens", "baseline/kuhn_poker/seat1",
        "eval/kuhn_poker/exploitability", "eval/kuhn_poker/random/win", "eval/kuhn_poker/random/loss", "learner/loss",
    )  # fmt: skip
    with MetricWriter(tmp_path / "metrics") as writer:
        for step in range(3):
            writer.scalars(step, {tag: 0.1 * step for tag in tags})
    text = write_report(tmp_path).read_text(encoding="utf-8")
    for part in ("SPIRAL run", "Kuhn poker: exploitability", "kuhn_poker: baselines", "kuhn_poker against random"):
        assert part in text
    assert "designer" not in text.partition("<style")[0] and "Regret per step" not in text
    assert "<script>alert(1)</script>" not in text


def test_heat_map_colours_and_writes_what_was_played():
    share = np.array([[np.nan, 1.0, 0.5], [0.0, np.nan, 0.25], [0.5, 0.75, np.nan]])
    text = heatmap.heat_map(["a<b", "c", "d"], share, "who wins")
    assert text.count("<rect") == 1 + 6 and "a&lt;b" in text and "a<b" not in text
    for cell in ("1.00", "0.00", "0.25", "0.75", "0.50"):
        assert f">{cell}</text>" in text
    assert heatmap._colour(0.5) == "#f5f3ee" and heatmap._colour(1.0) == "#266694" and heatmap._colour(0.0) == "#b24c3c"
