"""Causal softmax of attention scores with a linear bias by distance, whose slope depends on the head."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_ROW_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def alibi_kernel(scores_ptr, slopes_ptr, out_ptr, heads, length, scale, BLOCK: tl.constexpr):
    # a program per row; what lies in the future is not read
    row = tl.program_id(0).to(tl.int64)
    position = (row % length).to(tl.int32)
    head = row // length % heads
    col = tl.arange(0, BLOCK)
    past = col <= position
    s = tl.load(scores_ptr + row * length + col, mask=past, other=0.0) * scale
    s += tl.load(slopes_ptr + head) * (col - position).to(tl.float32)
    s = tl.where(past, s, float("-inf"))
    e = tl.exp(s - tl.max(s, axis=0))
    tl.store(out_ptr + row * length + col, e / tl.sum(e, axis=0), mask=col < length)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A warp per row, in three passes: the maximum, the sum, and the result. Rows of neighbouring positions share a
// block, and each reads its past only; later passes find it in the cache.
__global__ void alibi_rows(const float* __restrict__ scores, const float* __restrict__ slopes,
                           float* __restrict__ out, int heads, int length, float scale, long rows) {
    long row = blockIdx.x * (long)(blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= rows) return;
    int position = row % length;
    float slope = slopes[row / length % heads];
    const float* in = scores + row * length;
    float top = -1e30f;
    for (int j = lane; j <= position; j += 32) top = fmaxf(top, in[j] * scale + slope * (j - position));
    for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, o));
    float total = 0.0f;
    for (int j = lane; j <= position; j += 32) total += __expf(in[j] * scale + slope * (j - position) - top);
    for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(0xffffffff, total, o);
    float inverse = 1.0f / total;
    for (int j = lane; j < length; j += 32)
        out[row * length + j] =
            j <= position ? __expf(in[j] * scale + slope * (j - position) - top) * inverse : 0.0f;
}

torch::Tensor alibi_forward(torch::Tensor scores, torch::Tensor slopes, double scale) {
    scores = scores.contiguous();
    auto out = torch::empty_like(scores);
    int length = scores.size(3);
    long rows = scores.numel() / length;
    int warps = 8;
    alibi_rows<<<(rows + warps - 1) / warps, warps * 32>>>(
        scores.data_ptr<float>(), slopes.data_ptr<float>(), out.data_ptr<float>(), (int)scores.size(1), length,
        (float)scale, rows);
    return out;
}
"""
alibi_module = load_inline(
    name="alibi_softmax_rows",
    cpp_sources="torch::Tensor alibi_forward(torch::Tensor scores, torch::Tensor slopes, double scale);",
    cuda_sources=source,
    functions=["alibi_forward"],
)
'''

_INIT = """
    self.scale = head_size**-0.5
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
    self.register_buffer("slopes", slopes)
"""

MODULE = Rewritten(
    name="alibi_softmax",
    sizes="""
        batch_size = 1
        heads = 12
        length = 1024
        head_size = 64
    """,
    arguments=("heads", "head_size"),
    takes="scores",
    inputs="[torch.randn(batch_size, heads, length, length) * 8.0]",
    reference=Body(
        summary="Attention weights from raw scores: scale, linear bias, causal mask, softmax.",
        init=_INIT,
        forward="""
            T = scores.shape[-1]
            position = torch.arange(T, device=scores.device)
            distance = position[None, :] - position[:, None]
            bias = self.slopes[:, None, None] * distance
            mask = torch.triu(torch.ones(T, T, device=scores.device), diagonal=1).bool()
            scores = scores * self.scale + bias
            scores = scores.masked_fill(mask, float("-inf"))
            return F.softmax(scores, dim=-1)
        """,
    ),
    rewrites={
        "kept_bias": Body(
            summary="""Softmax with a linear bias that is made once per length.

    Bias and mask are one tensor, (heads, length, length), with minus infinity where a key lies in the future. It is
    kept for the last length seen; scale and bias are then applied in a single pass.
    """,
            init=_INIT + "\n    self._bias = None\n",
            methods='''
                def _bias_for(self, scores):
                    """Bias and mask for scores of that length, on their device."""
                    T = scores.shape[-1]
                    bias = self._bias
                    if bias is None or bias.shape[-1] != T or bias.device != scores.device:
                        at = torch.arange(T, device=scores.device)
                        distance = at[None, :] - at[:, None]
                        bias = self.slopes[:, None, None] * distance
                        bias = bias.masked_fill(distance > 0, float("-inf")).to(scores.dtype)
                        self._bias = bias
                    return bias
            ''',
            forward="""
                return torch.softmax(torch.add(self._bias_for(scores), scores, alpha=self.scale), dim=-1)
            """,
        ),
        "bias_by_column": Body(
            summary="Only the key's position matters: the query's shifts its whole row, which softmax ignores.",
            forward="""
                T = scores.shape[-1]
                future = torch.ones(T, T, dtype=torch.bool, device=scores.device).triu_(1)
                at = torch.arange(1 - T, 1, device=scores.device, dtype=scores.dtype)
                scores = torch.add(self.slopes[:, None, None] * at, scores, alpha=self.scale)
                return scores.masked_fill_(future, float("-inf")).softmax(dim=-1)
            """,
        ),
        "in_place": Body(
            forward="""
                T = scores.shape[-1]
                at = torch.arange(T, device=scores.device)
                distance = at[None, :] - at[:, None]
                y = scores * self.scale
                y.addcmul_(self.slopes[:, None, None], distance.to(y.dtype))
                y.masked_fill_(distance > 0, float("-inf"))
                return y.softmax(dim=-1)
            """
        ),
        "softmax_by_hand": Body(
            summary="Exponentials, a triangle cut out of them, and a division.",
            forward="""
                T = scores.shape[-1]
                at = torch.arange(T, device=scores.device)
                bias = self.slopes.view(-1, 1, 1) * (at[None, :] - at[:, None]).clamp(max=0)
                y = scores * self.scale + bias
                y = torch.exp(y - y.amax(dim=-1, keepdim=True)).tril()
                return y / y.sum(dim=-1, keepdim=True)
            """,
        ),
        "head_by_head": Body(
            forward="""
                B, H, T, _ = scores.shape
                at = torch.arange(T, device=scores.device)
                distance = (at[None, :] - at[:, None]).float()
                distance.masked_fill_(distance > 0, float("-inf"))
                out = torch.empty_like(scores)
                for h in range(H):
                    y = torch.addcmul(scores[:, h] * self.scale, distance, self.slopes[h])
                    out[:, h] = torch.softmax(y, dim=-1)
                return out
            """
        ),
        "strips_of_past": Body(
            summary="Rows in strips; a strip reads scores up to its own end only, and the rest stays zero.",
            init=_INIT + "\n    self.strip = 256\n",
            forward="""
                T = scores.shape[-1]
                out = torch.zeros_like(scores)
                at = torch.arange(T, device=scores.device, dtype=scores.dtype)
                bias = self.slopes[:, None, None] * at
                corner = torch.full((self.strip, self.strip), float("-inf"), device=scores.device).triu_(1)
                for start in range(0, T, self.strip):
                    end = min(start + self.strip, T)
                    shift = bias[..., :end] - start * self.slopes[:, None, None]
                    y = scores[:, :, start:end, :end] * self.scale + shift
                    y[..., start:] += corner[: end - start, : end - start]
                    out[:, :, start:end, :end] = y.softmax(dim=-1)
                return out
            """,
        ),
        "triton_rows": Body(
            before=_ROW_KERNEL,
            forward="""
                scores = scores.contiguous()
                B, H, T, _ = scores.shape
                out = torch.empty_like(scores)
                grid = (B * H * T,)
                alibi_kernel[grid](scores, self.slopes, out, H, T, self.scale, BLOCK=triton.next_power_of_2(T))
                return out
            """,
        ),
        "cuda_rows": Body(
            before=_CUDA,
            forward="return alibi_module.alibi_forward(scores, self.slopes, self.scale)",
        ),
    },
    carries_on="kept_bias",
)
