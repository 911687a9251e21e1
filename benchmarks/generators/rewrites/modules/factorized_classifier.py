"""A small classifier of two linear layers with batch norm between them, and log-probabilities."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_WHOLE = """
import triton
import triton.language as tl


@triton.jit
def classify_kernel(
    x_ptr, w_ptr, b_ptr, out_ptr, features, classes, BF: tl.constexpr, BC: tl.constexpr
):
    # one row of the batch in each program; w is (features, classes)
    row = tl.program_id(0)
    f = tl.arange(0, BF)
    c = tl.arange(0, BC)
    acc = tl.load(b_ptr + c, mask=c < classes, other=float("-inf"))
    for start in range(0, features, BF):
        at = start + f
        x = tl.load(x_ptr + row * features + at, mask=at < features, other=0.0)
        w = tl.load(
            w_ptr + at[:, None] * classes + c[None, :],
            mask=(at[:, None] < features) & (c[None, :] < classes), other=0.0,
        )
        acc += tl.sum(x[:, None] * w, axis=0)
    top = tl.max(acc, axis=0)
    total = tl.sum(tl.exp(acc - top), axis=0)
    tl.store(out_ptr + row * classes + c, acc - top - tl.log(total), mask=c < classes)
"""

_TAIL = """
import triton
import triton.language as tl


@triton.jit
def log_softmax_kernel(y_ptr, out_ptr, classes, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    y = tl.load(y_ptr + row * classes + c, mask=c < classes, other=float("-inf")) * scale
    y = y - tl.max(y, axis=0)
    y = y - tl.log(tl.sum(tl.exp(y), axis=0))
    tl.store(out_ptr + row * classes + c, y, mask=c < classes)
"""

_INIT = """
    self.reduce = nn.Linear(features, rank, bias=False)
    self.norm = nn.BatchNorm1d(rank)
    self.expand = nn.Linear(rank, classes)
    self.temperature = 2.0
    nn.init.uniform_(self.norm.weight, 0.5, 1.5)
    nn.init.normal_(self.norm.running_mean, std=0.2)
    nn.init.uniform_(self.norm.running_var, 0.2, 1.0)
"""

_FOLDED = (
    _INIT
    + """
    with torch.no_grad():
        gain = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)
        shift = self.norm.bias - self.norm.running_mean * gain
        first = self.reduce.weight * gain[:, None]
        weight = self.expand.weight @ first / self.temperature
        bias = (self.expand.weight @ shift + self.expand.bias) / self.temperature
        self.register_buffer("weight", weight.t().contiguous())
        self.register_buffer("bias", bias)
"""
)

MODULE = Rewritten(
    name="factorized_classifier",
    sizes="""
        batch_size = 96
        features = 256
        rank = 32
        classes = 50
    """,
    arguments=("features", "rank", "classes"),
    takes="x",
    inputs="[torch.randn(batch_size, features)]",
    reference=Body(
        summary="A narrow linear layer, batch norm, a linear layer to classes, a temperature, log-probabilities.",
        init=_INIT,
        forward="""
            h = self.reduce(x)
            h = self.norm(h)
            y = self.expand(h)
            y = y / self.temperature
            return torch.log(torch.softmax(y, dim=-1))
        """,
    ),
    rewrites={
        "log_softmax": Body(
            forward="""
                y = self.expand(self.norm(self.reduce(x)))
                return F.log_softmax(y / self.temperature, dim=-1)
            """
        ),
        "one_matrix": Body(
            summary="All that comes before the softmax is affine: one matrix and one bias.",
            init=_FOLDED,
            forward="return torch.log_softmax(torch.addmm(self.bias, x, self.weight), dim=-1)",
        ),
        "folded_norm": Body(
            summary="Batch norm and the temperature go into the second layer; the low rank is kept.",
            init=_INIT
            + """
    self._fold()
""",
            forward="""
                h = torch.mm(x, self.first)
                y = torch.addmm(self.second_bias, h, self.second)
                return F.log_softmax(y, dim=1)
            """,
            methods="""
                @torch.no_grad()
                def _fold(self):
                    gain = self.norm.weight / torch.sqrt(self.norm.running_var + self.norm.eps)
                    shift = self.norm.bias - self.norm.running_mean * gain
                    second = self.expand.weight / self.temperature
                    bias = self.expand.bias / self.temperature + second @ shift
                    self.register_buffer("first", self.reduce.weight.t().contiguous())
                    self.register_buffer("second", (second * gain).t().contiguous())
                    self.register_buffer("second_bias", bias)
            """,
        ),
        "folded_each_call": Body(
            summary="Folds batch norm into the first layer on the fly, which is right in evaluation mode.",
            forward="""
                gain = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)
                weight = self.reduce.weight * gain.unsqueeze(1)
                bias = self.norm.bias - self.norm.running_mean * gain
                h = F.linear(x, weight, bias)
                y = self.expand(h).div_(self.temperature)
                return F.log_softmax(y, dim=-1)
            """,
        ),
        "norm_by_hand": Body(
            forward="""
                h = x @ self.reduce.weight.t()
                h = (h - self.norm.running_mean) / torch.sqrt(self.norm.running_var + self.norm.eps)
                h = h * self.norm.weight + self.norm.bias
                y = (h @ self.expand.weight.t() + self.expand.bias) / self.temperature
                return y - y.logsumexp(dim=-1, keepdim=True)
            """
        ),
        "functional_checked": Body(
            summary="Functional calls behind checks of shape, with a fallback for vectors.",
            forward="""
                squeeze = False
                if x.dim() == 1:
                    x, squeeze = x.unsqueeze(0), True
                if not x.is_contiguous():
                    x = x.contiguous()
                y = self._logits(x)
                y = F.log_softmax(y.mul_(1.0 / self.temperature), dim=-1)
                return y.squeeze(0) if squeeze else y
            """,
            methods="""
                def _logits(self, x):
                    norm = self.norm
                    h = F.linear(x, self.reduce.weight)
                    h = F.batch_norm(
                        h, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
                    )
                    return F.linear(h, self.expand.weight, self.expand.bias)
            """,
        ),
        "triton_whole": Body(
            before=_WHOLE,
            init=_FOLDED,
            forward="""
                x = x.contiguous()
                features, classes = self.weight.shape
                out = torch.empty(x.shape[0], classes, device=x.device, dtype=x.dtype)
                block = triton.next_power_of_2(classes)
                classify_kernel[(x.shape[0],)](
                    x, self.weight, self.bias, out, features, classes, BF=64, BC=block, num_warps=4
                )
                return out
            """,
        ),
        "triton_tail": Body(
            before=_TAIL,
            forward="""
                y = self.expand(self.norm(self.reduce(x)))
                out = torch.empty_like(y)
                block = triton.next_power_of_2(y.shape[1])
                log_softmax_kernel[(y.shape[0],)](y, out, y.shape[1], 1.0 / self.temperature, BLOCK=block, num_warps=1)
                return out
            """,
        ),
    },
    carries_on="one_matrix",
)
