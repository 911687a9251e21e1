"""A convolution, batch normalisation, a scale per channel, the mean over space and leaky ReLU."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_MEAN_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def plane_mean_kernel(y_ptr, factor_ptr, shift_ptr, out_ptr, channels, area, slope, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, area, BLOCK):
        pixels = start + tl.arange(0, BLOCK)
        total += tl.load(y_ptr + plane * area + pixels, mask=pixels < area, other=0.0)
    mean = tl.sum(total, axis=0) / area
    channel = plane % channels
    mean = mean * tl.load(factor_ptr + channel) + tl.load(shift_ptr + channel)
    tl.store(out_ptr + plane, tl.where(mean >= 0.0, mean, mean * slope))
"""

_BORDER_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def window_sums_kernel(x_ptr, out_ptr, height, width, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    area = height * width
    whole = tl.zeros((BLOCK,), dtype=tl.float32)
    top = tl.zeros((BLOCK,), dtype=tl.float32)
    bottom = tl.zeros((BLOCK,), dtype=tl.float32)
    left = tl.zeros((BLOCK,), dtype=tl.float32)
    right = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, area, BLOCK):
        pixels = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + plane * area + pixels, mask=pixels < area, other=0.0)
        row = pixels // width
        column = pixels % width
        whole += x
        top += tl.where(row == 0, x, 0.0)
        bottom += tl.where(row == height - 1, x, 0.0)
        left += tl.where(column == 0, x, 0.0)
        right += tl.where(column == width - 1, x, 0.0)
    s = tl.sum(whole, axis=0)
    t = tl.sum(top, axis=0)
    b = tl.sum(bottom, axis=0)
    lf = tl.sum(left, axis=0)
    r = tl.sum(right, axis=0)
    first = x_ptr + plane * area
    tl_corner = tl.load(first)
    tr_corner = tl.load(first + width - 1)
    bl_corner = tl.load(first + area - width)
    br_corner = tl.load(first + area - 1)
    out = out_ptr + plane * 9
    tl.store(out + 0, s - b - r + br_corner)
    tl.store(out + 1, s - b)
    tl.store(out + 2, s - b - lf + bl_corner)
    tl.store(out + 3, s - r)
    tl.store(out + 4, s)
    tl.store(out + 5, s - lf)
    tl.store(out + 6, s - t - r + tr_corner)
    tl.store(out + 7, s - t)
    tl.store(out + 8, s - t - lf + tl_corner)
"""

_INIT = """
    self.conv = nn.Conv2d(channels, width, 3, padding=1)
    self.bn = nn.BatchNorm2d(width)
    nn.init.uniform_(self.bn.weight, 0.5, 1.5)
    nn.init.normal_(self.bn.bias, std=0.3)
    self.bn.running_mean.normal_(0.0, 0.1)
    self.bn.running_var.uniform_(0.3, 1.0)
    self.scale = nn.Parameter(torch.randn(width, 1, 1))
"""

_FOLDED = (
    _INIT
    + """
    with torch.no_grad():
        factor = self.bn.weight / torch.sqrt(self.bn.running_var + self.bn.eps)
        shift = self.bn.bias + (self.conv.bias - self.bn.running_mean) * factor
        scale = self.scale.flatten()
        self.register_buffer("weight", self.conv.weight * (factor * scale).view(-1, 1, 1, 1))
        self.register_buffer("bias", shift * scale)
        self.register_buffer("factor", factor * scale)
"""
)

MODULE = Rewritten(
    name="conv_norm_global_mean",
    sizes="""
        batch_size = 64
        channels = 32
        width = 64
        height = width_of_image = 64
    """,
    arguments=("channels", "width"),
    takes="x",
    inputs="[torch.rand(batch_size, channels, height, width_of_image)]",
    reference=Body(
        summary="Convolution, batch normalisation, a scale, global average pooling, leaky ReLU.",
        init=_INIT,
        forward="""
            x = self.conv(x)
            x = self.bn(x)
            x = x * self.scale
            x = x.mean(dim=(2, 3))
            return F.leaky_relu(x, 0.01)
        """,
    ),
    rewrites={
        "folded_into_weights": Body(
            init=_FOLDED,
            forward="""
                y = F.conv2d(x, self.weight, self.bias, padding=1)
                return F.leaky_relu(y.mean(dim=(2, 3)), 0.01, inplace=True)
            """,
        ),
        "norm_after_mean": Body(
            summary="Everything between convolution and activation is affine: do it after the mean.",
            init=_FOLDED,
            forward="""
                y = F.conv2d(x, self.conv.weight, padding=1)
                y = F.adaptive_avg_pool2d(y, 1).flatten(1)
                return F.leaky_relu(torch.addcmul(self.bias, y, self.factor), 0.01)
            """,
        ),
        "window_sums": Body(
            summary="The mean of a convolution is a product of its weights with nine sums over the input.",
            init=_FOLDED + '    self.register_buffer("flat", self.weight.view(width, -1).t().contiguous())\n',
            methods='''
                def sums_under_taps(self, x):
                    """(batch, channels, 3, 3): the sum of the pixels that each tap meets, from the padded image."""
                    total = x.sum(dim=(2, 3))
                    top, bottom = x[:, :, 0].sum(dim=-1), x[:, :, -1].sum(dim=-1)
                    left, right = x[:, :, :, 0].sum(dim=-1), x[:, :, :, -1].sum(dim=-1)
                    rows = (bottom, None, top)
                    columns = (right, None, left)
                    corners = {(0, 0): (-1, -1), (0, 2): (-1, 0), (2, 0): (0, -1), (2, 2): (0, 0)}
                    found = []
                    for i in range(3):
                        for j in range(3):
                            here = total
                            if rows[i] is not None:
                                here = here - rows[i]
                            if columns[j] is not None:
                                here = here - columns[j]
                            if (i, j) in corners:
                                row, column = corners[i, j]
                                here = here + x[:, :, row, column]
                            found.append(here)
                    return torch.stack(found, dim=-1)
            ''',
            forward="""
                sums = self.sums_under_taps(x).flatten(1) / (x.shape[2] * x.shape[3])
                return F.leaky_relu(torch.addmm(self.bias, sums, self.flat), 0.01)
            """,
        ),
        "row_and_column_masks": Body(
            summary="Sums under the nine taps as two small products with constant matrices.",
            init=_FOLDED
            + """
    self.register_buffer("flat", self.weight.view(width, -1).t().contiguous())
    self._masks = {}
""",
            methods='''
                def masks_of(self, size, device):
                    """(3, size): which positions each of three taps meets when it moves over a padded line."""
                    key = (size, device)
                    if key not in self._masks:
                        masks = torch.ones(3, size, device=device)
                        masks[0, -1] = 0.0
                        masks[2, 0] = 0.0
                        self._masks[key] = masks / size
                    return self._masks[key]
            ''',
            forward="""
                rows = self.masks_of(x.shape[2], x.device)
                columns = self.masks_of(x.shape[3], x.device)
                sums = torch.matmul(rows, torch.matmul(x, columns.t()))
                return F.leaky_relu_(torch.addmm(self.bias, sums.flatten(1), self.flat), 0.01)
            """,
        ),
        "shifted_pooling": Body(
            summary="Average pooling with a window as large as the image, moved by one pixel each way.",
            init=_FOLDED,
            forward="""
                n, c, h, w = x.shape
                means = F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), (h, w), stride=1)
                y = F.conv2d(means, self.weight, self.bias)
                return F.leaky_relu(y.flatten(1), 0.01)
            """,
        ),
        "two_step_mean": Body(
            init=_FOLDED,
            forward="""
                y = F.conv2d(x, self.weight, self.bias, padding=1)
                y = y.mean(dim=3).mean(dim=2)
                return torch.maximum(y, 0.01 * y)
            """,
        ),
        "triton_mean": Body(
            before=_MEAN_KERNEL,
            init=_FOLDED,
            forward="""
                y = F.conv2d(x, self.conv.weight, padding=1).contiguous()
                n, c, h, w = y.shape
                out = torch.empty((n, c), device=y.device, dtype=y.dtype)
                plane_mean_kernel[(n * c,)](y, self.factor, self.bias, out, c, h * w, 0.01, BLOCK=1024)
                return out
            """,
        ),
        "triton_window_sums": Body(
            before=_BORDER_KERNEL,
            init=_FOLDED + '    self.register_buffer("flat", self.weight.view(width, -1).t().contiguous())\n',
            forward="""
                x = x.contiguous()
                n, c, h, w = x.shape
                sums = torch.empty((n, c * 9), device=x.device, dtype=x.dtype)
                window_sums_kernel[(n * c,)](x, sums, h, w, BLOCK=1024)
                y = torch.addmm(self.bias, sums, self.flat, alpha=1.0 / (h * w))
                return F.leaky_relu(y, 0.01, inplace=True)
            """,
        ),
    },
    images=True,
    carries_on="folded_into_weights",
)
