"""Your functions inside kernels: attention with a score of your own, recurrences by scan, and both trained.

    python examples/functions.py

Each part says what it computes, and compares it with the same written out in torch.
"""

from __future__ import annotations

import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan

import ingot

torch.manual_seed(0)
BATCH, HEADS, LENGTH, DEPTH = 2, 4, 200, 32
q, k, v = (torch.randn(BATCH, HEADS, LENGTH, DEPTH) for _ in range(3))
places = torch.arange(LENGTH)


def written_out(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention from every score at once, as torch has it."""
    return torch.softmax(scores, -1) @ v


def compare(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    print(f"{what}: equal to eager, {tuple(ours.shape)}")


scores = q @ k.mT / DEPTH**0.5

# %% ALiBi: a score falls with the distance, at a slope for each head. The function closes over the slopes.

slopes = torch.tensor([2.0 ** -(8 * (h + 1) / HEADS) for h in range(HEADS)])


def alibi(score, batch, head, query, key):
    return score - slopes[head] * torch.abs(query - key)


distance = (places[:, None] - places[None, :]).abs()
compare("ALiBi", ingot.attention(q, k, v, alibi), written_out(scores - slopes[:, None, None] * distance, v))

# %% A sliding window within documents: tiles of queries and keys that see nothing of each other cost nothing.

documents = torch.tensor([0] * 70 + [1] * 100 + [2] * 30)


def window(batch, head, query, key):
    near = (query >= key) & (query - key < 32)
    return near & (documents[query] == documents[key])


near = (distance < 32) & (places[:, None] >= places[None, :]) & (documents[:, None] == documents[None, :])
compare(
    "sliding window with documents",
    ingot.attention(q, k, v, mask_mod=window),
    written_out(scores.masked_fill(~near, -torch.inf), v),
)

# %% Soft-capping, and the log of each query's sum of weights beside the result.


def capped(score, batch, head, query, key):
    return 20 * torch.tanh(score / 20)


out, lse = ingot.attention(q, k, v, capped, return_lse=True)
compare("soft cap", out, written_out(20 * torch.tanh(scores / 20), v))
compare("its log-sum-exp", lse, torch.logsumexp(20 * torch.tanh(scores / 20), -1))

# %% A relative bias that is learned: what a score function reads by index has a gradient.

bias = nn.Parameter(torch.zeros(HEADS, 2 * LENGTH))
optimizer = torch.optim.Adam([bias], 0.1)
target = written_out(scores - 0.05 * distance, v)
for step in range(30):
    made = ingot.attention(q, k, v, lambda s, b, h, i, j: s + bias[h, i - j + LENGTH])
    loss = ((made - target) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 0:
        start = loss.item()
print(f"learned relative bias: loss from {start:.4f} to {loss.item():.4f}")

# %% A linear recurrence, h[t] = a[t] · h[t-1] + x[t], as an associative scan along dim 1.


def combine(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


def recurrence(decay, x):
    return associative_scan(combine, (decay, x), dim=1, combine_mode="generic")[1]


decay, x = torch.rand(BATCH, LENGTH, 48), torch.randn(BATCH, LENGTH, 48)
compiled = ingot.compile(recurrence, (decay, x))
states = [x[:, 0]]
for t in range(1, LENGTH):
    states.append(decay[:, t] * states[-1] + x[:, t])
compare("linear recurrence", compiled(decay, x), torch.stack(states, 1))

# %% A selective state-space layer: what is kept and what is written depends on the input. It trains, natively.


class Selective(nn.Module):
    def __init__(self, width: int, state: int) -> None:
        super().__init__()
        self.step = nn.Linear(width, width)
        self.reads = nn.Linear(width, 2 * state)
        self.decay = nn.Parameter(torch.log(torch.arange(1.0, state + 1)).repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = nn.functional.softplus(self.step(x))
        into, out_of = self.reads(x).chunk(2, -1)
        kept = torch.exp(-step[..., None] * torch.exp(self.decay))
        written = (step * x)[..., None] * into[:, :, None]
        state = associative_scan(combine, (kept, written), dim=1, combine_mode="generic")[1]
        return (state * out_of[:, :, None]).sum(-1) + self.skip * x


layer = Selective(24, 8)
signal = torch.randn(BATCH, LENGTH, 24)
trained = ingot.compile(layer, (signal,), training=True)
optimizer = torch.optim.Adam(layer.parameters(), 0.01)
wanted = torch.cumsum(signal, 1) * 0.1
losses = []
for _ in range(20):
    loss = ((trained(signal) - wanted) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"selective state-space layer: loss from {losses[0]:.3f} to {losses[-1]:.3f}")
compare("the trained layer", trained(signal).detach(), layer(signal).detach())
