"""A training script for CUDA, or else the CPU, that does not mention npu.

Prints its results as one line of JSON: test_transfer_to_npu.py runs it on both.
"""

import json
import sys

import torch
from torch import nn
from torch.cuda.amp import GradScaler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
torch.cuda.manual_seed_all(7)
torch.backends.cudnn.benchmark = True
on_cuda = torch.cuda.is_available()
device = torch.device("cuda:0" if on_cuda else "cpu")
checkpoint = sys.argv[1]


def build():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    )


def train(model, optimizer, scaler, loader, mixed):
    losses = []
    for images, labels in loader:
        if device.type == "cuda":
            assert images.is_pinned()
            images, labels = images.cuda(non_blocking=True), labels.to(device, non_blocking=True)
            assert images.is_cuda and labels.is_cuda
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


images, labels = torch.randn(16, 1, 8, 8), torch.randint(0, 5, (16,))
loader = DataLoader(TensorDataset(images, labels), 4, pin_memory=on_cuda, num_workers=1)
model = build().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = GradScaler() if on_cuda else torch.amp.GradScaler("cpu")
seen = {"plain": train(model, optimizer, scaler, loader, False)}

state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
torch.save({**state, "scaler": scaler.state_dict()}, checkpoint)
model = build().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler(device.type)
state = torch.load(checkpoint, map_location=device)
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
scaler.load_state_dict(state["scaler"])
seen["resumed"] = train(model, optimizer, scaler, loader, False)
seen["mixed"] = train(model, optimizer, scaler, loader, True)

if on_cuda:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    side = torch.cuda.Stream()
    start.record()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        product = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device=device)
    torch.cuda.current_stream().wait_stream(side)
    product.record_stream(torch.cuda.current_stream())
    end.record()
    torch.cuda.synchronize(device)
    assert product[0, 0].item() == 64 and start.elapsed_time(end) > 0
    assert 0 < torch.cuda.memory_allocated("cuda:0") <= torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    state = torch.cuda.get_rng_state()
    drawn = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state, device)
    assert torch.equal(drawn, torch.rand(3, device="cuda"))
seen["device"] = device.type
print(json.dumps(seen))
