"""The recipe of `sparse-autoencoder --kind` by PyTorch, step for step: what it reaches on the same rows says whether ours reaches what it should.

    pip install torch numpy
    python bins/peers/latents.py rows.npy --test held-out.npy --kind top-k --latents 3072 --active 32 --epochs 10
    cargo run --bin sparse-autoencoder -- train --data rows.npy --kind top-k --latents 3072 --active 32 --epochs 10 --out runs/ours
    cargo run --bin sparse-autoencoder -- evaluate runs/ours --data held-out.npy

Files hold one matrix, a row a sample. Prints one line of JSON: fraction of variance unexplained, active latents a row and share of latents that
no row of --test uses, by the codes of inference (a threshold for batch-top-k, as for jump-relu), and rows a second of training.

The same: starts, mean norm, geometric median, Adam with warm-up and decay, unit atoms with the gradient's part along them taken out, AuxK, the
threshold's moving average, JumpReLU's estimator, logarithms and warm-up. Not the same: random numbers, and the order of rows.
"""
import argparse
import json
import math
import time

import torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('rows')
    parser.add_argument('--test', required=True)
    parser.add_argument('--kind', choices=['top-k', 'batch-top-k', 'jump-relu'], default='top-k')
    parser.add_argument('--latents', type=int, required=True)
    parser.add_argument('--active', type=int, default=32)
    parser.add_argument('--active-penalty', type=float, default=1.)
    parser.add_argument('--aux-active', type=int, default=512)
    parser.add_argument('--dead-rows', type=int, default=10_000_000)
    parser.add_argument('--batch', type=int, default=4096)
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--learning-rate', type=float)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--precision', choices=['f32', 'bf16'], default='f32')
    return parser.parse_args()


def matrix(path, device):
    import numpy  # which grid.py does not need

    return torch.from_numpy(numpy.load(path)).to(device, torch.float32)


def geometric_median(x):
    x = x.double()
    median = x.mean(0)
    for _ in range(100):
        distances = (x - median).square().sum(1).sqrt()
        spread = distances.mean().item()
        weights = 1 / distances.clamp(min=1e-9 * spread)
        moved = median - (weights @ x) / weights.sum()
        median = median - moved
        if moved.norm().item() <= 1e-6 * spread:
            break
    return median.float()


class Jump(torch.autograd.Function):
    """z = v H(v - theta) and H(v - theta), with rectangles of width 0.05 as derivatives by theta."""

    @staticmethod
    def forward(context, v, theta):
        context.save_for_backward(v, theta)
        on = (v > theta).to(v.dtype)
        return v * on, on

    @staticmethod
    def backward(context, of_z, of_on):
        v, theta = context.saved_tensors
        near = ((v - theta).abs() < 0.025).to(v.dtype) / 0.05
        return of_z * (v > theta), -((of_z * theta + of_on) * near).sum(0)


class Autoencoder:
    def __init__(self, args, d):
        self.args, n, device = args, args.latents, args.device
        start = torch.nn.functional.normalize(torch.randn(n, d, device=device), dim=1)
        self.encoder, self.decoder = start.clone(), start.clone()
        self.bias, self.visible_bias = torch.zeros(n, device=device), torch.zeros(d, device=device)
        self.parameters = [self.encoder, self.decoder, self.bias, self.visible_bias]
        if args.kind == 'jump-relu':
            self.log_threshold = torch.zeros(n, device=device)  # set by the first minibatch
            self.parameters.append(self.log_threshold)
        for parameter in self.parameters:
            parameter.requires_grad_()
        self.threshold = torch.zeros((), device=device)
        self.idle = torch.zeros(n, dtype=torch.int64, device=device)

    def pre_activations(self, x):
        return torch.nn.functional.linear(x - self.visible_bias, self.encoder, self.bias).float()

    def largest(self, v, k, of_rows):
        v = v.relu()
        flat = v if of_rows else v.flatten()
        values, at = flat.topk(k, dim=-1, sorted=False)
        return torch.zeros_like(flat).scatter(-1, at, values).view_as(v)

    def codes(self, v):
        """Of inference."""
        if self.args.kind == 'top-k':
            return self.largest(v, self.args.active, True)
        threshold = self.log_threshold.exp() if self.args.kind == 'jump-relu' else self.threshold
        return v * (v > threshold)

    def loss(self, x, share, step):
        args = self.args
        v, penalty = self.pre_activations(x), 0.
        if args.kind == 'jump-relu':
            z, on = Jump.apply(v, self.log_threshold.exp())
            penalty = args.active_penalty * share * on.sum() / len(x)
        else:
            z = self.largest(v, args.active * (1 if args.kind == 'top-k' else len(x)), args.kind == 'top-k')
        left = x - self.visible_bias - (z @ self.decoder).float()
        loss = left.square().sum() / len(x) + penalty
        if args.aux_active and step % 16 == 0:
            dead = (self.idle >= args.dead_rows).nonzero().flatten()
            self.dead = dead if len(dead) else None
        if args.aux_active and self.dead is not None:
            k = min(args.aux_active, len(self.dead))
            z_dead = self.largest(v[:, self.dead], k, True)
            weight = min(1, len(self.dead) / args.aux_active) / 32
            loss = loss + weight * (left.detach() - (z_dead @ self.decoder[self.dead]).float()).square().sum() / len(x)
        with torch.no_grad():
            self.idle = torch.where((z > 0).any(0), 0, self.idle + len(x))
            if args.kind == 'batch-top-k':
                cut = torch.where(z > 0, z, torch.inf).min()
                kept = 0.999 if step else 0.
                self.threshold = kept * self.threshold + (1 - kept) * torch.where(cut.isfinite(), cut, self.threshold)
        return loss


def train(args, rows):
    n, d = rows.shape
    model = Autoencoder(args, d)
    batches = n // args.batch + (n % args.batch > 0)
    steps = args.epochs * batches
    warm_up, sparsity_warm_up = min(1000, steps // 20), min(5000, steps // 4)
    full = args.learning_rate or 2e-4 / math.sqrt(args.latents / 2**14)
    optimizer = torch.optim.Adam(model.parameters, lr=full, betas=(0.9, 0.999), eps=1e-8, fused=args.device != 'cpu')
    step = 0
    for _ in range(args.epochs):
        for at in torch.randperm(n, device=rows.device).split(args.batch):
            x = rows[at]
            if step == 0:
                with torch.no_grad():
                    model.visible_bias.copy_(geometric_median(x))
                    if args.kind == 'jump-relu':
                        largest = model.pre_activations(x).relu().flatten().topk(args.latents // 16 * len(x), sorted=False).values
                        model.log_threshold.fill_(largest.min().log())
            rise = min(1, (step + 1) / warm_up) if warm_up else 1
            fall = min(1, (steps - step) / (0.2 * steps))
            optimizer.param_groups[0]['lr'] = full * rise * fall
            share = min(1, (step + 1) / sparsity_warm_up) if sparsity_warm_up else 1
            with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == 'bf16'):
                loss = model.loss(x, share, step)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            with torch.no_grad():
                gradient, atoms = model.decoder.grad, model.decoder
                gradient -= (gradient * atoms).sum(1, keepdim=True) * atoms
                optimizer.step()
                atoms /= atoms.norm(dim=1, keepdim=True)
            step += 1
    return model


def main():
    args = arguments()
    torch.manual_seed(args.seed)
    rows, test = matrix(args.rows, args.device), matrix(args.test, args.device)
    factor = math.sqrt(rows.shape[1]) / rows.double().norm(dim=1).mean().item()
    rows, test = rows * factor, test * factor
    start = time.time()
    model = train(args, rows)
    if args.device == 'cuda':
        torch.cuda.synchronize()
    seconds = time.time() - start
    with torch.no_grad():
        left = 0.
        uses = torch.zeros(args.latents, device=args.device)
        for x in test.split(args.batch):
            z = model.codes(model.pre_activations(x))
            left += (x - model.visible_bias - z @ model.decoder).double().square().sum().item()
            uses += (z > 0).sum(0)
        spread = (test - test.mean(0)).double().square().sum().item()
    print(json.dumps({
        'kind': args.kind,
        'seed': args.seed,
        'fvu': left / spread,
        'l0': uses.sum().item() / len(test),
        'dead': (uses == 0).double().mean().item(),
        'rows_per_second': args.epochs * len(rows) / seconds,
    }))


if __name__ == '__main__':
    main()
