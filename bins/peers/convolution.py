"""A convolution and both of its gradients by PyTorch's cuDNN in f32, without TF32, at the sizes of `bench convolution`.

    pip install torch
    python bins/peers/convolution.py [--size 128x128x1:32:16 56x56x24:32:10] [--batch 32] [--same] [--layout both] [--repeats 21] [--json]

Milliseconds of a call by CUDA events: the median, the fastest and the slowest run, each of which has enough calls to last some 20 ms. cuDNN
times its algorithms first and keeps the fastest (`cudnn.benchmark`). `--layout` says how images lie: channels first, channels last as in
Chandlery, or both. With --device cpu it times PyTorch's CPU convolutions by the clock.

What to know before comparing: `same` with an even size makes PyTorch copy the images to pad them.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument('--size', nargs='+', default=['128x128x1:32:16', '56x56x24:32:10'], metavar='HxWxC:N:SIZE')
PARSER.add_argument('--batch', type=int, default=32)
PARSER.add_argument('--same', action='store_true')
PARSER.add_argument('--layout', choices=['first', 'last', 'both'], default='both', help='where channels lie')
PARSER.add_argument('--repeats', type=int, default=21)
PARSER.add_argument('--device', default='cuda')
PARSER.add_argument('--json', action='store_true', help='print one JSON array')
ARGS = PARSER.parse_args()
RUN_MS = 20

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True
torch.manual_seed(0)


def milliseconds(call, n):
    """Of n calls one after the other."""
    if ARGS.device == 'cpu':
        start = time.perf_counter()
        for _ in range(n):
            call()
        return 1e3 * (time.perf_counter() - start)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(n):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def timed(call):
    milliseconds(call, 3)  # chooses the algorithm
    n = max(1, round(RUN_MS / (milliseconds(call, 3) / 3)))
    runs = [milliseconds(call, n) / n for _ in range(ARGS.repeats)]
    return {'ms': statistics.median(runs), 'ms_min': min(runs), 'ms_max': max(runs)}


def measure(size, layout):
    image, n_filters, side = size.split(':')
    height, width, channels = map(int, image.split('x'))
    n_filters, side = int(n_filters), int(side)
    memory = torch.channels_last if layout == 'last' else torch.contiguous_format
    make = lambda *shape: torch.randn(*shape, device=ARGS.device).contiguous(memory_format=memory)
    before, extra = (side - 1) // 2, (side - 1) % 2
    pad = before if ARGS.same else 0
    x, w = make(ARGS.batch, channels, height, width), make(n_filters, channels, side, side)
    if ARGS.same and extra:
        x = F.pad(x, (0, extra, 0, extra)).contiguous(memory_format=memory)
    maps = F.conv2d(x, w, padding=pad)
    grad = torch.randn_like(maps)

    def backward(of_x, of_w):
        mask = [of_x, of_w, False]
        return torch.ops.aten.convolution_backward(grad, x, w, None, [1, 1], [pad, pad], [1, 1], False, [0, 0], 1, mask)

    calls = {
        'maps': lambda: F.conv2d(x, w, padding=pad),
        'images': lambda: backward(True, False),
        'weights': lambda: backward(False, True),
    }
    for op, call in calls.items():
        yield {'size': size, 'batch': ARGS.batch, 'layout': layout, 'op': op, **timed(call)}


def main():
    layouts = ['first', 'last'] if ARGS.layout == 'both' else [ARGS.layout]
    rows = []
    for size in ARGS.size:
        for layout in layouts:
            for row in measure(size, layout):
                rows.append(row)
                if not ARGS.json:
                    print('{size:<18} channels {layout:<6} {op:<8} {ms:8.4f} ms ({ms_min:.4f} to {ms_max:.4f})'.format(**row))
    if ARGS.json:
        print(json.dumps(rows))


if __name__ == '__main__':
    main()
