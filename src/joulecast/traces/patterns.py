"""How libraries name their kernels, as tables: the first pattern that fits a name gives its family.

Patterns are searched in lower-case names. A kernel of a library is told by the function's own name (`FUNCTIONS`)
before anything in its template arguments (`ANYWHERE`) is looked at, except for wrappers that say nothing themselves.
"""

from __future__ import annotations

import re

#: Functions that only wrap what their arguments name.
WRAPPERS = re.compile(
    r"^(cutlass::(kernel2?|device_kernel)|device_kernel|kernel2?|globalkernel|cub::detail::\w+::kernel_agent"
    r"|thrust::.*kernel_agent|_kernel_agent|cutlass_kernel|kernel_cutlass\w*)$"
)

#: Families, and what an operation of each is bound by in the main: matrix arithmetic, memory, or links.
FAMILIES = {
    "gemm": "matrix", "convolution": "matrix", "attention": "matrix", "mixture of experts": "matrix",
    "linear attention": "matrix", "gemv": "memory", "gemm reduction": "memory", "elementwise": "memory",
    "reduction": "memory", "softmax": "memory", "normalisation": "memory", "copy": "memory", "gather": "memory",
    "embedding bag": "memory", "sort and scan": "memory", "optimizer": "memory", "random": "memory", "pool": "memory",
    "layout": "memory", "quantize": "memory", "rope": "memory", "kv cache": "memory", "loss": "memory",
    "sampling": "memory", "fft": "memory", "triton": "memory", "solver": "memory", "collective": "links",
}  # fmt: skip

_Rows = tuple[tuple[str, str, str], ...]

#: (pattern, family, library) on the name of the function.
FUNCTIONS: _Rows = (
    (r"^(nccl|rccl|mscclkernel|msccl)", "collective", "NCCL"),
    (r"cross_device_reduce|(one|two)_?shot|multimem_|nvshmem|allreduce_fusion|all_reduce_kernel|userbuffers",
     "collective", "custom"),
    (r"^triton_tem_fused\w*(flex_attention|sdpa)", "attention", "Triton"),
    (r"^triton_tem_fused\w*conv", "convolution", "Triton"),
    (r"^triton_(tem_|mm|bmm|tem)", "gemm", "Triton"),
    (r"^triton_(red|per)\w*softmax", "softmax", "Triton"),
    (r"^triton_(red|per)\w*(norm|var_mean|rsqrt)", "normalisation", "Triton"),
    (r"^triton_(red|per)\w*(argmax|topk)", "sampling", "Triton"),
    (r"^triton_(red|per|spl)", "reduction", "Triton"),
    (r"^triton_\w*(embedding|index|gather|scatter)", "gather", "Triton"),
    (r"^triton_(poi|for|unk|fused)", "elementwise", "Triton"),
    (r"^triton_", "triton", "Triton"),
    # attention before matrix products: names of both hold "gemm" and "cutlass"
    (r"flash_(fwd|bwd)|flashattn|flash_attn|fmha|attentionkernel|attentionbackwardkernel|flash_attention|_attn_fwd"
     r"|attn_fwd|attn_bwd|_bwd_kernel_dkdv|paged_attention|paged_?kvcache|multi_?head_attention|mha_(fwd|bwd|varlen)"
     r"|sdpa|flashinfer|batch(prefill|decode)with|unified_attention|fused_attention|ragged_?prefill|flash_mla|mla_kernel"
     r"|decode_?attention|_fwd_grouped_kernel|bwd_preprocess|compute_dot_do_o|convert_dq",
     "attention", "attention"),
    (r"selective_scan|chunk_(scan|state|gated)|gated_delta|causal_conv1d|mamba|wkv|state_passing|fused_recurrent",
     "linear attention", "custom"),
    (r"fused_moe|moe_|_moe|grouped_?gemm|topk_?gating|expert|permute_tokens", "mixture of experts", "custom"),
    (r"splitk_?reduce|split_k_reduce|splitkreduction|reduce_splitk|gemm_?reduce|reducesplitk|postgsu", "gemm reduction",
     "cuBLAS"),
    (r"winograd|implicit_convolve|implicit_?gemm|convolve|fprop|dgrad|wgrad|conv2d|conv3d|conv_depthwise|scudnn"
     r"|convolution|depthwise|_conv_|^conv|miopenconv|miopen\w*conv|naive_conv|igemm_(fwd|bwd|wrw)|im2col|col2im|vol2col"
     r"|nhwc_?conv|precomputed_?convolve|cudnn_\w*_s?\d*(fprop|dgrad|wgrad)|fft2d_\w*conv|xdlops_conv|slowconv",
     "convolution", "cuDNN"),
    (r"^cijk_", "gemm", "rocBLAS"),
    (r"^nvjet", "gemm", "cuBLAS"),
    (r"gemv|dot_kernel|gemvx|_symv|gemvn|gevm", "gemv", "cuBLAS"),
    (r"gemm|xmma|^matmul|_matmul|mm_kernel|ck_tile.*gemm|wmma|marlin|machete|awq_|gptq|exllama|deep_gemm|s884|s1688|s16816"
     r"|h884|h1688|h16816|i8816|i16832|gmm|cutlass_\d+_\w*(simt|tensorop)|dequant\w*gemm", "gemm", "BLAS"),
    (r"split_embedding|embedding_?bag|emb(edding)?s?_kernel|permute_pooled|recat_|bounds_check_indices|linearize_index"
     r"|tbe_|nbit_split|compute_grad_sum|find_long_segments|lxu_cache|permute_(indices|1d|2d|sequence)|jagged"
     r"|block_bucketize|offsets_range|reorder_batched|group_index_select|pruned_|keyed_", "embedding bag", "fbgemm"),
    (r"multi_tensor_apply|adam|lamb|fused_sgd|foreach|multitensor|lpnorm|l2norm|adagrad(?!.*embedding)|_optimizer",
     "optimizer", "PyTorch"),
    (r"radixsort|radix_sort|bitonic|sort|topk|top_k|gathertopk|devicescan|scan_?kernel|devicereducebykey|compact"
     r"|deviceselect|histogram|unique|searchsorted|merge|deviceselectsweep|tensor_kernel_scan|exclusive_sum|onesweep"
     r"|run_length|runlength|prefix_sum|cumsum|nonzero|partition|to_dense_representation", "sort and scan", "CUB"),
    (r"softmax|softmaxforward|cunn_softmax|logsoftmax", "softmax", "PyTorch"),
    (r"layer_?norm|layernorm|gammabeta|rms_?norm|rowwisemoments|group_?norm|batch_?norm|batchnorm|bn_fw|bn_bw|bnfwd|bnbwd"
     r"|_bn_|instance_?norm|computefusedparams|ln_fwd|ln_bwd|norm_kernel|normalize|welford|cudnn::bn|miopenbatchnorm",
     "normalisation", "PyTorch"),
    (r"rotary|rope|_rot_", "rope", "custom"),
    (r"reshape_and_cache|kv_?cache|append_?paged|concat_and_cache|gather_cache|copy_blocks|mlacache", "kv cache",
     "custom"),
    (r"quant|fp8|scaled_fp|cast_transpose|cvt_|amax_", "quantize", "custom"),
    (r"pool", "pool", "PyTorch"),
    (r"distribution|dropout|philox|random|bernoulli|multinomial|curand|normal_kernel", "random", "PyTorch"),
    (r"nll_loss|cross_?entropy|_loss|ctc_|xentropy|crossentropy", "loss", "PyTorch"),
    (r"catarray|concat|copy|fill|memset|memcpy|pad|flip|(?<!un)roll|repeat|cast_kernel|assign", "copy", "PyTorch"),
    (r"transpose|nchwtonhwc|nhwctonchw|nchw2nhwc|nhwc2nchw|permute|tensortransform|transform_?tensor|foldednhwc"
     r"|batched_transpose|subtensorop|op_?tensor|pack_|unpack_|computeoffsets|tensor4d|scaletensor|settensor", "layout",
     "cuDNN"),
    (r"^elementwise_kernel_with_index", "elementwise", "PyTorch"),
    (r"index|gather|scatter|embedding|take_|lookup|put_", "gather", "PyTorch"),
    (r"sampl|argmax|apply_penal|speculative|bincount|logits", "sampling", "custom"),
    (r"fft|regular_fft|vector_fft", "fft", "cuFFT"),
    (r"reduce|_sum_|segment|prod_kernel|dotproduct|norm_reduce", "reduction", "PyTorch"),
    (r"elementwise|pointwise|unrolled|act_and_mul|activation|silu|gelu|relu|sigmoid|swiglu|triu|tril|arange|range"
     r"|bias|residual|axpy|scal_kernel|addcmul|clamp|where|masked|interp|upsample|grid_sampl|kernelpointwiseapply"
     r"|compute_|eltwise|jit|tensor_apply|cross_kernel|lerp|weight_norm|legacy", "elementwise", "PyTorch"),
    (r"getrf|getrs|potrf|trsm|trsv|geqrf|syevd|gesvd|laswp|lu_|svd|cholesky|larf", "solver", "cuSOLVER"),
    (r"_0d1d|_0d1d2d|_kernel_0|\w*_triton\w*", "triton", "Triton"),
)  # fmt: skip

#: (family, pattern on the whole name, family in its place) where the arguments say more than the function.
REFINED = (("elementwise", re.compile(r"direct_copy_kernel|float8_copy_kernel|bfloat16_copy"), "copy"),)

#: (pattern, family, library) on the whole name, arguments included, where the function says nothing.
ANYWHERE: _Rows = (
    (r"flash|fmha|attention|sdpa|mha::", "attention", "attention"),
    (r"fprop|dgrad|wgrad|convolution|conv2d|conv3d|implicitgemm", "convolution", "cuDNN"),
    (r"groupproblemshape|groupedgemm|moe", "mixture of experts", "CUTLASS"),
    (r"(?<!fb)gemm|mma", "gemm", "CUTLASS"),
    (r"radixsort|devicescan|reducebykey|scan|sort|select|histogram|merge|unique", "sort and scan", "CUB"),
    (r"reduce", "reduction", "CUB"),
    (r"softmax", "softmax", "PyTorch"),
    (r"norm", "normalisation", "PyTorch"),
    (r"parallel_for|for_each|transform|functor|elementwise|epilogue", "elementwise", "thrust"),
)

#: (pattern, format) of what a kernel computes in; the first that fits.
FORMATS: tuple[tuple[str, str], ...] = (
    (r"e4m3|e5m2|f8f|_fp8|float8|float_e4m3|_qq[a-z]{3}_|nvjet_q", "fp8"),
    (r"e2m1|nvfp4|fp4", "nvfp4"),
    (r"bf16|bfloat16|__nv_bfloat|nvjet_t|_bbs_|_bss_|_bb_", "bf16"),
    (
        r"tf32|cutlass_80_tensorop_s1688(gemm|fprop|dgrad|wgrad)(?!_(f16|bf16))|s1688tf32|nvjet_s|s1688gemm_\d"
        r"|_3xtf32|s161616gemm_f32|s1688(gemm|cudnn|fprop|dgrad|wgrad)_?(?!fp16|f16)",
        "tf32",
    ),
    (r"(?<![a-z])h(884|1688|16816)|fp16|f16f|_f16_|half|_hhs_|_hss_|_hb_|_hh_|nvjet_h|float16|s884|_f16", "fp16"),
    (r"i8816|i16832|int8|s8s|_i8_|_i8i|s8_s8|igemm_int8", "int8"),
    (r"dgemm|d884|d1684|<double|, double|f64f64|_db_|double", "fp64"),
    (r"sgemm|_sb_|f32f32|scudnn|sgemv|<float|, float|simt_s|\bfloat\b|_fp32|_f32", "fp32"),
    (r"<long|, long|int64", "int64"),
    (r"<int|, int", "int32"),
)

#: Patterns of tiles: groups are rows, columns and, where told, depth of the block's tile.
TILES = (
    r"tilesize(\d+)x(\d+)x(\d+)",
    r"_mt(\d+)x(\d+)x(\d+)",
    r"gemmshape<(\d+), ?(\d+), ?(\d+)>",
    r"(?:gemm|fprop|dgrad|wgrad|optimized|analytic|precomputed|few_channels)[a-z0-9_]*?_(\d+)x(\d+)_(\d+)x\d+",
    r"nvjet_[a-z]+_(\d+)x(\d+)_(\d+)x\d+",
    r"kernel_traits<\d+, (\d+), (\d+)",
    r"(?:gemm|gemmex|scudnn|cudnn|fmha_cutlass[fb])[a-z0-9_]*?_(\d+)x(\d+)(?:_(\d+)x\d+)?",
)

#: Memory layout of the two operands, as BLAS libraries spell it.
LAYOUT = re.compile(r"_(nn|nt|tn|tt)(?:_|n_|t_|$|>|\b)")
TENSILE_LAYOUT = re.compile(r"cijk_(a[ijkl]+)_(b[ijkl]+)")

#: (pattern, direction) of convolutions and attention.
DIRECTIONS = (
    (r"dgrad|bwd_?data|bwddata|backward_data|igemm_bwd", "dgrad"),
    (r"wgrad|bwd_?weight|bwdweight|wrw|backward_filter", "wgrad"),
    (r"bwd|backward|cutlassb|bprop|_grad|grad_", "backward"),
)
