"""One decoding step of grouped-query attention over a cache of keys and values."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_DECODE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def decode_kernel(q_ptr, k_ptr, v_ptr, new_ptr, top_ptr, total_ptr, acc_ptr, length, per_split, scale,
                  groups, D: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    # One program per sample, head of keys and part of the cache; it serves a whole group of queries.
    # q: (batch * groups, GROUP, D); k and v: (batch * groups, length, D); new: (batch, 2, groups, D).
    bg = tl.program_id(0)
    split = tl.program_id(1)
    g = tl.arange(0, GROUP)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + (bg * GROUP + g[:, None]) * D + d[None, :]) * scale
    top = tl.full((GROUP,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((GROUP,), dtype=tl.float32)
    acc = tl.zeros((GROUP, D), dtype=tl.float32)
    new = new_ptr + (bg // groups * 2 * groups + bg % groups) * D
    if split == 0:
        # the new token's own key and value
        k_new = tl.load(new + d)
        v_new = tl.load(new + groups * D + d)
        top = tl.sum(q * k_new[None, :], axis=1)
        total += 1.0
        acc += v_new[None, :]
    end = tl.minimum((split + 1) * per_split, length)
    for first in range(split * per_split, end, BLOCK):
        n = first + tl.arange(0, BLOCK)
        inside = n < end
        at = (bg.to(tl.int64) * length + n[:, None]) * D + d[None, :]
        k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
        v = tl.load(v_ptr + at, mask=inside[:, None], other=0.0)
        s = tl.sum(q[:, None, :] * k[None, :, :], axis=2)
        s = tl.where(inside[None, :], s, -1.0e30)
        higher = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp(s - higher[:, None])
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(p, axis=1)
        acc = acc * fade[:, None] + tl.sum(p[:, :, None] * v[None, :, :], axis=1)
        top = higher
    row = (bg * tl.num_programs(1) + split) * GROUP + g
    tl.store(top_ptr + row, top)
    tl.store(total_ptr + row, total)
    tl.store(acc_ptr + row[:, None] * D + d[None, :], acc)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A block per sample and head of queries: scores by a warp per key, softmax over shared memory, then a thread per
// feature and part of the keys for the weighted sum. Needs 64 features per head and blocks of 256 threads.
__global__ void decode(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
                       float* __restrict__ out, int heads, int groups, int length, float scale) {
    extern __shared__ float scores[];
    __shared__ float partial[256];
    int b = blockIdx.x / heads, h = blockIdx.x % heads;
    long base = ((long)b * groups + h / (heads / groups)) * length * 64;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float2 mine = reinterpret_cast<const float2*>(q + (long)blockIdx.x * 64)[lane];
    float top = -1e30f;
    for (int j = warp; j < length; j += 8) {
        float2 key = reinterpret_cast<const float2*>(k + base + (long)j * 64)[lane];
        float s = mine.x * key.x + mine.y * key.y;
        for (int o = 16; o > 0; o >>= 1) s += __shfl_xor_sync(0xffffffff, s, o);
        s *= scale;
        if (lane == 0) scores[j] = s;
        top = fmaxf(top, s);
    }
    if (lane == 0) partial[warp] = top;
    __syncthreads();
    for (int w = 0; w < 8; ++w) top = fmaxf(top, partial[w]);
    __syncthreads();
    float total = 0.0f;
    for (int j = threadIdx.x; j < length; j += 256) {
        float e = __expf(scores[j] - top);
        scores[j] = e;
        total += e;
    }
    for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(0xffffffff, total, o);
    if (lane == 0) partial[warp] = total;
    __syncthreads();
    total = 0.0f;
    for (int w = 0; w < 8; ++w) total += partial[w];
    __syncthreads();
    int feature = threadIdx.x % 64, part = threadIdx.x / 64;
    float sum = 0.0f;
    for (int j = part; j < length; j += 4) sum = fmaf(scores[j], v[base + (long)j * 64 + feature], sum);
    partial[threadIdx.x] = sum;
    __syncthreads();
    if (part == 0)
        out[(long)blockIdx.x * 64 + feature] =
            (partial[feature] + partial[64 + feature] + partial[128 + feature] + partial[192 + feature]) / total;
}

torch::Tensor decode_forward(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
    TORCH_CHECK(q.size(2) == 64, "heads of 64 features only");
    auto out = torch::empty_like(q);
    int heads = q.size(1), length = k.size(2);
    TORCH_CHECK(length <= 10000, "scores must fit into shared memory");
    decode<<<q.size(0) * heads, 256, length * sizeof(float)>>>(
        q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), out.data_ptr<float>(), heads,
        (int)k.size(1), length, 0.125f);
    return out;
}
"""
decode_module = load_inline(
    name="grouped_query_decode_step_block",
    cpp_sources="torch::Tensor decode_forward(torch::Tensor q, torch::Tensor k, torch::Tensor v);",
    cuda_sources=source,
    functions=["decode_forward"],
)
'''

_INIT = """
    self.heads = heads
    self.groups = groups
    self.head_size = head_size
    self.query = nn.Linear(heads * head_size, heads * head_size, bias=False)
    self.key = nn.Linear(heads * head_size, groups * head_size, bias=False)
    self.value = nn.Linear(heads * head_size, groups * head_size, bias=False)
    self.out = nn.Linear(heads * head_size, heads * head_size, bias=False)
"""

_PACKED = """
    with torch.no_grad():
        weights = [self.query.weight * head_size**-0.5, self.key.weight, self.value.weight]
        self.register_buffer("packed_t", torch.cat(weights).t().contiguous())
"""

MODULE = Rewritten(
    name="grouped_query_decode_step",
    sizes="""
        batch_size = 16
        heads = 16
        groups = 4
        head_size = 64
        length = 1024
    """,
    arguments=("heads", "groups", "head_size"),
    takes="x, k_cache, v_cache",
    inputs="[torch.randn(batch_size, 1, heads * head_size)] "
    "+ [torch.randn(batch_size, groups, length, head_size) for _ in range(2)]",
    reference=Body(
        summary="Attention of one new token to itself and to all tokens in the cache; queries share keys in groups.",
        init=_INIT,
        forward="""
            B = x.shape[0]
            q = self.query(x).view(B, 1, self.heads, self.head_size).transpose(1, 2)
            k = self.key(x).view(B, 1, self.groups, self.head_size).transpose(1, 2)
            v = self.value(x).view(B, 1, self.groups, self.head_size).transpose(1, 2)
            k = torch.cat([k_cache, k], dim=2)
            v = torch.cat([v_cache, v], dim=2)
            k = k.repeat_interleave(self.heads // self.groups, dim=1)
            v = v.repeat_interleave(self.heads // self.groups, dim=1)
            scores = torch.matmul(q, k.transpose(-2, -1)) / self.head_size**0.5
            weights = F.softmax(scores, dim=-1)
            y = torch.matmul(weights, v)
            return self.out(y.transpose(1, 2).reshape(B, 1, -1))
        """,
    ),
    rewrites={
        "groups_as_rows": Body(
            summary="Queries of a group are rows of one product with their shared keys.",
            forward="""
                B = x.shape[0]
                q = self.query(x).view(B, self.groups, -1, self.head_size)
                k = torch.cat([k_cache, self.key(x).view(B, self.groups, 1, self.head_size)], dim=2)
                v = torch.cat([v_cache, self.value(x).view(B, self.groups, 1, self.head_size)], dim=2)
                scores = q @ k.transpose(-2, -1) * self.head_size**-0.5
                y = scores.softmax(dim=-1) @ v
                return self.out(y.view(B, 1, -1))
            """,
        ),
        "cache_left_alone": Body(
            summary="""A decoding step that never copies the cache.

    The scores of the cache and the score of the new token come from separate products and meet in one row for the
    softmax, which is small. The weighted sum is the one over the cache plus the new value times its weight.
    Queries, keys and values of the token come from one product, with the scale in it.
    """,
            init=_INIT + _PACKED,
            methods='''
                def _project(self, x):
                    """(B, groups, heads per group, D) queries, and (B, groups, 1, D) keys and values."""
                    B, D, G = x.shape[0], self.head_size, self.groups
                    packed = x.view(B, -1) @ self.packed_t
                    q, k, v = packed.split([self.heads * D, G * D, G * D], dim=1)
                    return q.view(B, G, -1, D), k.view(B, G, 1, D), v.view(B, G, 1, D)
            ''',
            forward="""
                q, k, v = self._project(x)
                length = k_cache.shape[2]
                scores = q.new_empty(*q.shape[:3], length + 1)
                scores[..., :length] = q @ k_cache.transpose(-2, -1)
                scores[..., length:] = (q * k).sum(dim=-1, keepdim=True)
                p = torch.softmax(scores, dim=-1)
                y = p[..., :length] @ v_cache
                y = torch.addcmul(y, p[..., length:], v)
                return self.out(y.view(x.shape[0], 1, -1))
            """,
        ),
        "library_grouped": Body(
            forward="""
                B = x.shape[0]
                q = self.query(x).view(B, self.heads, 1, self.head_size)
                k = torch.cat([k_cache, self.key(x).view(B, self.groups, 1, self.head_size)], dim=2)
                v = torch.cat([v_cache, self.value(x).view(B, self.groups, 1, self.head_size)], dim=2)
                y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
                return self.out(y.view(B, 1, -1))
            """
        ),
        "library_expanded": Body(
            summary="The library's attention, with keys and values expanded to all heads.",
            forward="""
                B, D = x.shape[0], self.head_size
                per_group = self.heads // self.groups
                q = self.query(x).view(B, self.heads, 1, D)
                k = torch.cat([k_cache, self.key(x).view(B, self.groups, 1, D)], dim=2)
                v = torch.cat([v_cache, self.value(x).view(B, self.groups, 1, D)], dim=2)
                k = k.unsqueeze(2).expand(-1, -1, per_group, -1, -1).reshape(B, self.heads, -1, D)
                v = v.unsqueeze(2).expand(-1, -1, per_group, -1, -1).reshape(B, self.heads, -1, D)
                return self.out(F.scaled_dot_product_attention(q, k, v).view(B, 1, -1))
            """,
        ),
        "kept_cache_buffers": Body(
            summary="""A decoding step with room for one more token in buffers of its own.

    The caches are copied into buffers that stay between calls, and the new key and value are put behind them, so
    that no concatenation allocates memory.
    """,
            init=_INIT + "\n    self._room = None\n",
            methods="""
                def _with_room(self, cache):
                    shape = (2, cache.shape[0], cache.shape[1], cache.shape[2] + 1, cache.shape[3])
                    room = self._room
                    if room is None or room.shape != shape or room.device != cache.device:
                        self._room = room = torch.empty(shape, device=cache.device, dtype=cache.dtype)
                    return room
            """,
            forward="""
                B, length = x.shape[0], k_cache.shape[2]
                keys, values = self._with_room(k_cache)
                keys[:, :, :length].copy_(k_cache)
                values[:, :, :length].copy_(v_cache)
                keys[:, :, length] = self.key(x).view(B, self.groups, self.head_size)
                values[:, :, length] = self.value(x).view(B, self.groups, self.head_size)
                q = self.query(x).view(B, self.groups, -1, self.head_size)
                scores = torch.matmul(q, keys.transpose(-2, -1)).mul_(self.head_size**-0.5)
                y = torch.matmul(torch.softmax(scores, dim=-1), values)
                return self.out(y.reshape(B, 1, -1))
            """,
        ),
        "elementwise_sums": Body(
            summary="Products and sums along features and positions by broadcasting.",
            init=_INIT + _PACKED,
            forward="""
                B, D, G = x.shape[0], self.head_size, self.groups
                q, k, v = (x.view(B, -1) @ self.packed_t).split([self.heads * D, G * D, G * D], dim=1)
                k = torch.cat([k_cache, k.view(B, G, 1, D)], dim=2).unsqueeze(2)
                v = torch.cat([v_cache, v.view(B, G, 1, D)], dim=2).unsqueeze(2)
                p = (q.view(B, G, -1, 1, D) * k).sum(dim=-1).softmax(dim=-1)
                y = (p.unsqueeze(-1) * v).sum(dim=3)
                return self.out(y.reshape(B, 1, -1))
            """,
        ),
        "triton_split_cache": Body(
            summary="Parts of the cache are attended to by separate programs and joined at the end.",
            before=_DECODE_KERNEL,
            init=_INIT
            + """
    self.register_buffer("new_weight", torch.cat([self.key.weight, self.value.weight]).detach())
    self.splits = 8
""",
            forward="""
                B, G, length, D = k_cache.shape
                group, splits = self.heads // G, self.splits
                q = self.query(x).view(B * G, group, D)
                new = F.linear(x, self.new_weight).view(B, 2, G, D)
                top = torch.empty(B * G, splits, group, 1, device=x.device)
                total = torch.empty_like(top)
                acc = torch.empty(B * G, splits, group, D, device=x.device)
                decode_kernel[(B * G, splits)](
                    q, k_cache.contiguous(), v_cache.contiguous(), new, top, total, acc, length,
                    triton.cdiv(length, splits), D**-0.5, G, D=D, GROUP=group, BLOCK=32
                )
                fade = torch.exp(top - top.amax(dim=1, keepdim=True))
                y = (acc * fade).sum(dim=1) / (total * fade).sum(dim=1)
                return self.out(y.view(B, 1, -1))
            """,
        ),
        "cuda_block_per_head": Body(
            before=_CUDA,
            forward="""
                B, D = x.shape[0], self.head_size
                q = self.query(x).view(B, self.heads, D)
                k = torch.cat([k_cache, self.key(x).view(B, self.groups, 1, D)], dim=2)
                v = torch.cat([v_cache, self.value(x).view(B, self.groups, 1, D)], dim=2)
                return self.out(decode_module.decode_forward(q, k, v).view(B, 1, -1))
            """,
        ),
    },
    carries_on="cache_left_alone",
)
