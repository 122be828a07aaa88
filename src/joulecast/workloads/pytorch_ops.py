"""What each PyTorch operator is in our kinds: a table by operator name, and the rule for those not in it."""

from __future__ import annotations

import math
from typing import Any

import torch

from joulecast.workloads import pytorch_convolutions as convolutions
from joulecast.workloads import pytorch_fused as fused
from joulecast.workloads import pytorch_rules as rules
from joulecast.workloads.pytorch_costs import Row
from joulecast.workloads.pytorch_rules import Call, Handler
from joulecast.workloads.pytorch_shapes import moved_bytes, tensors_in


def _table(*entries: tuple[str, Handler]) -> dict[str, Handler]:
    return {name: handler for names, handler in entries for name in names.split()}


#: Operators by name, without library and overload.
HANDLERS: dict[str, Handler] = _table(
    ("mm _int_mm _scaled_mm _sparse_semi_structured_mm", rules.mm(0)),
    ("addmm _addmm_activation _sparse_addmm", rules.mm(1)),
    ("mv dot vdot", rules.vector(0)),
    ("addmv", rules.vector(1)),
    ("bmm", rules.bmm(0)),
    ("baddbmm", rules.bmm(1)),
    ("floor_divide floor_divide_ polar log_sigmoid_forward remainder fmod", rules.pointwise("other", 4)),
    ("linalg_solve_triangular", rules.triangular),
    ("_euclidean_dist _cdist_forward", rules.distances),
    ("linear", rules.linear),
    ("_grouped_mm _scaled_grouped_mm", rules.grouped_mm),
    ("convolution _convolution cudnn_convolution mkldnn_convolution convolution_overrideable", convolutions.forward),
    ("convolution_backward", convolutions.backward),
    ("_softmax _log_softmax _safe_softmax softmax log_softmax", rules.softmax),
    ("logsumexp", rules.reduce_by("softmax")),
    ("_softmax_backward_data _log_softmax_backward_data", rules.softmax_backward),
    ("native_layer_norm layer_norm _fused_rms_norm",
     rules.norm("layer_norm", lambda call: math.prod(call.args[1]))),
    ("_weight_norm_interface", rules.norm("layer_norm", rules.weight_norm_width)),
    ("_weight_norm_interface_backward", rules.pointwise("fused", 6)),
    ("native_group_norm", rules.norm("group_norm", rules.group_width)),
    ("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm"
     " _batch_norm_with_update _batch_norm_no_update _native_batch_norm_legit_functional", rules.batch_norm),
    ("native_layer_norm_backward _fused_rms_norm_backward", rules.norm_backward("layer_norm")),
    ("native_group_norm_backward", rules.norm_backward("group_norm")),
    ("native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward", rules.norm_backward("batch_norm")),
    ("sum nansum prod norm linalg_vector_norm mse_loss count_nonzero"
     " var var_mean std std_mean trace", rules.reduce_by("sum")),
    ("nll_loss_forward nll_loss2d_forward", rules.chosen),
    ("nll_loss_backward nll_loss2d_backward", rules.zeros_but_few),
    ("mean", rules.reduce_by("mean")),
    ("_is_all_true _is_any_true amax amin max min argmax argmin all any aminmax median kthvalue mode",
     rules.reduce_by("max")),
    ("equal is_nonzero _local_scalar_dense item _assert_async _nested_tensor_from_mask_left_aligned", rules.nothing),
    ("embedding", rules.embedding),
    ("embedding_dense_backward _embedding_bag_dense_backward", rules.embedding_backward),
    ("_embedding_bag _embedding_bag_forward_only", rules.embedding),
    ("index _unsafe_index", rules.index_rows),
    ("index_select gather take take_along_dim", rules.select_rows),
    ("index_put_ index_put _index_put_impl_ index_add index_add_ index_copy index_copy_ index_fill index_fill_ scatter"
     " scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ select_scatter slice_scatter masked_scatter"
     " masked_scatter_ index_reduce _unsafe_index_put put_", rules.scatter),
    ("masked_select nonzero unique _unique2 unique_consecutive bincount histc bucketize searchsorted"
     " repeat_interleave isin unique_dim", rules.pointwise("other", 4)),
    ("sort argsort", rules.radix_sort),
    ("topk", rules.topk),
    ("cumsum cumprod cummax cummin logcumsumexp cumsum_ _cummax_helper _cummin_helper", rules.pointwise("other", 2)),
    ("_to_copy copy_ to copy", rules.cast),
    ("clone contiguous cat stack constant_pad_nd roll flip repeat reflection_pad1d reflection_pad2d reflection_pad3d"
     " replication_pad1d replication_pad2d replication_pad3d im2col col2im pixel_shuffle pixel_unshuffle tril triu"
     " tril_ triu_ _reshape_copy view_copy select_backward slice_backward diag_embed diagonal_copy unfold_backward"
     " unfold_copy channel_shuffle new_empty_strided_copy constant_pad_nd_backward block_diag _chunk_cat rot90"
     " split_with_sizes_copy expand_copy permute_copy diagonal_backward reflection_pad1d_backward"
     " reflection_pad2d_backward replication_pad2d_backward _pad_circular cartesian_prod as_strided_scatter"
     " narrow_copy _assert_scalar_copy slice_copy", rules.copy),
    ("zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full fill_ zero_ fill arange linspace eye"
     " scalar_tensor tril_indices triu_indices logspace hann_window hamming_window blackman_window fill_diagonal_",
     rules.fill),
    ("rand randn randint rand_like randn_like randint_like normal_ uniform_ random_ exponential_ randperm normal"
     " multinomial log_normal_ geometric_ cauchy_", rules.pointwise("dropout", 10)),
    ("native_dropout bernoulli bernoulli_ dropout _fused_dropout", rules.pointwise("dropout", 10)),
    ("native_dropout_backward", rules.pointwise("mul", 2)),
    ("gelu", rules.pointwise("gelu", 10)),
    ("silu silu_ mish hardswish", rules.pointwise("silu", 10)),
    ("_prelu_kernel prelu relu relu_ relu6 leaky_relu hardtanh hardtanh_ clamp clamp_ clamp_min clamp_max leaky_relu_"
     " threshold rrelu_with_noise", rules.pointwise("relu")),
    ("tanh tanh_", rules.pointwise("tanh", 10)),
    ("sigmoid sigmoid_", rules.pointwise("sigmoid", 10)),
    ("exp exp_ expm1", rules.pointwise("exp", 8)),
    ("add add_", rules.pointwise("add")),
    ("sub sub_ rsub", rules.pointwise("sub")),
    ("mul mul_", rules.pointwise("mul")),
    ("div div_ reciprocal", rules.pointwise("div")),
    ("pow pow_ square", rules.pointwise("pow")),
    ("neg neg_ abs abs_ sqrt sqrt_ rsqrt rsqrt_ sign ceil floor round", rules.pointwise("other")),
    ("masked_fill masked_fill_ where", rules.pointwise("mask")),
    ("glu", rules.pointwise("glu", 11)),
    ("gelu_backward silu_backward tanh_backward sigmoid_backward elu_backward hardswish_backward mish_backward"
     " softplus_backward hardsigmoid_backward", rules.pointwise("fused", 12)),
    ("threshold_backward hardtanh_backward leaky_relu_backward"
     " mse_loss_backward smooth_l1_loss_backward huber_loss_backward", rules.pointwise("mul", 2)),
    ("binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss huber_loss huber_loss_backward"
     " cdist cross dist renorm angle isnan", rules.pointwise("other", 8)),
    ("max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d"
     " adaptive_max_pool2d avg_pool1d max_pool1d adaptive_avg_pool1d mkldnn_max_pool2d max_pool2d", rules.pool),
    ("max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward avg_pool3d_backward"
     " max_pool3d_with_indices_backward adaptive_max_pool2d_backward", rules.pointwise("other", 2)),
    ("upsample_nearest2d upsample_nearest1d upsample_nearest3d upsample_nearest2d_backward _upsample_nearest_exact2d"
     " _upsample_nearest_exact1d upsample_nearest1d_backward", rules.pointwise("other", 2)),
    ("upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_trilinear3d grid_sampler_2d grid_sampler_3d"
     " upsample_bilinear2d_backward _upsample_bilinear2d_aa _upsample_bicubic2d_aa upsample_bicubic2d_backward"
     " affine_grid_generator grid_sampler_2d_backward _upsample_bilinear2d_aa_backward", rules.pointwise("other", 16)),
    ("_fft_r2c _fft_c2r _fft_c2c", rules.fourier),
    ("_scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention",
     fused.attention_by(0, 1, lambda call: bool(call.arg(6 if "cudnn" in call.name else 4, "is_causal", False)))),
    ("_scaled_dot_product_efficient_attention", fused.attention_by(0, 1, fused.flag(6, "is_causal"))),
    ("_scaled_dot_product_flash_attention_for_cpu", fused.attention_by(0, 1, fused.flag(4, "is_causal"))),
    ("_scaled_dot_product_fused_attention_overrideable", fused.attention_by(0, 1, fused.flag(5, "is_causal"))),
    ("_flash_attention_forward", fused.attention_by(0, 1, fused.flag(8, "is_causal"), heads_last=True)),
    ("_efficient_attention_forward", fused.attention_by(0, 1, fused.flag(9, "custom_mask_type"), heads_last=True)),
    ("_scaled_dot_product_flash_attention_backward", fused.attention_backward(fused.flag(11, "is_causal"))),
    ("_scaled_dot_product_flash_attention_for_cpu_backward", fused.attention_backward(fused.flag(7, "is_causal"))),
    ("_scaled_dot_product_efficient_attention_backward", fused.attention_backward(fused.flag(11, "is_causal"))),
    ("_scaled_dot_product_cudnn_attention_backward", fused.attention_backward(fused.flag(14, "is_causal"))),
    ("_transformer_encoder_layer_fwd", fused.encoder_layer),
    ("_native_multi_head_attention", fused.native_mha),
    ("_fused_adam_ _fused_adamw_", rules.foreach("fused", 4, 3, 15)),
    ("_fused_sgd_", rules.foreach("fused", 3, 2, 4)),
    ("_fused_adagrad_", rules.foreach("fused", 3, 2, 6)),
    ("_foreach_norm", rules.foreach_reduction),
    ("_foreach_max", rules.foreach_reduction),
    ("_amp_foreach_non_finite_check_and_unscale_", rules.foreach("mul", 1, 1, 2)),
    ("all_reduce all_reduce_ all_reduce_coalesced", rules.collective("all_reduce")),
    ("all_gather_into_tensor all_gather_into_tensor_out all_gather_into_tensor_coalesced",
     rules.collective("all_gather")),
    ("reduce_scatter_tensor reduce_scatter_tensor_coalesced", rules.collective("reduce_scatter")),
    ("all_to_all_single", rules.collective("alltoall")),
    ("broadcast broadcast_", rules.collective("broadcast")),
    ("wait_tensor wait_tensors", rules.nothing),
)  # fmt: skip

#: Operators that move nothing: results that share memory, memory not yet written, bookkeeping.
_FREE = (
    "device layout is_pinned _unsafe_view _reshape_alias lift_fresh lift alias detach detach_ empty empty_like"
    " empty_strided new_empty new_empty_strided resize_ set_ sym_size sym_stride sym_numel sym_storage_offset"
    " is_same_size _has_same_storage_numel record_stream _foreach_detach unsafe_split unsafe_chunk"
    " unsafe_split_with_sizes squeeze_ unsqueeze_ t_ transpose_ as_strided_ _version _functional_assert_async"
    " _functional_sym_constrain_range sym_constrain_range sym_constrain_range_for_size _assert_scalar"
    " _make_dep_token rename _nested_tensor_size requires_grad_"
)
FREE = frozenset(_FREE.split())


def rows_for(func: Any, call: Call) -> list[Row] | None:
    """Operations that one operator stands for; None where no rule prices it.

    Operators of the table first, then those that only look at memory otherwise (free), then the pointwise ones by
    the tag that PyTorch gives them, and the many-tensor forms of optimizers by their prefix.
    """
    name = call.name
    handler = HANDLERS.get(name)
    if handler is not None:
        return handler(call)
    if name in FREE or is_view(func):
        return []
    if name.startswith("_foreach_"):
        lists = len([one for one in call.args if isinstance(one, list | tuple) and tensors_in(one)])
        return rules.foreach("fused", max(lists, 1), 1, 2)(call)
    if torch.Tag.pointwise in func.tags or _pointwise_by_name(name):
        return rules.pointwise("other", 2)(call)
    return None


def _pointwise_by_name(name: str) -> bool:
    """Whether an operator in place is the pointwise one of its name without the underscore."""
    packet = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") and name[:-1] else None
    return packet is not None and any(
        torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads()
    )


def is_view(func: Any) -> bool:
    """Whether the operator's result shares the memory of an argument and nothing is written."""
    returns = func._schema.returns
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def bytes_moved(call: Call) -> float:
    """Bytes that an operator reads and writes at least, each tensor once. [B]"""
    return moved_bytes([*tensors_in(call.args), *tensors_in(list(call.kwargs.values())), *tensors_in(call.out)])
