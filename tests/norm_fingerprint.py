"""What a norm does to data of known moments, as a signature that knows nothing of its configuration.

A stage is a 1×1 convolution (identity weights) with the norm at one site. Everything is in float64, so that
an identity either holds to rounding or visibly does not.
"""

import copy
from collections import defaultdict

import torch
from torch import nn

from study.norms.base import SITE_KINDS, Site, build_norm, set_weight

C, N, SIDE = 16, 48, 3
TOLERANCE = 1e-3  # far above what ε does to unit variances, far below what any switch does


def images(seed=0, scale=1.0, shift=0.0):
    """Skewed, heavy-tailed values; channel c has its own mean and deviation, the last one a tiny one."""
    g = torch.Generator().manual_seed(seed)
    x = torch.empty(N, C, SIDE, SIDE, dtype=torch.float64).exponential_(generator=g)
    x = x * (1 + torch.arange(C).view(1, C, 1, 1) / C) - 0.3 + torch.arange(C).view(1, C, 1, 1) / 10
    x[:, -1] *= 3e-3
    return x * scale + shift


def stage(norm, kind):
    """The convolution with what the norm puts at a site of that kind, and the bare convolution."""
    layer = nn.Conv2d(C, C, 1, bias=False)
    set_weight(layer, torch.eye(C)[:, :, None, None])
    bare = copy.deepcopy(layer).double()
    site = Site("site", C, kind, 0)
    if not norm.at(site):
        return layer.double(), bare
    if kind == "top":
        return nn.Sequential(layer, norm.build(None, site, 4)).double(), bare
    return norm.build(layer, site, 4).double(), bare


def fingerprint(config, build=build_norm):
    """Return the signature: {property: value}, all hashable."""
    norm = build(config, 3)
    stages = {kind: stage(norm, kind) for kind in SITE_KINDS}
    x = images()
    present = {k: changes(module, bare, x) for k, (module, bare) in stages.items()}
    kind = next((k for k in SITE_KINDS if present[k]), "inner")
    module = stages[kind][0]
    before = module.eval()(x)
    norm.calibrate(module, [x, 2 * x, x + 1])
    signature = {
        "sites": tuple(k for k in SITE_KINDS if present[k]),
        "calibration": not close(module(x), before),
        "parameters": tuple((tuple(p.shape), *extremes(p)) for n, p in sorted(module.named_parameters())),
    }
    for measure in (output, gradients, influence, steps, evaluation, weight_scale, small_variance):
        signature |= measure(copy.deepcopy(module))
    return signature


def changes(module, bare, x):
    """Whether there is anything: other parameters, or another output in training."""
    same_parameters = sum(p.numel() for p in module.parameters()) == sum(p.numel() for p in bare.parameters())
    return not (same_parameters and close(copy.deepcopy(module).train()(x), bare(x)))


def output(module):
    """Which moments of a training output are 0 or 1."""
    y = module.train()(images())[:, :-1]
    over = {"batch": (0, 2, 3), "image": (1, 2, 3), "instance": (2, 3)}
    held = set()
    for name, dims in over.items():
        mean = y.mean(dims, keepdim=True)
        held |= {f"{name} mean"} if close(mean, 0) else set()
        held |= {f"{name} variance"} if close((y - mean).square().mean(dims), 1) else set()
        held |= {f"{name} mean square"} if close(y.square().mean(dims), 1) else set()
    d = (y - y.mean((0, 2, 3), keepdim=True)).abs()
    held |= {"order 1"} if close(d.mean((0, 2, 3)) * (torch.pi / 2) ** 0.5, 1) else set()
    ratios = d.amax((0, 2, 3))
    held |= {"order ∞"} if close(ratios, ratios[0].item()) else set()
    return {"moments": tuple(sorted(held)), "input": close(y, images()[:, :-1])}


def gradients(module):
    """Which identities the gradients by input and weight obey, for a random output gradient."""
    x = images().requires_grad_()
    y = module.train()(x)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    parameters = list(module.parameters())
    dx, *others = torch.autograd.grad(y, [x, *parameters], dy, allow_unused=True)
    dx, size = dx[:, :-1], dx[:, :-1].abs().mean()
    factor = dx / dy[:, :-1]
    x_hat = y[:, :-1] - y[:, :-1].mean((0, 2, 3), keepdim=True)
    return {
        "Σ dx": close(dx.mean((0, 2, 3)) / size, 0),
        "Σ dx by image": close(dx.mean((1, 2, 3)) / size, 0),
        "Σ x̂ dx": close((x_hat * dx).mean((0, 2, 3)) / size / x_hat.abs().mean(), 0),
        "Σ x dx": close((x.detach()[:, :-1] * dx).mean((0, 2, 3)) / size, 0),
        "dx ∥ dy": close(factor / factor.mean((0, 2, 3), keepdim=True), 1),
        "trained": tuple(g is not None and bool(g.abs().max() > 0) for g in others),
    }


def influence(module):
    """How many images, channels and locations feel a change of one image, or of one number."""
    module.train()
    x, state = images(), copy.deepcopy(module.state_dict())
    y = module(x)
    module.load_state_dict(state)
    repeat = module(x)
    other, one = x.clone(), x.clone()
    other[0] += 1 + torch.arange(SIDE) * torch.arange(C)[:, None, None]
    one[0, 0, 0, 0] += 1
    module.load_state_dict(state)
    felt = (module(other) - y).abs().amax((1, 2, 3)) > 1e-9
    module.load_state_dict(state)
    touched = (module(one) - y)[0].abs() > 1e-9
    return {
        "repeatable": bool((repeat == y).all()),
        "images": int(felt.sum()),
        "channels": int(touched.amax((1, 2)).sum()),
        "locations": int(touched[0].sum()),
    }


def steps(module):
    """What six training steps and an evaluation do to the state, and how each step normalises."""
    module.train()
    batches = [images(seed, 1 + seed, seed) for seed in range(6)]
    history, own, state = [], [], buffers(module)
    first = {}
    for batch in batches:
        y = module(batch)[:, 1]
        own.append((close(y.mean(), 0), close(y.var(correction=0), 1)))
        new = buffers(module)
        history.append(tuple(sorted(k for k in new if not torch.equal(new[k], state[k]))))
        first = first or {k: relative(v[0] if v.dim() else v, batch[:, 0]) for k, v in sorted(new.items())}
        state = new
    module.eval()(batches[0])
    module.train().eval().train()
    kept = all(torch.equal(v, state[k]) for k, v in buffers(module).items())
    return {
        "state by step": tuple(history),
        "own statistics by step": tuple(own),
        "state after one step": tuple(first.items()),
        "evaluation keeps the state": kept,
    }


def evaluation(module):
    """How evaluation differs from training and from the start, after some training."""
    x = images()
    start = module.eval()(x)
    trained = module.train()(x)
    for seed in range(3):
        module(images(seed, 2, 1))
    after = module.eval()(x)
    part = module(x[:3])
    return {
        "evaluation is training": close(start, trained),
        "evaluation moves": not close(start, after),
        "evaluation by image": close(part, after[:3]),
        "evaluation of the start": round(float(start[:, 1].std() / x[:, 1].std()), 3),
    }


def weight_scale(module):
    """What three times the weights make of the output."""
    x = images()
    state = copy.deepcopy(module.state_dict())
    y = module.train()(x)
    module.load_state_dict(state)
    layer = next(m for m in module.modules() if isinstance(m, nn.Conv2d))
    set_weight(layer, 3 * layer.weight.detach())
    ratio = (module(x) / y)[:, :-1].flatten()
    lengths = {p.shape[0]: round(float(p.detach().norm()), 3) for p in layer.parameters()}
    return {
        "3 × weight": tuple(round(float(ratio.quantile(q)), 2) for q in (0.1, 0.5, 0.9)),
        "lengths": lengths[C],
    }


def small_variance(module):
    """The output where the input hardly varies: what ε there is."""
    y = module.train()(images())[:, -1]
    return {"small": tuple(float(f"{v:.2g}") for v in (y.std(), y.square().mean()))}


def buffers(module):
    return {k: v.clone() for k, v in module.named_buffers()}


def relative(value, batch):
    """A statistic after one batch, in terms of the batch's own: where momentum and n/(n−1) show."""
    moments = {"mean": batch.mean(), "variance": batch.var(correction=0), "1": torch.ones(())}
    return tuple(round(float(value / m), 4) for m in moments.values())


def extremes(parameter):
    """Rounded smallest and largest initial value."""
    parameter = parameter.detach()
    return round(float(parameter.min()), 3), round(float(parameter.max()), 3)


def close(value, expected):
    return bool(((value - expected).abs() < TOLERANCE).all())


def duplicates(configs, build=build_norm):
    """Return groups of names whose fingerprints are equal."""
    groups = defaultdict(list)
    for name, config in configs.items():
        groups[repr(sorted(fingerprint(config, build).items()))].append(name)
    return [names for names in groups.values() if len(names) > 1]
