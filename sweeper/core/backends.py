"""Names of backends: what each needs beside torch, which no longer exist, and which do without
`torch.compile`.

torch is not imported. `sweeper.worker.compilation.backends` finds out whether a name works on this
machine.
"""

from dataclasses import dataclass

# no compiler: forward and backward recorded as CUDA graphs, by `torch.cuda.make_graphed_callables`
GRAPHED = "graphed"
NO_CUDA_GRAPHS = "with device=cpu there are no CUDA graphs"
# They convert the module themselves: torch's older compilers, and the graph that is recorded by
# hand.
WITHOUT_DYNAMO = ("jit_trace", "jit_script", "fx", GRAPHED)
# pass through Dynamo and compile nothing
CONTROLS = ("eager", "eager_noexcept", "eager_debug", "pre_dispatch_eager")
# they call torch's convolutions, which read torch's switches in each call
CALL_CONVOLUTIONS = ("inductor", "aot_eager", *CONTROLS)
# each of these options has Inductor try its own kernels against those of libraries
AUTOTUNE = ("max_autotune", "max_autotune_gemm")
STAGES = {  # and what each adds to the one before: a fault of these can be bisected
    "eager": "Dynamo",
    "aot_eager_default_partitioner": "AOTAutograd",
    "aot_eager": "the partitioner, which chooses what is saved for backward",
    "aot_eager_decomp_partition": "decompositions",
    "inductor": "Inductor",
}
# beside inductor, the only one with modes and options
IN_TORCH = ("eager", "aot_eager", "cudagraphs", "ts", "aot_ts")

# their programs have the weights in them as constants
HOLD_WEIGHTS = ("tensorrt", "torch_tensorrt", "openvino")


@dataclass(frozen=True)
class Needs:
    """What a backend needs before it can compile anything."""

    module: str | None = None  # importing it registers the name, or the backend imports it itself
    advice: str = ""  # what to install
    device: str | None = None  # the only type of device that it runs on
    workload: str | None = None  # the only workload that it takes


NEEDS = {
    **dict.fromkeys(("cudagraphs", GRAPHED), Needs(device="cuda")),
    # https://docs.pytorch.org/TensorRT/dynamo/torch_compile.html: importing the package registers
    # both names
    **dict.fromkeys(
        ("tensorrt", "torch_tensorrt"),
        Needs(
            "torch_tensorrt",
            "pip install torch-tensorrt, of torch's own version",
            "cuda",
            "inference",
        ),
    ),
    # https://docs.openvino.ai/torchcompile; with training its gradients have the wrong shapes
    # (2026.4, torch 2.13). It copies its inputs to the host and gives results back there.
    "openvino": Needs("openvino.torch", "pip install openvino", "cpu", "inference"),
    # https://lightning-thunder.readthedocs.io; 0.2.6 cannot be imported beside torch 2.13
    "thunder": Needs("thunder.dynamo", "pip install lightning-thunder"),
    # https://github.com/pytorch/pytorch/issues/188866
    "tvm": Needs(
        "tvm.relay", "torch up to 2.13 needs tvm.relay, which TVM 0.20 took out; take inductor"
    ),
    **dict.fromkeys(
        ("openxla", "openxla_eval"),
        Needs(
            "torch_xla",
            "it needs torch-xla of torch's own version, and there is none after 2.9; take inductor",
        ),
    ),
}

# names of PyTorch 2.0 that torch 2.11 and later lack: what became of each, and what to take instead
GONE = {
    # https://github.com/pytorch/pytorch/pull/105789 and 110124
    **dict.fromkeys(
        ("nvfuser", "aot_nvfuser", "aot_ts_nvfuser", "nvprims_nvfuser"),
        "nvFuser left torch after 2.0 and is a package of its own; take inductor, or thunder, "
        "which can use it",
    ),
    "nvprims_aten": "its primitives left torch together with nvFuser; take aot_eager",
    "aot_cudagraphs": "it was renamed to cudagraphs; take cudagraphs",
    # torch/_dynamo/backends/ of torch 2.0 lacks both
    "ofi": "torch.jit.optimize_for_inference left TorchDynamo before torch 2.0; take jit_script or "
    "inductor",
    "fx2trt": "it became Torch-TensorRT; take tensorrt",
    # https://github.com/pytorch/pytorch/pull/158262; torch/_dynamo/backends/onnxrt.py of torch 2.13
    # is a placeholder
    "onnxrt": "torch has taken it out, and nothing to install brings it back; export with "
    "torch.onnx instead",
    # https://github.com/intel/intel-extension-for-pytorch/issues/867
    "ipex": "Intel ended its extension with torch 2.8, its work went into torch; take inductor",
    **dict.fromkeys(
        ("torchxla_trace_once", "aot_torchxla_trace_once"),
        "it was renamed to openxla; take openxla, of torch-xla",
    ),
}

# torch.compile ignores `mode` there, or refuses
WITHOUT_MODE = frozenset((*IN_TORCH, *WITHOUT_DYNAMO, *NEEDS, *GONE))
# They do not use the partitioner of AOTAutograd that heeds a memory budget; a backend of the user's
# own may use it.
WITHOUT_MEMORY_BUDGET = WITHOUT_MODE - {"aot_eager"}
