"""Runs a function after a module has been imported, without importing the module.

A finder in front of sys.meta_path requests the watched module from the other finders, and puts a loader into its spec that runs the
original loader and then the function. Module and spec get their own loader back before the module's code runs, so inspect and pickle see no
difference.

The function is forgotten only when it runs. A lookup is not yet an import: many libraries ask `importlib.util.find_spec("torch")` whether
torch is installed before anything imports it.
"""

import functools
import sys
import threading


class AfterImport:
    def __init__(self, callbacks, fault):
        """`callbacks`: module name -> function(module). `fault(exception)` receives exceptions of the callbacks."""
        self._callbacks = dict(callbacks)
        self._fault = fault
        self._lookups = set()  # (name, thread) of the lookups under way: another finder may ask all finders again

    def install(self):
        for name in [name for name in self._callbacks if name in sys.modules]:
            self._imported(name, sys.modules[name])
        sys.meta_path.insert(0, self)

    def uninstall(self):
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name, path=None, target=None):
        if name not in self._callbacks:
            return None
        lookup = (name, threading.get_ident())
        if lookup in self._lookups:
            return None
        self._lookups.add(lookup)
        try:
            spec = self._find_elsewhere(name, path, target)
        finally:
            self._lookups.discard(lookup)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, functools.partial(self._imported, name))
        return spec

    def _find_elsewhere(self, name, path, target):
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _imported(self, name, module):
        callback = self._callbacks.pop(name, None)
        if callback is None:  # it has run: the module is loaded again
            return
        try:
            callback(module)
        except Exception as error:
            self._fault(error)


class _Loader:
    def __init__(self, original, after):
        self._original = original
        self._after = after

    def create_module(self, spec):
        return self._original.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._original
        self._original.exec_module(module)
        self._after(module)

    def __getattr__(self, name):
        if name == "_original":  # of a copy that is being made: it has no attributes yet
            raise AttributeError(name)
        return getattr(self._original, name)
