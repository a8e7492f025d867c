"""Runs a function after a module has been imported, without importing the module.

A finder in front of sys.meta_path requests the watched module from the other finders, and puts a loader into its spec that runs the
original loader and then the function. Module and spec get their own loader back before the module's code runs, so inspect and pickle see no
difference.
"""

import sys


class AfterImport:
    def __init__(self, callbacks, fault):
        """`callbacks`: module name -> function(module). `fault(exception)` receives exceptions of the callbacks."""
        self._callbacks = dict(callbacks)
        self._fault = fault

    def install(self):
        for name in [name for name in self._callbacks if name in sys.modules]:
            self.run(self._callbacks.pop(name), sys.modules[name])
        sys.meta_path.insert(0, self)

    def uninstall(self):
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def run(self, callback, module):
        try:
            callback(module)
        except Exception as error:
            self._fault(error)

    def find_spec(self, name, path=None, target=None):
        callback = self._callbacks.pop(name, None)  # removed first, so that it runs once, and not during the lookup by the other finders
        if callback is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, lambda module: self.run(callback, module))
                return spec
        return None


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
        return getattr(self._original, name)
