"""A residual bottleneck that halves the side, with a pooled projection as its shortcut."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def tail_kernel(h_ptr, s_ptr, out_ptr, width, pixels, BLOCK: tl.constexpr):
    # relu(h + the mean of each 2x2 block of s)
    plane = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = at < pixels
    row = at // width
    col = at % width
    corner = s_ptr + plane * pixels * 4 + row * 4 * width + col * 2
    total = tl.load(corner, mask=keep, other=0.0) + tl.load(corner + 1, mask=keep, other=0.0)
    total += tl.load(corner + 2 * width, mask=keep, other=0.0)
    total += tl.load(corner + 2 * width + 1, mask=keep, other=0.0)
    h = tl.load(h_ptr + plane * pixels + at, mask=keep, other=0.0)
    tl.store(out_ptr + plane * pixels + at, tl.maximum(h + 0.25 * total, 0.0), mask=keep)
"""

_PRODUCT_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def pointwise_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, channels, outputs, pixels,
                     BLOCK_O: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr):
    # a pointwise convolution of channels-first maps, with its bias and ReLU, in full single precision
    image = tl.program_id(2).to(tl.int64)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    acc = tl.zeros((BLOCK_O, BLOCK_P), dtype=tl.float32)
    for start in range(0, channels, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        w_keep = (o[:, None] < outputs) & (k[None, :] < channels)
        w = tl.load(weight_ptr + o[:, None] * channels + k[None, :], mask=w_keep, other=0.0)
        x_keep = (k[:, None] < channels) & (p[None, :] < pixels)
        x = tl.load(x_ptr + (image * channels + k[:, None]) * pixels + p[None, :], mask=x_keep, other=0.0)
        acc += tl.dot(w, x, input_precision="ieee")
    acc += tl.load(bias_ptr + o, mask=o < outputs, other=0.0)[:, None]
    keep = (o[:, None] < outputs) & (p[None, :] < pixels)
    tl.store(out_ptr + (image * outputs + o[:, None]) * pixels + p[None, :], tl.maximum(acc, 0.0), mask=keep)
"""

_INIT = """
    self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
    self.bn1 = nn.BatchNorm2d(width)
    self.conv2 = nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False)
    self.bn2 = nn.BatchNorm2d(width)
    self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
    self.bn3 = nn.BatchNorm2d(4 * width)
    self.shortcut = nn.Conv2d(channels, 4 * width, 1, bias=False)
    self.bn4 = nn.BatchNorm2d(4 * width)
    for bn in (self.bn1, self.bn2, self.bn3, self.bn4):
        nn.init.uniform_(bn.weight, 0.5, 1.5)
        nn.init.normal_(bn.bias, std=0.1)
        bn.running_mean.normal_(0.0, 0.1)
        bn.running_var.uniform_(0.5, 1.5)
"""

_FOLDED = """
    convs = (self.conv1, self.conv2, self.conv3, self.shortcut)
    norms = (self.bn1, self.bn2, self.bn3, self.bn4)
    with torch.no_grad():
        for i, (conv, bn) in enumerate(zip(convs, norms), 1):
            scale = bn.weight * torch.rsqrt(bn.running_var + bn.eps)
            self.register_buffer(f"w{i}", conv.weight * scale[:, None, None, None])
            self.register_buffer(f"b{i}", bn.bias - bn.running_mean * scale)
"""

MODULE = Rewritten(
    name="bottleneck_downsample",
    sizes="""
        batch_size = 16
        channels = 256
        width = 128
        side = 56
    """,
    arguments=("channels", "width"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, side, side)]",
    reference=Body(
        summary="A bottleneck of stride two, whose shortcut is projected and then averaged.",
        init=_INIT,
        forward="""
            h = F.relu(self.bn1(self.conv1(x)))
            h = F.relu(self.bn2(self.conv2(h)))
            h = self.bn3(self.conv3(h))
            s = F.avg_pool2d(self.bn4(self.shortcut(x)), 2)
            return F.relu(h + s)
        """,
    ),
    rewrites={
        "shortcut_pooled_first": Body(
            summary="Averages commute with the pointwise projection and its norm, and are cheaper before them.",
            forward="""
                h = F.relu(self.bn1(self.conv1(x)), inplace=True)
                h = F.relu(self.bn2(self.conv2(h)), inplace=True)
                h = self.bn3(self.conv3(h))
                s = self.bn4(self.shortcut(F.avg_pool2d(x, 2)))
                return F.relu(h.add_(s), inplace=True)
            """,
        ),
        "norms_folded": Body(
            init=_INIT + _FOLDED,
            forward="""
                h = F.conv2d(x, self.w1, self.b1).relu_()
                h = F.conv2d(h, self.w2, self.b2, stride=2, padding=1).relu_()
                h = F.conv2d(h, self.w3, self.b3)
                h += F.avg_pool2d(F.conv2d(x, self.w4, self.b4), 2)
                return h.relu_()
            """,
        ),
        "folded_and_joined": Body(
            summary="Norms folded, the shortcut pooled first, and both last projections in one convolution.",
            init=_INIT
            + _FOLDED
            + """
    self.register_buffer("w_last", torch.cat([self.w3, self.w4], dim=1))
    self.register_buffer("b_last", self.b3 + self.b4)
""",
            forward="""
                h = F.conv2d(x, self.w1, self.b1).relu_()
                h = F.conv2d(h, self.w2, self.b2, stride=2, padding=1).relu_()
                both = torch.cat([h, F.avg_pool2d(x, 2)], dim=1)
                return F.conv2d(both, self.w_last, self.b_last).relu_()
            """,
        ),
        "box_convolution_shortcut": Body(
            summary="Projection and pooling of the shortcut as one 2x2 convolution of stride two.",
            init=_INIT
            + _FOLDED
            + """
    self.register_buffer("w_box", (self.w4 / 4).expand(-1, -1, 2, 2).contiguous())
    self.register_buffer("b_last", self.b3 + self.b4)
""",
            forward="""
                h = F.relu_(F.conv2d(x, self.w1, self.b1))
                h = F.relu_(F.conv2d(h, self.w2, self.b2, 2, 1))
                h = F.conv2d(h, self.w3)
                h += F.conv2d(x, self.w_box, self.b_last, 2)
                return F.relu_(h)
            """,
        ),
        "first_projections_joined": Body(
            summary="""A bottleneck whose input is read once.

    The first convolution and the shortcut's see the same pixels, so that one wide convolution computes both.
    """,
            init=_INIT
            + _FOLDED
            + """
    self.narrow = width
    self.register_buffer("w_wide", torch.cat([self.w1, self.w4]))
    self.register_buffer("b_wide", torch.cat([self.b1, self.b4]))
""",
            methods='''
                def _enter(self, x):
                    """Main path and shortcut out of one convolution."""
                    wide = F.conv2d(x, self.w_wide, self.b_wide)
                    main, shortcut = wide.split([self.narrow, wide.shape[1] - self.narrow], dim=1)
                    return F.relu(main), F.avg_pool2d(shortcut, kernel_size=2, stride=2)
            ''',
            forward="""
                h, shortcut = self._enter(x)
                h = F.conv2d(h, self.w2, self.b2, stride=2, padding=1)
                h = F.relu(h, inplace=True)
                h = F.conv2d(h, self.w3, self.b3)
                return torch.relu_(h.add_(shortcut))
            """,
        ),
        "products_and_strided_slices": Body(
            summary="Pointwise convolutions as batched products; the pool as a mean of four strided slices.",
            init=_INIT + _FOLDED,
            methods="""
                def _point(self, x, weight, bias):
                    y = torch.matmul(weight.flatten(1), x.flatten(2)) + bias[:, None]
                    return y.view(x.shape[0], -1, *x.shape[2:])
            """,
            forward="""
                h = self._point(x, self.w1, self.b1).relu_()
                h = F.conv2d(h, self.w2, self.b2, stride=2, padding=1).relu_()
                h = self._point(h, self.w3, self.b3)
                pooled = x[:, :, ::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, ::2] + x[:, :, 1::2, 1::2]
                s = self._point(pooled.mul_(0.25), self.w4, self.b4)
                return h.add_(s).relu_()
            """,
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            init=_INIT + _FOLDED,
            forward="""
                h = F.relu_(F.conv2d(x, self.w1, self.b1))
                h = F.relu_(F.conv2d(h, self.w2, self.b2, stride=2, padding=1))
                h = F.conv2d(h, self.w3, self.b3).contiguous()
                s = F.conv2d(x, self.w4, self.b4).contiguous()
                out = torch.empty_like(h)
                B, C, H, W = h.shape
                tail_kernel[(B * C, triton.cdiv(H * W, 1024))](h, s, out, W, H * W, BLOCK=1024)
                return out
            """,
        ),
        "triton_pointwise": Body(
            summary="Own kernel for the first pointwise convolution, fused with its norm and ReLU.",
            before=_PRODUCT_KERNEL,
            init=_INIT + _FOLDED,
            forward="""
                x = x.contiguous()
                B, C, H, W = x.shape
                width = self.w1.shape[0]
                h = torch.empty(B, width, H, W, device=x.device)
                grid = (triton.cdiv(H * W, 64), triton.cdiv(width, 64), B)
                pointwise_kernel[grid](
                    x, self.w1, self.b1, h, C, width, H * W, BLOCK_O=64, BLOCK_P=64, BLOCK_K=32, num_warps=4
                )
                h = F.conv2d(h, self.w2, self.b2, stride=2, padding=1).relu_()
                h = F.conv2d(h, self.w3, self.b3)
                s = F.conv2d(F.avg_pool2d(x, 2), self.w4, self.b4)
                return h.add_(s).relu_()
            """,
        ),
    },
    images=True,
    carries_on="folded_and_joined",
)
