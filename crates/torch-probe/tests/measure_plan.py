"""Measures the cases of the planner's own tests: `python crates/torch-probe/tests/measure_plan.py` writes them again.

`test_plan.py` measures them again and compares, so that a change in a new PyTorch is detected.
"""

import json
import pathlib
import sys
import warnings

import plan_model

DATA = pathlib.Path(__file__).resolve().parents[2] / "domain" / "testdata" / "plan" / "measured.json"

GPT = {
    "layers": 4, "hidden": 256, "heads": 4, "kv_heads": 4, "mlp": 1024, "gated": False, "vocabulary": 512, "positions": 128,
    "tied": True, "norm": "layer", "bias": True, "fused_qkv": True,
}  # fmt: skip
LLAMA = {
    "layers": 4, "hidden": 256, "heads": 8, "kv_heads": 2, "mlp": 688, "gated": True, "vocabulary": 1000, "positions": 0,
    "tied": False, "norm": "rms", "bias": False, "fused_qkv": False,
}  # fmt: skip
GATED = {**LLAMA, "norm": "layer"}  # a norm that is one kernel on the meta device too
GPT2 = {**GPT, "layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "mlp": 3072, "vocabulary": 50257, "positions": 1024}
LLAMA3_8B = {**LLAMA, "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "mlp": 14336, "vocabulary": 128256}
USUAL = {
    "strategy": "ddp", "gpus": 1, "shard_group": 1, "reshard_after_forward": True, "tensor_parallel": 1, "sequence_parallel": False,
    "precision": "bf16", "optimizer": "adamw", "foreach": True, "gradient_as_bucket_view": False, "checkpointing": "none",
    "attention": "flash", "dropout": False, "sequence": 128, "micro_batch": 4, "accumulate": 1,
}  # fmt: skip


def cases():
    """Name, settings, and what is measured: states always; saved tensors and peak if PyTorch can compute them without a GPU."""
    for name, model in (("gpt", GPT), ("llama", LLAMA)):
        for precision in ("fp32", "bf16", "bf16-mixed", "fp16-amp"):
            for attention in ("flash", "materialised"):
                yield case(f"{name} {precision} {attention}", model, precision=precision, attention=attention)
        for checkpointing in ("block", "every=2", "every=3", "sequential=1", "sequential=2", "sequential=4"):
            yield case(f"{name} {checkpointing}", model, checkpointing=checkpointing)
        yield case(f"{name} autocast block", model, precision="bf16-mixed", checkpointing="block")
        for attention in ("flash", "materialised"):
            yield case(f"{name} dropout {attention}", model, dropout=True, attention=attention)
        yield case(f"{name} dropout autocast", model, dropout=True, attention="materialised", precision="bf16-mixed")
    yield case("gpt2", GPT2, sequence=1024, micro_batch=8, precision="bf16-mixed")
    yield case("llama3-8b block", LLAMA3_8B, sequence=8192, micro_batch=1, checkpointing="block")
    long = {"sequence": 512, "micro_batch": 8}
    for name, model in (("gpt", {**GPT, "positions": 512}), ("gated", GATED)):
        for checkpointing in ("none", "block", "every=2", "sequential=2"):
            yield case(f"peak {name} {checkpointing}", model, peak=True, checkpointing=checkpointing, **long)
        yield case(f"peak {name} fp32 materialised", model, peak=True, precision="fp32", attention="materialised", **long)
    yield case("peak of few tokens", GPT, peak=True, micro_batch=1)
    yield case("peak of few tokens, sgd-momentum", GPT, peak=True, micro_batch=1, optimizer="sgd-momentum")
    yield case("peak gpt2", {**GPT2, "positions": 1024}, peak=True, sequence=1024, micro_batch=8)
    yield case("peak gated 1b", {**GATED, "layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "mlp": 8192, "vocabulary": 128256},
               peak=True, sequence=4096, micro_batch=2, checkpointing="block")
    for optimizer in ("adamw", "sgd", "sgd-momentum", "adafactor"):
        yield case(f"cpu {optimizer}", GPT, how="alone", precision="fp32", attention="materialised", optimizer=optimizer)
    deep = {**GATED, "layers": 8}
    for gpus in (2, 3, 8):
        yield case(f"fsdp over {gpus}", deep, how="sharded", strategy="fsdp", gpus=gpus, attention="materialised", precision="bf16-mixed")
    for reshard in (True, False):
        yield case(f"fsdp block, resharded {reshard}", deep, how="sharded", strategy="fsdp", gpus=8, attention="materialised",
                   precision="bf16-mixed", checkpointing="block", reshard_after_forward=reshard)
    yield case("fsdp gpt over 7", GPT, how="sharded", strategy="fsdp", gpus=7, attention="materialised", precision="fp32")
    yield case("fsdp without resharding", GPT, how="sharded", strategy="fsdp", gpus=4, reshard_after_forward=False,
               attention="materialised", optimizer="sgd-momentum")
    yield case("fsdp of few tokens", deep, how="sharded", strategy="fsdp", gpus=2, attention="materialised", precision="bf16-mixed",
               micro_batch=1, sequence=16)
    yield case("hsdp 2 x 4", deep, how="sharded", strategy="hsdp", gpus=8, shard_group=4, attention="materialised", precision="bf16-mixed")


def case(name, model, *, how=None, peak=False, **settings):
    return name, {"model": model, **USUAL, **settings}, how or ("peak" if peak else "saved")


def measure(settings, how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how == "sharded":
            return plan_model.sharded(settings)
        if how == "alone":
            return plan_model.alone(settings)
        if how == "peak":
            return {**plan_model.trained(settings), "saved": plan_model.saved(settings)}
        return {**plan_model.shapes(settings), "saved": plan_model.saved(settings)}


def main():
    DATA.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, settings, how in cases():
        measured = measure(settings, how)
        print(name, measured, file=sys.stderr, flush=True)
        lines.append(json.dumps({"name": name, "how": how, "settings": settings, "measured": measured}))
    DATA.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
