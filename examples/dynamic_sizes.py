"""One compilation for every batch and every length: a text classifier with two dims that stay open."""

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

import ingot


class Classifier(nn.Module):
    """Embeds tokens, attends over them, and scores the mean."""

    def __init__(self, vocabulary: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.queries, self.keys, self.values = (nn.Linear(width, width) for _ in range(3))
        self.score = nn.Linear(width, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + functional.scaled_dot_product_attention(self.queries(x), self.keys(x), self.values(x))
        return self.score(x.mean(1)).softmax(-1)


torch.manual_seed(0)
model = Classifier().eval()
tokens = torch.randint(0, 1000, (2, 12))

# Dims are named; a range is optional. A size that the model itself would freeze is an error here, not a surprise later.
batch, length = Dim("batch", max=256), Dim("length", min=2, max=512)
compiled = ingot.compile(model, (tokens,), dynamic_shapes={"tokens": {0: batch, 1: length}})

for shape in ((1, 5), (2, 12), (7, 100), (64, 33)):
    tokens = torch.randint(0, 1000, shape)
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens), model(tokens), rtol=1e-4, atol=1e-5)
    print(f"equal to eager at batch {shape[0]}, length {shape[1]}")

# A size outside the range is refused by name; nothing is computed.
try:
    compiled(torch.zeros(1, 600, dtype=torch.long))
except ingot.errors.InputError as error:
    print(f"600 tokens: {error}")
