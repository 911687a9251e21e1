"""Colours along rays summed with weights from densities: softplus, an exclusive cumulative product, a white ground."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_WHOLE = """
import triton
import triton.language as tl


@triton.jit
def composite_kernel(
    density_ptr, step_ptr, colour_ptr, out_ptr, rays, samples, RAYS: tl.constexpr, BLOCK: tl.constexpr
):
    ray = tl.program_id(0) * RAYS + tl.arange(0, RAYS)
    s = tl.arange(0, BLOCK)
    keep = (ray[:, None] < rays) & (s[None, :] < samples)
    at = ray[:, None] * samples + s[None, :]
    density = tl.load(density_ptr + at, mask=keep, other=0.0)
    step = tl.load(step_ptr + at, mask=keep, other=0.0)
    softplus = tl.maximum(density, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(density)))
    depth = softplus * step
    reached = tl.cumsum(depth, axis=1)
    weight = tl.exp(depth - reached) - tl.exp(-reached)
    ground = tl.exp(-tl.sum(depth, axis=1))
    red = tl.load(colour_ptr + at * 3, mask=keep, other=0.0)
    green = tl.load(colour_ptr + at * 3 + 1, mask=keep, other=0.0)
    blue = tl.load(colour_ptr + at * 3 + 2, mask=keep, other=0.0)
    tl.store(out_ptr + ray * 3, tl.sum(weight * red, axis=1) + ground, mask=ray < rays)
    tl.store(out_ptr + ray * 3 + 1, tl.sum(weight * green, axis=1) + ground, mask=ray < rays)
    tl.store(out_ptr + ray * 3 + 2, tl.sum(weight * blue, axis=1) + ground, mask=ray < rays)
"""

_DEPTH = """
import triton
import triton.language as tl


@triton.jit
def depth_kernel(density_ptr, step_ptr, out_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    density = tl.load(density_ptr + at, mask=keep, other=0.0)
    step = tl.load(step_ptr + at, mask=keep, other=0.0)
    softplus = tl.maximum(density, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(density)))
    tl.store(out_ptr + at, softplus * step, mask=keep)


def optical_depth(density, step):
    out = torch.empty_like(density)
    total = out.numel()
    depth_kernel[(triton.cdiv(total, 1024),)](density, step, out, total, BLOCK=1024)
    return out
"""

MODULE = Rewritten(
    name="ray_weights_composite",
    sizes="""
        rays = 16384
        samples = 128
    """,
    arguments=("samples",),
    takes="density, step, colour",
    inputs="""[
        torch.randn(rays, samples),
        torch.rand(rays, samples) * 0.05,
        torch.rand(rays, samples, 3),
    ]""",
    reference=Body(
        summary="Composites colours along rays, with weights from densities and step lengths, on a white ground.",
        init="self.samples = samples",
        forward="""
            sigma = F.softplus(density)
            alpha = 1.0 - torch.exp(-sigma * step)
            ones = torch.ones_like(alpha[:, :1])
            passed = torch.cumprod(torch.cat([ones, 1.0 - alpha + 1e-10], dim=-1), dim=-1)[:, :-1]
            weights = alpha * passed
            total = torch.sum(weights.unsqueeze(-1) * colour, dim=1)
            return total + (1.0 - weights.sum(dim=-1, keepdim=True))
        """,
    ),
    rewrites={
        "exp_of_cumsum": Body(
            summary="The product of exponentials is the exponential of a sum, and the weights telescope.",
            forward="""
                depth = F.softplus(density).mul_(step)
                reached = depth.cumsum(dim=-1)
                left = torch.exp(-reached)
                weights = torch.exp(depth - reached).sub_(left)
                total = torch.bmm(weights.unsqueeze(1), colour).squeeze(1)
                return total + left[:, -1:]
            """,
        ),
        "triangle_product": Body(
            summary="The cumulative sum over samples as a product with a triangle of ones.",
            init="""
                self.samples = samples
                self.register_buffer("triangle", -torch.ones(samples, samples).triu())
            """,
            forward="""
                depth = F.softplus(density) * step
                left = torch.exp(depth @ self.triangle)
                weights = F.pad(left[:, :-1], (1, 0), value=1.0) - left
                total = torch.einsum("rs,rsc->rc", weights, colour)
                return total + left[:, -1:]
            """,
        ),
        "batched_product": Body(
            forward="""
                kept = torch.exp(-F.softplus(density) * step)
                passed = torch.cumprod(kept, dim=-1)
                weights = torch.cat([1.0 - kept[:, :1], (1.0 - kept[:, 1:]) * passed[:, :-1]], dim=-1)
                return torch.baddbmm(passed[:, -1:, None], weights[:, None, :], colour).squeeze(1)
            """
        ),
        "log_space": Body(
            forward="""
                alpha = 1.0 - torch.exp(-F.softplus(density) * step)
                logs = torch.log(1.0 - alpha + 1e-10)
                passed = torch.exp(torch.cumsum(logs, dim=-1) - logs)
                weights = (alpha * passed).unsqueeze(-1)
                return (weights * colour).sum(dim=1) + 1.0 - weights.sum(dim=1)
            """
        ),
        "sample_loop": Body(
            summary="Walks along all rays together, front to back.",
            forward="""
                depth = F.softplus(density) * step
                kept = torch.exp(-depth)
                passed = torch.ones_like(depth[:, 0])
                total = torch.zeros_like(colour[:, 0])
                for s in range(depth.shape[1]):
                    following = passed * kept[:, s]
                    total = total + (passed - following).unsqueeze(-1) * colour[:, s]
                    passed = following
                return total + passed.unsqueeze(-1)
            """,
        ),
        "kept_buffers": Body(
            summary="Long form with scratch tensors kept between calls.",
            init="""
                self.samples = samples
                self._scratch = {}
            """,
            forward="""
                if density.shape != step.shape or colour.shape[:-1] != density.shape:
                    raise ValueError("shapes of density, step and colour do not belong together")
                kept = self._like("kept", density)
                torch.mul(F.softplus(density), step, out=kept)
                kept.neg_().exp_()
                passed = self._passed(kept)
                weights = torch.sub(passed[:, :-1], passed[:, 1:])
                total = torch.matmul(weights.unsqueeze(1), colour).squeeze(1)
                return total.add_(passed[:, -1:])
            """,
            methods="""
                def _like(self, name, tensor, extra=0):
                    shape = (tensor.shape[0], tensor.shape[1] + extra)
                    key = (name, shape, tensor.device, tensor.dtype)
                    if key not in self._scratch:
                        self._scratch[key] = torch.ones(shape, device=tensor.device, dtype=tensor.dtype)
                    return self._scratch[key]

                def _passed(self, kept):
                    # The first column stays one.
                    passed = self._like("passed", kept, extra=1)
                    passed[:, 1:] = torch.cumprod(kept, dim=-1)
                    return passed
            """,
        ),
        "triton_whole": Body(
            before=_WHOLE,
            forward="""
                rays, samples = density.shape
                out = torch.empty(rays, 3, device=density.device, dtype=density.dtype)
                composite_kernel[(triton.cdiv(rays, 4),)](
                    density.contiguous(), step.contiguous(), colour.contiguous(), out, rays, samples,
                    RAYS=4, BLOCK=triton.next_power_of_2(samples), num_warps=4,
                )
                return out
            """,
        ),
        "triton_depth": Body(
            before=_DEPTH,
            forward="""
                depth = optical_depth(density.contiguous(), step.contiguous())
                passed = torch.cumprod(torch.exp(-depth), dim=-1)
                before = torch.cat([torch.ones_like(passed[:, :1]), passed[:, :-1]], dim=-1)
                weights = before - passed
                return (weights.unsqueeze(-1) * colour).sum(dim=1) + passed[:, -1:]
            """,
        ),
    },
    in_half=False,
    carries_on="exp_of_cumsum",
)
