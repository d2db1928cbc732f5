"""Our image models: their shape, their start, and what the seed's switches change in them."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trainer.errors import ConfigurationError, OptionError
from trainer.models import classifier
from trainer.models.classifier import Classifier, ClassifierShape, build
from trainer.models.resnet import ResidualBlock
from trainer.workloads.vision_training import in_memory


def shape(model: str, image_size: int = 32, channels: int = 3) -> ClassifierShape:
    return ClassifierShape(model=model, image_size=image_size, channels=channels, classes=7)


@pytest.mark.parametrize("name", classifier.NAMES)
def test_every_model_names_classes(name: str) -> None:
    model = build(shape(name)).eval()
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(("name", "millions"), [("resnet18", 11.7), ("resnet34", 21.8), ("resnet50", 25.6)])
def test_sizes_are_those_of_the_paper(name: str, millions: float) -> None:
    model = build(ClassifierShape(model=name, image_size=224, channels=3, classes=1000))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.06)


@pytest.mark.parametrize("name", [name for name in classifier.NAMES if name.startswith("resnet")])
def test_a_resnet_starts_as_torchvisions(name: str) -> None:
    """Normal convolutions by their fan-out, normalizations of 1, the last of a block of 0, torch's own head."""
    network = build(shape(name))
    last = {id(block.layers[-1]) for block in network.modules() if isinstance(block, ResidualBlock)}
    assert len(last) >= 3
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            weight, fan_out = module.weight, module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            error = 5 / math.sqrt(weight.numel())
            assert weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=error)
            assert weight.mean().item() == pytest.approx(0, abs=error * math.sqrt(2 / fan_out))
            assert (weight.abs() > 2 * math.sqrt(2 / fan_out)).float().mean() == pytest.approx(0.0455, abs=error)
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == (0 if id(module) in last else 1)).all()
            assert not module.bias.any()
        if isinstance(module, nn.Linear):
            bound = 1 / math.sqrt(module.in_features)
            assert 0.9 * bound < module.weight.abs().max().item() <= bound
            assert module.bias.abs().max().item() <= bound


@pytest.mark.parametrize("name", ["vit-mini"])
def test_weights_start_from_a_truncated_normal(name: str) -> None:
    matrices = [p for p in build(shape(name)).parameters() if p.dim() >= 2 and p.numel() > 20_000]
    assert len(matrices) > 5
    for weight in matrices:
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert weight.mean().item() == pytest.approx(0, abs=1e-3)


def saved_bytes(model: nn.Module, pictures: Tensor) -> int:
    """Count what autograd saves for the backward pass, weights aside."""
    weights = {p.data_ptr() for p in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            saved[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(pictures).sum()
    return sum(saved.values())


@pytest.mark.parametrize(("name", "at_most"), [("resnet18", 0.6), ("vit-mini", 0.3)])
def test_checkpointing_keeps_less_and_computes_the_same(name: str, at_most: float) -> None:
    plain, frugal = build(shape(name)), build(shape(name), checkpointing=True)
    frugal.load_state_dict(plain.state_dict())
    pictures = torch.rand(4, 3, 32, 32)
    assert saved_bytes(frugal, pictures) < at_most * saved_bytes(plain, pictures)
    for model in (plain, frugal):
        model(pictures).square().sum().backward()
    for one, other in zip(plain.parameters(), frugal.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)
    for key, value in plain.state_dict().items():  # running means among them: no batch is counted twice
        assert torch.equal(value, frugal.state_dict()[key]), key


def activations(memory_format: torch.memory_format) -> list[bool]:
    """Return of each convolution whether its output is laid out with pixels before channels."""
    model = in_memory(Classifier(build(shape("resnet-small")), (0.5,) * 3, (0.2,) * 3), memory_format)
    seen: list[bool] = []

    def look(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        seen.append(output.is_contiguous(memory_format=torch.channels_last))

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(look)
    model(torch.rand(2, 3, 32, 32).contiguous(memory_format=memory_format))
    return seen


def test_channels_last_reaches_every_activation() -> None:
    assert all(activations(torch.channels_last))
    assert not any(activations(torch.contiguous_format))


def test_the_sum_of_a_block_leaves_its_input_alone() -> None:
    """`out + identity`, and activations in place only where they are not read again."""
    model = build(shape("resnet18")).train()
    pictures = torch.rand(2, 3, 32, 32)
    seen: list[tuple[Tensor, Tensor]] = []
    for block in model.blocks:  # type: ignore[union-attr]  # a list of modules
        block.register_forward_hook(lambda _m, inputs, _o: seen.append((inputs[0], inputs[0].clone())))
    before = pictures.clone()
    model(pictures)
    assert torch.equal(pictures, before)
    assert all(torch.equal(now, then) for now, then in seen)


def test_pictures_are_normalized_inside() -> None:
    model = Classifier(nn.Identity(), (0.5,), (0.25,))
    assert model(torch.tensor([0.0, 127.5, 255.0]).view(1, 1, 1, 3)).flatten().tolist() == [-2, 0, 2]
    assert "mean" in model.state_dict()


def test_what_does_not_fit_is_reported() -> None:
    with pytest.raises(OptionError, match="resnet18"):
        build(shape("resnet19"))
    with pytest.raises(OptionError, match="patches of 16"):
        build(shape("vit-tiny", image_size=28))
    with pytest.raises(OptionError, match="--pretrained"):
        build(shape("resnet18"), pretrained=True)


FAKE_TIMM = """
from torch import nn

def create_model(name, num_classes, in_chans, pretrained, img_size=None):
    if name == "unknown":
        raise RuntimeError("Unknown model (unknown)")
    if name == "convolutions" and img_size is not None:
        raise TypeError("img_size")
    model = nn.Linear(in_chans, num_classes)
    model.told = (img_size, pretrained)
    model.set_grad_checkpointing = lambda: setattr(model, "frugal", True)
    return model
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is searched for modules first."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    return tmp_path


def test_timm_is_asked_for_what_it_has(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (modules / "timm.py").write_text(FAKE_TIMM)
    model = build(shape("timm:convolutions"), checkpointing=True)
    assert (model.told, model.frugal) == ((None, False), True)
    assert build(shape("timm:transformer"), pretrained=True).told == (32, True)
    with pytest.raises(ConfigurationError, match="Unknown model"):
        build(shape("timm:unknown"))
    monkeypatch.delitem(sys.modules, "timm")


def test_a_timm_that_fails_is_reported(modules: Path) -> None:
    (modules / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    with pytest.raises(ConfigurationError, match=r"(?s)nms does not exist.*built for this torch"):
        build(shape("timm:resnet18"))
    (modules / "timm.py").write_text("import no_such_torchvision")
    with pytest.raises(ConfigurationError, match="no_such_torchvision is not installed"):
        build(shape("timm:resnet18"))
