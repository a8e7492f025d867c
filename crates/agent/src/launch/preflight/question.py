# Describes a Python environment and a script for the agent, before a run. The script is read, not run.
# Arguments: the script or an empty string, "packages" or an empty string, the folder that the run will have on its path.
import ast, importlib.metadata, importlib.util, json, os, platform, sys
import torch
from torch.distributed import is_available, run
assert is_available(), 'this PyTorch is built without torch.distributed'

script, wants_packages, inject = sys.argv[1], sys.argv[2] == 'packages', sys.argv[3]
PACKAGES_CHARS_MAX = 32000  # a report has at most 64 KiB

def nccl():
    try:
        return '.'.join(map(str, torch.cuda.nccl.version()))
    except Exception:
        return ''

def machine():
    # Identifies where process ids have the same meaning: the boot of the machine, and the namespace.
    with open('/proc/sys/kernel/random/boot_id') as file:
        return file.read().strip() + ' ' + os.readlink('/proc/self/ns/pid')

def top_level_imports(tree):
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module

def is_there(module):
    try:
        return module in sys.builtin_module_names or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return module in sys.modules

def packages():
    names = {f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions() if d.metadata['Name']}
    kept, chars = [], 0
    for name in sorted(names, key=str.lower):
        chars += len(name) + 3
        if chars > PACKAGES_CHARS_MAX:
            break
        kept.append(name)
    return kept

answer = {
    'python': platform.python_version(),
    'torch': str(torch.__version__),
    'executable': sys.executable or '',
    'machine': machine(),
    'gpus': torch.cuda.device_count(),
    'cuda': torch.version.cuda or '',
    'nccl': nccl() if torch.version.cuda else '',
}
if wants_packages:
    answer['packages'] = packages()
if script:
    try:
        with open(script, 'rb') as file:
            source = file.read()
        tree = ast.parse(source, script)
    except OSError as error:
        answer['script_error'] = f'it cannot be read: {error}'
    except (SyntaxError, ValueError) as error:
        answer['script_error'] = f"{error} (line {getattr(error, 'lineno', '?')})"
    else:
        # The path of torchrun's ranks: the script's folder first, not the current one.
        sys.path[:] = [os.path.dirname(os.path.abspath(script))] + [path for path in sys.path if path] + [inject]
        roots = {name.split('.')[0] for name in top_level_imports(tree)}
        answer['missing'] = sorted(root for root in roots if not is_there(root))
        answer['alters_path'] = b'sys.path' in source or b'addsitedir' in source
print(json.dumps(answer))
