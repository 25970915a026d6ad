#!/usr/bin/env python3
"""Takes the four images of `natural-images` from a wheel of scikit-image 0.26.0.

    pip download --no-deps scikit-image==0.26.0 && python3 make.py scikit_image-0.26.0-*.whl

The files are copied byte for byte; the digests are those that scikit-image lists for them (skimage/data/_registry.py), so a wheel for
any platform will do. Only the standard library is used.
"""
import hashlib
import sys
import zipfile
from pathlib import Path

DIGESTS = {
    "camera.png": "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a",
    "brick.png": "7966caf324f6ba843118d98f7a07746d22f6a343430add0233eca5f6eaaa8fcf",
    "grass.png": "b6b6022426b38936c43a4ac09635cd78af074e90f42ffa8227ac8b7452d39f89",
    "gravel.png": "c48615b451bf1e606fbd72c0aa9f8cc0f068ab7111ef7d93bb9b0f2586440c12",
}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        for name, want in DIGESTS.items():
            png = wheel.read(f"skimage/data/{name}")
            digest = hashlib.sha256(png).hexdigest()
            if digest != want:
                sys.exit(f"{name}: SHA-256 is {digest}, must be {want}")
            (Path(__file__).parent / name).write_bytes(png)
            print(f"{name}: {len(png)} bytes")


if __name__ == "__main__":
    main()
