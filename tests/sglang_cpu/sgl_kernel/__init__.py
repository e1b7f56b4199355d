"""Stands in for SGLang's kernel library on a machine without a GPU: no CPU build of it is published.

SGLang imports names from it and calls next to none where the CPU lacks AMX: it takes its torch paths. What is
called and has no stand-in raises by name.
"""

import importlib.machinery
import sys
import types

__version__ = "0.0.0+cpu.standin"
__path__ = []


def assign_req_to_token_pool_cpu(requests, table, starts, ends, places, width):
    """Write where the cache of each request's new tokens lies into its row of the table."""
    offset = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[request, start:end] = places[offset : offset + end - start].to(table.dtype)
        offset += end - start


class _Missing:
    """A name of the library: may be looked at, not called."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{self.__name__} has no CPU stand-in")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)


class _Finder:
    """Makes every submodule importable, with the same answer to any name."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if not name.startswith("sgl_kernel."):
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
