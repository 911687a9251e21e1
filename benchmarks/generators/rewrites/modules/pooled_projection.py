"""A linear layer on every token, batch norm in evaluation mode, the mean over tokens, and tanh."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_MEAN_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def mean_kernel(x_ptr, out_ptr, tokens, features, BLOCK_T: tl.constexpr, BLOCK_F: tl.constexpr):
    item = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    base = x_ptr + item * tokens * features
    acc = tl.zeros((BLOCK_T, BLOCK_F), dtype=tl.float32)
    for start in range(0, tokens, BLOCK_T):
        rows = start + tl.arange(0, BLOCK_T)
        keep = (rows[:, None] < tokens) & (cols[None, :] < features)
        acc += tl.load(base + rows[:, None] * features + cols[None, :], mask=keep, other=0.0)
    tl.store(out_ptr + item * features + cols, tl.sum(acc, axis=0) / tokens, mask=cols < features)
"""

_AFFINE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def pool_kernel(y_ptr, scale_ptr, shift_ptr, out_ptr, tokens, width, BLOCK: tl.constexpr):
    item = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = cols < width
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for token in range(0, tokens):
        total += tl.load(y_ptr + (item * tokens + token) * width + cols, mask=keep, other=0.0)
    scale = tl.load(scale_ptr + cols, mask=keep, other=0.0)
    shift = tl.load(shift_ptr + cols, mask=keep, other=0.0)
    z = total / tokens * scale + shift
    tl.store(out_ptr + item * width + cols, 2.0 * tl.sigmoid(2.0 * z) - 1.0, mask=keep)
"""

_INIT = """
    self.linear = nn.Linear(features, width)
    self.norm = nn.BatchNorm1d(width)
    with torch.no_grad():
        self.norm.weight.uniform_(0.5, 1.5)
        self.norm.bias.uniform_(-0.5, 0.5)
        self.norm.running_mean.uniform_(-0.2, 0.2)
        self.norm.running_var.uniform_(0.2, 0.6)
"""

_FOLDED = """
    with torch.no_grad():
        scale = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)
        self.register_buffer("weight", self.linear.weight * scale[:, None])
        self.register_buffer("bias", (self.linear.bias - self.norm.running_mean) * scale + self.norm.bias)
"""

MODULE = Rewritten(
    name="pooled_projection",
    sizes="""
        batch_size = 32
        tokens = 196
        features = 768
        width = 1024
    """,
    arguments=("features", "width"),
    takes="x",
    inputs="[torch.randn(batch_size, tokens, features) + 0.5 * torch.randn(batch_size, 1, features)]",
    reference=Body(
        summary="Projects tokens, normalises the channels by running statistics, and pools over tokens.",
        init=_INIT,
        forward="""
            y = self.linear(x)
            y = self.norm(y.transpose(1, 2))
            y = y.mean(dim=2)
            return torch.tanh(y)
        """,
    ),
    rewrites={
        "mean_first": Body(
            forward="""
                # All is linear up to the mean, so take the mean first.
                return torch.tanh(self.norm(self.linear(x.mean(dim=1))))
            """
        ),
        "folded_norm": Body(
            init=_INIT + _FOLDED,
            forward="return F.linear(x, self.weight, self.bias).mean(dim=1).tanh_()",
        ),
        "mean_first_folded": Body(
            init=_INIT + _FOLDED,
            forward="return torch.addmm(self.bias, x.mean(dim=1), self.weight.t()).tanh_()",
        ),
        "flat_norm": Body(
            summary="Tokens and batch in one dimension, so that no transposition is needed.",
            forward="""
                batch, tokens, features = x.shape
                y = self.norm(F.linear(x.reshape(-1, features), self.linear.weight, self.linear.bias))
                return torch.tanh_(y.view(batch, tokens, -1).mean(dim=1))
            """,
        ),
        "pooling_product": Body(
            summary="The mean over tokens as a product with a row of equal weights, before the folded layer.",
            init=_INIT
            + _FOLDED
            + """
    self.rows = {}
""",
            forward="""
                pooled = torch.matmul(self.row(x), x).squeeze(-2)
                return torch.tanh(F.linear(pooled, self.weight, self.bias))
            """,
            methods="""
                def row(self, x):
                    tokens = x.shape[1]
                    key = (tokens, x.device, x.dtype)
                    found = self.rows.get(key)
                    if found is None:
                        found = torch.full((1, tokens), 1.0 / tokens, device=x.device, dtype=x.dtype)
                        self.rows[key] = found
                    return found
            """,
        ),
        "convolution": Body(
            summary="The projection as a pointwise convolution, then adaptive pooling.",
            init=_INIT + _FOLDED,
            forward="""
                y = F.conv1d(x.transpose(1, 2), self.weight.unsqueeze(-1), self.bias)
                return torch.tanh(F.adaptive_avg_pool1d(y, 1).squeeze(-1))
            """,
        ),
        "triton_mean": Body(
            before=_MEAN_KERNEL,
            init=_INIT + _FOLDED,
            forward="""
                x = x.contiguous()
                batch, tokens, features = x.shape
                pooled = torch.empty(batch, features, device=x.device)
                mean_kernel[(batch, triton.cdiv(features, 64))](
                    x, pooled, tokens, features, BLOCK_T=32, BLOCK_F=64, num_warps=4
                )
                return torch.addmm(self.bias, pooled, self.weight.t()).tanh_()
            """,
        ),
        "triton_pool": Body(
            summary="Keeps the projection of all tokens; norm, mean and tanh are one kernel.",
            before=_AFFINE_KERNEL,
            init=_INIT
            + """
    with torch.no_grad():
        scale = self.norm.weight / torch.sqrt(self.norm.running_var + self.norm.eps)
        self.register_buffer("scale", scale)
        self.register_buffer("shift", self.norm.bias - self.norm.running_mean * scale)
""",
            forward="""
                y = self.linear(x)
                batch, tokens, width = y.shape
                out = torch.empty(batch, width, device=x.device)
                pool_kernel[(batch, triton.cdiv(width, 256))](
                    y, self.scale, self.shift, out, tokens, width, BLOCK=256
                )
                return out
            """,
        ),
    },
    carries_on="mean_first_folded",
)
