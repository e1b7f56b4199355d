"""Stands in for torchvision, which SGLang and transformers import and text models never call.

The published wheel is a CUDA build and does not load under a CPU build of torch.
"""

import importlib.machinery
import sys
import types

__version__ = "0.0.0+cpu.standin"
__path__ = []


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything(name, (), {})


class _Finder:
    """Makes every submodule importable."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if not name.startswith("torchvision."):
            return None
        return importlib.machinery.ModuleSpec(name, _Finder, is_package=True)

    @staticmethod
    def create_module(spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = __getattr__
        return module

    @staticmethod
    def exec_module(module):
        pass


sys.meta_path.append(_Finder)
