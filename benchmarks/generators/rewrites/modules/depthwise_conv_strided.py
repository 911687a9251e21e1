"""A 5x5 depthwise convolution of stride two, alone."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_DEPTHWISE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def depthwise_kernel(x_ptr, weight_ptr, out_ptr, channels, height, width, out_height, out_width,
                     BLOCK: tl.constexpr):
    plane = tl.program_id(0).to(tl.int64)
    taps = weight_ptr + (plane % channels) * 25
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = at < out_height * out_width
    row = at // out_width * 2 - 2
    col = at % out_width * 2 - 2
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for dy in tl.static_range(5):
        for dx in tl.static_range(5):
            r = row + dy
            c = col + dx
            inside = keep & (r >= 0) & (r < height) & (c >= 0) & (c < width)
            v = tl.load(x_ptr + plane * height * width + r * width + c, mask=inside, other=0.0)
            acc += v * tl.load(taps + dy * 5 + dx)
    tl.store(out_ptr + plane * out_height * out_width + at, acc, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A block makes a 16x32 tile of one plane. What it reads is staged in shared memory, with even and odd columns apart,
// so that neighbouring threads read neighbouring words.
constexpr int ROWS = 16, COLS = 32;
constexpr int IN_ROWS = 2 * ROWS + 3, IN_COLS = 2 * COLS + 3, HALF_COLS = (IN_COLS + 1) / 2;

__global__ void depthwise(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out,
                          int channels, int height, int width, int out_height, int out_width) {
    __shared__ float tile[IN_ROWS][2][HALF_COLS];
    __shared__ float taps[25];
    long plane = blockIdx.z;
    int first_row = blockIdx.y * ROWS, first_col = blockIdx.x * COLS;
    int thread = threadIdx.y * COLS + threadIdx.x;
    if (thread < 25) taps[thread] = weight[(plane % channels) * 25 + thread];
    const float* in = x + plane * height * width;
    for (int i = thread; i < IN_ROWS * IN_COLS; i += 8 * COLS) {
        int tr = i / IN_COLS, tc = i % IN_COLS;
        int r = 2 * first_row - 2 + tr, c = 2 * first_col - 2 + tc;
        bool inside = r >= 0 && r < height && c >= 0 && c < width;
        tile[tr][tc % 2][tc / 2] = inside ? in[r * width + c] : 0.0f;
    }
    __syncthreads();
    int col = first_col + threadIdx.x;
    if (col >= out_width) return;
    for (int part = 0; part < ROWS; part += 8) {
        int local = part + threadIdx.y;
        int row = first_row + local;
        if (row >= out_height) break;
        float sum = 0.0f;
        #pragma unroll
        for (int dy = 0; dy < 5; ++dy)
            #pragma unroll
            for (int dx = 0; dx < 5; ++dx)
                sum += tile[2 * local + dy][dx % 2][threadIdx.x + dx / 2] * taps[dy * 5 + dx];
        out[(plane * out_height + row) * out_width + col] = sum;
    }
}

torch::Tensor depthwise_strided(torch::Tensor x, torch::Tensor weight) {
    int channels = x.size(1), height = x.size(2), width = x.size(3);
    int out_height = (height - 1) / 2 + 1, out_width = (width - 1) / 2 + 1;
    auto out = torch::empty({x.size(0), channels, out_height, out_width}, x.options());
    dim3 grid((out_width + COLS - 1) / COLS, (out_height + ROWS - 1) / ROWS, x.size(0) * channels);
    depthwise<<<grid, dim3(COLS, 8)>>>(x.data_ptr<float>(), weight.data_ptr<float>(), out.data_ptr<float>(),
                                       channels, height, width, out_height, out_width);
    return out;
}
"""
depthwise_module = load_inline(
    name="depthwise_conv_strided_tiles",
    cpp_sources="torch::Tensor depthwise_strided(torch::Tensor x, torch::Tensor weight);",
    cuda_sources=source,
    functions=["depthwise_strided"],
)
'''

_INIT = """
    self.conv = nn.Conv2d(channels, channels, 5, stride=2, padding=2, groups=channels, bias=False)
"""

MODULE = Rewritten(
    name="depthwise_conv_strided",
    sizes="""
        batch_size = 8
        channels = 96
        side = 112
    """,
    arguments=("channels",),
    takes="x",
    inputs="[torch.randn(batch_size, channels, side, side)]",
    reference=Body(
        summary="A depthwise convolution that halves the side.",
        init=_INIT,
        forward="return self.conv(x)",
    ),
    rewrites={
        "functional": Body(
            init=_INIT
            + """
    self.register_buffer("taps", self.conv.weight.detach().clone())
""",
            forward="return F.conv2d(x, self.taps, None, 2, 2, 1, x.size(1))",
        ),
        "batch_in_groups": Body(
            summary="Every plane of the batch is a group of one large grouped convolution.",
            forward="""
                B, C, H, W = x.shape
                taps = self.conv.weight.repeat(B, 1, 1, 1)
                y = F.conv2d(x.reshape(1, B * C, H, W), taps, stride=2, padding=2, groups=B * C)
                return y.view(B, C, *y.shape[2:])
            """,
        ),
        "strided_slices": Body(
            summary="""A depthwise convolution without a convolution.

    Each of the 25 taps multiplies a strided slice of the padded maps, and all are added up in place.
    """,
            init=_INIT
            + """
    self.side = 5
""",
            methods='''
                def _slice(self, padded, dy, dx, height, width):
                    """The pixels that one tap meets."""
                    return padded[:, :, dy : dy + 2 * height - 1 : 2, dx : dx + 2 * width - 1 : 2]
            ''',
            forward="""
                padded = F.pad(x, (2, 2, 2, 2))
                height = (x.shape[2] - 1) // 2 + 1
                width = (x.shape[3] - 1) // 2 + 1
                taps = self.conv.weight.view(1, -1, self.side, self.side, 1, 1)
                out = torch.zeros(x.shape[0], x.shape[1], height, width, dtype=x.dtype, device=x.device)
                for dy in range(self.side):
                    for dx in range(self.side):
                        out.addcmul_(self._slice(padded, dy, dx, height, width), taps[:, :, dy, dx])
                return out
            """,
        ),
        "phases": Body(
            summary="""Stride two as four phases of stride one.

    Even and odd rows and columns become channels of a map of half the side (pixel unshuffle), on which the
    5x5 taps are four 3x3 sets with zeros. A grouped convolution with four inputs per group does the rest.
    """,
            init=_INIT
            + """
    with torch.no_grad():
        # taps at even and odd offsets: 5 = 3 + 2
        taps = F.pad(self.conv.weight, (0, 1, 0, 1)).view(channels, 3, 2, 3, 2)
        self.register_buffer("phase_taps", taps.permute(0, 2, 4, 1, 3).reshape(channels, 4, 3, 3))
""",
            forward="""
                C = x.shape[1]
                return F.conv2d(F.pixel_unshuffle(x, 2), self.phase_taps, padding=1, groups=C)
            """,
        ),
        "patches_einsum": Body(
            forward="""
                B, C, H, W = x.shape
                patches = F.unfold(x, 5, padding=2, stride=2).view(B, C, 25, -1)
                y = torch.einsum("bckp,ck->bcp", patches, self.conv.weight.view(C, 25))
                return y.view(B, C, (H + 1) // 2, (W + 1) // 2)
            """
        ),
        "diagonal_dense_convolution": Body(
            summary="A dense convolution with zeros between different channels, for the sake of tensor cores.",
            init=_INIT
            + """
    with torch.no_grad():
        dense = torch.zeros(channels, channels, 5, 5)
        dense[torch.arange(channels), torch.arange(channels)] = self.conv.weight[:, 0]
        self.register_buffer("dense", dense)
""",
            forward="return F.conv2d(x, self.dense, stride=2, padding=2)",
        ),
        "triton_planes": Body(
            before=_DEPTHWISE_KERNEL,
            forward="""
                x = x.contiguous()
                B, C, H, W = x.shape
                out_h, out_w = (H + 1) // 2, (W + 1) // 2
                out = torch.empty(B, C, out_h, out_w, device=x.device)
                grid = (B * C, triton.cdiv(out_h * out_w, 512))
                depthwise_kernel[grid](x, self.conv.weight, out, C, H, W, out_h, out_w, BLOCK=512)
                return out
            """,
        ),
        "cuda_tiles": Body(
            before=_CUDA,
            forward="return depthwise_module.depthwise_strided(x.contiguous(), self.conv.weight)",
        ),
    },
    images=True,
    carries_on="functional",
)
