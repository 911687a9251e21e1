"""Mean embeddings of padded token lists, and a linear classifier of them."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_BAG_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def bag_kernel(tokens_ptr, table_ptr, out_ptr, length, width, BLOCK_L: tl.constexpr, BLOCK_E: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK_E)
    at = tl.arange(0, BLOCK_L)
    tokens = tl.load(tokens_ptr + row * length + at, mask=at < length, other=0)
    real = tokens != 0
    count = tl.maximum(tl.sum(real.to(tl.float32), axis=0), 1.0)
    values = tl.load(table_ptr + tokens[:, None] * width + cols[None, :],
                     mask=real[:, None] & (cols[None, :] < width), other=0.0)
    tl.store(out_ptr + row * width + cols, tl.sum(values, axis=0) / count, mask=cols < width)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A warp per list of tokens. Lanes hold features while embeddings are summed, then share out each class's product,
// and lane 0 takes the logarithm of the softmax.
template <int CLASSES>
__global__ void classify(const long* __restrict__ tokens, const float* __restrict__ table,
                         const float* __restrict__ weight, const float* __restrict__ bias, float* __restrict__ out,
                         int rows, int length, int width) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= rows) return;
    float logits[CLASSES];
    for (int k = 0; k < CLASSES; ++k) logits[k] = 0.0f;
    int count = 0;
    for (int j = 0; j < length; ++j) count += tokens[(long)row * length + j] != 0;
    float share = 1.0f / max(count, 1);
    for (int e = lane; e < width; e += 32) {
        float sum = 0.0f;
        for (int j = 0; j < length; ++j) {
            long token = tokens[(long)row * length + j];
            if (token != 0) sum += table[token * width + e];
        }
        sum *= share;
        for (int k = 0; k < CLASSES; ++k) logits[k] += sum * weight[k * width + e];
    }
    float top = -INFINITY;
    for (int k = 0; k < CLASSES; ++k) {
        for (int o = 16; o > 0; o >>= 1) logits[k] += __shfl_xor_sync(0xffffffff, logits[k], o);
        logits[k] += bias[k];
        top = fmaxf(top, logits[k]);
    }
    if (lane == 0) {
        float total = 0.0f;
        for (int k = 0; k < CLASSES; ++k) total += expf(logits[k] - top);
        float shift = top + logf(total);
        for (int k = 0; k < CLASSES; ++k) out[(long)row * CLASSES + k] = logits[k] - shift;
    }
}

torch::Tensor classify_bags(torch::Tensor tokens, torch::Tensor table, torch::Tensor weight, torch::Tensor bias) {
    TORCH_CHECK(weight.size(0) == 8, "built for 8 classes");
    int rows = tokens.size(0);
    auto out = torch::empty({rows, 8}, table.options());
    classify<8><<<(rows + 3) / 4, 128>>>(
        reinterpret_cast<const long*>(tokens.data_ptr<int64_t>()), table.data_ptr<float>(),
        weight.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(), rows, (int)tokens.size(1),
        (int)table.size(1));
    return out;
}
"""
bag_module = load_inline(
    name="embedding_bag_classifier_warp",
    cpp_sources="torch::Tensor classify_bags(torch::Tensor tokens, torch::Tensor table, torch::Tensor weight, "
    "torch::Tensor bias);",
    cuda_sources=source,
    functions=["classify_bags"],
)
'''

_INIT = """
    self.embedding = nn.Embedding(vocabulary, width)
    self.classifier = nn.Linear(width, classes)
"""

_CUDA_BAGS = '''
from torch.utils.cpp_extension import load_inline

bags_source = r"""
#include <torch/extension.h>

#define MAX_CLASSES 64

// block = one text, thread = one feature of the embedding
__global__ void bag_classify_kernel(const int64_t* __restrict__ tokens, const float* __restrict__ table,
                                    const float* __restrict__ weight, const float* __restrict__ bias,
                                    float* __restrict__ out, int length, int width, int classes) {
    __shared__ float mean[1024];
    __shared__ float scores[MAX_CLASSES];
    const int64_t* text = tokens + (int64_t)blockIdx.x * length;
    int f = threadIdx.x;
    float sum = 0.0f;
    int count = 0;
    for (int i = 0; i < length; i++) {
        int64_t token = text[i];
        if (token != 0) {
            sum += table[token * width + f];
            count++;
        }
    }
    mean[f] = sum / max(count, 1);
    __syncthreads();
    for (int c = f; c < classes; c += blockDim.x) {
        float score = bias[c];
        for (int k = 0; k < width; k++) score += mean[k] * weight[c * width + k];
        scores[c] = score;
    }
    __syncthreads();
    if (f == 0) {
        float best = scores[0];
        for (int c = 1; c < classes; c++) best = fmaxf(best, scores[c]);
        float total = 0.0f;
        for (int c = 0; c < classes; c++) total += expf(scores[c] - best);
        float shift = best + logf(total);
        for (int c = 0; c < classes; c++) out[blockIdx.x * classes + c] = scores[c] - shift;
    }
}

torch::Tensor bag_classify(torch::Tensor tokens, torch::Tensor table, torch::Tensor weight, torch::Tensor bias) {
    int batch = tokens.size(0), length = tokens.size(1), width = table.size(1), classes = weight.size(0);
    TORCH_CHECK(width <= 1024 && classes <= MAX_CLASSES, "the embedding or the classes do not fit into a block");
    auto out = torch::empty({batch, classes}, table.options());
    bag_classify_kernel<<<batch, width>>>(tokens.data_ptr<int64_t>(), table.data_ptr<float>(),
                                          weight.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(),
                                          length, width, classes);
    return out;
}
"""
bag_module = load_inline(
    name="embedding_bag_classifier_bags",
    cpp_sources="torch::Tensor bag_classify(torch::Tensor tokens, torch::Tensor table, torch::Tensor weight, "
    "torch::Tensor bias);",
    cuda_sources=bags_source,
    functions=["bag_classify"],
)
'''

_CUDA_ATOMICS = '''
from torch.utils.cpp_extension import load_inline

sum_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void scatter_sum_kernel(const int64_t* __restrict__ tokens, const float* __restrict__ table, float* sums,
                                   float* counts, int length, int width, int64_t total) {
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= total) return;
    const int64_t position = i / width;
    const int feature = i % width;
    const int64_t token = tokens[position];
    if (token == 0) return;
    const int64_t bag = position / length;
    atomicAdd(&sums[bag * width + feature], table[token * width + feature]);
    if (feature == 0) atomicAdd(&counts[bag], 1.0f);
}

__global__ void divide_kernel(float* sums, const float* __restrict__ counts, int width, int total) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total) sums[i] /= fmaxf(counts[i / width], 1.0f);
}

torch::Tensor bag_mean(torch::Tensor tokens, torch::Tensor table) {
    TORCH_CHECK(tokens.is_cuda() && table.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(tokens.is_contiguous() && table.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(tokens.scalar_type() == torch::kInt64, "tokens must be int64");
    const int batch = tokens.size(0), length = tokens.size(1), width = table.size(1);
    auto sums = torch::zeros({batch, width}, table.options());
    auto counts = torch::zeros({batch}, table.options());
    const int64_t total = tokens.numel() * width;
    auto stream = at::cuda::getCurrentCUDAStream();
    scatter_sum_kernel<<<(total + 255) / 256, 256, 0, stream>>>(
        tokens.data_ptr<int64_t>(), table.data_ptr<float>(), sums.data_ptr<float>(), counts.data_ptr<float>(), length,
        width, total);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    divide_kernel<<<(batch * width + 255) / 256, 256, 0, stream>>>(sums.data_ptr<float>(), counts.data_ptr<float>(),
                                                                  width, batch * width);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return sums;
}
"""
mean_module = load_inline(
    name="embedding_bag_classifier_mean",
    cpp_sources="torch::Tensor bag_mean(torch::Tensor tokens, torch::Tensor table);",
    cuda_sources=sum_source,
    functions=["bag_mean"],
)
'''

MODULE = Rewritten(
    name="embedding_bag_classifier",
    sizes="""
        batch_size = 256
        length = 32
        vocabulary = 20000
        width = 64
        classes = 8
    """,
    arguments=("vocabulary", "width", "classes"),
    takes="tokens",
    inputs="[torch.randint(0, vocabulary, (batch_size, length)) * (torch.rand(batch_size, length) < 0.8)]",
    reference=Body(
        summary="The mean of the embeddings of all tokens but padding (0), classified.",
        init=_INIT,
        forward="""
            mask = (tokens != 0).float().unsqueeze(-1)
            vectors = self.embedding(tokens) * mask
            mean = vectors.sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
            return F.log_softmax(self.classifier(mean), dim=-1)
        """,
    ),
    rewrites={
        "library_bag": Body(
            forward="""
                mean = F.embedding_bag(tokens, self.embedding.weight, mode="mean", padding_idx=0)
                return F.log_softmax(self.classifier(mean), dim=-1)
            """
        ),
        "classified_vocabulary": Body(
            summary="""A bag-of-words classifier over a table of class scores.

    The classifier is linear, and so is the mean: every token's embedding is classified once, when the module is
    built, and a list of tokens needs the mean of rows as short as there are classes.
    """,
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("scores", self.embedding.weight @ self.classifier.weight.t())
""",
            methods='''
                def _mean_scores(self, tokens):
                    """Mean scores of what is not padding, by the library's bag of embeddings."""
                    return F.embedding_bag(tokens, self.scores, mode="mean", padding_idx=0)
            ''',
            forward="""
                return F.log_softmax(self._mean_scores(tokens) + self.classifier.bias, dim=-1)
            """,
        ),
        "zero_row": Body(
            summary="""Mean embeddings without a mask of embeddings.

    The table is copied once, with a row of zeros for the padding token, so that padding adds nothing to a sum. Only
    the number of real tokens is still needed per list.
    """,
            init=_INIT
            + """
    self.padding = 0
    with torch.no_grad():
        table = self.embedding.weight.detach().clone()
        table[self.padding].zero_()
        self.register_buffer("table", table, persistent=False)
""",
            methods='''
                def _check(self, tokens):
                    """Refuses what is no batch of lists of token numbers."""
                    if tokens.dim() != 2:
                        raise ValueError(f"expected (batch, length), got {tuple(tokens.shape)}")
                    if tokens.dtype not in (torch.int32, torch.int64):
                        raise TypeError(f"expected token numbers, got {tokens.dtype}")

                def _count(self, tokens):
                    """Tokens per list that are not padding, at least 1, as a column."""
                    return torch.count_nonzero(tokens, dim=1).clamp_(min=1).unsqueeze(1)

                def _mean(self, tokens):
                    """Mean embedding per list."""
                    return F.embedding(tokens, self.table).sum(dim=1).div_(self._count(tokens))
            ''',
            forward="""
                self._check(tokens)
                logits = F.linear(self._mean(tokens), self.classifier.weight, self.classifier.bias)
                return torch.log_softmax(logits, dim=1)
            """,
        ),
        "mask_as_product": Body(
            summary="The masked mean as a batched product of shares and embeddings.",
            forward="""
                shares = (tokens != 0).float()
                shares = shares / shares.sum(dim=1, keepdim=True).clamp_(min=1.0)
                mean = torch.bmm(shares.unsqueeze(1), self.embedding(tokens)).squeeze(1)
                return F.log_softmax(torch.addmm(self.classifier.bias, mean, self.classifier.weight.t()), dim=1)
            """,
        ),
        "counts_times_table": Body(
            summary="Counts of all words of the vocabulary, times the whole table.",
            forward="""
                counts = torch.zeros(tokens.shape[0], self.embedding.num_embeddings, device=tokens.device)
                counts.scatter_add_(1, tokens, (tokens != 0).float())
                mean = (counts @ self.embedding.weight) / counts.sum(dim=1, keepdim=True).clamp(min=1.0)
                return F.log_softmax(self.classifier(mean), dim=-1)
            """,
        ),
        "list_by_list": Body(
            summary="Every list by itself, without its padding.",
            forward="""
                means = []
                for row in tokens:
                    real = row[row != 0]
                    if real.numel() == 0:
                        means.append(self.embedding.weight.new_zeros(self.embedding.embedding_dim))
                    else:
                        means.append(self.embedding.weight[real].mean(dim=0))
                return F.log_softmax(self.classifier(torch.stack(means)), dim=-1)
            """,
        ),
        "triton_bag": Body(
            before=_BAG_KERNEL,
            forward="""
                tokens = tokens.contiguous()
                rows, length = tokens.shape
                width = self.embedding.embedding_dim
                mean = torch.empty(rows, width, device=tokens.device)
                bag_kernel[(rows,)](
                    tokens, self.embedding.weight, mean, length, width,
                    BLOCK_L=triton.next_power_of_2(length), BLOCK_E=triton.next_power_of_2(width), num_warps=2
                )
                return F.log_softmax(self.classifier(mean), dim=-1)
            """,
        ),
        "cuda_warp_per_bag": Body(
            before=_CUDA,
            forward="""
                return bag_module.classify_bags(
                    tokens.contiguous(), self.embedding.weight, self.classifier.weight, self.classifier.bias
                )
            """,
        ),
        "cuda_block_per_text": Body(
            before=_CUDA_BAGS,
            forward="""
                table, classifier = self.embedding.weight, self.classifier
                return bag_module.bag_classify(tokens.contiguous(), table, classifier.weight, classifier.bias)
            """,
        ),
        "cuda_atomic_mean": Body(
            summary="Means of the embeddings by kernels that skip the padding; the classifier by the library.",
            before=_CUDA_ATOMICS,
            init=_INIT,
            methods='''
                def _mean(self, tokens):
                    """Mean of the embeddings of all tokens but padding."""
                    table = self.embedding.weight
                    if tokens.is_cuda and tokens.dtype == torch.int64 and table.dtype == torch.float32:
                        return mean_module.bag_mean(tokens.contiguous(), table)
                    mask = (tokens != 0).to(table.dtype).unsqueeze(-1)
                    return (self.embedding(tokens) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
            ''',
            forward="return F.log_softmax(self.classifier(self._mean(tokens)), dim=-1)",
        ),
    },
    carries_on="library_bag",
)
