"""Group normalisation and hard swish of feature maps, both written out, and 2x2 average pooling."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def scale_hardswish_pool(x_ptr, factor_ptr, offset_ptr, out_ptr, height, width, BLOCK: tl.constexpr):
    plane = tl.program_id(0).to(tl.int64)
    half_height = height // 2
    half_width = width // 2
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = at < half_height * half_width
    row = at // half_width
    col = at % half_width
    factor = tl.load(factor_ptr + plane)
    offset = tl.load(offset_ptr + plane)
    corner = x_ptr + plane * height * width + row * 2 * width + col * 2
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for k in tl.static_range(4):
        y = tl.load(corner + (k // 2) * width + k % 2, mask=keep, other=0.0) * factor + offset
        total += y * tl.minimum(tl.maximum(y + 3.0, 0.0), 6.0)
    tl.store(out_ptr + plane * half_height * half_width + at, total / 24.0, mask=keep)
"""

_INIT = """
    self.groups = groups
    self.eps = 1e-5
    self.weight = nn.Parameter(1 + 0.2 * torch.randn(channels))
    self.bias = nn.Parameter(0.2 * torch.randn(channels))
"""

_FOLDED = """
    def _factor_and_offset(self, x):
        n, c = x.shape[:2]
        var, mean = torch.var_mean(x.reshape(n, self.groups, -1), dim=-1, correction=0)
        size = c // self.groups
        factor = torch.rsqrt(var + self.eps).repeat_interleave(size, dim=1) * self.weight
        offset = self.bias - mean.repeat_interleave(size, dim=1) * factor
        return factor, offset
"""

MODULE = Rewritten(
    name="group_norm_hardswish_pool",
    sizes="""
        batch_size = 32
        channels = 128
        groups = 16
        side = 64
    """,
    arguments=("channels", "groups"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, side, side)]",
    images=True,
    reference=Body(
        summary="Normalises groups of channels, applies hard swish and halves the resolution.",
        init=_INIT,
        forward="""
            n, c, h, w = x.shape
            grouped = x.reshape(n, self.groups, -1)
            mean = grouped.mean(dim=-1, keepdim=True)
            var = ((grouped - mean) ** 2).mean(dim=-1, keepdim=True)
            grouped = (grouped - mean) / torch.sqrt(var + self.eps)
            y = grouped.reshape(n, c, h, w) * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
            y = y * torch.clamp(y + 3, 0, 6) / 6
            return F.avg_pool2d(y, kernel_size=2, stride=2)
        """,
    ),
    rewrites={
        "library_calls": Body(
            forward="""
                y = F.group_norm(x, self.groups, self.weight, self.bias, self.eps)
                return F.avg_pool2d(F.hardswish(y, inplace=True), 2)
            """
        ),
        "folded_statistics": Body(
            init=_INIT,
            methods=_FOLDED,
            forward="""
                factor, offset = self._factor_and_offset(x)
                y = torch.addcmul(offset[:, :, None, None], x, factor[:, :, None, None])
                return F.avg_pool2d(F.hardswish(y), 2)
            """,
        ),
        "layer_norm_on_groups": Body(
            forward="""
                n, c, h, w = x.shape
                flat = x.reshape(n * self.groups, -1)
                y = F.layer_norm(flat, flat.shape[1:], eps=self.eps).view(n, c, h, w)
                y = y.mul_(self.weight.view(-1, 1, 1)).add_(self.bias.view(-1, 1, 1))
                return F.avg_pool2d(F.hardswish(y), 2)
            """
        ),
        "batch_norm_on_groups": Body(
            summary="Group normalisation as batch normalisation in which each group of each sample is a channel.",
            forward="""
                n, c, h, w = x.shape
                planes = x.reshape(1, n * self.groups, -1, w)
                y = F.batch_norm(planes, None, None, training=True, eps=self.eps).view(n, c, h, w)
                y = torch.addcmul(self.bias.view(1, c, 1, 1), y, self.weight.view(1, c, 1, 1))
                y = y * F.relu6(y + 3)
                # the division by six goes into the divisor of the pool
                return F.avg_pool2d(y, 2, divisor_override=24)
            """,
        ),
        "strided_pool": Body(
            forward="""
                y = F.group_norm(x, self.groups, self.weight, self.bias, self.eps)
                y = F.hardswish(y)
                rows = y[:, :, 0::2, :] + y[:, :, 1::2, :]
                return (rows[..., 0::2] + rows[..., 1::2]) * 0.25
            """
        ),
        "sample_loop": Body(
            init=_INIT + "    self.norm_shape = None\n",
            methods="""
                def _one(self, image):
                    y = F.group_norm(image, self.groups, self.weight, self.bias, self.eps)
                    y = F.hardswish(y, inplace=True)
                    return F.avg_pool2d(y, kernel_size=2, stride=2)
            """,
            forward="""
                n, c, h, w = x.shape
                out = torch.empty(n, c, h // 2, w // 2, device=x.device, dtype=x.dtype)
                for i in range(n):
                    out[i : i + 1] = self._one(x[i : i + 1])
                return out
            """,
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            init=_INIT,
            methods=_FOLDED,
            summary="Statistics by one library reduction; scale, hard swish and pooling in one pass.",
            forward="""
                x = x.contiguous()
                n, c, h, w = x.shape
                factor, offset = self._factor_and_offset(x)
                out = torch.empty(n, c, h // 2, w // 2, device=x.device)
                grid = (n * c, triton.cdiv((h // 2) * (w // 2), 512))
                scale_hardswish_pool[grid](x, factor, offset, out, h, w, BLOCK=512, num_warps=4)
                return out
            """,
        ),
    },
    carries_on="library_calls",
)
