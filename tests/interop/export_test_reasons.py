"""Which of PyTorch's tests of torch.export compare torch's own text, names or configuration, and what each compares."""

from __future__ import annotations

_EXPORT = {
    "expects the class and the text of torch's error, where Ingot has an error of its own": (
        "test_args_type_checked test_dim_dynamic test_non_strict_dynamic_shapes test_derived_dim_basic "
        "test_derived_dim_integer test_derived_dim_nested test_disable_forced_specializations_errors "
        "test_export_api_with_dynamic_shapes test_dim_hint_range_violations test_dim_auto_and_dim "
        "test_mismatched_dynamic_shapes test_export_script_module test_retrace_pre_autograd test_retracable_ep "
        "test_issue_161902 test_dynamic_shapes_bounds test_multiple_definitions_same_name_dim "
        "test_refine_dynamic_shapes_from_suggested_fixes test_no_suggested_fixes_for_data_dependent_errors "
        "test_raise_user_error_when_guard_on_data_dependent_operation test_error_does_not_reference_eager_fallback "
        "test_export_aten_to_unflatten_subclass test_export_max_onnx_reported test_automatic_constrain_size "
        "test_no_check_is_size_error test_static_dim_constraints test_suggested_fixes_new_roots test_sym_or_sym_and "
        "test_unbacked_expand test_while_loop_assert_separation"
    ),
    "expects an error of torch's, where Ingot captures the model": (
        "test_derived_dim_1_2 test_dim_dynamic_specialization test_export_dynamo_config test_int_shape_specialization"
    ),
    "expects a warning of torch's tracer": (
        "test_detect_leak_strict test_detect_leak_nonstrict test_detect_leak_nonstrict_buffer_in_hook "
        "test_detect_leak_nonstrict_with_stacktrace test_function_holding_tensor test_export_cyclic_reference_leak "
        "test_export_rnn_variants_with_warning test_inductor_backend_inside_nonstrict"
    ),
    "sets torch's configuration that traces with real values": (
        "test_draft_export_checks_aliasing test_draft_export_checks_mutation test_draft_export_checks_mutation_list "
        "test_draft_export_fake_kernel_inference_errors test_draft_export_infers_fake_kernel "
        "test_real_tensor_alias_dtype_mismatch test_real_tensor_bool_cast test_real_tensor_for_max_op "
        "test_real_tensor_errors_on_aliasing_custom_op test_real_tensor_size_mismatch test_is_nonzero"
    ),
    "compares the text of a whole graph, with the order and the names that torch's tracer gives": (
        "test_cond_branches_return_constant_int test_cond_branches_return_same_int "
        "test_cond_with_module_stack_export_with test_decomp_item_in_prim_after_decomposition "
        "test_export_cond_symbool_pred test_issue_157289 test_nested_module_with_constant_buffer "
        "test_nested_module_with_parameter test_not_registered_parameter test_vmap test_vmap_custom_autograd_function"
    ),
    "counts the checks of dtype and device that torch's tracer puts before a conversion": (
        "test_device_to_dynamic test_device_to_mutation test_device_to_mutation_float test_device_to_static "
        "test_float_conversion test_float_conversion_from_int"
    ),
    "reads a key of a node's metadata that torch's tracer writes": (
        "test_linear_conv test_export_cond_preserve_torch_fn_for_subgraphs test_torch_fn"
    ),
}
_DYNAMISM = {
    "expects the class and the text of torch's error, where Ingot has an error of its own": (
        "test_export_constraints_error_not_in_range"
    ),
    "expects an error of torch's, where Ingot captures the model": "test_view_unify_cross_symbols",
}


def _name(prefix: str, groups: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}.{test}": reason for reason, tests in groups.items() for test in tests.split()}


REASONS = {
    **_name("test_export.TestExport", _EXPORT),
    **_name("test_export.TestDynamismExpression", _DYNAMISM),
}
