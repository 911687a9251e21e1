"""Two graph convolutions over a dense adjacency matrix that is normalized on the way."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_NORMALIZE_KERNELS = """
import triton
import triton.language as tl


@triton.jit
def degree_kernel(adjacency_ptr, root_ptr, nodes, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, nodes, BLOCK):
        acc += tl.load(adjacency_ptr + row * nodes + start + cols, mask=start + cols < nodes, other=0.0)
    tl.store(root_ptr + row, 1.0 / tl.sqrt(tl.sum(acc, axis=0) + 1.0))


@triton.jit
def normalize_kernel(adjacency_ptr, root_ptr, out_ptr, nodes, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = cols < nodes
    a = tl.load(adjacency_ptr + row * nodes + cols, mask=keep, other=0.0)
    a += tl.where(cols == row, 1.0, 0.0)
    a *= tl.load(root_ptr + row) * tl.load(root_ptr + cols, mask=keep, other=0.0)
    tl.store(out_ptr + row * nodes + cols, a, mask=keep)


def normalized(adjacency):
    nodes = adjacency.shape[0]
    root = torch.empty(nodes, device=adjacency.device)
    out = torch.empty_like(adjacency)
    degree_kernel[(nodes,)](adjacency, root, nodes, BLOCK=1024)
    normalize_kernel[(nodes, triton.cdiv(nodes, 1024))](adjacency, root, out, nodes, BLOCK=1024)
    return out
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void roots(const float* __restrict__ adjacency, float* __restrict__ root, int nodes) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= nodes) return;
    float sum = 0.0f;
    for (int j = lane; j < nodes; j += 32) sum += adjacency[(long)row * nodes + j];
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_down_sync(0xffffffff, sum, o);
    if (lane == 0) root[row] = rsqrtf(sum + 1.0f);
}

// A block per node, a thread per feature. Most of the adjacency is zero: its row goes through shared memory in
// pieces, and neighbours' features are read only where there is an edge.
__global__ void aggregate(const float* __restrict__ adjacency, const float* __restrict__ root,
                          const float* __restrict__ h, float* __restrict__ out, int nodes, int width, bool relu) {
    __shared__ float edges[256];
    int row = blockIdx.x;
    int feature = threadIdx.x;
    float mine = root[row];
    float sum = feature < width ? mine * h[(long)row * width + feature] : 0.0f;
    for (int start = 0; start < nodes; start += 256) {
        __syncthreads();
        for (int j = threadIdx.x; j < 256; j += blockDim.x) {
            int node = start + j;
            edges[j] = node < nodes ? adjacency[(long)row * nodes + node] : 0.0f;
        }
        __syncthreads();
        int end = min(256, nodes - start);
        for (int j = 0; j < end; ++j) {
            float edge = edges[j];
            if (edge != 0.0f && feature < width) {
                sum = fmaf(edge * root[start + j], h[(long)(start + j) * width + feature], sum);
            }
        }
    }
    if (feature < width) {
        sum *= mine;
        out[(long)row * width + feature] = relu ? fmaxf(sum, 0.0f) : sum;
    }
}

torch::Tensor inverse_roots(torch::Tensor adjacency) {
    int nodes = adjacency.size(0);
    auto root = torch::empty({nodes}, adjacency.options());
    roots<<<(nodes + 7) / 8, 256>>>(adjacency.data_ptr<float>(), root.data_ptr<float>(), nodes);
    return root;
}

torch::Tensor propagate(torch::Tensor adjacency, torch::Tensor root, torch::Tensor h, bool relu) {
    int nodes = h.size(0), width = h.size(1);
    TORCH_CHECK(width <= 1024, "too many features for a block");
    auto out = torch::empty_like(h);
    int threads = (width + 31) / 32 * 32;
    aggregate<<<nodes, threads>>>(adjacency.data_ptr<float>(), root.data_ptr<float>(), h.data_ptr<float>(),
                                  out.data_ptr<float>(), nodes, width, relu);
    return out;
}
"""
graph_module = load_inline(
    name="dense_graph_convolution_edges",
    cpp_sources="torch::Tensor inverse_roots(torch::Tensor adjacency); "
    "torch::Tensor propagate(torch::Tensor adjacency, torch::Tensor root, torch::Tensor h, bool relu);",
    cuda_sources=source,
    functions=["inverse_roots", "propagate"],
)
'''

_INIT = """
    self.first = nn.Linear(features, hidden)
    self.second = nn.Linear(hidden, classes)
"""

_CUDA_ALL = '''
from torch.utils.cpp_extension import load_inline

graph_source = r"""
#include <torch/extension.h>

__global__ void inv_sqrt_degree_kernel(const float* __restrict__ adjacency, float* __restrict__ root, int nodes) {
    __shared__ float buffer[128];
    int row = blockIdx.x;
    float sum = 0.0f;
    for (int j = threadIdx.x; j < nodes; j += blockDim.x) sum += adjacency[row * nodes + j];
    buffer[threadIdx.x] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) buffer[threadIdx.x] += buffer[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) root[row] = 1.0f / sqrtf(buffer[0] + 1.0f);
}

__global__ void linear_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                              const float* __restrict__ bias, float* __restrict__ out, int rows, int in_features,
                              int out_features) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= rows * out_features) return;
    int row = idx / out_features;
    int o = idx % out_features;
    float sum = bias[o];
    for (int k = 0; k < in_features; k++) sum += x[row * in_features + k] * weight[o * in_features + k];
    out[idx] = sum;
}

__global__ void aggregate_kernel(const float* __restrict__ adjacency, const float* __restrict__ root,
                                 const float* __restrict__ h, float* __restrict__ out, int nodes, int width,
                                 bool relu) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= nodes * width) return;
    int row = idx / width;
    int f = idx % width;
    float sum = root[row] * h[idx];
    for (int j = 0; j < nodes; j++) sum += adjacency[row * nodes + j] * root[j] * h[j * width + f];
    sum *= root[row];
    out[idx] = relu ? fmaxf(sum, 0.0f) : sum;
}

__global__ void log_softmax_kernel(float* x, int rows, int classes) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float* line = x + row * classes;
    float best = line[0];
    for (int c = 1; c < classes; c++) best = fmaxf(best, line[c]);
    float sum = 0.0f;
    for (int c = 0; c < classes; c++) sum += expf(line[c] - best);
    float shift = best + logf(sum);
    for (int c = 0; c < classes; c++) line[c] -= shift;
}

torch::Tensor gcn_forward(torch::Tensor x, torch::Tensor adjacency, torch::Tensor w1, torch::Tensor b1,
                          torch::Tensor w2, torch::Tensor b2) {
    int nodes = x.size(0), features = x.size(1), hidden = w1.size(0), classes = w2.size(0);
    auto options = x.options();
    auto root = torch::empty({nodes}, options);
    auto h1 = torch::empty({nodes, hidden}, options);
    auto g1 = torch::empty({nodes, hidden}, options);
    auto h2 = torch::empty({nodes, classes}, options);
    auto out = torch::empty({nodes, classes}, options);
    const float* a = adjacency.data_ptr<float>();
    inv_sqrt_degree_kernel<<<nodes, 128>>>(a, root.data_ptr<float>(), nodes);
    int blocks = (nodes * hidden + 255) / 256;
    linear_kernel<<<blocks, 256>>>(x.data_ptr<float>(), w1.data_ptr<float>(), b1.data_ptr<float>(),
                                   h1.data_ptr<float>(), nodes, features, hidden);
    aggregate_kernel<<<blocks, 256>>>(a, root.data_ptr<float>(), h1.data_ptr<float>(), g1.data_ptr<float>(), nodes,
                                      hidden, true);
    blocks = (nodes * classes + 255) / 256;
    linear_kernel<<<blocks, 256>>>(g1.data_ptr<float>(), w2.data_ptr<float>(), b2.data_ptr<float>(),
                                   h2.data_ptr<float>(), nodes, hidden, classes);
    aggregate_kernel<<<blocks, 256>>>(a, root.data_ptr<float>(), h2.data_ptr<float>(), out.data_ptr<float>(), nodes,
                                      classes, false);
    log_softmax_kernel<<<(nodes + 255) / 256, 256>>>(out.data_ptr<float>(), nodes, classes);
    return out;
}
"""
gcn_module = load_inline(
    name="dense_graph_convolution_all",
    cpp_sources="torch::Tensor gcn_forward(torch::Tensor x, torch::Tensor adjacency, torch::Tensor w1, "
    "torch::Tensor b1, torch::Tensor w2, torch::Tensor b2);",
    cuda_sources=graph_source,
    functions=["gcn_forward"],
)
'''

_CUDA_NORMALIZED = '''
from torch.utils.cpp_extension import load_inline

normalize_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void degree_kernel(const float* __restrict__ adjacency, float* degree, int nodes) {
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long)nodes * nodes) return;
    const float edge = adjacency[i];
    if (edge != 0.0f) atomicAdd(&degree[i / nodes], edge);
}

__global__ void normalize_kernel(const float* __restrict__ adjacency, const float* __restrict__ degree,
                                 float* __restrict__ out, int nodes) {
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long)nodes * nodes) return;
    const int row = i / nodes;
    const int col = i % nodes;
    const float value = adjacency[i] + (row == col ? 1.0f : 0.0f);
    out[i] = value * rsqrtf(degree[row]) * rsqrtf(degree[col]);
}

torch::Tensor normalize_adjacency(torch::Tensor adjacency) {
    TORCH_CHECK(adjacency.is_cuda(), "adjacency must be on the GPU");
    TORCH_CHECK(adjacency.is_contiguous(), "adjacency must be contiguous");
    TORCH_CHECK(adjacency.dim() == 2 && adjacency.size(0) == adjacency.size(1), "adjacency must be square");
    const int nodes = adjacency.size(0);
    auto degree = torch::ones({nodes}, adjacency.options());  // the self-loops
    auto out = torch::empty_like(adjacency);
    const int threads = 256;
    const int blocks = (adjacency.numel() + threads - 1) / threads;
    auto stream = at::cuda::getCurrentCUDAStream();
    degree_kernel<<<blocks, threads, 0, stream>>>(adjacency.data_ptr<float>(), degree.data_ptr<float>(), nodes);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    normalize_kernel<<<blocks, threads, 0, stream>>>(adjacency.data_ptr<float>(), degree.data_ptr<float>(),
                                                     out.data_ptr<float>(), nodes);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
normalize_module = load_inline(
    name="dense_graph_convolution_normalize",
    cpp_sources="torch::Tensor normalize_adjacency(torch::Tensor adjacency);",
    cuda_sources=normalize_source,
    functions=["normalize_adjacency"],
)
'''

MODULE = Rewritten(
    name="dense_graph_convolution",
    sizes="""
        nodes = 1536
        features = 64
        hidden = 128
        classes = 16
    """,
    arguments=("features", "hidden", "classes"),
    takes="x, adjacency",
    inputs="[torch.randn(nodes, features), (torch.rand(nodes, nodes) < 0.02).float()]",
    reference=Body(
        summary="Two layers of graph convolution with self-loops and symmetric normalization.",
        init=_INIT,
        forward="""
            a = adjacency + torch.eye(adjacency.shape[0], device=adjacency.device)
            d = torch.diag(a.sum(dim=1).pow(-0.5))
            a = d @ a @ d
            h = torch.relu(a @ self.first(x))
            return F.log_softmax(a @ self.second(h), dim=1)
        """,
    ),
    rewrites={
        "broadcast_normalization": Body(
            forward="""
                a = adjacency + torch.eye(adjacency.shape[0], device=adjacency.device)
                r = a.sum(dim=1).rsqrt()
                a = a * r[:, None] * r[None, :]
                h = torch.relu(a @ self.first(x))
                return F.log_softmax(a @ self.second(h), dim=1)
            """
        ),
        "features_scaled": Body(
            summary="""Graph convolutions that never change the adjacency matrix.

    The normalization scales rows and columns, which is the same as to scale the features before and after the
    product; self-loops are the features themselves, as the addend of the product.
    """,
            init=_INIT,
            methods='''
                def _propagate(self, adjacency, root, h):
                    """D^-1/2 (A + I) D^-1/2 h, where root is the diagonal of D^-1/2 as a column."""
                    scaled = h * root
                    return torch.addmm(scaled, adjacency, scaled).mul_(root)
            ''',
            forward="""
                if adjacency.dim() != 2 or adjacency.shape[0] != adjacency.shape[1]:
                    raise ValueError("adjacency must be a square matrix")
                root = (adjacency.sum(dim=1, keepdim=True) + 1.0).rsqrt_()
                h = self._propagate(adjacency, root, self.first(x)).relu_()
                return F.log_softmax(self._propagate(adjacency, root, self.second(h)), dim=1)
            """,
        ),
        "narrow_side_first": Body(
            summary="""Graph convolutions that meet the adjacency matrix with as few features as they can.

    A layer is A (x W), or (A x) W if it takes fewer features than it gives. In the second order the bias has to be
    multiplied by the row sums of the normalized adjacency, which come from a column of ones next to the input.
    """,
            init=_INIT,
            methods='''
                def _gather(self, adjacency, root, h):
                    """Normalized neighbours and self, summed."""
                    scaled = h * root
                    return torch.addmm(scaled, adjacency, scaled).mul_(root)

                def _layer(self, adjacency, root, x, linear):
                    """One graph convolution, in the cheaper order."""
                    if linear.in_features + 1 < linear.out_features:
                        gathered = self._gather(adjacency, root, torch.cat([x, torch.ones_like(root)], dim=1))
                        y = torch.mm(gathered[:, :-1], linear.weight.t())
                        return torch.addcmul(y, gathered[:, -1:], linear.bias)
                    return self._gather(adjacency, root, linear(x))
            ''',
            forward="""
                root = (adjacency.sum(dim=1, keepdim=True) + 1.0).rsqrt()
                h = self._layer(adjacency, root, x, self.first).relu_()
                return self._layer(adjacency, root, h, self.second).log_softmax(dim=1)
            """,
        ),
        "sparse_rows": Body(
            summary="The adjacency becomes sparse by rows, as one in fifty entries is an edge.",
            forward="""
                root = (adjacency.sum(dim=1, keepdim=True) + 1.0).rsqrt()
                edges = adjacency.to_sparse_csr()
                scaled = self.first(x) * root
                h = torch.relu((edges @ scaled + scaled) * root)
                scaled = self.second(h) * root
                return F.log_softmax((edges @ scaled + scaled) * root, dim=1)
            """,
        ),
        "edge_list": Body(
            summary="Features are gathered along the edges and added up at their targets.",
            forward="""
                target, origin = adjacency.nonzero(as_tuple=True)
                weight = adjacency[target, origin].unsqueeze(1)
                root = (adjacency.sum(dim=1, keepdim=True) + 1.0).rsqrt()
                h = self.first(x) * root
                h = h.index_add(0, target, h[origin] * weight).mul_(root).relu_()
                h = self.second(h) * root
                h = h.index_add(0, target, h[origin] * weight).mul_(root)
                return F.log_softmax(h, dim=1)
            """,
        ),
        "half_adjacency": Body(
            summary="Zeros and ones are exact in half precision: only the features are rounded.",
            forward="""
                root = (adjacency.sum(dim=1, keepdim=True) + 1.0).rsqrt()
                kind = torch.float16 if adjacency.is_cuda else torch.float32
                edges = adjacency.to(kind)
                scaled = self.first(x) * root
                h = (torch.mm(edges, scaled.to(kind)).float().add_(scaled)).mul_(root).relu_()
                scaled = self.second(h) * root
                h = (torch.mm(edges, scaled.to(kind)).float().add_(scaled)).mul_(root)
                return F.log_softmax(h, dim=1)
            """,
        ),
        "triton_normalization": Body(
            before=_NORMALIZE_KERNELS,
            forward="""
                a = normalized(adjacency.contiguous())
                h = torch.relu(a @ self.first(x))
                return F.log_softmax(a @ self.second(h), dim=1)
            """,
        ),
        "cuda_edges": Body(
            before=_CUDA,
            forward="""
                adjacency = adjacency.contiguous()
                root = graph_module.inverse_roots(adjacency)
                h = graph_module.propagate(adjacency, root, self.first(x), True)
                return F.log_softmax(graph_module.propagate(adjacency, root, self.second(h), False), dim=1)
            """,
        ),
        "cuda_all_steps": Body(
            before=_CUDA_ALL,
            forward="""
                first, second = self.first, self.second
                return gcn_module.gcn_forward(
                    x.contiguous(), adjacency.contiguous(), first.weight, first.bias, second.weight, second.bias
                )
            """,
        ),
        "cuda_normalization": Body(
            summary="The normalised adjacency matrix from kernels, all products from the library.",
            before=_CUDA_NORMALIZED,
            init=_INIT,
            methods='''
                def _normalize(self, adjacency):
                    """D^-1/2 (A + I) D^-1/2."""
                    if adjacency.is_cuda and adjacency.dtype == torch.float32:
                        return normalize_module.normalize_adjacency(adjacency.contiguous())
                    a = adjacency + torch.eye(adjacency.shape[0], device=adjacency.device, dtype=adjacency.dtype)
                    root = a.sum(dim=1).rsqrt()
                    return root[:, None] * a * root
            ''',
            forward="""
                a = self._normalize(adjacency)
                h = torch.relu(torch.mm(a, self.first(x)))
                return F.log_softmax(torch.mm(a, self.second(h)), dim=1)
            """,
        ),
    },
    carries_on="features_scaled",
)
