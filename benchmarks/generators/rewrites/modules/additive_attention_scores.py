"""Additive attention: a small network on every pair of query and key, softmax over keys, and their weighted sum."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_SCORES_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def scores_kernel(q_ptr, k_ptr, v_ptr, out_ptr, queries, keys, width, ROWS: tl.constexpr, COLS: tl.constexpr,
                  STEP: tl.constexpr):
    # v . tanh(q + k) for a tile of pairs; no pair's features reach memory
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    sample = tl.program_id(2)
    acc = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for start in range(0, width, STEP):
        d = start + tl.arange(0, STEP)
        q = tl.load(
            q_ptr + (sample * queries + row[:, None]) * width + d[None, :],
            mask=(row[:, None] < queries) & (d[None, :] < width), other=0.0,
        )
        k = tl.load(
            k_ptr + (sample * keys + col[:, None]) * width + d[None, :],
            mask=(col[:, None] < keys) & (d[None, :] < width), other=0.0,
        )
        v = tl.load(v_ptr + d, mask=d < width, other=0.0)
        t = 2.0 * tl.sigmoid(2.0 * (q[:, None, :] + k[None, :, :])) - 1.0
        acc += tl.sum(t * v[None, None, :], axis=2)
    keep = (row[:, None] < queries) & (col[None, :] < keys)
    tl.store(out_ptr + (sample * queries + row[:, None]) * keys + col[None, :], acc, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One thread per pair of query and key, which walks along the features of both.
__global__ void pair_scores(const float* __restrict__ q, const float* __restrict__ k,
                            const float* __restrict__ v, float* __restrict__ out, int queries, int keys,
                            int width, long total) {
    long at = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (at >= total) return;
    int key = at % keys;
    long query = at / keys;
    long sample = query / queries;
    const float* qs = q + query * width;
    const float* ks = k + (sample * keys + key) * width;
    float sum = 0.0f;
    for (int d = 0; d < width; ++d) sum += v[d] * tanhf(qs[d] + ks[d]);
    out[at] = sum;
}

torch::Tensor pair_scores_forward(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
    int queries = q.size(1), keys = k.size(1), width = q.size(2);
    auto out = torch::empty({q.size(0), queries, keys}, q.options());
    long total = out.numel();
    pair_scores<<<(total + 255) / 256, 256>>>(
        q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), out.data_ptr<float>(), queries, keys,
        width, total);
    return out;
}
"""
pair_module = load_inline(
    name="additive_attention_scores_pairs",
    cpp_sources="torch::Tensor pair_scores_forward(torch::Tensor q, torch::Tensor k, torch::Tensor v);",
    cuda_sources=source,
    functions=["pair_scores_forward"],
)
'''

_INIT = """
    self.query = nn.Linear(features, width)
    self.key = nn.Linear(features, width)
    self.energy = nn.Linear(width, 1)
"""

MODULE = Rewritten(
    name="additive_attention_scores",
    sizes="""
        batch_size = 8
        queries = 128
        keys = 256
        features = 64
        width = 128
    """,
    arguments=("features", "width"),
    takes="target, memory",
    inputs="[torch.randn(batch_size, queries, features), torch.randn(batch_size, keys, features)]",
    reference=Body(
        summary="Attention of target steps to memory steps by a one-layer network.",
        init=_INIT,
        forward="""
            q = self.query(target).unsqueeze(2)
            k = self.key(memory).unsqueeze(1)
            energy = self.energy(torch.tanh(q + k)).squeeze(-1)
            weights = F.softmax(energy, dim=-1)
            return torch.bmm(weights, memory)
        """,
    ),
    rewrites={
        "tanh_in_place": Body(
            summary="The pairs' features are made once and squashed where they lie.",
            forward="""
                pairs = self.query(target).unsqueeze(2) + self.key(memory).unsqueeze(1)
                energy = torch.mv(pairs.tanh_().view(-1, pairs.shape[-1]), self.energy.weight.view(-1))
                # the energy's bias is the same for all keys
                return torch.bmm(torch.softmax(energy.view(pairs.shape[:3]), dim=-1), memory)
            """,
        ),
        "concatenated_pairs": Body(
            summary="Target and memory steps side by side for each pair, and one layer on both.",
            init=_INIT
            + """
    self.register_buffer("both_weight", torch.cat([self.query.weight, self.key.weight], dim=1).detach())
    self.register_buffer("both_bias", (self.query.bias + self.key.bias).detach())
""",
            forward="""
                B, Q, C = target.shape
                K = memory.shape[1]
                left = target.unsqueeze(2).expand(B, Q, K, C)
                right = memory.unsqueeze(1).expand(B, Q, K, C)
                pairs = torch.tanh(F.linear(torch.cat([left, right], dim=-1), self.both_weight, self.both_bias))
                weights = self.energy(pairs).squeeze(-1).softmax(dim=-1)
                return weights @ memory
            """,
        ),
        "query_chunks": Body(
            summary="""Additive attention, a few queries at a time.

    A chunk of queries with all keys is small enough for the level-two cache, so that its passes (sum, tanh,
    product) do not go to memory. All chunks share one workspace, which stays between calls.
    """,
            init=_INIT
            + """
    self.chunk = 16
    self._workspace = None
""",
            methods='''
                def _pairs(self, q, k):
                    """A workspace for the features of pairs of a chunk of queries with all keys."""
                    shape = (q.shape[0], self.chunk, k.shape[1], k.shape[2])
                    kept = self._workspace
                    if kept is None or kept.shape != shape or kept.device != k.device or kept.dtype != k.dtype:
                        self._workspace = kept = torch.empty(shape, device=k.device, dtype=k.dtype)
                    return kept
            ''',
            forward="""
                q = self.query(target)
                k = self.key(memory).unsqueeze(1)
                kept = self._pairs(q, k.squeeze(1))
                vector = self.energy.weight.view(-1, 1)
                energy = q.new_empty(q.shape[0], q.shape[1], k.shape[2])
                for start in range(0, q.shape[1], self.chunk):
                    part = q[:, start : start + self.chunk]
                    pairs = kept[:, : part.shape[1]]
                    torch.add(part.unsqueeze(2), k, out=pairs)
                    energy[:, start : start + part.shape[1]] = (pairs.tanh_() @ vector).squeeze(-1)
                return torch.bmm(energy.softmax(dim=-1), memory)
            """,
        ),
        "step_by_step": Body(
            summary="One target step after another, as a decoder would.",
            forward="""
                k = self.key(memory)
                steps = []
                for q in self.query(target).unbind(dim=1):
                    energy = self.energy(torch.tanh(k + q.unsqueeze(1)))
                    weights = F.softmax(energy, dim=1)
                    steps.append((weights * memory).sum(dim=1))
                return torch.stack(steps, dim=1)
            """,
        ),
        "multiplied_and_summed": Body(
            forward="""
                pairs = torch.tanh(self.query(target)[:, :, None] + self.key(memory)[:, None])
                energy = (pairs * self.energy.weight[0]).sum(dim=-1)
                return torch.matmul(energy.softmax(-1), memory)
            """
        ),
        "exponentials_of_parts": Body(
            summary="""Additive attention with exponentials of queries and keys alone.

    tanh(q + k) = 1 - 2 / (1 + exp(2 q) exp(2 k)). The one adds the same to the energies of all keys of a query, so
    softmax drops it, together with the bias. Pairs need a product and a reciprocal in place of a tanh.
    """,
            init=_INIT
            + """
    self.register_buffer("vector", self.energy.weight.detach().view(-1) * -2.0)
""",
            forward="""
                q = torch.exp(self.query(target) * 2.0).unsqueeze(2)
                k = torch.exp(self.key(memory) * 2.0).unsqueeze(1)
                pairs = torch.mul(q, k).add_(1.0).reciprocal_()
                return torch.softmax(pairs @ self.vector, dim=-1) @ memory
            """,
        ),
        "triton_scores": Body(
            before=_SCORES_KERNEL,
            forward="""
                q, k = self.query(target), self.key(memory)
                B, Q, D = q.shape
                K = k.shape[1]
                energy = torch.empty(B, Q, K, device=q.device)
                scores_kernel[(triton.cdiv(Q, 16), triton.cdiv(K, 32), B)](
                    q, k, self.energy.weight, energy, Q, K, D, ROWS=16, COLS=32, STEP=16
                )
                return torch.bmm(energy.softmax(dim=-1), memory)
            """,
        ),
        "cuda_thread_per_pair": Body(
            before=_CUDA,
            forward="""
                energy = pair_module.pair_scores_forward(self.query(target), self.key(memory), self.energy.weight)
                return torch.bmm(torch.softmax(energy, dim=-1), memory)
            """,
        ),
    },
    carries_on="tanh_in_place",
)
