"""Finds the repeated blocks of a model: a transformer's layers, a residual network's blocks.

Children of one class in ModuleLists and Sequentials form a group, wherever those lists are in the model. The chosen group is the outermost
one that can be called, is repeated at least REPEATS_MIN times and contains SHARE_MIN of the trainable parameters. A group inside it that
contains nearly all of its parameters replaces it (the blocks of a Swin stage), unless those are experts, which run side by side. A second
class counts too if it contains a share of its own: encoder and decoder layers, or separate attention and feed-forward modules. Single
layers (no children) are blocks only if nothing else repeats.
"""

REPEATS_MIN = 3  # fewer repeats are not worth it
SHARE_MIN = 0.1  # of the trainable parameters: a smaller share also has few of the activations
NESTED_SHARE = 0.8  # of the outer group's parameters: then the inner group has the better blocks


class Group:
    """All modules of one class in lists, in the order of the model."""

    def __init__(self, kind):
        self.kind = kind
        self.members = []  # (path, module)
        self.parameters = 0
        self.depth = 0

    def add(self, path, module):
        self.members.append((path, module))
        self.parameters += trainable(module)
        self.depth = max(self.depth, path.count("."))

    def inside(self, other):
        outer = {id(part) for _, member in other.members for part in member.modules() if part is not member}
        return all(id(member) in outer for _, member in self.members)


def find(torch, model):
    """Returns [(path, block)] in the order of the model; empty if nothing repeats."""
    groups = [group for group in _groups(torch, model) if len(group.members) >= REPEATS_MIN]
    total = max(1, trainable(model))
    worthy = [group for group in groups if group.parameters >= SHARE_MIN * total]
    whole = [group for group in worthy if not is_layer(group)]
    taken = _outermost(whole or worthy)
    members = [member for group in taken for member in _innermost(group, whole).members]
    inside = {id(part) for _, member in members for part in member.modules() if part is not member}
    members = [member for member in members if id(member[1]) not in inside]
    order = {id(module): place for place, module in enumerate(model.modules())}
    return sorted(members, key=lambda member: order[id(member[1])])


def is_layer(group):
    return all(next(member.children(), None) is None for _, member in group.members)


def trainable(module):
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def _groups(torch, model):
    groups, seen = {}, set()
    for path, container in model.named_modules():
        if not isinstance(container, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        for name, child in container.named_children():
            child = getattr(child, "_fsdp_wrapped_module", child)  # FSDP1 gathers the parameters of the whole module once
            if id(child) in seen or not _can_be_called(torch, child):
                continue
            seen.add(id(child))
            groups.setdefault(type(child), Group(type(child))).add(f"{path}.{name}" if path else name, child)
    return list(groups.values())


def _can_be_called(torch, module):
    return not isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList)) and trainable(module) > 0


def _outermost(groups):
    by_size = sorted(groups, key=lambda group: (-group.parameters, group.depth))
    return [group for group in by_size if not any(group is not other and group.inside(other) for other in groups)]


def _innermost(group, groups):
    for inner in sorted(groups, key=lambda inner: inner.depth):
        experts = any("expert" in path for path, _ in inner.members)
        if inner is not group and inner.inside(group) and not experts and inner.parameters >= NESTED_SHARE * group.parameters:
            return _innermost(inner, groups)
    return group
