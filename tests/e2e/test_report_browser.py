"""The report in a real Chromium: no error, every image shown, sort and filter work, no sideways scrolling."""

import html
import json
import re
import shutil
import subprocess

import pytest

from analysis import report
from tests import factory

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

FIRST = """<script>
window.problems = [];
addEventListener("error", (e) => problems.push(String(e.message || e.target.src)), true);
addEventListener("securitypolicyviolation", (e) => problems.push(e.violatedDirective + e.blockedURI));
for (const kind of ["error", "warn"]) console[kind] = (...words) => problems.push(words.join(" "));
</script>"""

LAST = """<script>
addEventListener("load", () => {
  const trials = () => [...document.querySelectorAll("#trial-table tbody tr")];
  const column = (i) => trials().map((r) => r.cells[i].textContent);
  const press = (i) => document.querySelectorAll("#trial-table th button")[i].click();
  const sort = (i) => document.querySelectorAll("#trial-table th")[i].getAttribute("aria-sort");
  const found = {width: [document.documentElement.scrollWidth, innerWidth]};
  const shown = (image) => image.getBoundingClientRect().width;
  found.images = [...document.images].map((i) => [i.complete, i.naturalWidth, shown(i)]);
  press(1); found.up = column(1); found.upSort = sort(1);
  press(1); found.down = column(1); found.downSort = sort(1);
  press(4); found.accuracy = column(4); found.oldSort = sort(1);
  const box = document.querySelector('input[data-filters="trial-table"]');
  box.value = "none diverged"; box.dispatchEvent(new Event("input"));
  found.shown = trials().filter((r) => r.getBoundingClientRect().height > 0).map((r) => r.textContent);
  found.count = document.getElementById("trial-table-count").textContent;
  const verdicts = () => [...document.querySelectorAll("#verdict-table > tbody > tr")];
  const visible = (e) => e.getBoundingClientRect().height > 0;
  const kinds = () => [...new Set(verdicts().filter(visible).map((r) => r.dataset.kind))].sort();
  found.kinds = kinds();
  const tick = document.querySelector('input[data-kinds][value="not run"]');
  tick.click(); found.ticked = kinds();
  found.verdictCount = document.getElementById("verdict-table-count").textContent;
  const words = document.querySelector('input[data-filters="verdict-table"]');
  words.value = "bn_permits_larger_rates"; words.dispatchEvent(new Event("input"));
  found.worded = verdicts().filter(visible).length;
  const verdict = verdicts().find((r) => r.textContent.includes("bn_permits_larger_rates"));
  verdict.querySelector("summary").click();
  found.details = verdict.querySelector("dl").getBoundingClientRect().height;
  found.evidence = [...verdict.querySelectorAll("table.outcomes tbody tr")].map((r) => r.textContent);
  // To the figure, back to the verdict, and to a run that the filter of the trials hides.
  const follow = (link) => {
    link.click(); dispatchEvent(new HashChangeEvent("hashchange")); return link.hash;
  };
  const near = (e) => Math.abs(e.getBoundingClientRect().top) < innerHeight;
  const figure = document.querySelector(follow(verdict.querySelector('a[href^="#figure-"]')));
  found.figure = [figure.querySelector("img") !== null, near(figure)];
  words.value = "nothing"; words.dispatchEvent(new Event("input"));
  verdict.querySelector("details").open = false;
  const back = document.querySelector(follow(figure.querySelector('.rests a[href^="#verdict-"]')));
  found.back = [back.tagName, visible(back), back.querySelector("details").open, near(back)];
  const hidden = [...verdict.querySelectorAll('a[href^="#run-"]')].find(
    (a) => !visible(document.querySelector(a.hash)));
  const run = document.querySelector(follow(hidden));
  found.run = [visible(run), near(run), run.textContent.includes(hidden.textContent)];
  follow(hidden); box.value = "nothing"; box.dispatchEvent(new Event("input")); hidden.click();
  found.again = visible(run);
  found.tables = [...document.querySelectorAll("details.table")].map((d) => {
    d.open = true; return [d.id, d.querySelectorAll("tbody tr").length, visible(d.querySelector("table"))];
  });
  found.wideOpen = [document.documentElement.scrollWidth, innerWidth];
  found.problems = problems;
  const out = document.createElement("pre"); out.id = "found"; out.textContent = JSON.stringify(found);
  document.body.append(out);
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [500, 1400])  # headless Chromium's narrowest window is 500 pixels
def test_the_page_works_in_a_browser(tmp_path, width):
    factory.grid_runs(tmp_path / "runs", factory.QUICKSTART)
    assert report.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "index.html").read_text()
    page = page.replace("<head>", "<head>" + FIRST).replace("</body>", LAST + "</body>")
    probe = tmp_path / "probe.html"
    probe.write_text(page)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    flags += [f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *flags, probe.as_uri()], capture_output=True, text=True, check=True, timeout=300
    )
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL).group(1)
    found = json.loads(html.unescape(text))
    assert found["problems"] == []
    assert len(found["images"]) == 4
    assert all(complete and natural > 100 and shown > 100 for complete, natural, shown in found["images"])
    assert found["width"][0] <= found["width"][1] <= width
    assert found["up"] == ["0.0001", "0.0001", "0.003", "0.003", "0.1", "0.1"]
    assert found["down"] == found["up"][::-1]
    assert (found["upSort"], found["downSort"], found["oldSort"]) == ("ascending", "descending", None)
    shares = [float(v.rstrip("%")) for v in found["accuracy"] if v != "–"]
    assert shares == sorted(shares)
    assert found["accuracy"][-1] == "–"
    assert len(found["shown"]) == 1
    assert "diverged" in found["shown"][0]
    assert found["count"] == "1 of 6 shown"
    assert found["kinds"] == ["undetermined"], "what was not run is not shown at first"
    assert found["ticked"] == ["not run", "undetermined"]
    assert re.fullmatch(r"\d+ of \d+ shown", found["verdictCount"])
    assert found["worded"] == 1
    assert found["details"] > 50
    assert [re.sub(r"\s+", "", row)[:3] for row in found["evidence"]] == ["bn0", "non"]
    assert found["figure"] == [True, True]
    assert found["back"] == ["TR", True, True, True]
    assert found["run"] == [True, True, True]
    assert found["again"]
    assert {"table-verdicts", "table-outcomes"} <= {name for name, _, _ in found["tables"]}
    assert all(rows and shown for _, rows, shown in found["tables"])
    assert found["wideOpen"][0] <= found["wideOpen"][1]


LOOK = """<script>
addEventListener("load", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const bright = (colour) => {
    const [r, g, b] = numbers(colour).map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if ((numbers(colour)[3] ?? 1) > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const texts = [...document.body.querySelectorAll("*")].filter((e) =>
    !["SCRIPT", "STYLE"].includes(e.tagName) && e.getBoundingClientRect().height > 0 &&
    [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.textContent.trim()));
  const faint = texts.map((e) => {
    const [a, b] = [bright(getComputedStyle(e).color), bright(ground(e))].sort((x, y) => y - x);
    const name = e.tagName + "." + e.className + ": " + e.textContent.trim().slice(0, 40);
    return [(a + 0.05) / (b + 0.05), name];
  }).filter(([ratio]) => ratio < 4.5);
  const wide = [...document.body.querySelectorAll("*")].filter((e) =>
    e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, details"));
  const out = document.createElement("pre"); out.id = "found";
  out.textContent = JSON.stringify({
    problems, faint, wide: wide.map((e) => e.outerHTML.slice(0, 80)), width: innerWidth,
    page: document.documentElement.scrollWidth, dark: matchMedia("(prefers-color-scheme: dark)").matches,
    ground: getComputedStyle(document.body).backgroundColor, texts: texts.length,
    images: [...document.images].map((i) => i.complete && i.naturalWidth > 100),
  });
  (parent === window ? document : parent.document).body.append(out);
});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report of a small grid, and the folder it lies in."""
    folder = tmp_path_factory.mktemp("page")
    factory.grid_runs(folder / "runs", factory.QUICKSTART)
    assert report.main(["--runs", str(folder / "runs"), "--out", str(folder / "out")]) == 0
    return folder / "out" / "index.html"


def browse(profile, *arguments):
    """Run Chromium; returns what it prints, and fails on anything a page has written to its console."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    flags += [f"--user-data-dir={profile}", "--enable-logging=stderr"]
    done = subprocess.run(
        [CHROMIUM, *flags, *arguments], capture_output=True, text=True, check=True, timeout=300
    )
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 430, 1400])
def test_the_page_is_readable_on_phones_and_in_the_dark(tmp_path, page, width, dark):
    """Narrower than headless Chromium's windows: in a frame of that width, everything folded out."""
    inner = page.read_text().replace("<head>", "<head>" + FIRST).replace("</body>", LOOK + "</body>")
    frame = (
        f'<iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{html.escape(inner)}"></iframe>'
    )
    outer = tmp_path / "outer.html"
    outer.write_text(f"<!doctype html><body>{frame}</body>")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    printed = browse(tmp_path / "profile", scheme, "--window-size=1500,1000", "--dump-dom", outer.as_uri())
    text = re.search(r'<pre id="found">(.*?)</pre>', printed, re.DOTALL).group(1)
    found = json.loads(html.unescape(text))
    assert (found["width"], found["dark"]) == (width, dark)
    assert found["problems"] == []
    assert found["page"] <= width
    assert found["wide"] == []
    assert found["texts"] > 300
    assert found["faint"] == []
    assert found["images"] == [True] * 4
    assert (found["ground"] == "rgb(255, 255, 255)") is not dark


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_prints_light_and_unfolded(tmp_path, page, dark):
    """As the print dialogue does it: what stands in a fold is on paper, whatever the screen's colours."""
    shown = """<script>addEventListener("beforeprint", () => setTimeout(() => {}, 0));
      addEventListener("load", () => {
        dispatchEvent(new Event("beforeprint"));
        const open = [...document.querySelectorAll('tr:not([data-kind="not run"]) > td > details')];
        document.title = open.length + " " + open.every((d) => d.open);
        dispatchEvent(new Event("afterprint"));
        document.title += " " + open.some((d) => d.open);
      });</script>"""
    probe = tmp_path / "probe.html"
    probe.write_text(page.read_text().replace("</body>", shown + "</body>"))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    title = re.search(r"<title>(.*?)</title>", browse(tmp_path / "a", scheme, "--dump-dom", probe.as_uri()))
    n, opened, left_open = title.group(1).split()
    assert int(n) > 0
    assert (opened, left_open) == ("true", "false")
    pdf = tmp_path / "page.pdf"
    browse(tmp_path / "b", scheme, f"--print-to-pdf={pdf}", page.as_uri())
    assert pdf.stat().st_size > 50_000
