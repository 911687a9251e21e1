"""The PyTorch stages of ``trimul``."""

from __future__ import annotations

from benchmarks.generators.tasks.trimul_pipeline import TORCH_TYPES, Stage
from benchmarks.generators.text import fill

FUNCTIONAL = "import torch.nn.functional as F"
SUBSCRIPTS = {"first": "bhij", "last": "bijh"}

# What makes ``left``, ``right`` and ``gate``: by algorithm; @h@ casts to the type of the products.
PROJECTIONS = {
    "plain": """
xn = F.layer_norm(x, (C,), norm_w, norm_b, 1e-5)@h@
left = F.linear(xn, w_l@h@) * torch.sigmoid(F.linear(xn, w_lg@h@)) * mask@h@.unsqueeze(-1)
right = F.linear(xn, w_r@h@) * torch.sigmoid(F.linear(xn, w_rg@h@)) * mask@h@.unsqueeze(-1)
gate = torch.sigmoid(F.linear(xn, w_og@h@))
@move@
""",
    "manual_norm": """
mean = x.mean(dim=-1, keepdim=True)
var = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
xn = ((x - mean) / torch.sqrt(var + 1e-5) * norm_w + norm_b)@h@
keep = mask@h@[..., None]
left = (xn @ w_l@h@.t()) * keep
left = left * torch.sigmoid(xn @ w_lg@h@.t())
right = (xn @ w_r@h@.t()) * keep
right = right * torch.sigmoid(xn @ w_rg@h@.t())
gate = torch.sigmoid(xn @ w_og@h@.t())
@move@
""",
    "glu": """
xn = F.layer_norm(x, (C,), norm_w, norm_b, 1e-5)@h@
keep = mask@h@[..., None]
left = F.glu(F.linear(xn, torch.cat((w_l, w_lg))@h@), dim=-1) * keep
right = F.glu(F.linear(xn, torch.cat((w_r, w_rg))@h@), dim=-1) * keep
gate = torch.sigmoid(F.linear(xn, w_og@h@))
@move@
""",
    "stacked": """
xn = F.layer_norm(x, (C,), norm_w, norm_b, 1e-5)@h@
# one product for all five
weights = torch.cat((w_l, w_r, w_lg, w_rg, w_og))@h@
v_l, v_r, g_l, g_r, o = F.linear(xn, weights).chunk(5, dim=-1)
keep = mask@h@[..., None]
left = v_l * g_l.sigmoid() * keep
right = v_r * g_r.sigmoid() * keep
gate = o.sigmoid()
@move@
""",
    "in_place": """
xn = F.layer_norm(x, (C,), norm_w, norm_b, 1e-5)@h@
left = F.linear(xn, w_lg@h@).sigmoid_().mul_(F.linear(xn, w_l@h@)).mul_(mask@h@[..., None])
right = F.linear(xn, w_rg@h@).sigmoid_().mul_(F.linear(xn, w_r@h@)).mul_(mask@h@[..., None])
gate = F.linear(xn, w_og@h@).sigmoid_()
@move@
""",
    "einsum": """
xn = torch.layer_norm(x, [C], norm_w, norm_b, 1e-5)@h@
left = torch.einsum("bijc,hc->@sub@", xn, w_l@h@)
left = left * torch.einsum("bijc,hc->@sub@", xn, w_lg@h@).sigmoid()
right = torch.einsum("bijc,hc->@sub@", xn, w_r@h@)
right = right * torch.einsum("bijc,hc->@sub@", xn, w_rg@h@).sigmoid()
left = torch.einsum("@sub@,bij->@sub@", left, mask@h@).contiguous()
right = torch.einsum("@sub@,bij->@sub@", right, mask@h@).contiguous()
gate = torch.einsum("bijc,hc->bijh", xn, w_og@h@).sigmoid()
""",
    "weights_left": """
xn = F.layer_norm(x, (C,), norm_w, norm_b, 1e-5)@h@.view(B, N * N, C).transpose(1, 2)
# the weight stands on the left, so that the channel comes first without a copy
keep = mask@h@.view(B, 1, N * N)
left = torch.matmul(w_l@h@, xn) * torch.sigmoid(torch.matmul(w_lg@h@, xn)) * keep
right = torch.matmul(w_r@h@, xn) * torch.sigmoid(torch.matmul(w_rg@h@, xn)) * keep
left = left.view(B, H, N, N)
right = right.view(B, H, N, N)
gate = torch.sigmoid(torch.matmul(xn.transpose(1, 2), w_og@h@.t()))
""",
    "row_slices": """
left = torch.empty(@shape@, dtype=torch.@kind@, device=x.device)
right = torch.empty_like(left)
gate = torch.empty((B, N, N, H), dtype=torch.@kind@, device=x.device)
for i in range(0, N, 64):
    part = F.layer_norm(x[:, i:i + 64], (C,), norm_w, norm_b, 1e-5)@h@
    keep = mask[:, i:i + 64, :, None]@h@
    l = F.linear(part, w_l@h@) * torch.sigmoid(F.linear(part, w_lg@h@)) * keep
    r = F.linear(part, w_r@h@) * torch.sigmoid(F.linear(part, w_rg@h@)) * keep
    @slice@
    gate[:, i:i + 64] = torch.sigmoid(F.linear(part, w_og@h@))
""",
}
MOVES = {
    "first": "left = left.permute(0, 3, 1, 2).contiguous()\nright = right.permute(0, 3, 1, 2).contiguous()",
    "last": "",
}
SLICES = {
    "first": "left[:, :, i:i + 64] = l.permute(0, 3, 1, 2)\nright[:, :, i:i + 64] = r.permute(0, 3, 1, 2)",
    "last": "left[:, i:i + 64] = l\nright[:, i:i + 64] = r",
}
SHAPES_OF = {"first": "(B, H, N, N)", "last": "(B, N, N, H)"}


def _half(precision: str) -> str:
    kind = TORCH_TYPES[precision]
    return "" if kind == "float32" else f".to(torch.{kind})"


def projection(how: str, precision: str, layout: str = "first") -> Stage:
    """The projections in library calls; their type is that of `precision`."""
    lines = fill(
        PROJECTIONS[how],
        h=_half(precision),
        move=MOVES[layout],
        slice=SLICES[layout],
        sub=SUBSCRIPTS[layout],
        shape=SHAPES_OF[layout],
        kind=TORCH_TYPES[precision],
    )
    return Stage(
        {
            "project": f"torch_{how}",
            "project_precision": precision,
            "layout": layout,
            "store": TORCH_TYPES[precision],
        },
        lines,
        tf32=precision == "tf32",
        imports=(FUNCTIONAL,),
    )


# The products: (layout of the inputs, layout of the result, lines).
PRODUCTS = {
    "matmul": ("first", "first", "prod = torch.matmul(left@h@, right@h@.transpose(-1, -2))"),
    "bmm": (
        "first",
        "first",
        """
prod = torch.bmm(left@h@.view(B * H, N, N), right@h@.view(B * H, N, N).transpose(1, 2))
prod = prod.view(B, H, N, N)""",
    ),
    "einsum": ("first", "first", 'prod = torch.einsum("bhik,bhjk->bhij", left@h@, right@h@)'),
    "einsum_to_last": ("first", "last", 'prod = torch.einsum("bhik,bhjk->bijh", left@h@, right@h@)'),
    "einsum_last": ("last", "last", 'prod = torch.einsum("bikh,bjkh->bijh", left@h@, right@h@)'),
    "permuted": (
        "last",
        "first",
        "prod = torch.matmul(left@h@.permute(0, 3, 1, 2), right@h@.permute(0, 3, 2, 1))",
    ),
    "right_copy": (
        "first",
        "first",
        """
# cuBLAS reads the second operand along its rows
prod = torch.matmul(left@h@, right@h@.transpose(-1, -2).contiguous())""",
    ),
    "channel_loop": (
        "first",
        "first",
        """
prod = torch.empty((B, H, N, N), dtype=torch.@kind@, device=x.device)
for b in range(B):
    for h in range(H):
        torch.mm(left[b, h]@h@, right[b, h]@h@.t(), out=prod[b, h])""",
    ),
    "channel_groups": (
        "first",
        "first",
        """
prod = torch.cat(
    [torch.matmul(l@h@, r@h@.transpose(-1, -2)) for l, r in zip(left.split(32, dim=1), right.split(32, dim=1))],
    dim=1,
)""",
    ),
    "row_slices": (
        "first",
        "first",
        """
prod = torch.empty((B, H, N, N), dtype=torch.@kind@, device=x.device)
other = right@h@.transpose(-1, -2)
for i in range(0, N, 128):
    prod[:, :, i:i + 128] = torch.matmul(left[:, :, i:i + 128]@h@, other)""",
    ),
    "baddbmm": (
        "first",
        "first",
        """
prod = torch.zeros((B * H, N, N), dtype=torch.@kind@, device=x.device)
prod.baddbmm_(left@h@.view(-1, N, N), right@h@.view(-1, N, N).transpose(1, 2))
prod = prod.view(B, H, N, N)""",
    ),
}


def product(how: str, precision: str, cast: bool = True) -> Stage:
    """The product over pairs in library calls; `cast` is needed unless the operands have its type already."""
    _, _, lines = PRODUCTS[how]
    return Stage(
        {"product": f"torch_{how}", "product_precision": precision},
        fill(lines, h=_half(precision) if cast else "", kind=TORCH_TYPES[precision]),
        tf32=precision == "tf32",
    )


# The closing part; @h@ casts to the type of its product, @f@ to float32.
FINISHES = {
    "plain": """
out = F.layer_norm(@last@@f@, (H,), onorm_w, onorm_b, 1e-5)
out = out * gate.view(B, N, N, H)
out = F.linear(out@h@, w_o@h@)@up@
""",
    "manual_norm": """
out = @last@@f@
mean = out.mean(dim=-1, keepdim=True)
var = out.var(dim=-1, unbiased=False, keepdim=True)
out = (out - mean) * torch.rsqrt(var + 1e-5) * onorm_w + onorm_b
out = (gate.view(B, N, N, H) * out)@h@ @ w_o@h@.t()
@up_line@
""",
    "channel_axis": """
# the statistics over axis 1, where the channels are
var, mean = torch.var_mean(@first@@f@, dim=1, unbiased=False, keepdim=True)
y = (@first@ - mean) * torch.rsqrt(var + 1e-5)
y = torch.addcmul(onorm_b.view(1, H, 1, 1), y, onorm_w.view(1, H, 1, 1))
y = y * gate.view(B, N, N, H).permute(0, 3, 1, 2)
out = torch.einsum("bhij,ch->bijc", y@h@, w_o@h@)@up@.contiguous()
""",
    "row_slices": """
out = torch.empty_like(x)
gate = gate.view(B, N, N, H)
for i in range(0, N, 64):
    part = F.layer_norm(@last_slice@@f@, (H,), onorm_w, onorm_b, 1e-5) * gate[:, i:i + 64]
    out[:, i:i + 64] = F.linear(part@h@, w_o@h@)
""",
    "in_place": """
out = F.layer_norm(@last@.contiguous()@f@, (H,), onorm_w, onorm_b, 1e-5)
out = out.mul_(gate.view(B, N, N, H))@h@.view(M, H)
out = torch.mm(out, w_o@h@.t())@up@.view(B, N, N, C)
""",
}


def finish(how: str, precision: str, layout: str = "first") -> Stage:
    """The closing norm, gate and product in library calls, of a ``prod`` of either layout."""
    half = _half(precision)
    last = "prod.permute(0, 2, 3, 1)" if layout == "first" else "prod"
    lines = fill(
        FINISHES[how],
        last=last,
        first="prod" if layout == "first" else "prod.permute(0, 3, 1, 2)",
        last_slice="prod[:, :, i:i + 64].permute(0, 2, 3, 1)" if layout == "first" else "prod[:, i:i + 64]",
        h=half,
        f=".float()",
        up=".float()" if half else "",
        up_line="out = out.float()" if half else "",
    )
    return Stage(
        {"finish": f"torch_{how}", "finish_precision": precision},
        lines,
        tf32=precision == "tf32",
        imports=(FUNCTIONAL,) if "F." in lines else (),
    )
