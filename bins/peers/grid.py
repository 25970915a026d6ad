"""Steps of a grid's cells by PyTorch, for `bench grid` and `bench sparse-autoencoder --kind`, which runs this and takes turns with it; pursuits and lassos by scikit-learn, too.

    pip install torch [scikit-learn]
    cargo run --bin bench -- grid --family rbm --peer bins/peers/grid.py --out grid

Says `ready` when its libraries are loaded, reads one line of JSON a cell on standard input and answers each by one: the peer's name and
the seconds of a step, slice by slice, or what is missing. Where several forms or libraries can do the same, or one thread as well as all,
the fastest counts. On a GPU, steps are recorded as a CUDA graph.

What to know before comparing:
- A step is whole: draws, products, biases and the update, all in place and without autograd where the gradient is short to write.
- bf16 has bf16 parameters, without f32 masters, which ours have: the easier task.
- Sparse autoencoders with latents decode by a dense product, as SAELens and dictionary_learning do; gradients through chosen latents alone
  would need kernels of one's own. No auxiliary loss, no figures, and the gradient keeps its part along atoms.
- The lasso by PyTorch is FISTA on the Gram matrix, to the same relative duality gap as ours, looked at every tenth iteration.
- OpenMP's threads spin for a while after a step: the slices of both programs do not overlap, but the first of ours may meet them.
"""
import json
import math
import os
import statistics
import sys
import time

ONES = {'f32': 'float32', 'tf32': 'float32', 'bf16': 'bfloat16'}
CLASSES, NONZERO, GAP = 10, 8, 1e-4


class Cell:
    """A question, and how its tensors are made and timed."""

    def __init__(self, question):
        self.__dict__.update(question)
        self.dtype = getattr(torch, ONES[self.precision])
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.precision == 'tf32'
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(0)

    @property
    def units(self):
        return tuple(map(int, self.size.split('x')))

    def on(self, t):
        return t.to(self.device, self.dtype)

    def rand(self, *shape):
        return self.on(torch.rand(*shape))

    def randn(self, *shape):
        return self.on(torch.randn(*shape))

    def zeros(self, *shape):
        return self.on(torch.zeros(*shape))

    def wait(self):
        if self.device == 'cuda':
            torch.cuda.synchronize()

    def seconds_of(self, step, n):
        self.wait()
        start = time.perf_counter()
        for _ in range(n):
            step()
        self.wait()
        return (time.perf_counter() - start) / n

    def slices(self, step):
        """Seconds of a step, slice by slice, after a warm-up."""
        self.seconds_of(step, 3)
        n = max(1, math.ceil(self.slice / self.seconds_of(step, 1)))
        n = max(n, math.ceil(self.slice / self.seconds_of(step, n)))
        return [self.seconds_of(step, n) for _ in range(self.repeats)]

    def graph(self, step):
        """The step, recorded as a CUDA graph where that is possible."""
        if self.device != 'cuda':
            return step
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay


def rbm(cell):
    v, h = cell.units
    weight, bias, visible_bias, x = cell.randn(h, v) * 0.01, cell.zeros(h), cell.zeros(v), cell.rand(cell.batch, v)
    rate = 0.01 / cell.batch

    def step():
        mean = torch.addmm(bias, x, weight.t()).sigmoid_()
        back = torch.addmm(visible_bias, torch.bernoulli(mean), weight).sigmoid_()
        again = torch.addmm(bias, back, weight.t()).sigmoid_()
        weight.addmm_(mean.t(), x, alpha=rate).addmm_(again.t(), back, alpha=-rate)
        bias.add_(mean.sub_(again).sum(0), alpha=rate)
        visible_bias.add_((x - back).sum(0), alpha=rate)

    yield step


def dae(cell):
    v, h = cell.units
    weight, bias, visible_bias, x = cell.randn(h, v) * 0.01, cell.zeros(h), cell.zeros(v), cell.rand(cell.batch, v)
    rate = 0.1 / cell.batch

    def step():
        draw = torch.rand_like(x)
        noisy = torch.where(draw < 0.3, (draw < 0.15).to(x.dtype), x)
        y = torch.addmm(bias, noisy, weight.t()).sigmoid_()
        ln = x - torch.addmm(visible_bias, y, weight).sigmoid_()
        lh = ln.mm(weight.t()).mul_(y * (1 - y))
        weight.addmm_(lh.t(), noisy, alpha=rate).addmm_(y.t(), ln, alpha=rate)
        bias.add_(lh.sum(0), alpha=rate)
        visible_bias.add_(ln.sum(0), alpha=rate)

    yield step


def classifier(cell):
    v, h = cell.units
    sizes = [(v, h), (h, h), (h, CLASSES)]
    parts = [part for size in sizes for part in (torch.nn.Linear(*size), torch.nn.Sigmoid())][:-1]
    network = torch.nn.Sequential(*parts).to(cell.device, cell.dtype)
    optimizer = torch.optim.Adam(network.parameters(), fused=True, capturable=cell.device == 'cuda')
    x, labels = cell.rand(cell.batch, v), torch.randint(0, CLASSES, (cell.batch,), device=cell.device)

    def step():
        optimizer.zero_grad(set_to_none=cell.device == 'cpu')
        torch.nn.functional.cross_entropy(network(x), labels).backward()
        optimizer.step()

    with torch.enable_grad():
        yield step


def sparse_autoencoder(cell):
    v, h = cell.units
    encoder, decoder, x = cell.randn(h, v) * 0.01, cell.randn(v, h) * 0.01, cell.rand(cell.batch, v)
    bias, visible_bias, m = cell.zeros(h), cell.zeros(v), cell.batch

    def step():
        y = torch.addmm(bias, x, encoder.t()).sigmoid_()
        mean = y.mean(0)
        z = torch.addmm(visible_bias, y, decoder.t()).sigmoid_()
        apart = z - x
        cost = apart.square().sum() * (0.5 / m)
        cost += 3 * (0.1 * (0.1 / mean).log() + 0.9 * (0.9 / (1 - mean)).log()).sum()
        cost += 5e-5 * (encoder.square().sum() + decoder.square().sum())
        outer = apart.mul_(z * (1 - z)).div_(m)
        inner = torch.addmm((0.9 / (1 - mean) - 0.1 / mean).mul_(3 / m), outer, decoder).mul_(y * (1 - y))
        gradients = torch.addmm(encoder, inner.t(), x, beta=1e-4), torch.addmm(decoder, outer.t(), y, beta=1e-4)
        return cost, gradients, inner.sum(0), outer.sum(0)

    yield step


def latents(cell):
    """Whole training steps of sparse autoencoders with latents: f32 parameters, products by autocast, dense decoding, Adam."""
    d, n = cell.units
    k, batch, kind = cell.active, cell.batch, cell.kind
    functional = torch.nn.functional
    from latents import Jump

    def parameter(t):
        return torch.nn.Parameter(t.to(cell.device))

    start = functional.normalize(torch.randn(n, d), dim=1)
    encoder, decoder = parameter(start), parameter(start.clone())
    bias, visible_bias = parameter(torch.zeros(n)), parameter(torch.zeros(d))
    x = torch.randn(batch, d).to(cell.device)
    parameters = [encoder, decoder, bias, visible_bias]
    if kind == 'jump-relu':
        of_rows = x[:64] @ encoder.detach().t()
        threshold = parameter(torch.full((n,), of_rows.flatten().topk(64 * k).values[-1].item()).log())
        parameters.append(threshold)
    optimizer = torch.optim.Adam(parameters, lr=1e-5, fused=True)

    def chosen(v):
        if kind == 'top-k':
            values, at = v.topk(k, dim=1, sorted=False)
            return torch.zeros_like(v).scatter(1, at, values)
        values, at = v.flatten().topk(k * batch, sorted=False)
        return torch.zeros_like(v).flatten().scatter(0, at, values).view_as(v)

    def loss():
        with torch.autocast(cell.device, torch.bfloat16, enabled=cell.precision == 'bf16'):
            v = functional.linear(x - visible_bias, encoder, bias)
            if kind == 'jump-relu':
                z, on = Jump.apply(v, threshold.exp().to(v.dtype))
                return (z @ decoder + visible_bias - x).float().pow(2).sum() / batch + on.float().sum() / batch
            z = chosen(v.relu())
            if kind != 'matryoshka':
                return (z @ decoder + visible_bias - x).float().pow(2).sum() / batch
            back, losses, first = visible_bias, [], 0
            for last in (n // 16, n // 8, n // 4, n // 2, n):
                back = back + z[:, first:last] @ decoder[first:last]
                losses.append((back - x).float().pow(2).sum() / batch)
                first = last
            return sum(losses) / len(losses)

    def step_of(loss):
        def step():
            with torch.enable_grad():
                loss().backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                with torch.no_grad():
                    decoder.div_(decoder.norm(dim=1, keepdim=True))
        return step

    yield step_of(loss)
    if cell.device == 'cuda' and kind == 'top-k':
        yield step_of(torch.compile(loss))


def convolution(cell):
    image, n_filters, side = cell.size.split(':')
    height, width, channels = map(int, image.split('x'))
    n_filters, side = int(n_filters), int(side)
    for memory in (torch.contiguous_format, torch.channels_last):
        make = lambda *shape: cell.randn(*shape).contiguous(memory_format=memory)
        x, w = make(cell.batch, channels, height, width), make(n_filters, channels, side, side)
        of_maps = torch.randn_like(torch.nn.functional.conv2d(x, w))

        def step():
            torch.nn.functional.conv2d(x, w)
            back = torch.ops.aten.convolution_backward
            back(of_maps, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])

        yield step


def codes(cell):
    """Normal signals, and random directions as atoms."""
    p, n = cell.units
    return cell.randn(cell.batch, p), torch.nn.functional.normalize(cell.randn(n, p), dim=1)


def lasso(cell):
    signals, atoms = codes(cell)
    penalty = cell.penalty

    def step():
        gram, wanted = atoms @ atoms.t(), signals @ atoms.t()
        size = 1 / torch.linalg.matrix_norm(gram, 2)
        energy = signals.square().sum(1)
        a = at = torch.zeros_like(wanted)
        momentum = 1.0
        for i in range(1, 5001):
            before = a
            a = torch.nn.functional.softshrink(at + size * (wanted - at @ gram), (size * penalty).item())
            after = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            at = a + (momentum - 1) / after * (a - before)
            momentum = after
            if i % 10 == 0:
                left = wanted - a @ gram
                rest = energy - (a * (wanted + left)).sum(1)  # ‖x − a B‖²
                primal = 0.5 * rest + penalty * a.abs().sum(1)
                scale = (penalty / left.abs().amax(1)).clamp(max=1.0)
                dot = energy - (a * wanted).sum(1)
                dual = scale * dot - 0.5 * scale**2 * rest
                if ((primal - dual) <= GAP * primal).all():
                    break
        return a

    yield step


def pursuit(cell):
    signals, atoms = codes(cell)

    def step():
        gram, wanted = atoms @ atoms.t(), signals @ atoms.t()
        rows = torch.arange(len(signals), device=signals.device)
        left, chosen, factor = wanted.clone(), [], None
        for k in range(NONZERO):
            chosen.append(left.abs().argmax(1))
            support = torch.stack(chosen, 1)
            if factor is None:
                factor = torch.ones(len(rows), 1, 1, device=signals.device)
            else:
                column = gram[support[:, :-1], support[:, -1:]].unsqueeze(2)
                w = torch.linalg.solve_triangular(factor, column, upper=False)
                corner = (1 - w.square().sum(1, keepdim=True)).clamp(min=1e-12).sqrt()
                top = torch.nn.functional.pad(factor, (0, 1))
                factor = torch.cat([top, torch.cat([w.mT, corner], 2)], 1)
            values = torch.cholesky_solve(wanted.gather(1, support).unsqueeze(2), factor).squeeze(2)
            left = wanted - torch.einsum('bk,bkn->bn', values, gram[support])
        return support, values

    yield step


def scikit_learn(cell):
    """The same codes by scikit-learn, where it has them and is installed."""
    if cell.family not in ('lasso', 'pursuit') or cell.device != 'cpu':
        return None
    try:
        import sklearn
        from sklearn.decomposition import sparse_encode
    except ImportError:
        return None
    signals, atoms = (t.numpy() for t in codes(cell))
    options = dict(algorithm='lasso_cd', alpha=cell.penalty) if cell.family == 'lasso' else dict(algorithm='omp', n_nonzero_coefs=NONZERO)
    return f'scikit-learn {sklearn.__version__}', cell.slices(lambda: sparse_encode(signals, atoms, **options))


FAMILIES = dict(rbm=rbm, dae=dae, classifier=classifier, convolution=convolution, lasso=lasso, pursuit=pursuit)
FAMILIES['sparse-autoencoder'] = sparse_autoencoder
FAMILIES['latents'] = latents
NOT_RECORDED = ('lasso', 'pursuit', 'latents')  # these look at what they made, or are long


def answer(question):
    cell = Cell(question)
    name = f'PyTorch {torch.__version__}'
    measured = []
    with torch.no_grad():
        for step in FAMILIES[cell.family](cell):
            step = step if cell.family in NOT_RECORDED else cell.graph(step)
            for threads in sorted({1, cell.threads}) if cell.device == 'cpu' else [1]:
                torch.set_num_threads(threads)
                measured.append((name, cell.slices(step)))
    other = scikit_learn(cell)
    measured += [other] if other else []
    peer, seconds = min(measured, key=lambda of: statistics.median(of[1]))
    return {'peer': peer, 'seconds': seconds}


def main():
    out = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # what libraries print is no answer
    global torch
    try:
        import torch
    except ImportError as why:
        torch, missing = None, str(why)
    print('ready', file=out, flush=True)
    for line in sys.stdin:
        try:
            said = answer(json.loads(line)) if torch else {'missing': missing}
        except (RuntimeError, MemoryError) as why:  # such as memory of a GPU that is used up
            said = {'missing': str(why).splitlines()[0]}
        print(json.dumps(said), file=out, flush=True)


if __name__ == '__main__':
    main()
