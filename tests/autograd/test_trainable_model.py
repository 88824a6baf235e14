"""A TrainableModel is an nn.Module: state, modes, optimizers, hooks, copies; and each way of calling it is compiled."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrizations, parametrize

import ingot
from ingot.autograd.trainable_model import KEPT
from ingot.errors import CopyError, DoubleBackwardError, StateError
from tests.autograd.test_training import Counting, compare

X = torch.Tensor


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))


def compiled(model: Any, *given: X) -> Any:
    return ingot.compile(model, given, training=True, threads=1)


def test_state_is_the_models_own_under_its_own_names() -> None:
    model, x = mlp(), torch.randn(6, 4)
    trained = compiled(model, x)
    assert isinstance(trained, nn.Module)
    assert [*trained.state_dict()] == [*model.state_dict()]
    assert dict(trained.named_parameters()).keys() == dict(model.named_parameters()).keys()
    assert all(a is b for a, b in zip(trained.parameters(), model.parameters(), strict=True))
    assert [name for name, _ in trained.named_modules()] == [name for name, _ in model.named_modules()]
    other = mlp()
    nn.init.ones_(other[0].weight)
    trained.load_state_dict(other.state_dict())
    torch.testing.assert_close(trained(x), other(x))
    assert trained.unwrap() is model and "Linear" in repr(trained)


def test_as_a_part_of_another_module_and_in_an_optimizer() -> None:
    model, x = mlp(), torch.randn(6, 4)
    exact = nn.Sequential(copy.deepcopy(model), nn.Linear(2, 1))
    whole = nn.Sequential(compiled(model, x), copy.deepcopy(exact[1]))
    assert [*whole.state_dict()] == [*exact.state_dict()]
    steps = [(one, torch.optim.SGD(one.parameters(), 0.05, momentum=0.9)) for one in (whole, exact)]
    for _ in range(3):
        for one, optimizer in steps:
            optimizer.zero_grad()
            one(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(whole.state_dict(), exact.state_dict())
    whole.eval()
    exact.eval()
    assert not model.training and not model[1].training
    torch.testing.assert_close(whole(x), exact(x))
    changed = {name: value + 1 for name, value in exact.state_dict().items()}
    whole.load_state_dict(changed)
    exact.load_state_dict(changed)
    torch.testing.assert_close(whole(x), exact(x))


def test_dtypes_and_memory_formats() -> None:
    model, x = mlp(), torch.randn(6, 4)
    trained = compiled(model, x)
    exact = copy.deepcopy(model).double()
    assert trained.to(torch.float64) is trained and model[0].weight.dtype == torch.float64
    torch.testing.assert_close(trained(x.double()), exact(x.double()))
    trained(x.double()).sum().backward()
    assert model[0].weight.grad is not None and model[0].weight.grad.dtype == torch.float64
    with pytest.raises(ingot.IngotError, match="dtype"):
        trained(x)
    torch.manual_seed(0)
    picture = torch.randn(2, 3, 6, 6)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 2, groups=2))
    ours = compiled(layers, picture)
    theirs = copy.deepcopy(layers)
    for given in (picture, picture.to(memory_format=torch.channels_last)):
        result, expected = ours(given), theirs(given)
        torch.testing.assert_close(result, expected)
        assert result.stride() == expected.stride()
        result.permute(0, 2, 3, 1).reshape(-1).sum().backward()
        expected.sum().backward()
    for mine, other in zip(layers.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_frozen_parameters() -> None:
    model, x = mlp(), torch.randn(6, 4)
    trained = compiled(model, x)
    model[0].requires_grad_(False)
    trained(x).sum().backward()
    assert model[0].weight.grad is None and model[3].weight.grad is not None
    model[0].requires_grad_(True)
    trained.requires_grad_(False)
    assert not trained(x).requires_grad
    given = x.clone().requires_grad_()
    trained(given).sum().backward()
    assert given.grad is not None and model[0].weight.grad is None


def test_tied_weights_and_parameters_that_change_behind_the_scenes() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: X) -> X:
            y: X = self.head(self.embed(x).tanh())
            return y

    model, x = Tied(), torch.tensor([[0, 3, 3], [1, 2, 4]])
    trained = compare(model, (x,))
    assert len(list(trained.parameters())) == 1
    model.embed.weight.data = torch.ones(5, 3)
    torch.testing.assert_close(trained(x), model(x))
    model.head.weight = nn.Parameter(torch.full((5, 3), 2.0))  # no longer tied
    torch.testing.assert_close(trained(x), model(x))
    trained(x).sum().backward()
    assert model.head.weight.grad is not None
    model.head = nn.Linear(3, 7)
    torch.testing.assert_close(trained(x), model(x))


def test_hooks_on_the_model_and_on_its_parts() -> None:
    model, x = mlp(), torch.randn(6, 4)
    trained = compiled(model, x)
    seen: list[str] = []
    trained.register_forward_pre_hook(lambda *_: seen.append("before"))
    trained.register_forward_hook(lambda *_: seen.append("after"))
    trained.register_full_backward_hook(lambda *_: seen.append("gradient"))
    x.requires_grad_()
    for _ in range(2):
        trained(x).sum().backward()
    assert seen == ["before", "after", "gradient"] * 2
    plain = trained(x)
    handle = model[2].register_forward_hook(lambda module, args, result: result * 2)
    torch.testing.assert_close(trained(x), model(x))
    assert not torch.allclose(trained(x), plain)
    handle.remove()
    grads: list[X] = []
    model[3].weight.register_hook(lambda grad: grads.append(grad) or grad * 0)
    model.zero_grad()
    trained(x).sum().backward()
    assert len(grads) == 1 and not model[3].weight.grad.any()  # type: ignore[union-attr]


def test_backward_hooks_of_a_part_see_gradients_at_each_call() -> None:
    model, x = mlp(), torch.randn(6, 4)
    model[2].register_full_backward_hook(lambda module, of_inputs, of_results: (of_inputs[0] * 3,))
    compare(model, (x,), (x,))


def test_accumulation_and_two_losses() -> None:
    compare(mlp(), *[(torch.randn(6, 4),) for _ in range(3)])
    model, x = mlp(), torch.randn(6, 4)
    exact = copy.deepcopy(model)
    trained = compiled(model, x)
    for one in (trained, exact):
        first, second = one(x), one(x * 2)
        (first.sum() * second.square().sum()).backward(retain_graph=True)
        first.sum().backward()
    for mine, other in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_without_gradients_nothing_is_kept_and_buffers_are_still_written() -> None:
    model, x = mlp(), torch.randn(6, 4)
    exact = copy.deepcopy(model)
    trained = compiled(model, x)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            result = trained(x)
            torch.testing.assert_close(result, exact(x))
            assert not result.requires_grad
    torch.testing.assert_close(model.state_dict(), exact.state_dict())
    assert trained(x).requires_grad and exact(x).requires_grad
    assert trained.graphs[-1].backward is not None
    with torch.inference_mode():
        made = torch.randn(6, 4)
        torch.testing.assert_close(trained.eval()(made), exact.eval()(made))


def test_a_second_derivative_is_an_error_that_says_so() -> None:
    model, x = mlp(), torch.randn(6, 4, requires_grad=True)
    trained = compiled(model, x)
    (slope,) = torch.autograd.grad(trained(x).sum(), x, create_graph=True)
    with pytest.raises(DoubleBackwardError, match="no second derivative"):
        slope.square().sum().backward()


def test_a_gradient_that_forward_takes_is_differentiated() -> None:
    """What the error of a double backward says to write instead."""

    class Penalized(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: X) -> X:
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.inner(x).sum(), x, create_graph=True)
            return slope.square().sum()

    model = Penalized(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
    exact, x = copy.deepcopy(model), torch.randn(6, 4)
    compiled(model, x)(x).backward()
    exact(x).backward()
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_copies_and_pickles() -> None:
    model, x = mlp(), torch.randn(6, 4)
    trained = compiled(model, x)
    other = copy.deepcopy(trained)
    torch.testing.assert_close(other(x), trained(x))
    other(x).sum().backward()
    assert model[0].weight.grad is None and next(other.parameters()).grad is not None
    averaged = torch.optim.swa_utils.AveragedModel(trained)
    averaged.update_parameters(trained)
    torch.testing.assert_close(averaged(x), trained(x))
    with pytest.raises(CopyError, match="state_dict"):
        pickle.dumps(trained)
    with pytest.raises(CopyError, match="state_dict"):
        torch.save(trained, io.BytesIO())
    torch.save(trained.state_dict(), io.BytesIO())


def test_autocast_is_that_of_the_call() -> None:
    model, x = mlp(), torch.randn(6, 4)
    exact = copy.deepcopy(model)
    trained = compiled(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result, expected = trained(x), exact(x)
    assert result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=0.02, atol=0.02)
    result.float().sum().backward()
    expected.float().sum().backward()
    for mine, other in zip(model.parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None and mine.grad.dtype == torch.float32
        torch.testing.assert_close(mine.grad, other.grad, rtol=0.05, atol=0.05)
    assert trained(x).dtype == torch.float32


def test_autocast_inside_the_model() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: X) -> X:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.a(x)
            return self.b(y.float())  # type: ignore[no-any-return]

    compare(Mixed(), (torch.randn(3, 4),), tolerance=0.02)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_inside_the_model(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2))

        def forward(self, x: X) -> X:
            y: X = checkpoint(self.layers, x, use_reentrant=reentrant)
            return y * 2

    compare(Checkpointed(), (torch.randn(6, 4, requires_grad=True),))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_save_memory(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Deep(nn.Module):
        def __init__(self, saves: bool) -> None:
            super().__init__()
            parts = [nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 8)) for _ in range(4)]
            self.parts, self.saves = nn.ModuleList(parts), saves

        def forward(self, x: X) -> X:
            for part in self.parts:
                x = x + (checkpoint(part, x, use_reentrant=reentrant) if self.saves else part(x))
            return x

    kept, gradients = {}, {}
    for saves in (True, False):
        torch.manual_seed(0)
        model, x = Deep(saves), torch.randn(32, 8, requires_grad=True)
        trained = compiled(model, x)
        sizes: list[int] = []

        def pack(tensor: X, sizes: list[int] = sizes) -> X:
            sizes.append(0 if isinstance(tensor, nn.Parameter) else tensor.numel() * tensor.element_size())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = trained.eval()(x)
        result.sum().backward()
        kept[saves], gradients[saves] = sum(sizes), [p.grad for p in model.parameters()]
        trained.train()(x).sum().backward()  # and with a mask, which is kept
    torch.testing.assert_close(gradients[True], gradients[False])
    assert kept[True] < kept[False] / 2, kept


def test_parametrizations() -> None:
    class Symmetric(nn.Module):
        def forward(self, x: X) -> X:
            return x.triu() + x.triu(1).T

    torch.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in range(3)]
    parametrize.register_parametrization(layers[0], "weight", Symmetric())
    model = nn.Sequential(layers[0], parametrizations.weight_norm(layers[1]), parametrizations.spectral_norm(layers[2]))
    x = torch.randn(3, 4)
    compare(model, (x,), (x,))
    with pytest.warns(FutureWarning, match="deprecated"):
        older = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.utils.spectral_norm(nn.Linear(4, 4)))
    trained = compiled(older, x)
    trained(x).sum().backward()
    found = [parameter.grad for parameter in older.parameters()]
    assert all(grad is not None for grad in found)
    added = compiled(mlp(), torch.randn(6, 4))
    parametrizations.weight_norm(added.unwrap()[0])
    given = torch.randn(6, 4)
    torch.testing.assert_close(added(given), added.unwrap()(given))


def test_new_sizes_are_compiled_and_the_oldest_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ingot.autograd.trainable_model.KEPT", 3)
    model = nn.Linear(2, 2)
    trained = compiled(model, torch.randn(1, 2))
    for rows in (1, 2, 3):
        torch.testing.assert_close(trained(torch.ones(rows, 2)), model(torch.ones(rows, 2)))
    assert len(trained.graphs) == 3 and KEPT > 3
    for rows in (4, 1):
        trained(torch.ones(rows, 2)).sum().backward()
    assert len(trained.graphs) == 3
    assert [record.levelname for record in caplog.records if record.name == "ingot.autograd"] == ["WARNING"]
    trained.close()
    assert trained.graphs == ()
    trained(torch.ones(1, 2))


def test_dynamic_shapes_are_not_taken() -> None:
    with pytest.raises(ingot.IngotError, match="sizes of each call"):
        ingot.compile(nn.Linear(2, 2), (torch.randn(1, 2),), dynamic_shapes={"input": {0: "n"}}, training=True)  # type: ignore[call-overload]


def test_programs_train_in_both_modes() -> None:
    model, x = mlp(), torch.randn(6, 4)
    exact = copy.deepcopy(model)
    trained = compiled(ingot.capture(model, (x,)), x)
    for one in (trained, exact):
        one(x).sum().backward()
        one.eval()
    torch.testing.assert_close(trained(x), exact(x))
    torch.testing.assert_close(trained.state_dict(), exact.state_dict())
    for mine, other in zip(trained.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_buffers_of_a_captured_model_are_written_back() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp()

        def forward(self, x: X) -> X:
            y = self.layers(x)
            made: X = torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))
            return made

    model, x = Branching(), torch.randn(6, 4)
    trained = compiled(model, x)
    trained(x).sum().backward()
    assert model.layers[1].num_batches_tracked == 1 and model.layers[1].running_mean.any()
    assert model.layers[0].weight.grad is not None
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(trained(x), compiled(model, x)(x))
    assert model.layers[1].num_batches_tracked == 1


def test_attributes_of_the_model_are_its_own() -> None:
    model = Counting()
    trained = compiled(model, torch.randn(1, 4))
    trained.calls = 7
    assert model.calls == 7 and trained.layer is model.layer
    trained(torch.ones(1, 4))
    assert model.calls == 8


def test_a_model_that_is_distributed_already_is_refused_by_name(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        x = torch.randn(6, 4)
        with pytest.raises(StateError, match="made by DistributedDataParallel"):
            compiled(nn.parallel.DistributedDataParallel(mlp()), x)
        with pytest.raises(StateError, match=r"0 exchanges .* fully_shard"):
            model = mlp()
            fully_shard(model[0])
            compiled(model, x)
    finally:
        dist.destroy_process_group()
