"""Libraries of NVIDIA for a build with CUDA, from their wheels.

The extension module is linked to them. A system that has CUDA finds them itself; wheels put them
where nothing looks, as PyTorch's do. What is loaded here is found then.
"""

import ctypes
import importlib.util
import os
from pathlib import Path

#: Those that the module names, after those that they need.
_NAMES = ("libnvrtc", "libcublasLt", "libcublas", "libcurand", "libcufft")


def _load():
    try:
        from . import _chandlery  # noqa: F401
    except ImportError as error:
        if not any(name in str(error) for name in _NAMES):
            raise
    else:
        return
    found = importlib.util.find_spec("nvidia")
    for name in _NAMES:
        for folder in found.submodule_search_locations if found else ():
            for path in sorted(Path(folder).glob(f"*/lib/{name}.so.*")):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


# candle's own threads, made with the first large tensor, spin while they wait.
os.environ.setdefault("CANDLE_NUM_THREADS", "1")
_load()
