import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tamis.training import models
from tamis.training.models import EXAMPLE_SHAPES, MODELS, example_input
from tamis.training.models.cifar_resnet import PaddedShortcut
from tamis.training.models.gcn import normalised_adjacency, ring_with_chords

SHARED_MODELS = Path(__file__).parents[2].parent / "shared" / "models"

LARGE = ["resnet50", "resnet101", "resnet152", "vgg11", "vgg13", "vgg16", "vgg19", "vit_s16"]
# One of each structure is enough: the others differ by the number of blocks only.
DEEPER = ("resnet32", "resnet44", "resnet56", "resnet34")  # than resnet20 and resnet18, of the same blocks
QUICK = [name for name in MODELS if name not in (*LARGE, *DEEPER)]
LARGE_REPRESENTATIVES = ["resnet50", "vgg11", "vit_s16"]
QUICK_AND_LARGE = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE_REPRESENTATIVES)]

# Those of torchvision, of timm (vit_s16) and of the CIFAR checkpoints; for the small models, pinned against accidents.
PARAMETERS = {
    "mlp": 3_466,
    "vgg_small": 138_330,
    "resnet20": 269_722,
    "resnet32": 464_154,
    "resnet44": 658_586,
    "resnet56": 853_018,
    "densenet_small": 102_730,
    "unet_small": 29_708,
    "inception_small": 47_130,
    "mobilenet_small": 40_378,
    "digits_cnn": 28_842,
    "vit_tiny_test": 67_258,
    "cnn1d": 6_149,
    "gcn": 195,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "vit_s16": 22_050_664,
}

OUTPUT_SHAPES = {"unet_small": (4, 32, 32), "cnn1d": (5,), "gcn": (12, 3)}


def build(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[name]().eval()


def without_weights(name: str, **arguments) -> nn.Module:
    """The structure alone: no memory, no initialisation."""
    with torch.device("meta"):
        return MODELS[name](**arguments)


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def output_shape(name: str) -> tuple[int, ...]:
    is_large_image = EXAMPLE_SHAPES[name][-1] == 224
    return OUTPUT_SHAPES.get(name, (1000,) if is_large_image else (10,))


def test_the_registry_is_complete():
    assert set(MODELS) == set(EXAMPLE_SHAPES) == set(PARAMETERS)
    for name, factory in MODELS.items():
        assert factory is getattr(models, name)
        assert factory.__doc__


@pytest.mark.parametrize("name", MODELS)
def test_parameter_counts(name):
    # gcn looks at the values of its adjacency, which a structure without weights does not have.
    model = build(name) if name == "gcn" else without_weights(name)
    assert count_parameters(model) == PARAMETERS[name]


@pytest.mark.parametrize("name", QUICK_AND_LARGE)
def test_output_shape(name):
    with torch.no_grad():
        out = build(name)(example_input(name, batch=2))
    assert out.shape == (2, *output_shape(name))
    assert out.isfinite().all()


@pytest.mark.parametrize("name", QUICK)
def test_the_same_seed_gives_the_same_weights(name):
    first, again, other = build(name, seed=3), build(name, seed=3), build(name, seed=4)
    for key, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key
    pairs = zip(first.parameters(), other.parameters(), strict=True)
    assert any(not torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parametrize("name", QUICK)
def test_every_parameter_takes_part(name):
    model = build(name).train()
    model(example_input(name)).square().mean().backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


# torch.export itself trips over a class that torch deprecated.
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
# The other small ones are traced, for any batch, where tracing is tested; these have the awkward shapes.
@pytest.mark.parametrize(
    "name", ["gcn", "vit_tiny_test", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE_REPRESENTATIVES)]
)
def test_export_keeps_the_batch_dynamic(name):
    model = build(name)
    batch = torch.export.Dim("batch", min=1)
    exported = torch.export.export(model, (example_input(name, batch=2),), dynamic_shapes=({0: batch},))
    decomposed = exported.run_decompositions({}).module()
    with torch.no_grad():
        for size in (1, 3):
            x = example_input(name, batch=size, seed=size)
            torch.testing.assert_close(decomposed(x), model(x), rtol=1e-4, atol=1e-5)


def test_example_input_is_seeded_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    x = example_input("resnet20", batch=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert x.shape == (5, 3, 32, 32)
    assert torch.equal(x, example_input("resnet20", batch=5))
    assert not torch.equal(x, example_input("resnet20", batch=5, seed=1))


def test_example_input_names_an_unknown_model():
    with pytest.raises(ValueError, match=r"'resnet19'.*resnet18"):
        example_input("resnet19")


# --- mlp


def test_mlp_options():
    plain = models.mlp((4, 6, 2), bias=False)
    assert count_parameters(plain) == 4 * 6 + 6 * 2
    normed = models.mlp((4, 6, 5, 2), batch_norm=True)
    assert sum(isinstance(module, nn.BatchNorm1d) for module in normed) == 2
    assert isinstance(normed[-1], nn.Linear)
    assert normed(torch.zeros(3, 2, 2)).shape == (3, 2)


def test_mlp_needs_two_widths():
    with pytest.raises(ValueError, match=r"widths=\(7,\)"):
        models.mlp((7,))


# --- vgg


@pytest.mark.parametrize(
    ("name", "expected"),
    [("vgg11", 132_868_840), ("vgg13", 133_053_736), ("vgg16", 138_365_992), ("vgg19", 143_678_248)],
)
def test_vgg_parameter_counts_with_batch_norm(name, expected):
    assert count_parameters(without_weights(name, batch_norm=True)) == expected


def test_vgg_names_are_those_of_torchvision():
    state = without_weights("vgg16").state_dict()
    convolutions = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
    layers = [f"features.{layer}" for layer in convolutions] + [f"classifier.{layer}" for layer in (0, 3, 6)]
    assert list(state) == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    normed = without_weights("vgg16", batch_norm=True).state_dict()
    assert normed["features.40.weight"].shape == (512, 512, 3, 3)
    assert "features.41.running_var" in normed


def test_vgg_channels_and_classes():
    small = models.vgg_small(num_classes=7, batch_norm=True, in_channels=1)
    assert small(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
    large = without_weights("vgg11", num_classes=7, in_channels=1).state_dict()
    assert large["features.0.weight"].shape == (64, 1, 3, 3)
    assert large["classifier.6.bias"].shape == (7,)


# --- resnet


@pytest.mark.parametrize(("name", "entries"), [("resnet18", 122), ("resnet50", 320)])
def test_resnet_names_are_those_of_torchvision(name, entries):
    state = without_weights(name).state_dict()
    assert len(state) == entries
    some = {"conv1.weight", "bn1.running_mean", "layer2.0.downsample.0.weight", "layer2.0.downsample.1.bias", "fc.bias"}
    assert some <= set(state)
    # Only the bottleneck widens the channels in the first stage, so only there does the first shortcut project.
    assert ("layer1.0.downsample.0.weight" in state) == (name == "resnet50")


def test_bottleneck_strides_on_the_3x3():
    block = without_weights("resnet50").layer2[0]
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((1, 1), (2, 2), (1, 1))


def test_resnet_initialisation():
    model = build("resnet18")
    weight = model.layer4[1].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)  # fan-out, ReLU
    assert (model.bn1.weight == 1).all()
    assert (model.bn1.bias == 0).all()


# --- cifar_resnet


def checkpoint(name: str) -> dict[str, torch.Tensor]:
    path = SHARED_MODELS / f"{name}_cifar10.safetensors"
    if not path.exists():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have the checkpoint {path}")
        pytest.skip(f"no checkpoint at {path}")
    return load_file(path)


@pytest.mark.parametrize("name", ["resnet20", "resnet32"])
def test_cifar_resnet_loads_the_trained_checkpoint(name):
    model = build(name)
    x = example_input(name)
    with torch.no_grad():
        untrained = model(x)
        weights = checkpoint(name)
        model.load_state_dict(weights, strict=True)
        trained = model(x)
    assert torch.equal(model.linear.weight, weights["linear.weight"])
    assert trained.isfinite().all()
    assert not torch.allclose(trained, untrained)


def test_padded_shortcut_subsamples_and_pads_the_channels_on_both_sides():
    x = torch.arange(2 * 4 * 6 * 6, dtype=torch.float32).reshape(2, 4, 6, 6) + 1
    out = PaddedShortcut(8)(x)
    assert out.shape == (2, 8, 3, 3)
    assert torch.equal(out[:, 2:6], x[:, :, ::2, ::2])
    assert not out[:, :2].any()
    assert not out[:, 6:].any()


# --- the other families


def test_mobilenet_activation():
    def kinds(model: nn.Module) -> set[type]:
        return {type(module) for module in model.modules()} & {nn.ReLU, nn.ReLU6}

    assert kinds(models.mobilenet_small()) == {nn.ReLU}
    assert kinds(models.mobilenet_small(activation=nn.ReLU6)) == {nn.ReLU6}


def test_mobilenet_has_depthwise_convolutions():
    block = models.mobilenet_small().blocks[2]
    assert block.has_shortcut
    assert block.depthwise[0].groups == block.depthwise[0].in_channels == 96


def test_unet_keeps_any_size_that_it_can_halve_twice():
    model = models.unet_small(in_channels=1, classes=2).eval()
    assert model(torch.zeros(1, 1, 20, 12)).shape == (1, 2, 20, 12)


def test_unet_goes_up_in_two_ways():
    model = models.unet_small()
    assert isinstance(model.up2, nn.ConvTranspose2d)
    assert (model.up1.mode, model.up1.scale_factor) == ("bilinear", 2.0)


def test_inception_branches_are_concatenated_in_order():
    block = models.inception_small().features[2].eval()
    x = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    out = block(x)
    assert out.shape == (2, 64, 8, 8)
    assert torch.equal(out[:, :16], block.branch1(x))
    assert torch.equal(out[:, 48:], block.branch_pool(x))


def test_dense_layers_append_to_their_input():
    layer = models.densenet_small().features.block1[0].eval()
    x = torch.randn(2, 24, 8, 8, generator=torch.Generator().manual_seed(0))
    out = layer(x)
    assert out.shape == (2, 36, 8, 8)
    assert torch.equal(out[:, :24], x)


def test_cnn1d_takes_other_channels_classes_and_lengths():
    model = models.cnn1d(in_channels=3, classes=4).eval()
    assert model(torch.zeros(2, 3, 50)).shape == (2, 4)


# --- gcn


def test_gcn_state_holds_the_normalised_adjacency():
    adjacency = models.gcn(nodes=9).state_dict()["adjacency"]
    assert adjacency.shape == (9, 9)
    assert torch.equal(adjacency, adjacency.T)
    assert torch.linalg.eigvalsh(adjacency).max().item() == pytest.approx(1.0, abs=1e-6)


def test_gcn_built_in_graph_is_a_ring_with_chords():
    graph = ring_with_chords(12)
    assert graph.sum(1).tolist() == [4.0, 2.0] * 6
    assert not graph.diagonal().any()
    assert all(graph[node, (node + 1) % 12] == 1 for node in range(12))


def test_gcn_commutes_with_a_renumbering_of_the_nodes():
    order = torch.tensor([3, 0, 4, 1, 2])
    graph = torch.zeros(5, 5)
    for start, end in [(0, 1), (1, 2), (2, 3), (0, 4)]:
        graph[start, end] = graph[end, start] = 1.0
    model = models.gcn(adjacency=graph)
    renumbered = models.gcn(adjacency=graph[order][:, order])
    parameters = {key: value for key, value in model.state_dict().items() if key != "adjacency"}
    renumbered.load_state_dict(parameters, strict=False)
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(renumbered(x[:, order]), model(x)[:, order])


def test_gcn_without_edges_treats_each_node_alone():
    model = models.gcn(adjacency=torch.zeros(4, 4))
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, 0] += 1
    assert torch.equal(model(changed)[:, 1:], model(x)[:, 1:])
    assert not torch.allclose(model(changed)[:, 0], model(x)[:, 0])


@pytest.mark.parametrize(
    ("adjacency", "message"),
    [
        (torch.zeros(3, 4), r"\(3, 4\)"),
        (torch.tensor([[0.0, 1.0], [0.0, 0.0]]), "symmetric"),
        (torch.tensor([[0.0, -1.0], [-1.0, 0.0]]), "non-negative"),
    ],
)
def test_gcn_refuses_what_is_not_an_adjacency(adjacency, message):
    with pytest.raises(ValueError, match=message):
        normalised_adjacency(adjacency)


# --- vit


def test_vit_names_are_those_of_timm():
    state = without_weights("vit_s16").state_dict()
    assert len(state) == 152
    assert state["pos_embed"].shape == (1, 197, 384)
    assert state["blocks.11.attn.qkv.weight"].shape == (1152, 384)
    assert state["blocks.0.mlp.fc1.weight"].shape == (1536, 384)
    assert {"cls_token", "patch_embed.proj.weight", "norm.bias", "head.weight"} <= set(state)


def test_vit_attention_is_softmax_attention():
    attention = models.vit_tiny_test().blocks[0].attn
    x = torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(0))
    query, key, value = (part.unflatten(2, (3, 16)).transpose(1, 2) for part in attention.qkv(x).chunk(3, dim=2))
    weights = (query @ key.transpose(2, 3) / 16**0.5).softmax(dim=3)
    expected = attention.proj((weights @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), expected)


@pytest.mark.parametrize("arguments", [{"image": 30}, {"heads": 5}])
def test_vit_refuses_sizes_that_do_not_divide(arguments):
    with pytest.raises(ValueError, match="must divide"):
        models.vit_tiny_test(**arguments)
