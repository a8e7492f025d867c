"""Imports a recipe's own modules into the test's process: the parts can be called directly, and refusals need no new process.

Recipes use the same file names (`faults`, `task`), so the modules are removed afterwards.
"""

import contextlib
import importlib
import sys

from conftest import PACKAGE


@contextlib.contextmanager
def imported(recipe, *names):
    """The modules of those names, in that order."""
    folder = PACKAGE / "recipes" / recipe
    own = {path.stem for path in folder.glob("*.py")}
    kept = {name: sys.modules.pop(name) for name in own if name in sys.modules}
    sys.path.insert(0, str(folder))
    try:
        yield [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(folder))
        for name in own:
            sys.modules.pop(name, None)
        sys.modules.update(kept)


def refusal(recipe, monkeypatch, capsys, *arguments, ranks=4):
    """Returns a recipe's message for arguments that cannot work."""
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setattr(sys, "argv", ["main.py", *arguments])
    with imported(recipe, "main") as [main]:
        try:
            main.parse_arguments()
        except SystemExit as end:
            assert end.code == 2
            return capsys.readouterr().err.splitlines()[-1]
    raise AssertionError("the arguments were taken")
