"""Vision transformers classify images as sequences of patches; the parameter names are those of timm.

Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale", ICLR 2021;
the small size is that of Touvron et al., "Training data-efficient image transformers & distillation through attention",
ICML 2021.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# That of timm, where torch has 1e-5: weights that were trained there give the same outputs here.
_NORM_EPS = 1e-6


class PatchEmbedding(nn.Module):
    """A patch embedding cuts the image into square patches and embeds each: (N, 3, H, W) to (N, patches, dim)."""

    def __init__(self, patch: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """This is multi-head self-attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        # (N, tokens, 3 dim) -> three times (N, heads, tokens, dim / heads)
        per_head = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = per_head.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """A feed-forward block is two linear layers with a GELU between, applied to each token."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """This is a pre-norm transformer block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=_NORM_EPS)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=_NORM_EPS)
        self.mlp = FeedForward(dim, 4 * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """A vision transformer takes patches and a class token through `depth` blocks; a linear layer reads the token."""

    def __init__(self, image: int, patch: int, dim: int, depth: int, heads: int, num_classes: int) -> None:
        super().__init__()
        if image % patch or dim % heads:
            raise ValueError(f"patch={patch} must divide image={image}, and heads={heads} must divide dim={dim}")
        patches = (image // patch) ** 2
        self.patch_embed = PatchEmbedding(patch, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, patches + 1, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=_NORM_EPS)
        self.head = nn.Linear(dim, num_classes)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x)
        class_token = self.cls_token.expand(patches.shape[0], -1, -1)
        tokens = torch.cat([class_token, patches], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(tokens))[:, 0])


def vit_s16(num_classes: int = 1000, image: int = 224) -> VisionTransformer:
    """Build ViT-S/16: 12 blocks of dimension 384 with 6 heads (Dosovitskiy et al. 2021, Touvron et al. 2021)."""
    return VisionTransformer(image, patch=16, dim=384, depth=12, heads=6, num_classes=num_classes)


def vit_tiny_test(
    image: int = 32, patch: int = 8, dim: int = 48, depth: int = 2, heads: int = 3, classes: int = 10
) -> VisionTransformer:
    """Build a vision transformer that runs in milliseconds, for tests (Dosovitskiy et al. 2021)."""
    return VisionTransformer(image, patch, dim, depth, heads, classes)
