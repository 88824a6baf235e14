"""Every non-public torch name that Ingot uses is imported here: a new torch release changes only this package.

Public names (torch.fx, torch.ops, torch.export, FX graphs, ATen) are imported where they are used.
"""

from torch._dispatch.python import enable_python_dispatcher
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv, compute_unbacked_bindings
from torch.utils._sympy import functions as sympy_functions
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ingot.torch_internals.autograd_tracing import (
    TracesOfGradients,
    compile_with_autograd,
    distributes,
    graph_of,
    intercept_attention_functions,
    intercept_autograd_functions,
    is_real,
    lacks_gradient,
    on_second_derivative,
    set_trace_of_calls,
)
from ingot.torch_internals.export import (
    custom_annotation,
    export_verifier,
    export_violation,
    guards_of,
    reserve_name,
)
from ingot.torch_internals.fake_tensors import (
    fake_dense,
    fake_like,
    fake_mode,
    fake_mode_of,
    fake_sized,
    is_plain,
    is_static_input,
    is_strided,
    keep_aliases,
    may_be_restrided,
    may_overlap,
    new_fake_mode,
    overlaps_itself,
    same_memory,
    same_strides,
    storage_id,
)
from ingot.torch_internals.isolation import Patches, Region, ignore_warnings
from ingot.torch_internals.modes import (
    DispatchMode,
    Functionalization,
    RecordingMode,
    autocasts_in_force,
    current_cuda_device,
    fake_alias,
    grad_mode,
    is_fixed,
    is_inside_transform,
    own_draws,
    pause_recording,
    raw_cuda_stream,
    real_tensors,
    restore_modes,
    run_isolated,
    same_fixed_type,
    short_empty_strided,
)
from ingot.torch_internals.monkeypatches import (
    TORCH_FOLDER,
    MemoryHidden,
    call_flex_attention_directly,
    default_decompositions,
    detach_from_dynamo,
    disable_mkldnn,
    disable_torch_compile,
    exporting,
    forbid_data_ptr,
    intercept_associative_scan,
    intercept_control_flow,
    on_autocast_switch,
    on_module_setattr,
    silence_fake_tensor_logs,
    skip_noop_module_to,
    suppress_conv_backend_guards,
    watch_checks,
)
from ingot.torch_internals.operator_schemas import (
    aliased_positions,
    argument_names,
    bind_arguments,
    fill_arguments,
    mutated_positions,
    mutated_values,
    returned_positions,
    values_at,
)
from ingot.torch_internals.operators import (
    all_decompositions,
    below_autograd,
    computes_new_tensor,
    copies_by_strides,
    declares_aliases,
    enter_autocast,
    exit_autocast,
    functional_form,
    has_rule,
    higher_order_operators,
    is_composite_implicit,
    is_declared_effectful,
    may_change_layout,
    operator_named,
    pointwise_form,
    returns_fresh_tensor,
    set_grad_enabled,
    tracepoint,
    unannotated_mutations,
    without_dispatch,
    without_python_kernels,
    wrap_with_autocast,
    wrap_with_set_grad_enabled,
)
from ingot.torch_internals.process_state import keep_process_state
from ingot.torch_internals.pytree import (
    TreeSpec,
    branch_parts,
    branch_spec,
    flatten_rule,
    is_registered_here,
    leaf_spec,
    leaf_spellings,
    namedtuple_kind,
    register_dataclass,
    registered_container,
)
from ingot.torch_internals.quantized import quantized_operator, quantized_operators
from ingot.torch_internals.shape_env import ProgramShapeEnv, WatchedShapeEnv, suspend_watching
from ingot.torch_internals.shape_env_state import (
    RestoredShapeEnv,
    SymbolFacts,
    binding_path,
    binding_steps,
    restore_symbol,
    symbol_facts,
    symbolic_of_kind,
)
from ingot.torch_internals.shapes import CANNOT_TELL, NO_KERNEL, READS_VALUES, SymbolicRun
from ingot.torch_internals.symbolic_indexing import (
    TracedTensor,
    dispatch_python_calls,
    read_by,
    trace_indices,
    untrace_indices,
)
from ingot.torch_internals.symbolic_math import symbolic_builtins, symbolic_math, symbolic_min_max
from ingot.torch_internals.symbols import (
    FixedSize,
    NamedSource,
    adopt_symbol,
    bounds,
    declare_guards,
    discard_guards,
    expr_of,
    expr_to_check,
    ignore_fresh_symbols,
    is_replaced,
    is_symbolic,
    is_unbacked,
    may_be_negative,
    narrow,
    new_symbol,
    pending_symbols,
    portable_expr_of,
    range_of,
    rename_symbol,
    scope_checks,
    suppress_size_guards,
    surely_equal,
    sym_log2,
    sym_sqrt,
    symbolic_value,
    symint,
)
from ingot.torch_internals.torch_compile.aot_autograd import (
    argument_number,
    call_without_tokens,
    compile_functional,
    increment_version,
    is_for_dynamo,
    leave_torch_compile,
)
from ingot.torch_internals.torch_compile.symbolic_sizes import evaluate_expr, float_hint_of, hint_of
