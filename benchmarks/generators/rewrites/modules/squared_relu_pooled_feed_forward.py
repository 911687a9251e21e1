"""A feed-forward network with a squared rectifier, the mean over tokens, and a scale per feature."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_POOL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def pool_kernel(h_ptr, out_ptr, tokens, width, BLOCK: tl.constexpr, STEP: tl.constexpr):
    # mean over tokens of relu(h)^2; h: (batch, tokens, width)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    base = tl.program_id(1) * tokens
    keep = col < width
    sums = tl.zeros((STEP, BLOCK), dtype=tl.float32)
    for start in range(0, tokens, STEP):
        token = start + tl.arange(0, STEP)
        inside = (token[:, None] < tokens) & keep[None, :]
        h = tl.load(h_ptr + (base + token[:, None]) * width + col[None, :], mask=inside, other=0.0)
        h = tl.maximum(h, 0.0)
        sums += h * h
    tl.store(out_ptr + tl.program_id(1) * width + col, tl.sum(sums, axis=0) / tokens, mask=keep)
"""

_PRODUCT_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def up_pool_kernel(x_ptr, w_ptr, bias_ptr, out_ptr, tokens, depth, width, BLOCK_M: tl.constexpr,
                   BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    # sum over a tile of tokens of relu(x w^T + bias)^2, added to out: (batch, width)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    sample = tl.program_id(2)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, depth, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(
            x_ptr + (sample * tokens + m[:, None]) * depth + k[None, :],
            mask=(m[:, None] < tokens) & (k[None, :] < depth), other=0.0,
        )
        w = tl.load(
            w_ptr + n[None, :] * depth + k[:, None], mask=(n[None, :] < width) & (k[:, None] < depth), other=0.0
        )
        acc += tl.dot(x, w, input_precision="ieee")
    acc += tl.load(bias_ptr + n, mask=n < width, other=0.0)[None, :]
    acc = tl.where(m[:, None] < tokens, tl.maximum(acc, 0.0), 0.0)
    tl.atomic_add(out_ptr + sample * width + n, tl.sum(acc * acc, axis=0), mask=n < width)
"""

_INIT = """
    self.up = nn.Linear(width, hidden)
    self.down = nn.Linear(hidden, width)
    self.scale = nn.Parameter(torch.randn(width))
"""

_FOLDED = """
    with torch.no_grad():
        self.register_buffer("scaled_weight", self.down.weight * self.scale[:, None])
        self.register_buffer("scaled_bias", self.down.bias * self.scale)
"""

MODULE = Rewritten(
    name="squared_relu_pooled_feed_forward",
    sizes="""
        batch_size = 16
        tokens = 256
        width = 512
        hidden = 2048
    """,
    arguments=("width", "hidden"),
    takes="x",
    inputs="[torch.randn(batch_size, tokens, width)]",
    reference=Body(
        summary="A position-wise network with relu(x)^2 between its layers, pooled over tokens.",
        init=_INIT,
        forward="""
            h = self.up(x)
            h = torch.pow(torch.relu(h), 2)
            y = self.down(h)
            y = y.mean(dim=1)
            return y * self.scale
        """,
    ),
    rewrites={
        "mean_before_down": Body(
            summary="The mean goes before the second layer, which is linear.",
            init=_INIT + _FOLDED,
            forward="""
                h = F.relu(self.up(x))
                pooled = (h * h).mean(dim=1)
                return F.linear(pooled, self.scaled_weight, self.scaled_bias)
            """,
        ),
        "norm_over_tokens": Body(
            summary="""The mean of squares over tokens is a squared norm.

    The second layer is linear, so that it can act on the mean over tokens; and the mean of relu(x)^2 is the squared
    Euclidean norm along the tokens divided by their number, which the library finds in one pass. That number and
    the scale are part of the second weight.
    """,
            init=_INIT
            + _FOLDED
            + """
    self._divided = {}
""",
            methods='''
                def _weight_for(self, tokens):
                    """The second weight with the scale of each feature, divided by the number of tokens."""
                    key = (tokens, self.scaled_weight.device, self.scaled_weight.dtype)
                    if key not in self._divided:
                        self._divided.clear()
                        self._divided[key] = (self.scaled_weight / tokens).t().contiguous()
                    return self._divided[key]
            ''',
            forward="""
                h = F.relu(self.up(x), inplace=True)
                squares = torch.linalg.vector_norm(h, dim=1).square_()
                return torch.addmm(self.scaled_bias, squares, self._weight_for(x.shape[1]))
            """,
        ),
        "square_in_place": Body(
            forward="""
                h = self.up(x).relu_()
                h.mul_(h)
                return self.down(h).mean(dim=1).mul_(self.scale)
            """
        ),
        "folded_scale": Body(
            init=_INIT + _FOLDED,
            forward="""
                h = F.relu(self.up(x)).square()
                return F.linear(h, self.scaled_weight, self.scaled_bias).mean(dim=1)
            """,
        ),
        "flattened_products": Body(
            summary="Tokens of all samples as rows of two products with addends, and the mean as a third product.",
            forward="""
                B, T, C = x.shape
                h = torch.addmm(self.up.bias, x.reshape(B * T, C), self.up.weight.t())
                h = h.clamp_(min=0.0)
                h = h * h
                y = torch.addmm(self.down.bias, h, self.down.weight.t()).view(B, T, C)
                mean = torch.full((B, 1, T), 1.0 / T, device=x.device, dtype=x.dtype)
                return torch.bmm(mean, y).squeeze(1) * self.scale
            """,
        ),
        "einsum_of_squares": Body(
            summary="Squares and their sum over tokens in one contraction.",
            forward="""
                h = torch.relu(self.up(x))
                pooled = torch.einsum("bth,bth->bh", h, h) / x.shape[1]
                return self.down(pooled) * self.scale
            """,
        ),
        "token_chunks": Body(
            summary="Tokens in chunks, so that the wide features of a few tokens only are in memory.",
            init=_INIT + "\n    self.chunk = 16\n",
            forward="""
                total = torch.zeros(x.shape[0], x.shape[2], device=x.device, dtype=x.dtype)
                for part in x.split(self.chunk, dim=1):
                    h = F.relu(self.up(part))
                    total = total + self.down(h * h).sum(dim=1)
                return total / x.shape[1] * self.scale
            """,
        ),
        "triton_pool": Body(
            before=_POOL_KERNEL,
            init=_INIT + _FOLDED,
            forward="""
                B, T, _ = x.shape
                h = self.up(x)
                width = h.shape[-1]
                pooled = torch.empty(B, width, device=x.device)
                pool_kernel[(triton.cdiv(width, 64), B)](h, pooled, T, width, BLOCK=64, STEP=32)
                return F.linear(pooled, self.scaled_weight, self.scaled_bias)
            """,
        ),
        "triton_product": Body(
            summary="First layer, rectifier, square and sum over tokens in a kernel with an own matrix product.",
            before=_PRODUCT_KERNEL,
            init=_INIT + _FOLDED,
            forward="""
                B, T, C = x.shape
                width = self.up.out_features
                sums = torch.zeros(B, width, device=x.device)
                grid = (triton.cdiv(T, 64), triton.cdiv(width, 64), B)
                up_pool_kernel[grid](
                    x.contiguous(), self.up.weight, self.up.bias, sums, T, C, width, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32
                )
                return F.linear(sums.div_(T), self.scaled_weight, self.scaled_bias)
            """,
        ),
    },
    carries_on="mean_before_down",
)
