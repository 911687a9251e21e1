"""Outer sums of queries and keys, tanh, a product with a vector and a softmax over keys."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TRITON = """
import triton
import triton.language as tl


@triton.jit
def additive_softmax_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, n, m, d, BM: tl.constexpr, BD: tl.constexpr
):
    # One query in each program, against all keys of its item; then the softmax over them.
    query = tl.program_id(0)
    item = query // n
    keys = tl.arange(0, BM)
    score = tl.zeros((BM,), dtype=tl.float32)
    for start in range(0, d, BD):
        at = start + tl.arange(0, BD)
        q = tl.load(q_ptr + query * d + at, mask=at < d, other=0.0)
        v = tl.load(v_ptr + at, mask=at < d, other=0.0)
        k = tl.load(
            k_ptr + (item * m + keys[:, None]) * d + at[None, :],
            mask=(keys[:, None] < m) & (at[None, :] < d), other=0.0,
        )
        t = 2.0 * tl.sigmoid(2.0 * (k + q[None, :])) - 1.0
        score += tl.sum(t * v[None, :], axis=1)
    score = tl.where(keys < m, score, float("-inf"))
    weight = tl.exp(score - tl.max(score, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    tl.store(out_ptr + query * m + keys, weight, mask=keys < m)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One thread per pair of a query and a key.
__global__ void pair_scores(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
                            float* __restrict__ out, int n, int m, int d, long total) {
    long pair = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (pair >= total) return;
    long query = pair / m;
    long key = query / n * m + pair % m;
    const float* left = q + query * d;
    const float* right = k + key * d;
    float sum = 0.0f;
    for (int i = 0; i < d; ++i) sum += v[i] * tanhf(left[i] + right[i]);
    out[pair] = sum;
}

torch::Tensor scores(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
    int b = q.size(0);
    int n = q.size(1);
    int m = k.size(1);
    int d = q.size(2);
    auto out = torch::empty({b, n, m}, q.options());
    long total = out.numel();
    pair_scores<<<(int)((total + 127) / 128), 128>>>(q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(),
                                                     out.data_ptr<float>(), n, m, d, total);
    return out;
}
"""
pair_module = load_inline(
    name="additive_pair_scores_threads",
    cpp_sources="torch::Tensor scores(torch::Tensor q, torch::Tensor k, torch::Tensor v);",
    cuda_sources=source,
    functions=["scores"],
)
'''

MODULE = Rewritten(
    name="additive_pair_scores",
    sizes="""
        batch_size = 4
        queries = 128
        keys = 256
        dim = 256
    """,
    arguments=("dim",),
    takes="q, k",
    inputs="[torch.randn(batch_size, queries, dim), torch.randn(batch_size, keys, dim)]",
    reference=Body(
        summary="Additive attention weights: softmax over keys of a vector times tanh(query + key).",
        init="self.score = nn.Linear(dim, 1)",
        forward="""
            n, m = q.shape[1], k.shape[1]
            left = q.unsqueeze(2).repeat(1, 1, m, 1)
            right = k.unsqueeze(1).repeat(1, n, 1, 1)
            energy = torch.tanh(left + right)
            scores = self.score(energy).squeeze(-1)
            return torch.softmax(scores, dim=-1)
        """,
    ),
    rewrites={
        "broadcast": Body(
            summary="Broadcasting in place of copies; the bias drops out under the softmax.",
            forward="""
                energy = (q.unsqueeze(2) + k.unsqueeze(1)).tanh_()
                return torch.matmul(energy, self.score.weight[0]).softmax(dim=-1)
            """,
        ),
        "multiply_and_sum": Body(
            forward="""
                energy = torch.tanh(q[:, :, None, :] + k[:, None, :, :])
                scores = (energy * self.score.weight.view(-1)).sum(dim=-1) + self.score.bias
                return F.softmax(scores, dim=-1)
            """
        ),
        "query_chunks": Body(
            summary="Sixteen queries at a time, so that the energies of a piece stay in the cache.",
            init="""
                self.score = nn.Linear(dim, 1)
                self.piece = 16
            """,
            forward="""
                scores = torch.empty(q.shape[0], q.shape[1], k.shape[1], device=q.device, dtype=q.dtype)
                keys = k.unsqueeze(1)
                vector = self.score.weight.view(-1)
                for start in range(0, q.shape[1], self.piece):
                    rows = q[:, start:start + self.piece].unsqueeze(2)
                    energy = torch.add(rows, keys).tanh_()
                    scores[:, start:start + self.piece] = energy @ vector
                return scores.softmax(dim=-1)
            """,
        ),
        "query_loop": Body(
            forward="""
                columns = []
                for i in range(q.shape[1]):
                    energy = torch.tanh(k + q[:, i:i + 1])
                    columns.append(F.softmax(self.score(energy).squeeze(-1), dim=-1))
                return torch.stack(columns, dim=1)
            """
        ),
        "exponential_factors": Body(
            summary="tanh(a + b) = 1 - 2 / (1 + exp(2a) exp(2b)): exponentials per query and key, not per pair.",
            forward="""
                left = torch.exp(2.0 * q).unsqueeze(2)
                right = torch.exp(2.0 * k).unsqueeze(1)
                # The one before the fraction adds the same to all scores of a row.
                fraction = (left * right).add_(1.0).reciprocal_()
                scores = torch.matmul(fraction, self.score.weight[0] * -2.0)
                return torch.softmax(scores, dim=-1)
            """,
        ),
        "scripted": Body(
            before="""
                tail = torch.jit.CompilationUnit(
                    '''
                def energy(q, k, vector):
                    summed = q.unsqueeze(2) + k.unsqueeze(1)
                    return torch.mv(torch.tanh(summed).view(-1, q.size(-1)), vector)
                '''
                )
            """,
            forward="""
                scores = tail.energy(q, k, self.score.weight.view(-1))
                return scores.view(q.shape[0], q.shape[1], k.shape[1]).softmax(dim=-1)
            """,
        ),
        "triton_whole": Body(
            before=_TRITON,
            forward="""
                q, k = q.contiguous(), k.contiguous()
                b, n, d = q.shape
                m = k.shape[1]
                out = torch.empty(b, n, m, device=q.device, dtype=q.dtype)
                additive_softmax_kernel[(b * n,)](
                    q, k, self.score.weight, out, n, m, d, BM=triton.next_power_of_2(m), BD=32, num_warps=8
                )
                return out
            """,
        ),
        "cuda_thread_per_pair": Body(
            before=_CUDA,
            forward="""
                scores = pair_module.scores(q.contiguous(), k.contiguous(), self.score.weight)
                return torch.softmax(scores, dim=-1)
            """,
        ),
    },
    carries_on="broadcast",
)
