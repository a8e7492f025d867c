"""A script with its own command-line arguments: a residual network on generated pictures, with mixed precision. It resumes from its checkpoint.

    torchrun --nproc-per-node=2 examples/train_args.py --epochs 2 --amp --save-dir /tmp/shapes
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--pictures", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=3, help="residual blocks a stage")
    parser.add_argument("--amp", action="store_true", help="mixed precision with a gradient scaler")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--save-dir", default="")
    return parser.parse_args()


class Shapes(Dataset):
    """Pictures of 16 x 16 pixels with a bright square in one of four quarters."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        picture = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(i))
        quarter = i % 4
        y, x = 8 * (quarter // 2), 8 * (quarter % 2)
        picture[:, y + 2 : y + 6, x + 2 : x + 6] += 1.0
        return picture, quarter


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.skip = nn.Identity() if stride == 1 and inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += self.skip(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, 1, 1)
        self.layer1 = nn.Sequential(*[Residual(8, 8) for _ in range(blocks)])
        self.layer2 = nn.Sequential(Residual(8, 16, 2), *[Residual(16, 16) for _ in range(blocks - 1)])
        self.layer3 = nn.Sequential(Residual(16, 32, 2), *[Residual(32, 32) for _ in range(blocks - 1)])
        self.fc = nn.Linear(32, 4)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.fc(x.mean((2, 3)))


def main():
    args = parse()
    on_gpu = torch.cuda.is_available()
    kind = "cuda" if on_gpu else "cpu"
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    torch.manual_seed(0)
    model = DistributedDataParallel(ResNet(args.blocks).to(device), device_ids=[device.index] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    scaler = torch.amp.GradScaler(kind, enabled=args.amp, init_scale=1024.0)
    data = Shapes(args.pictures)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers, pin_memory=on_gpu)
    path = os.path.join(args.save_dir, "last.pt") if args.save_dir else None
    begin = 0
    if path and os.path.exists(path):
        saved = torch.load(path, map_location=device)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        begin = saved["epoch"] + 1

    for epoch in range(begin, args.epochs):
        sampler.set_epoch(epoch)
        for i, (pictures, quarters) in enumerate(loader):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(kind, dtype=torch.float16 if on_gpu else torch.bfloat16, enabled=args.amp):
                loss = F.cross_entropy(model(pictures.to(device)), quarters.to(device))
            scaler.scale(loss).backward()
            if args.clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            scaler.step(optimizer)
            scaler.update()
            if dist.get_rank() == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.6f}", flush=True)
        scheduler.step()
        if path and dist.get_rank() == 0:
            os.makedirs(args.save_dir, exist_ok=True)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
            torch.save({**state, "epoch": epoch}, path + ".part")
            os.replace(path + ".part", path)
    dist.barrier()  # waits until Gloo's threads have released all tensors; no thread may hold one when Python ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
