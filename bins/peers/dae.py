"""Seconds an epoch of 60,000 rows of a tied denoising autoencoder on the CPU: ours and PyTorch's, run after one another in turns.

    pip install torch
    python bins/peers/dae.py [--sizes 784 500] [--batch 8] [--threads 2] [--turns 5]

Ours is `cargo run --bin bench -- dae`, which is built first. Both make the same update (sigmoid units, cross-entropy, 30 %
salt and pepper drawn in every step, rate 0.1) from random rows in f32. Prints the median and the least of the turns.

What to know before comparing: OpenMP's threads spin while they wait, so on a machine with other work PyTorch loses more than it should;
compare the least of many turns, or an idle machine.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument('--sizes', type=int, nargs=2, default=[784, 500], metavar=('VISIBLE', 'HIDDEN'))
PARSER.add_argument('--batch', type=int, default=8)
PARSER.add_argument('--threads', type=int, default=os.cpu_count())
PARSER.add_argument('--turns', type=int, default=5)
PARSER.add_argument('--steps', type=int, default=500, help='of a timed run')
ARGS = PARSER.parse_args()
EPOCH = 60_000

import torch  # noqa: E402

torch.set_num_threads(ARGS.threads)
torch.manual_seed(0)


class Autoencoder:
    def __init__(self, visible, hidden):
        limit = 4 * (6 / (visible + hidden)) ** 0.5
        self.weight = torch.empty(hidden, visible).uniform_(-limit, limit)
        self.bias = torch.zeros(hidden)
        self.visible_bias = torch.zeros(visible)

    def step(self, x, rate):
        draw = torch.rand_like(x)
        noisy = torch.where(draw < 0.3, (draw < 0.15).to(x.dtype), x)
        y = torch.sigmoid(torch.addmm(self.bias, noisy, self.weight.t()))
        ln = x - torch.sigmoid(torch.addmm(self.visible_bias, y, self.weight))
        lh = ln.mm(self.weight.t()) * y * (1 - y)
        scale = rate / len(x)
        self.weight.addmm_(lh.t(), noisy, alpha=scale).addmm_(y.t(), ln, alpha=scale)
        self.bias.add_(lh.sum(0), alpha=scale)
        self.visible_bias.add_(ln.sum(0), alpha=scale)


def peer(model, rows):
    def run(steps):
        for i in range(steps):
            model.step(rows[i % 16], 0.1)

    run(20)
    start = time.perf_counter()
    run(ARGS.steps)
    return (time.perf_counter() - start) * EPOCH / (ARGS.steps * ARGS.batch)


def ours():
    command = ['cargo', 'run', '--quiet', '--bin', 'bench', '--', 'dae', '--device', 'cpu', '--json', '--repeats', '3']
    command += ['--size', 'x'.join(map(str, ARGS.sizes)), '--batch', str(ARGS.batch), '--threads', str(ARGS.threads)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(text)[0]['seconds']


def main():
    model = Autoencoder(*ARGS.sizes)
    rows = torch.rand(16, ARGS.batch, ARGS.sizes[0])
    ours()
    turns = [(ours(), peer(model, rows)) for _ in range(ARGS.turns)]
    for name, times in zip(('chandlery', f'torch {torch.__version__}'), zip(*turns)):
        print(f'{name}: {statistics.median(times):.3f} s an epoch (median of {len(times)}), {min(times):.3f} (least)')


if __name__ == '__main__':
    main()
