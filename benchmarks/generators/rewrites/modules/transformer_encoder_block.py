"""A transformer block with layer norms in front, separate projections and a GELU feed-forward network."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_ADD_NORM_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def add_norm_kernel(x_ptr, y_ptr, weight_ptr, bias_ptr, sum_ptr, out_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    at = row * width + cols
    total = tl.load(x_ptr + at, mask=keep, other=0.0) + tl.load(y_ptr + at, mask=keep, other=0.0)
    tl.store(sum_ptr + at, total, mask=keep)
    mean = tl.sum(total, axis=0) / width
    centred = tl.where(keep, total - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / width
    normed = centred / tl.sqrt(variance + eps)
    weight = tl.load(weight_ptr + cols, mask=keep, other=0.0)
    bias = tl.load(bias_ptr + cols, mask=keep, other=0.0)
    tl.store(out_ptr + at, normed * weight + bias, mask=keep)


def add_norm(x, y, norm):
    x, y = x.contiguous(), y.contiguous()
    total, out = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    add_norm_kernel[(x.numel() // width,)](
        x, y, norm.weight, norm.bias, total, out, width, norm.eps, BLOCK=block, num_warps=4
    )
    return total, out
"""

_INIT = """
    self.heads = heads
    self.norm1 = nn.LayerNorm(width)
    self.query = nn.Linear(width, width)
    self.key = nn.Linear(width, width)
    self.value = nn.Linear(width, width)
    self.out = nn.Linear(width, width)
    self.norm2 = nn.LayerNorm(width)
    self.up = nn.Linear(width, 4 * width)
    self.down = nn.Linear(4 * width, width)
    self.dropout = nn.Dropout(0.1)
"""

_PACKED = """
    with torch.no_grad():
        parts = (self.query, self.key, self.value)
        self.register_buffer("qkv_weight", torch.cat([part.weight for part in parts]))
        self.register_buffer("qkv_bias", torch.cat([part.bias for part in parts]))
"""

_PACKED_ATTENTION = """
    def _attend(self, x):
        B, T, C = x.shape
        qkv = F.linear(x, self.qkv_weight, self.qkv_bias)
        q, k, v = qkv.view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(B, T, C))
"""

MODULE = Rewritten(
    name="transformer_encoder_block",
    sizes="""
        batch_size = 16
        length = 128
        width = 384
        heads = 6
    """,
    arguments=("width", "heads"),
    takes="x",
    inputs="[torch.randn(batch_size, length, width)]",
    reference=Body(
        summary="Pre-norm self-attention and a feed-forward network, both with residuals.",
        init=_INIT,
        forward="""
            B, T, C = x.shape
            h = self.norm1(x)
            q = self.query(h).view(B, T, self.heads, -1).transpose(1, 2)
            k = self.key(h).view(B, T, self.heads, -1).transpose(1, 2)
            v = self.value(h).view(B, T, self.heads, -1).transpose(1, 2)
            scores = torch.matmul(q, k.transpose(-2, -1)) / (C // self.heads) ** 0.5
            p = self.dropout(torch.softmax(scores, dim=-1))
            h = torch.matmul(p, v).transpose(1, 2).reshape(B, T, C)
            x = x + self.dropout(self.out(h))
            h = self.down(self.dropout(F.gelu(self.up(self.norm2(x)))))
            return x + self.dropout(h)
        """,
    ),
    rewrites={
        "packed_projections": Body(
            init=_INIT + _PACKED,
            methods=_PACKED_ATTENTION,
            forward="""
                x = x + self._attend(self.norm1(x))
                return x + self.down(F.gelu(self.up(self.norm2(x))))
            """,
        ),
        "norms_folded": Body(
            summary="""A transformer block whose layer norms have no weights of their own.

    Scale and shift of either norm are linear, and so is what follows it: they are folded into the packed
    projections and into the first layer of the feed-forward network when the block is built.
    """,
            init=_INIT
            + _PACKED
            + """
    with torch.no_grad():
        self.qkv_bias.add_(self.qkv_weight @ self.norm1.bias)
        self.qkv_weight.mul_(self.norm1.weight)
        self.register_buffer("up_bias", self.up.bias + self.up.weight @ self.norm2.bias)
        self.register_buffer("up_weight", self.up.weight * self.norm2.weight)
""",
            methods=_PACKED_ATTENTION
            + """
    def _feed_forward(self, x):
        h = F.linear(F.layer_norm(x, x.shape[-1:], eps=self.norm2.eps), self.up_weight, self.up_bias)
        return F.linear(F.gelu(h), self.down.weight, self.down.bias)
""",
            forward="""
                h = self._attend(F.layer_norm(x, x.shape[-1:], eps=self.norm1.eps)).add_(x)
                return self._feed_forward(h).add_(h)
            """,
        ),
        "functional_multi_head": Body(
            init=_INIT + _PACKED,
            forward="""
                h = self.norm1(x).transpose(0, 1)
                y, _ = F.multi_head_attention_forward(
                    h, h, h, h.shape[-1], self.heads, self.qkv_weight, self.qkv_bias, None, None, False, 0.0,
                    self.out.weight, self.out.bias, training=False, need_weights=False
                )
                x = x + y.transpose(0, 1)
                return x + self.down(F.gelu(self.up(self.norm2(x))))
            """,
        ),
        "library_layer": Body(
            summary="nn.TransformerEncoderLayer with the same weights, for its fast path.",
            init=_INIT
            + """
    self.layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
    )
    with torch.no_grad():
        attention = self.layer.self_attn
        attention.in_proj_weight.copy_(torch.cat([self.query.weight, self.key.weight, self.value.weight]))
        attention.in_proj_bias.copy_(torch.cat([self.query.bias, self.key.bias, self.value.bias]))
        attention.out_proj.load_state_dict(self.out.state_dict())
        self.layer.linear1.load_state_dict(self.up.state_dict())
        self.layer.linear2.load_state_dict(self.down.state_dict())
        self.layer.norm1.load_state_dict(self.norm1.state_dict())
        self.layer.norm2.load_state_dict(self.norm2.state_dict())
""",
            forward="return self.layer(x)",
        ),
        "flat_products": Body(
            summary="addmm and bmm on flattened tensors, with the residuals as addends.",
            init=_INIT
            + """
    with torch.no_grad():
        scale = (width // heads) ** -0.5
        self.register_buffer("q_weight", (self.query.weight * scale).t().contiguous())
        self.register_buffer("q_bias", self.query.bias * scale)
""",
            forward="""
                B, T, C = x.shape
                H, D = self.heads, C // self.heads
                flat = x.reshape(B * T, C)
                h = self.norm1(flat)

                def split(t):
                    return t.view(B, T, H, D).transpose(1, 2).reshape(B * H, T, D)

                q = split(torch.addmm(self.q_bias, h, self.q_weight))
                k = split(torch.addmm(self.key.bias, h, self.key.weight.t()))
                v = split(torch.addmm(self.value.bias, h, self.value.weight.t()))
                p = torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1)
                y = torch.bmm(p, v).view(B, H, T, D).transpose(1, 2).reshape(B * T, C)
                flat = torch.addmm(flat + self.out.bias, y, self.out.weight.t())
                h = torch.addmm(self.up.bias, self.norm2(flat), self.up.weight.t())
                flat = torch.addmm(flat + self.down.bias, F.gelu(h), self.down.weight.t())
                return flat.view(B, T, C)
            """,
        ),
        "sample_by_sample": Body(
            init=_INIT + _PACKED,
            methods=_PACKED_ATTENTION,
            forward="""
                outputs = torch.empty_like(x)
                for i in range(x.shape[0]):
                    one = x[i : i + 1]
                    one = one + self._attend(self.norm1(one))
                    outputs[i : i + 1] = one + self.down(F.gelu(self.up(self.norm2(one))))
                return outputs
            """,
        ),
        "triton_add_norm": Body(
            summary="The first residual and the second norm in one pass over memory.",
            before=_ADD_NORM_KERNEL,
            init=_INIT + _PACKED,
            methods=_PACKED_ATTENTION,
            forward="""
                x, h = add_norm(x, self._attend(self.norm1(x)), self.norm2)
                return self.down(F.gelu(self.up(h))).add_(x)
            """,
        ),
        "half_feed_forward": Body(
            summary="The two widest products in half precision, the rest in single precision.",
            init=_INIT
            + _PACKED
            + """
    self.register_buffer("up_half", self.up.weight.detach().half())
    self.register_buffer("up_bias_half", self.up.bias.detach().half())
    self.register_buffer("down_half", self.down.weight.detach().half())
    self.register_buffer("down_bias_half", self.down.bias.detach().half())
""",
            methods=_PACKED_ATTENTION,
            forward="""
                x = x + self._attend(self.norm1(x))
                h = self.norm2(x)
                if not x.is_cuda:
                    return x + self.down(F.gelu(self.up(h)))
                h = F.gelu(F.linear(h.half(), self.up_half, self.up_bias_half))
                return x + F.linear(h, self.down_half, self.down_bias_half).float()
            """,
        ),
    },
    carries_on="norms_folded",
)
