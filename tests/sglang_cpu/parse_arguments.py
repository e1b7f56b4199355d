"""Puts our arguments through the argument parser of an installed SGLang, without its GPU packages.

PYTHON parse_arguments.py < CASES.json: a list of {"ours": {...}, "further": {...}}. Prints for each what SGLang's own
command line makes of them, or why they were refused. Packages that are imported on the way and play no part in
arguments are stood in for, where they are missing.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import sys
import types

STANDINS = ("sgl_kernel", "torchvision", "orjson", "pybase64", "triton", "starlette", "zmq", "IPython")


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


def _any(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything(name, (), {})


class Finder:
    """Makes the packages in `names`, with everything below them, importable."""

    def __init__(self, names):
        self._names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self._names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__, module.__getattr__, module.__version__ = [], _any, "0"
        return module

    def exec_module(self, module):
        pass


def flags(arguments):
    """Return keyword arguments as the command line spells them."""
    words = []
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [flag] if value else []
        else:
            words += [flag, *map(str, value if isinstance(value, list) else [value])]
    return words


def main():
    missing = [one for one in STANDINS if importlib.util.find_spec(one) is None]
    sys.meta_path.append(Finder(missing))
    from sglang.srt.server_args import ServerArgs
    from sglang.version import __version__

    from llmsys_exp.workers.engines.sglang_host import Refused, release_arguments

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    told = []
    for case in json.load(sys.stdin):
        try:
            arguments = release_arguments(ServerArgs, case["ours"], case["further"])
            ServerArgs(**arguments)
            parsed = vars(parser.parse_args(flags(arguments)))
            told.append({"parsed": {name: parsed[name] for name in arguments}, "arguments": arguments})
        except Refused as error:
            told.append({"refused": error.told})
    print(json.dumps({"version": __version__, "cases": told}, default=str))


if __name__ == "__main__":
    main()
