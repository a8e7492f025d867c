"""A trainer class like those of well-known libraries: arguments as a dataclass, batches as dictionaries, a model that computes its loss.

    torchrun --nproc-per-node=2 examples/train_trainer.py

Uses warm-up and decay of the learning rate, gradient accumulation, clipping, evaluation and checkpoints. More than one rank: FSDP's fully_shard.
"""

import dataclasses
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclasses.dataclass
class TrainingArguments:
    output_dir: str = os.environ.get("OUTPUT_DIR", "")
    max_steps: int = int(os.environ.get("STEPS", 40))
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 2
    learning_rate: float = 2e-3
    warmup_steps: int = 4
    max_grad_norm: float = 1.0
    logging_steps: int = 1
    eval_steps: int = 20
    dataloader_num_workers: int = 0
    seed: int = 42


@dataclasses.dataclass
class Config:
    vocab_size: int = 32
    hidden_size: int = 48
    num_layers: int = 6
    num_heads: int = 4
    dropout: float = 0.1


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = nn.MultiheadAttention(config.hidden_size, config.num_heads, dropout=config.dropout, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.hidden_size, 4 * config.hidden_size), nn.GELU(), nn.Linear(4 * config.hidden_size, config.hidden_size)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(config.hidden_size) for _ in range(2)])
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_states, attention_mask=None):
        normed = self.norms[0](hidden_states)
        attended, _ = self.attention(normed, normed, normed, key_padding_mask=attention_mask, need_weights=False)
        hidden_states = hidden_states + self.dropout(attended)
        return (hidden_states + self.dropout(self.feed_forward(self.norms[1](hidden_states))),)


class SequenceModel(nn.Module):
    """Predicts the token at each position from noisy input."""

    def __init__(self, config):
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_layers)])
        self.classifier = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, input_ids, attention_mask=None, labels=None):
        hidden_states = self.embeddings(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask=attention_mask)[0]
        logits = self.classifier(hidden_states)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class Sequences(Dataset):
    """Arithmetic sequences modulo the vocabulary size. Deterministic."""

    def __init__(self, count, length=24):
        self.count, self.length = count, length

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        labels = (torch.arange(self.length) * (1 + i % 5) + i) % 32
        input_ids = labels.clone()
        input_ids[i % 7 :: 7] = 0
        return {"input_ids": input_ids, "labels": labels}


def collate(samples):
    batch = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    batch["attention_mask"] = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    return batch


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset, data_collator):
        self.args, self.data_collator, self.eval_dataset = args, data_collator, eval_dataset
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
        self.model = model.to(self.device)
        if dist.get_world_size() > 1:
            for layer in self.model.layers:
                fully_shard(layer)
            fully_shard(self.model)
        self.sampler = DistributedSampler(train_dataset, seed=args.seed)
        self.train_dataloader = DataLoader(
            train_dataset,
            batch_size=args.per_device_train_batch_size,
            sampler=self.sampler,
            collate_fn=data_collator,
            num_workers=args.dataloader_num_workers,
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        self.global_step = 0

    def rate(self, step):
        if step < self.args.warmup_steps:
            return (step + 1) / self.args.warmup_steps
        return max(0.1, 1 - step / (2 * self.args.max_steps))

    def train(self):
        self.model.train()
        epoch = 0
        while self.global_step < self.args.max_steps:
            self.sampler.set_epoch(epoch)
            epoch += 1
            running = 0.0
            for i, batch in enumerate(self.train_dataloader):
                running += self.training_step(batch)
                if (i + 1) % self.args.gradient_accumulation_steps:
                    continue
                nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
                self.optimizer.step()
                self.lr_scheduler.step()
                self.optimizer.zero_grad()
                self.global_step += 1
                if self.global_step % self.args.logging_steps == 0:
                    self.log(loss=running / self.args.logging_steps)
                    running = 0.0
                if self.global_step % self.args.eval_steps == 0:
                    self.log(eval_loss=self.evaluate())
                    self.save()
                if self.global_step == self.args.max_steps:
                    break

    def training_step(self, batch):
        loss = self.model(**{name: value.to(self.device) for name, value in batch.items()})["loss"] / self.args.gradient_accumulation_steps
        loss.backward()
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        batches = DataLoader(self.eval_dataset, batch_size=8, collate_fn=self.data_collator)
        losses = [self.model(**{name: value.to(self.device) for name, value in batch.items()})["loss"].item() for batch in batches]
        self.model.train()
        return sum(losses) / len(losses)

    def save(self):
        if self.args.output_dir:
            model, optimizer = get_state_dict(self.model, self.optimizer)
            path = os.path.join(self.args.output_dir, f"checkpoint-{self.global_step}")
            checkpoints.save({"model": model, "optimizer": optimizer, "step": self.global_step}, checkpoint_id=path)

    def log(self, **values):
        if dist.get_rank() == 0:
            said = " ".join(f"{name} {value:.6f}" for name, value in values.items())
            print(f"step {self.global_step} {said} learning_rate {self.lr_scheduler.get_last_lr()[0]:.6f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    args = TrainingArguments()
    torch.manual_seed(args.seed)
    Trainer(SequenceModel(Config()), args, Sequences(640), Sequences(64), collate).train()
    dist.barrier()  # waits until Gloo's threads have released all tensors; no thread may hold one when Python ends
    dist.destroy_process_group()
