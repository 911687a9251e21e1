"""A transposed 3-D convolution, instance normalisation, leaky ReLU and the maximum over channels."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def normalised_maximum_kernel(y_ptr, mean_ptr, rstd_ptr, out_ptr, channels, volume, slope, BLOCK: tl.constexpr):
    sample = tl.program_id(1)
    voxels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = voxels < volume
    highest = tl.full((BLOCK,), -1.0e30, dtype=tl.float32)
    for channel in range(0, channels):
        plane = sample * channels + channel
        mean = tl.load(mean_ptr + plane)
        rstd = tl.load(rstd_ptr + plane)
        y = tl.load(y_ptr + plane.to(tl.int64) * volume + voxels, mask=keep, other=0.0)
        highest = tl.maximum(highest, (y - mean) * rstd)
    highest = tl.where(highest >= 0.0, highest, highest * slope)
    tl.store(out_ptr + sample * volume + voxels, highest, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

__inline__ __device__ float warp_sum(float v) {
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_down_sync(0xffffffffu, v, offset);
    return v;
}

// One block per sample and channel: sums of values and squares, then mean and reciprocal deviation.
__global__ void statistics(const float4* __restrict__ y, float2* __restrict__ found, int quads, float eps) {
    __shared__ float sums[32];
    __shared__ float squares[32];
    const float4* plane = y + (long)blockIdx.x * quads;
    float sum = 0.0f, square = 0.0f;
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 v = plane[i];
        sum += v.x + v.y + v.z + v.w;
        square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    sum = warp_sum(sum);
    square = warp_sum(square);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (lane == 0) { sums[warp] = sum; squares[warp] = square; }
    __syncthreads();
    if (warp == 0) {
        int warps = blockDim.x >> 5;
        sum = warp_sum(lane < warps ? sums[lane] : 0.0f);
        square = warp_sum(lane < warps ? squares[lane] : 0.0f);
        if (lane == 0) {
            float count = 4.0f * quads;
            float mean = sum / count;
            float variance = fmaxf(square / count - mean * mean, 0.0f);
            found[blockIdx.x] = make_float2(mean, rsqrtf(variance + eps));
        }
    }
}

__global__ void maximum(const float* __restrict__ y, const float2* __restrict__ statistics_of,
                        float* __restrict__ out, int channels, int volume, float slope) {
    int voxel = blockIdx.x * blockDim.x + threadIdx.x;
    int sample = blockIdx.y;
    if (voxel >= volume) return;
    float highest = -1e30f;
    for (int c = 0; c < channels; ++c) {
        long plane = (long)sample * channels + c;
        float2 s = statistics_of[plane];
        highest = fmaxf(highest, (y[plane * volume + voxel] - s.x) * s.y);
    }
    out[(long)sample * volume + voxel] = highest >= 0.0f ? highest : highest * slope;
}

torch::Tensor norm_max(torch::Tensor y, double eps, double slope) {
    y = y.contiguous();
    int n = y.size(0), c = y.size(1);
    int volume = y.size(2) * y.size(3) * y.size(4);
    TORCH_CHECK(volume % 4 == 0, "volume must be a multiple of four");
    auto found = torch::empty({n * c, 2}, y.options());
    auto out = torch::empty({n, 1, y.size(2), y.size(3), y.size(4)}, y.options());
    auto stream = c10::cuda::getCurrentCUDAStream();
    statistics<<<n * c, 1024, 0, stream>>>(
        reinterpret_cast<const float4*>(y.data_ptr<float>()), reinterpret_cast<float2*>(found.data_ptr<float>()),
        volume / 4, (float)eps);
    maximum<<<dim3((volume + 255) / 256, n), 256, 0, stream>>>(
        y.data_ptr<float>(), reinterpret_cast<const float2*>(found.data_ptr<float>()), out.data_ptr<float>(), c,
        volume, (float)slope);
    return out;
}
"""
norm_max_module = load_inline(
    name="transposed3d_instance_norm_max",
    cpp_sources="torch::Tensor norm_max(torch::Tensor y, double eps, double slope);",
    cuda_sources=source,
    functions=["norm_max"],
)
'''

_INIT = """
    self.up = nn.ConvTranspose3d(channels, width, 3, stride=2, padding=1, output_padding=1)
    self.norm = nn.InstanceNorm3d(width)
"""

_CUDA_GATHER = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// Transposed convolution with kernel 3, stride 2, padding 1, output padding 1; one thread per output.
__global__ void conv_transpose3d_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                                        const float* __restrict__ bias, float* __restrict__ y, int in_channels,
                                        int out_channels, int D, int H, int W, long total) {
    long idx = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int ox = idx % (2 * W);
    int oy = (idx / (2 * W)) % (2 * H);
    int oz = (idx / (4L * W * H)) % (2 * D);
    int co = (idx / (8L * W * H * D)) % out_channels;
    int n = idx / (8L * W * H * D * out_channels);
    float sum = bias[co];
    for (int kz = 0; kz < 3; kz++) {
        int z = oz + 1 - kz;
        if (z < 0 || z % 2 != 0 || z / 2 >= D) continue;
        for (int ky = 0; ky < 3; ky++) {
            int yy = oy + 1 - ky;
            if (yy < 0 || yy % 2 != 0 || yy / 2 >= H) continue;
            for (int kx = 0; kx < 3; kx++) {
                int xx = ox + 1 - kx;
                if (xx < 0 || xx % 2 != 0 || xx / 2 >= W) continue;
                for (int ci = 0; ci < in_channels; ci++) {
                    float v = x[(((long)(n * in_channels + ci) * D + z / 2) * H + yy / 2) * W + xx / 2];
                    sum += v * weight[(ci * out_channels + co) * 27 + kz * 9 + ky * 3 + kx];
                }
            }
        }
    }
    y[idx] = sum;
}

__global__ void instance_stats_kernel(const float* __restrict__ y, float* __restrict__ mean,
                                      float* __restrict__ rstd, int volume, float eps) {
    __shared__ float shared[512];
    const float* plane = y + (long)blockIdx.x * volume;
    int tid = threadIdx.x;
    float sum = 0.0f;
    for (int i = tid; i < volume; i += 512) sum += plane[i];
    shared[tid] = sum;
    __syncthreads();
    for (int s = 256; s > 0; s >>= 1) {
        if (tid < s) shared[tid] += shared[tid + s];
        __syncthreads();
    }
    float m = shared[0] / volume;
    __syncthreads();
    float square = 0.0f;
    for (int i = tid; i < volume; i += 512) square += (plane[i] - m) * (plane[i] - m);
    shared[tid] = square;
    __syncthreads();
    for (int s = 256; s > 0; s >>= 1) {
        if (tid < s) shared[tid] += shared[tid + s];
        __syncthreads();
    }
    if (tid == 0) {
        mean[blockIdx.x] = m;
        rstd[blockIdx.x] = rsqrtf(shared[0] / volume + eps);
    }
}

__global__ void norm_leaky_max_kernel(const float* __restrict__ y, const float* __restrict__ mean,
                                      const float* __restrict__ rstd, float* __restrict__ out, int channels,
                                      int volume, long total, float slope) {
    long idx = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int n = idx / volume;
    int voxel = idx % volume;
    float highest = -INFINITY;
    for (int c = 0; c < channels; c++) {
        int plane = n * channels + c;
        float v = (y[(long)plane * volume + voxel] - mean[plane]) * rstd[plane];
        v = v > 0.0f ? v : slope * v;
        highest = fmaxf(highest, v);
    }
    out[idx] = highest;
}

torch::Tensor upsample_norm_max(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps, double slope) {
    int n = x.size(0), in_channels = x.size(1), D = x.size(2), H = x.size(3), W = x.size(4);
    int channels = weight.size(1);
    auto y = torch::empty({n, channels, 2 * D, 2 * H, 2 * W}, x.options());
    auto mean = torch::empty({n, channels}, x.options());
    auto rstd = torch::empty({n, channels}, x.options());
    auto out = torch::empty({n, 1, 2 * D, 2 * H, 2 * W}, x.options());
    int volume = 8 * D * H * W;
    long total = y.numel();
    conv_transpose3d_kernel<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), weight.data_ptr<float>(),
                                                          bias.data_ptr<float>(), y.data_ptr<float>(), in_channels,
                                                          channels, D, H, W, total);
    instance_stats_kernel<<<n * channels, 512>>>(y.data_ptr<float>(), mean.data_ptr<float>(), rstd.data_ptr<float>(),
                                                 volume, (float)eps);
    long voxels = out.numel();
    norm_leaky_max_kernel<<<(voxels + 255) / 256, 256>>>(y.data_ptr<float>(), mean.data_ptr<float>(),
                                                         rstd.data_ptr<float>(), out.data_ptr<float>(), channels,
                                                         volume, voxels, (float)slope);
    return out;
}
"""

upsample_ext = load_inline(
    name="transposed3d_instance_norm_gather",
    cpp_sources="torch::Tensor upsample_norm_max(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, "
    "double eps, double slope);",
    cuda_sources=source,
    functions=["upsample_norm_max"],
    verbose=False,
)
'''

_CUDA_ATOMIC_MOMENTS = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>

// Every thread sums a few values of one plane and adds them to the plane's moments.
__global__ void plane_moments_kernel(const float* __restrict__ y, float* __restrict__ moments, int volume,
                                     int per_thread) {
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * per_thread;
    int last = min(first + per_thread, volume);
    if (first >= volume) return;
    const float* plane = y + (long)blockIdx.y * volume;
    float sum = 0.0f, square = 0.0f;
    for (int i = first; i < last; ++i) {
        sum += plane[i];
        square += plane[i] * plane[i];
    }
    atomicAdd(&moments[2 * blockIdx.y], sum);
    atomicAdd(&moments[2 * blockIdx.y + 1], square);
}

torch::Tensor plane_moments(torch::Tensor y) {
    TORCH_CHECK(y.is_cuda(), "y must be a CUDA tensor");
    TORCH_CHECK(y.is_contiguous(), "y must be contiguous");
    TORCH_CHECK(y.dim() == 5, "y must be (N, C, D, H, W)");
    int planes = y.size(0) * y.size(1);
    int volume = y.numel() / planes;
    auto moments = torch::zeros({y.size(0), y.size(1), 2}, y.options());
    const int per_thread = 32, threads = 256;
    dim3 grid((volume + threads * per_thread - 1) / (threads * per_thread), planes);
    plane_moments_kernel<<<grid, threads>>>(y.data_ptr<float>(), moments.data_ptr<float>(), volume, per_thread);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return moments / volume;
}
"""

moments_ext = load_inline(
    name="transposed3d_instance_norm_atomic_moments",
    cpp_sources="torch::Tensor plane_moments(torch::Tensor y);",
    cuda_sources=cuda_source,
    functions=["plane_moments"],
)
'''

MODULE = Rewritten(
    name="transposed3d_instance_norm",
    sizes="""
        batch_size = 8
        channels = 16
        width = 16
        depth, height, breadth = 12, 32, 32
    """,
    arguments=("channels", "width"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, depth, height, breadth)]",
    reference=Body(
        summary="Transposed 3-D convolution, instance normalisation, leaky ReLU, maximum over channels.",
        init=_INIT,
        forward="""
            x = self.up(x)
            x = self.norm(x)
            x = F.leaky_relu(x, 0.1)
            return torch.max(x, dim=1, keepdim=True).values
        """,
    ),
    rewrites={
        "activation_last": Body(
            summary="Leaky ReLU grows with its argument, so it is applied to the maximum alone.",
            forward="""
                x = self.norm(self.up(x))
                return F.leaky_relu(x.amax(dim=1, keepdim=True), 0.1, inplace=True)
            """,
        ),
        "without_bias": Body(
            summary="Instance normalisation takes away whatever constant the convolution adds.",
            forward="""
                x = F.conv_transpose3d(x, self.up.weight, None, stride=2, padding=1, output_padding=1)
                x = F.instance_norm(x, eps=self.norm.eps)
                return F.leaky_relu_(x.amax(dim=1, keepdim=True), 0.1)
            """,
        ),
        "in_place_activation": Body(
            forward="""
                x = F.leaky_relu(self.norm(self.up(x)), 0.1, inplace=True)
                return torch.amax(x, dim=1, keepdim=True)
            """
        ),
        "statistics_by_hand": Body(
            methods='''
                def standardise(self, y):
                    """Zero mean and unit variance over each channel's volume, in place."""
                    var, mean = torch.var_mean(y, dim=(2, 3, 4), unbiased=False, keepdim=True)
                    y -= mean
                    y *= torch.rsqrt(var + self.norm.eps)
                    return y

                def upsample(self, x):
                    """The transposed convolution. Its bias would vanish in the normalisation."""
                    return F.conv_transpose3d(
                        x, self.up.weight, None, self.up.stride, self.up.padding, self.up.output_padding
                    )
            ''',
            forward="""
                y = self.standardise(self.upsample(x))
                y = torch.amax(y, dim=1, keepdim=True)
                return torch.where(y >= 0, y, 0.1 * y)
            """,
        ),
        "one_affine_map": Body(
            forward="""
                y = F.conv_transpose3d(x, self.up.weight, None, stride=2, padding=1, output_padding=1)
                var, mean = torch.var_mean(y.flatten(2), dim=2, unbiased=False)
                rstd = torch.rsqrt(var.add_(self.norm.eps))
                shift = (mean * rstd).neg_()[:, :, None, None, None]
                y = torch.addcmul(shift, y, rstd[:, :, None, None, None])
                y = y.amax(dim=1, keepdim=True)
                return F.leaky_relu(y, 0.1, inplace=True)
            """
        ),
        "sample_by_sample": Body(
            summary="Samples do not meet, so one at a time keeps the large volume small.",
            forward="""
                outputs = []
                for sample in range(x.shape[0]):
                    y = self.norm(self.up(x[sample : sample + 1]))
                    outputs.append(F.leaky_relu(y.max(dim=1, keepdim=True).values, 0.1))
                return torch.cat(outputs, dim=0)
            """,
        ),
        "batch_norm_trick": Body(
            summary="Instances as channels of one sample, normalised by batch statistics.",
            forward="""
                y = F.conv_transpose3d(x, self.up.weight, None, stride=2, padding=1, output_padding=1)
                n, c = y.shape[:2]
                flat = y.reshape(1, n * c, -1)
                flat = F.batch_norm(flat, None, None, training=True, eps=self.norm.eps)
                y = flat.view(y.shape).amax(dim=1, keepdim=True)
                return F.leaky_relu(y, 0.1)
            """,
        ),
        "triton_normalised_maximum": Body(
            before=_TAIL_KERNEL,
            forward="""
                y = F.conv_transpose3d(x, self.up.weight, None, stride=2, padding=1, output_padding=1).contiguous()
                n, c, d, h, w = y.shape
                var, mean = torch.var_mean(y.view(n, c, -1), dim=2, unbiased=False)
                rstd = torch.rsqrt(var + self.norm.eps)
                out = torch.empty((n, 1, d, h, w), device=y.device, dtype=y.dtype)
                volume = d * h * w
                normalised_maximum_kernel[(triton.cdiv(volume, 512), n)](
                    y, mean.contiguous(), rstd.contiguous(), out, c, volume, 0.1, BLOCK=512
                )
                return out
            """,
        ),
        "cuda_statistics_and_maximum": Body(
            before=_CUDA,
            forward="""
                y = F.conv_transpose3d(x, self.up.weight, None, stride=2, padding=1, output_padding=1)
                return norm_max_module.norm_max(y, self.norm.eps, 0.1)
            """,
        ),
        "cuda_gathered_convolution": Body(
            before=_CUDA_GATHER,
            init=_INIT,
            forward="""
                return upsample_ext.upsample_norm_max(
                    x.contiguous(), self.up.weight, self.up.bias, self.norm.eps, 0.1
                )
            """,
        ),
        "cuda_atomic_moments": Body(
            summary="The moments of all planes by one kernel with atomics, everything else by the library.",
            before=_CUDA_ATOMIC_MOMENTS,
            init=_INIT,
            methods='''
                def _scale_and_shift(self, y):
                    """What normalises every plane, both (N, C, 1, 1, 1)."""
                    if y.is_cuda and y.dtype == torch.float32:
                        mean, second = moments_ext.plane_moments(y.contiguous()).unbind(dim=2)
                        var = second - mean * mean
                    else:
                        var, mean = torch.var_mean(y, dim=(2, 3, 4), correction=0)
                    scale = torch.rsqrt(var + self.norm.eps)
                    shift = -mean * scale
                    return scale[:, :, None, None, None], shift[:, :, None, None, None]
            ''',
            forward="""
                y = self.up(x)
                scale, shift = self._scale_and_shift(y)
                y = F.leaky_relu_(torch.addcmul(shift, y, scale), 0.1)
                return torch.amax(y, dim=1, keepdim=True)
            """,
        ),
    },
    carries_on="without_bias",
)
