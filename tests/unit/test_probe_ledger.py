"""The cost ledger runs and measures what it says; its numbers are nobody's business here."""

import pytest
import torch
from torch import nn

from study import bench_probes
from study.probes._kernels import weight_gradient
from study.registry import names


def test_the_materialised_terms_are_the_same_sum() -> None:
    draw = torch.Generator().manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    x, g = torch.randn(5, 3, 8, 8, generator=draw), torch.randn(5, 4, 4, 4, generator=draw)
    expected = bench_probes.materialised(conv, x, g).view_as(conv.weight)
    torch.testing.assert_close(weight_gradient(conv, x.abs(), g.abs()), expected, rtol=1e-5, atol=1e-5)


def test_every_probe_that_trains_cheaply_has_a_line() -> None:
    benched = {name for line in (*bench_probes.LINES, *bench_probes.MORE_LINES) for name in line.measure}
    assert benched == set(names("study.probes"))


@pytest.mark.slow
def test_the_ledger_prints(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        bench_probes.main(["--quick", "--depth", "8", "--repeats", "1", "--norms", "none"])
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    lines = (*bench_probes.LINES, *bench_probes.MORE_LINES)
    rows = printed.splitlines()
    ratios = ("one pass for all", "gradient_agreement: every term materialised", "probes=light / probes=none")
    for label in (*(x.label for x in lines), *ratios):
        assert sum(x.startswith(label) for x in rows) == 1, label
    limited = [x for x in rows if x.endswith((" met", " MISSED"))]
    assert len(limited) == len(bench_probes.LINES) + 2
