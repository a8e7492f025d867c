"""All hooks of the probe in torch, by the module that they patch.

Each hook is a wrapper that calls the original with its arguments and returns its result. The probe's own work runs through Probe.call,
whose failures never reach the script; only the end after an agreed step does. Some mechanisms are not used because they change what they
observe: full backward hooks (change the graph, break torch.compile), DDP communication hooks (replace the all-reduce; one per model),
completion hooks (NCCL only).
"""

import functools

from . import compiler, loggers, members, meshes, own_norms, page, saves, waits


def after_import(probe):
    """Module name -> what to do after its import."""
    patches = {
        "torch": announce_torch,
        "torch.autograd": watch_backward,
        "torch.optim.optimizer": watch_optimizers,
        "torch.utils.data.dataloader": watch_data_loaders,
        "torch.nn.utils.clip_grad": watch_clipping,
        "torch.nn.parallel.distributed": watch_ddp,
        "torch.distributed.fsdp.fully_sharded_data_parallel": watch_fsdp1,
        "torch.distributed.fsdp._fully_shard._fsdp_state": watch_fsdp2,
        "torch.distributed._composable.fsdp._fsdp_state": watch_fsdp2,  # before torch 2.6
        "torch.distributed.distributed_c10d": watch_groups,
        "torch.distributed._functional_collectives": waits.watch_functional,
        "torch.distributed.fsdp._fully_shard._fsdp_param_group": watch_fsdp2_groups,
        "torch.distributed._composable.fsdp._fsdp_param_group": watch_fsdp2_groups,  # their module before torch 2.6
        "torch.distributed.device_mesh": meshes.watch,
        "torch.amp.grad_scaler": watch_scaler,
        "torch.cuda.amp.grad_scaler": watch_scaler,  # the module of the class before torch 2.3
        "torch.serialization": saves.watch_torch_save,
        "torch.distributed.checkpoint.state_dict_saver": saves.watch_distributed,
        "torch.multiprocessing.spawn": watch_spawn,
        "torch._dynamo.eval_frame": compiler.hide,
        "torch.utils.tensorboard.writer": loggers.watch_tensorboard,
        "tensorboardX.writer": loggers.watch_tensorboard,
        "mlflow.tracking.fluent": loggers.watch_mlflow,
        "mlflow.tracking.client": loggers.watch_mlflow_client,
        "wandb.sdk.wandb_run": loggers.watch_wandb,
    }
    return {name: functools.partial(patched, probe, patch) for name, patch in patches.items()}


def patched(probe, patch, module):
    patch(probe, module)
    probe.call(probe.module_imported)


def announce_torch(probe, torch):
    probe.torch_imported(torch)


def watch_optimizers(probe, module):
    def before(optimizer, args, kwargs):
        probe.call(probe.begin_optimizer, optimizer, closure_of(args, kwargs))

    def after(optimizer, args, kwargs):
        probe.call(probe.end_optimizer, optimizer, closure_of(args, kwargs))
        if probe.stop.due:
            probe.end_after_step()

    before._torchdynamo_disable = after._torchdynamo_disable = True  # otherwise a compiled step would trace the probe
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def closure_of(args, kwargs):
    """The closure of optimizer.step(closure); `args` starts with the optimizer itself."""
    return args[1] if len(args) > 1 else kwargs.get("closure")


def watch_backward(probe, autograd):
    """Tensor.backward looks this function up at run time, so one wrapper observes both."""
    original = autograd.backward

    @functools.wraps(original)
    def backward(tensors, *args, **kwargs):
        if hasattr(tensors, "__next__"):
            tensors = tuple(tensors)  # an iterator can be read only once
        handle = probe.call(probe.begin_backward, tensors)
        if not handle:
            return original(tensors, *args, **kwargs)
        failed = None
        try:
            result = original(tensors, *args, **kwargs)
        except Exception as error:
            failed = type(error).__name__  # not the error itself: it would keep the tensors of the pass alive
            raise
        finally:
            probe.call(probe.end_backward, handle, failed)
        if probe.stop.due:  # the step of an optimizer that is not from torch
            probe.end_after_step()
        return result

    backward._torchdynamo_disable = True  # like torch.compiler.disable, without importing the compiler
    autograd.backward = backward


def watch_data_loaders(probe, module):
    def timed(original):
        @functools.wraps(original)
        def fetch(self):
            start = probe.call(probe.fetching)
            try:
                result = original(self)
            except BaseException:  # the loader has ended
                if start is not None:
                    probe.call(probe.page.rest)
                raise
            probe.call(probe.fetched, start, result)
            return result

        return fetch

    def timed_start(original):
        @functools.wraps(original)
        def start_workers(self):
            start = probe.call(probe.fetching)
            result = original(self)
            probe.call(probe.fetched, start, None)
            return result

        return start_workers

    module._BaseDataLoaderIter.__next__ = timed(module._BaseDataLoaderIter.__next__)
    module.DataLoader.__iter__ = timed_start(module.DataLoader.__iter__)


def watch_clipping(probe, module):
    original = module.clip_grad_norm_

    @functools.wraps(original)
    def clip_grad_norm_(parameters, max_norm, norm_type=2.0, *args, **kwargs):
        if module.torch.compiler.is_compiling():  # the compiler must see only the original
            return original(parameters, max_norm, norm_type, *args, **kwargs)
        if float(norm_type) == 2.0:
            total = original(parameters, max_norm, norm_type, *args, **kwargs)
            probe.call(probe.clipped, total)
            return total
        if hasattr(parameters, "__next__"):
            parameters = list(parameters)  # an iterator can be read only once
        probe.call(lambda: probe.clipped_otherwise(gradients_of(probe.torch, parameters)))
        return original(parameters, max_norm, norm_type, *args, **kwargs)

    module.clip_grad_norm_ = clip_grad_norm_


def gradients_of(torch, parameters):
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else parameters
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def watch_ddp(probe, module):
    waits.watch_buffers(probe, module.dist)
    original = module.DistributedDataParallel.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        probe.synchronises = True
        probe.call(probe.page.wrapped)
        probe.call(probe.replicas.add, self)
        probe.call(probe.own_norms.add, self)

    module.DistributedDataParallel.__init__ = __init__


def watch_fsdp1(probe, module):
    """The parameters are flat shards. Each group shards them separately; its own clipping returns the true global norm."""
    kind = module.FullyShardedDataParallel
    original_init, original_clip = kind.__init__, kind.clip_grad_norm_

    @functools.wraps(original_init)
    def __init__(self, *args, **kwargs):
        original_init(self, *args, **kwargs)
        probe.call(probe.shards, self)
        probe.call(probe.page.wrapped)

    @functools.wraps(original_clip)
    def clip_grad_norm_(self, *args, **kwargs):
        total = original_clip(self, *args, **kwargs)
        probe.call(probe.clipped_globally, total)
        return total

    kind.__init__, kind.clip_grad_norm_ = __init__, clip_grad_norm_


def watch_fsdp2(probe, module):
    """Each sharded module gets such a state."""
    waits.watch_fsdp2_state(probe, module)
    kind = getattr(module, "FSDPState", None)
    if kind is None:
        return
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        probe.shards_dtensors = True
        probe.call(probe.page.wrapped)
        probe.call(probe.replicas.add, self)
        probe.call(probe.own_norms.add, self)

    kind.__init__ = __init__


def watch_fsdp2_groups(probe, module):
    waits.watch_fsdp2_group(probe, module)
    own_norms.watch_reduction(probe, module)


def watch_scaler(probe, module):
    kind = module.GradScaler
    if "step" not in vars(kind):  # the alias in later versions inherits from a class that is already watched
        return
    original_scale, original_step = kind.scale, kind.step

    @functools.wraps(original_scale)
    def scale(self, outputs):
        result = original_scale(self, outputs)
        probe.call(probe.scaled, self, outputs, result)
        return result

    @functools.wraps(original_step)
    def step(self, optimizer, *args, **kwargs):
        before = probe.optimizer_calls
        result = original_step(self, optimizer, *args, **kwargs)
        probe.call(probe.scaler_stepped, before, self)
        return result

    kind.scale, kind.step = scale, step


def watch_spawn(probe, module):
    """Processes that a rank starts have its environment, but the script numbers them itself: the gate excludes them."""
    original = module.start_processes

    @functools.wraps(original)
    def start_processes(*args, **kwargs):
        probe.call(probe.note, "the script starts processes with torch.multiprocessing.spawn: what they train is not watched")
        probe.call(probe.say_hello)  # this process may wait for them until they end
        return original(*args, **kwargs)

    module.start_processes = start_processes


def watch_groups(probe, module):
    waits.watch_works(probe, module)
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args, **kwargs):
        probe.call(probe.page.reach, page.RENDEZVOUS)
        result = original(*args, **kwargs)
        probe.call(group_joined, probe, module)
        return result

    module.init_process_group = init_process_group
    members.watch(probe, module)


def group_joined(probe, module):
    probe.group_joined()
    probe.members.note(module, module.group.WORLD)
