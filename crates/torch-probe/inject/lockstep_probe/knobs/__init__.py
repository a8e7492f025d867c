"""The changes that the probe makes in an unmodified script, as LOCKSTEP_KNOBS requests. Without that variable nothing here is imported.

    {"activation_checkpointing": "block", "grad_clip_norm": "1.0"}          name -> value, both strings

    panel        the requested knobs and their results: one answer per knob, in a `knob` record
    knob         what all knobs have in common
    models       when a script's model is first used, and classes that replace a module's own class
    blocks       the repeated blocks of a model            checkpointing  activation_checkpointing
    replay       a forward pass run twice, applied once clipping       grad_clip_norm
    groups       process_group_timeout_s                   sharding       reshard_after_forward, fsdp_sharding
    loading      num_workers, micro_batch                  rates          lr_scale, lr_schedule
    precision    amp

Rules beyond the probe's own: each knob is applied once, and says so; what cannot be done is answered with `failed` and the reason, and
the script runs as without it. Nothing is stored in the script's modules, optimizers or checkpoints, so that going back is leaving it out.
"""

from ..imports import AfterImport
from .checkpointing import ActivationCheckpointing
from .clipping import GradientClipping
from .groups import GroupTimeout
from .loading import MicroBatch, Workers
from .models import Models
from .panel import Panel
from .precision import Precision
from .rates import LrScale, LrSchedule
from .sharding import FsdpSharding, ReshardAfterForward

KINDS = (
    ActivationCheckpointing,
    GradientClipping,
    GroupTimeout,
    ReshardAfterForward,
    FsdpSharding,
    Workers,
    MicroBatch,
    LrScale,
    LrSchedule,
    Precision,
)


def install(probe, text):
    """Applies the knobs of LOCKSTEP_KNOBS as torch's modules are imported. Returns the panel with their answers."""
    panel = Panel(probe, {kind.name: kind for kind in KINDS}, text)
    patches = {}
    watchers = [*panel.knobs, Models(panel)]
    for watcher in watchers:
        for module, patch in watcher.patches().items():
            patches.setdefault(module, []).append((watcher, patch))
    AfterImport({module: _all_of(panel, these) for module, these in patches.items()}, probe.fault).install()
    return panel


def _all_of(panel, patches):
    def run(module):
        for watcher, patch in patches:
            watcher.guard(patch, module)

    return run
