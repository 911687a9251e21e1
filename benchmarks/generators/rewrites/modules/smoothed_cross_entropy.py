"""Cross entropy with smoothed labels over a large vocabulary, from a dense target distribution."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def row_losses(logits_ptr, target_ptr, loss_ptr, classes, smoothing, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start_ptr = logits_ptr + row * classes
    highest = tl.full([BLOCK], -float("inf"), dtype=tl.float32)
    weights = tl.zeros([BLOCK], dtype=tl.float32)
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, classes, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        keep = cols < classes
        z = tl.load(start_ptr + cols, mask=keep, other=-1e30)
        higher = tl.maximum(highest, z)
        weights = weights * tl.exp(highest - higher) + tl.where(keep, tl.exp(z - higher), 0.0)
        sums += tl.where(keep, z, 0.0)
        highest = higher
    top = tl.max(highest, axis=0)
    lse = top + tl.log(tl.sum(weights * tl.exp(highest - top), axis=0))
    mean = tl.sum(sums, axis=0) / classes
    target = tl.load(target_ptr + row)
    picked = tl.load(start_ptr + target)
    tl.store(loss_ptr + row, lse - (1.0 - smoothing) * picked - smoothing * mean)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__device__ float block_reduce(float v, bool largest, float* shared) {
    for (int offset = 16; offset > 0; offset >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, v, offset);
        v = largest ? fmaxf(v, other) : v + other;
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    v = shared[0];
    for (int w = 1; w < (int)(blockDim.x >> 5); ++w) v = largest ? fmaxf(v, shared[w]) : v + shared[w];
    return v;
}

__global__ void smoothed_loss(const float* __restrict__ logits, const long* __restrict__ target,
                              float* __restrict__ loss, int classes, float smoothing) {
    __shared__ float shared[32];
    const float* z = logits + (long)blockIdx.x * classes;
    float top = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < classes; i += blockDim.x) {
        float v = z[i];
        top = fmaxf(top, v);
        sum += v;
    }
    top = block_reduce(top, true, shared);
    sum = block_reduce(sum, false, shared);
    float weight = 0.0f;
    for (int i = threadIdx.x; i < classes; i += blockDim.x) weight += __expf(z[i] - top);
    weight = block_reduce(weight, false, shared);
    if (threadIdx.x == 0) {
        float picked = z[target[blockIdx.x]];
        loss[blockIdx.x] = top + logf(weight) - (1.0f - smoothing) * picked - smoothing * sum / classes;
    }
}

torch::Tensor smoothed_losses(torch::Tensor logits, torch::Tensor target, double smoothing) {
    auto loss = torch::empty({logits.size(0)}, logits.options());
    smoothed_loss<<<(int)logits.size(0), 512>>>(
        logits.data_ptr<float>(), reinterpret_cast<const long*>(target.data_ptr<int64_t>()),
        loss.data_ptr<float>(), (int)logits.size(1), (float)smoothing);
    return loss;
}
"""
loss_module = load_inline(
    name="smoothed_cross_entropy_rows",
    cpp_sources="torch::Tensor smoothed_losses(torch::Tensor logits, torch::Tensor target, double smoothing);",
    cuda_sources=source,
    functions=["smoothed_losses"],
)
'''

_CUDA_ONLINE = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// maximum, sum of exponentials relative to it, and plain sum of a part of a row
struct Stats {
    float top, weight, sum;
};

__device__ __forceinline__ Stats join(Stats a, Stats b) {
    float top = fmaxf(a.top, b.top);
    return {top, a.weight * __expf(a.top - top) + b.weight * __expf(b.top - top), a.sum + b.sum};
}

__global__ void online_losses(const float4* __restrict__ logits, const int64_t* __restrict__ target,
                              float* __restrict__ losses, int quads, float smoothing) {
    __shared__ Stats parts[32];
    const float4* row = logits + (int64_t)blockIdx.x * quads;
    Stats mine = {-1e30f, 0.0f, 0.0f};
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 z = row[i];
        float top = fmaxf(mine.top, fmaxf(fmaxf(z.x, z.y), fmaxf(z.z, z.w)));
        mine.weight = mine.weight * __expf(mine.top - top) + __expf(z.x - top) + __expf(z.y - top)
            + __expf(z.z - top) + __expf(z.w - top);
        mine.sum += z.x + z.y + z.z + z.w;
        mine.top = top;
    }
    #pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        Stats other;
        other.top = __shfl_xor_sync(0xffffffffu, mine.top, o);
        other.weight = __shfl_xor_sync(0xffffffffu, mine.weight, o);
        other.sum = __shfl_xor_sync(0xffffffffu, mine.sum, o);
        mine = join(mine, other);
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < (int)blockDim.x / 32; ++w) mine = join(mine, parts[w]);
        float picked = reinterpret_cast<const float*>(row)[target[blockIdx.x]];
        float lse = mine.top + logf(mine.weight);
        losses[blockIdx.x] = lse - (1.0f - smoothing) * picked - smoothing * mine.sum / (4.0f * quads);
    }
}

__global__ void mean_kernel(const float* __restrict__ losses, float* __restrict__ out, int n) {
    __shared__ float parts[32];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += losses[i];
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, o);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < (int)blockDim.x / 32; ++w) sum += parts[w];
        out[0] = sum / n;
    }
}

torch::Tensor smoothed_mean(torch::Tensor logits, torch::Tensor target, double smoothing) {
    TORCH_CHECK(logits.size(1) % 4 == 0, "the number of classes must be a multiple of four");
    auto stream = at::cuda::getCurrentCUDAStream();
    int rows = logits.size(0), quads = logits.size(1) / 4;
    auto losses = torch::empty({rows}, logits.options());
    auto out = torch::empty({}, logits.options());
    online_losses<<<rows, 256, 0, stream>>>(reinterpret_cast<const float4*>(logits.data_ptr<float>()),
                                            target.data_ptr<int64_t>(), losses.data_ptr<float>(), quads,
                                            (float)smoothing);
    mean_kernel<<<1, 1024, 0, stream>>>(losses.data_ptr<float>(), out.data_ptr<float>(), rows);
    return out;
}
"""
online_module = load_inline(
    name="smoothed_cross_entropy_online",
    cpp_sources="torch::Tensor smoothed_mean(torch::Tensor logits, torch::Tensor target, double smoothing);",
    cuda_sources=source,
    functions=["smoothed_mean"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_THREAD_PER_ROW = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>

template <typename scalar_t>
__global__ void smooth_nll_kernel(const scalar_t* __restrict__ log_probs, const int64_t* __restrict__ target,
                                  scalar_t* __restrict__ loss, int rows, int classes, scalar_t smoothing) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const scalar_t* p = log_probs + (int64_t)row * classes;
    scalar_t sum = 0;
    for (int c = 0; c < classes; c++) {
        sum += p[c];
    }
    loss[row] = -((1 - smoothing) * p[target[row]] + smoothing * sum / classes);
}

torch::Tensor smooth_nll(torch::Tensor log_probs, torch::Tensor target, double smoothing) {
    TORCH_CHECK(log_probs.is_cuda() && target.is_cuda(), "CUDA tensors required");
    TORCH_CHECK(log_probs.is_contiguous(), "log_probs must be contiguous");
    TORCH_CHECK(target.scalar_type() == torch::kInt64, "target must be int64");
    int rows = log_probs.size(0);
    auto loss = torch::empty({rows}, log_probs.options());
    AT_DISPATCH_FLOATING_TYPES(log_probs.scalar_type(), "smooth_nll", [&] {
        smooth_nll_kernel<scalar_t><<<(rows + 127) / 128, 128>>>(
            log_probs.data_ptr<scalar_t>(), target.data_ptr<int64_t>(), loss.data_ptr<scalar_t>(), rows,
            (int)log_probs.size(1), (scalar_t)smoothing);
    });
    return loss;
}
"""

smooth_nll_ext = load_inline(
    name="smoothed_cross_entropy_thread_per_row",
    cpp_sources="torch::Tensor smooth_nll(torch::Tensor log_probs, torch::Tensor target, double smoothing);",
    cuda_sources=cuda_source,
    functions=["smooth_nll"],
    verbose=False,
)
'''

MODULE = Rewritten(
    name="smoothed_cross_entropy",
    sizes="""
        tokens = 3072
        classes = 16000
        smoothing = 0.1
    """,
    arguments=("classes", "smoothing"),
    takes="logits, target",
    inputs="[torch.randn(tokens, classes) * 2, torch.randint(0, classes, (tokens,))]",
    in_half=False,
    reference=Body(
        summary="Mean cross entropy against one-hot labels that are smoothed over all classes.",
        init="""
            self.classes = classes
            self.smoothing = smoothing
        """,
        forward="""
            log_probs = F.log_softmax(logits, dim=-1)
            one_hot = F.one_hot(target, self.classes).float()
            smooth = one_hot * (1 - self.smoothing) + self.smoothing / self.classes
            loss = -(smooth * log_probs).sum(dim=-1)
            return loss.mean()
        """,
    ),
    rewrites={
        "library_loss": Body(
            forward="return F.cross_entropy(logits, target, label_smoothing=self.smoothing)"
        ),
        "scattered_target": Body(
            forward="""
                log_probs = torch.log_softmax(logits, dim=-1)
                smooth = torch.full_like(log_probs, self.smoothing / self.classes)
                smooth.scatter_add_(1, target.unsqueeze(1), torch.full_like(smooth[:, :1], 1 - self.smoothing))
                return log_probs.mul_(smooth).sum().div_(-target.shape[0])
            """
        ),
        "gathered_log_softmax": Body(
            forward="""
                log_probs = F.log_softmax(logits, dim=-1)
                nll = -log_probs.gather(1, target[:, None]).squeeze(1)
                uniform = -log_probs.mean(dim=-1)
                return ((1 - self.smoothing) * nll + self.smoothing * uniform).mean()
            """
        ),
        "logsumexp_and_mean": Body(
            forward="""
                # -sum(q * (z - lse)) = lse - (1 - s) * z_target - s * mean(z): log-probabilities aren't needed
                lse = torch.logsumexp(logits, dim=-1)
                picked = logits.gather(1, target.unsqueeze(1)).squeeze(1)
                mean = logits.mean(dim=-1)
                return (lse - (1 - self.smoothing) * picked - self.smoothing * mean).mean()
            """
        ),
        "mean_by_product": Body(
            init="""
                self.classes = classes
                self.smoothing = smoothing
                self.register_buffer("uniform", torch.full((classes,), smoothing / classes))
            """,
            forward="""
                rows = torch.arange(logits.shape[0], device=logits.device)
                loss = torch.logsumexp(logits, dim=1) - torch.mv(logits, self.uniform)
                return loss.sub_(logits[rows, target], alpha=1 - self.smoothing).mean()
            """,
        ),
        "token_chunks": Body(
            summary="""Smoothed cross entropy in chunks of tokens.

    No tensor of all tokens by all classes is made, apart from the logits; chunks are summed on the device.
    """,
            init="""
                self.classes = classes
                self.smoothing = smoothing
                self.chunk = 128
            """,
            methods="""
                def _chunk_loss(self, logits, target):
                    log_probs = F.log_softmax(logits, dim=-1)
                    nll = F.nll_loss(log_probs, target, reduction="sum")
                    return (1 - self.smoothing) * nll - self.smoothing / self.classes * log_probs.sum()
            """,
            forward="""
                if logits.shape[0] != target.shape[0]:
                    raise ValueError("as many targets as rows of logits are needed")
                total = torch.zeros((), device=logits.device, dtype=logits.dtype)
                for start in range(0, logits.shape[0], self.chunk):
                    stop = start + self.chunk
                    total += self._chunk_loss(logits[start:stop], target[start:stop])
                return total / logits.shape[0]
            """,
        ),
        "triton_online": Body(
            before=_KERNEL,
            forward="""
                losses = torch.empty(logits.shape[0], device=logits.device)
                row_losses[(logits.shape[0],)](
                    logits, target, losses, logits.shape[1], self.smoothing, BLOCK=2048, num_warps=8
                )
                return losses.mean()
            """,
        ),
        "cuda_row_blocks": Body(
            before=_CUDA,
            forward="""
                losses = loss_module.smoothed_losses(logits.contiguous(), target.contiguous(), self.smoothing)
                return losses.mean()
            """,
        ),
        "cuda_online_quads": Body(
            before=_CUDA_ONLINE,
            forward="return online_module.smoothed_mean(logits.contiguous(), target.contiguous(), self.smoothing)",
        ),
        "cuda_thread_per_row_nll": Body(
            summary="""Log-probabilities by the library; the smoothed likelihood of every row by a kernel.

    The one-hot matrix and the dense target distribution are never made.
    """,
            before=_CUDA_THREAD_PER_ROW,
            methods='''
                def _losses(self, log_probs, target):
                    """Loss of every row."""
                    if log_probs.is_cuda and log_probs.dtype in (torch.float32, torch.float64):
                        return smooth_nll_ext.smooth_nll(log_probs.contiguous(), target.contiguous(), self.smoothing)
                    picked = log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
                    return -(1 - self.smoothing) * picked - self.smoothing * log_probs.mean(dim=-1)
            ''',
            forward="""
                log_probs = F.log_softmax(logits, dim=-1)
                return self._losses(log_probs, target).mean()
            """,
        ),
    },
    carries_on="logsumexp_and_mean",
)
