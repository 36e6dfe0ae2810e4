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
  const verdict = document.querySelector("#verdict-table details");
  verdict.open = true; found.details = verdict.querySelector("dl").getBoundingClientRect().height;
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
    assert found["details"] > 50
