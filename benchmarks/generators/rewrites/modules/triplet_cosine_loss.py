"""A triplet loss on cosine distances with a margin, on a small batch."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def triplet_rows(a_ptr, p_ptr, n_ptr, loss_ptr, width, margin, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    a = tl.load(a_ptr + row * width + cols, mask=keep, other=0.0)
    p = tl.load(p_ptr + row * width + cols, mask=keep, other=0.0)
    n = tl.load(n_ptr + row * width + cols, mask=keep, other=0.0)
    a_norm = tl.maximum(tl.sqrt(tl.sum(a * a, axis=0)), 1e-8)
    p_norm = tl.maximum(tl.sqrt(tl.sum(p * p, axis=0)), 1e-8)
    n_norm = tl.maximum(tl.sqrt(tl.sum(n * n, axis=0)), 1e-8)
    near = tl.sum(a * p, axis=0) / (a_norm * p_norm)
    far = tl.sum(a * n, axis=0) / (a_norm * n_norm)
    tl.store(loss_ptr + row, tl.maximum(far - near + margin, 0.0))
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__device__ __forceinline__ float warp_sum(float v) {
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
}

__global__ void triplet_kernel(const float* __restrict__ a, const float* __restrict__ p,
                               const float* __restrict__ n, float* __restrict__ loss, int rows, int width,
                               float margin) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    int lane = threadIdx.x & 31;
    if (row >= rows) return;
    float aa = 0, pp = 0, nn = 0, ap = 0, an = 0;
    for (int i = lane; i < width; i += 32) {
        float x = a[row * width + i], y = p[row * width + i], z = n[row * width + i];
        aa += x * x;
        pp += y * y;
        nn += z * z;
        ap += x * y;
        an += x * z;
    }
    aa = fmaxf(sqrtf(warp_sum(aa)), 1e-8f);
    pp = fmaxf(sqrtf(warp_sum(pp)), 1e-8f);
    nn = fmaxf(sqrtf(warp_sum(nn)), 1e-8f);
    ap = warp_sum(ap);
    an = warp_sum(an);
    if (lane == 0) atomicAdd(loss, fmaxf(an / (aa * nn) - ap / (aa * pp) + margin, 0.0f) / rows);
}

torch::Tensor triplet_loss(torch::Tensor a, torch::Tensor p, torch::Tensor n, double margin) {
    auto loss = torch::zeros({}, a.options());
    int rows = a.size(0);
    triplet_kernel<<<(rows + 3) / 4, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), p.data_ptr<float>(), n.data_ptr<float>(), loss.data_ptr<float>(), rows,
        (int)a.size(1), (float)margin);
    return loss;
}
"""
triplet_module = load_inline(
    name="triplet_cosine_loss_warps",
    cpp_sources="torch::Tensor triplet_loss(torch::Tensor a, torch::Tensor p, torch::Tensor n, double margin);",
    cuda_sources=source,
    functions=["triplet_loss"],
)
'''

_CUDA_THREAD_PER_ROW = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void triplet_kernel(const float* anchor, const float* positive, const float* negative, float* out,
                               int rows, int features, float margin) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float* a = anchor + row * features;
    const float* p = positive + row * features;
    const float* n = negative + row * features;
    float aa = 0.0f, pp = 0.0f, nn = 0.0f, ap = 0.0f, an = 0.0f;
    for (int i = 0; i < features; ++i) {
        aa += a[i] * a[i];
        pp += p[i] * p[i];
        nn += n[i] * n[i];
        ap += a[i] * p[i];
        an += a[i] * n[i];
    }
    float a_norm = fmaxf(sqrtf(aa), 1e-8f);
    float near = 1.0f - ap / (a_norm * fmaxf(sqrtf(pp), 1e-8f));
    float far = 1.0f - an / (a_norm * fmaxf(sqrtf(nn), 1e-8f));
    float loss = fmaxf(near - far + margin, 0.0f);
    atomicAdd(out, loss / rows);
}

torch::Tensor triplet_loss(torch::Tensor anchor, torch::Tensor positive, torch::Tensor negative, double margin) {
    auto out = torch::zeros({}, anchor.options());
    int rows = anchor.size(0);
    triplet_kernel<<<(rows + 31) / 32, 32>>>(anchor.data_ptr<float>(), positive.data_ptr<float>(),
                                             negative.data_ptr<float>(), out.data_ptr<float>(), rows,
                                             (int)anchor.size(1), (float)margin);
    return out;
}
"""

triplet_module = load_inline(
    name="triplet_cosine_loss_thread_per_row",
    cpp_sources="torch::Tensor triplet_loss(torch::Tensor anchor, torch::Tensor positive, torch::Tensor negative, "
    "double margin);",
    cuda_sources=source,
    functions=["triplet_loss"],
    verbose=False,
)
'''

_CUDA_SIMILARITIES = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

#define BLOCK 128

template <typename scalar_t>
__global__ void cosine_rows(const scalar_t* __restrict__ a, const scalar_t* __restrict__ b,
                            scalar_t* __restrict__ out, int features, scalar_t eps) {
    __shared__ scalar_t dots[BLOCK], left[BLOCK], right[BLOCK];
    const int tid = threadIdx.x;
    const int64_t base = (int64_t)blockIdx.x * features;
    scalar_t dot = 0, aa = 0, bb = 0;
    for (int i = tid; i < features; i += BLOCK) {
        const scalar_t u = a[base + i], v = b[base + i];
        dot += u * v;
        aa += u * u;
        bb += v * v;
    }
    dots[tid] = dot;
    left[tid] = aa;
    right[tid] = bb;
    __syncthreads();
    for (int s = BLOCK / 2; s > 0; s >>= 1) {
        if (tid < s) {
            dots[tid] += dots[tid + s];
            left[tid] += left[tid + s];
            right[tid] += right[tid + s];
        }
        __syncthreads();
    }
    if (tid == 0) {
        const scalar_t na = sqrt(left[0]), nb = sqrt(right[0]);
        out[blockIdx.x] = dots[0] / ((na > eps ? na : eps) * (nb > eps ? nb : eps));
    }
}

torch::Tensor cosine_rows_cuda(torch::Tensor a, torch::Tensor b, double eps) {
    TORCH_CHECK(a.is_cuda() && b.is_cuda(), "inputs must be CUDA tensors");
    TORCH_CHECK(a.is_contiguous() && b.is_contiguous(), "inputs must be contiguous");
    TORCH_CHECK(a.sizes() == b.sizes(), "inputs must have one shape");
    auto out = torch::empty({a.size(0)}, a.options());
    AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "cosine_rows", [&] {
        cosine_rows<scalar_t><<<(int)a.size(0), BLOCK, 0, at::cuda::getCurrentCUDAStream()>>>(
            a.data_ptr<scalar_t>(), b.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), (int)a.size(1), (scalar_t)eps);
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

similarities = load_inline(
    name="triplet_cosine_loss_similarities",
    cpp_sources="torch::Tensor cosine_rows_cuda(torch::Tensor a, torch::Tensor b, double eps);",
    cuda_sources=cuda_source,
    functions=["cosine_rows_cuda"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="triplet_cosine_loss",
    sizes="""
        batch_size = 256
        features = 256
        margin = 0.3
    """,
    arguments=("margin",),
    takes="anchor, positive, negative",
    inputs="[torch.randn(batch_size, features) for _ in range(3)]",
    reference=Body(
        summary="Mean hinge of the difference of two cosine distances and a margin.",
        init="self.margin = margin",
        forward="""
            anchor = anchor / torch.clamp(torch.norm(anchor, dim=1, keepdim=True), min=1e-8)
            positive = positive / torch.clamp(torch.norm(positive, dim=1, keepdim=True), min=1e-8)
            negative = negative / torch.clamp(torch.norm(negative, dim=1, keepdim=True), min=1e-8)
            near = 1 - (anchor * positive).sum(dim=1)
            far = 1 - (anchor * negative).sum(dim=1)
            losses = torch.clamp(near - far + self.margin, min=0)
            return losses.mean()
        """,
    ),
    rewrites={
        "cosine_similarity": Body(
            forward="""
                near = F.cosine_similarity(anchor, positive, dim=1, eps=1e-8)
                far = F.cosine_similarity(anchor, negative, dim=1, eps=1e-8)
                return F.relu(far - near + self.margin).mean()
            """
        ),
        "library_triplet": Body(
            methods="""
                @staticmethod
                def cosine_distance(left, right):
                    return 1 - F.cosine_similarity(left, right, dim=1)
            """,
            forward="""
                return F.triplet_margin_with_distance_loss(
                    anchor, positive, negative, distance_function=self.cosine_distance, margin=self.margin
                )
            """,
        ),
        "normalized_difference": Body(
            forward="""
                # a.n - a.p = a.(n - p), so one inner product is enough
                gap = F.normalize(negative, dim=1, eps=1e-8) - F.normalize(positive, dim=1, eps=1e-8)
                inner = (F.normalize(anchor, dim=1, eps=1e-8) * gap).sum(dim=1)
                return inner.add_(self.margin).relu_().mean()
            """
        ),
        "stacked_gram": Body(
            forward="""
                stacked = torch.stack((anchor, positive, negative), dim=1)
                gram = torch.bmm(stacked, stacked.transpose(1, 2))
                squares = gram.diagonal(dim1=1, dim2=2).clamp_min(1e-16)
                cosines = gram[:, 0, 1:] * torch.rsqrt(squares[:, :1] * squares[:, 1:])
                return F.relu(cosines[:, 1] - cosines[:, 0] + self.margin).mean()
            """
        ),
        "broadcast_pair": Body(
            summary="""Cosine triplet loss with positives and negatives in one tensor.

    Both comparisons go through the same calls, which halves the number of launches.
    """,
            init="""
                self.margin = margin
                self.eps = 1e-8
            """,
            methods="""
                def _check(self, *tensors):
                    shapes = {tuple(tensor.shape) for tensor in tensors}
                    if len(shapes) != 1:
                        raise ValueError(f"all embeddings must be of one shape, not {sorted(shapes)}")

                def _cosines(self, anchor, others):
                    inner = torch.einsum("bf,kbf->kb", anchor, others)
                    anchor_norm = torch.linalg.vector_norm(anchor, dim=-1).clamp_(min=self.eps)
                    other_norms = torch.linalg.vector_norm(others, dim=-1).clamp_(min=self.eps)
                    return inner / (anchor_norm * other_norms)
            """,
            forward="""
                self._check(anchor, positive, negative)
                cosines = self._cosines(anchor, torch.stack([positive, negative]))
                return (cosines[1] - cosines[0] + self.margin).clamp_(min=0).mean()
            """,
        ),
        "full_similarity_matrix": Body(
            forward="""
                a = F.normalize(anchor, dim=1, eps=1e-8)
                others = F.normalize(torch.cat([positive, negative]), dim=1, eps=1e-8)
                similarity = a @ others.t()
                near = similarity[:, : a.shape[0]].diagonal()
                far = similarity[:, a.shape[0] :].diagonal()
                return torch.relu(far - near + self.margin).mean()
            """
        ),
        "triton_rows": Body(
            before=_KERNEL,
            forward="""
                losses = torch.empty(anchor.shape[0], device=anchor.device)
                width = anchor.shape[1]
                triplet_rows[(anchor.shape[0],)](
                    anchor, positive, negative, losses, width, self.margin,
                    BLOCK=triton.next_power_of_2(width), num_warps=2,
                )
                return losses.mean()
            """,
        ),
        "cuda_warp_per_row": Body(
            before=_CUDA,
            forward="return triplet_module.triplet_loss(anchor, positive, negative, self.margin)",
        ),
        "cuda_thread_per_row": Body(
            before=_CUDA_THREAD_PER_ROW,
            forward="""
                return triplet_module.triplet_loss(
                    anchor.contiguous(), positive.contiguous(), negative.contiguous(), self.margin
                )
            """,
        ),
        "cuda_similarities": Body(
            summary="Two launches of a kernel for cosine similarities; hinge and mean are the library's.",
            before=_CUDA_SIMILARITIES,
            methods='''
                @staticmethod
                def _similarity(a, b):
                    """Cosine similarity of corresponding rows."""
                    if a.is_cuda and b.is_cuda and a.dtype == b.dtype and a.dtype in (torch.float32, torch.float64):
                        return similarities.cosine_rows_cuda(a.contiguous(), b.contiguous(), 1e-8)
                    return F.cosine_similarity(a, b, dim=1, eps=1e-8)
            ''',
            forward="""
                far_less_near = self._similarity(anchor, negative) - self._similarity(anchor, positive)
                return far_less_near.add_(self.margin).clamp_(min=0).mean()
            """,
        ),
    },
    carries_on="normalized_difference",
)
