"""What stands before a script in a user's command: which launchers, and how many processes."""

import pytest

from sweeper.core.launch import ACCELERATE, TORCHRUN, Launch


@pytest.mark.parametrize(
    ("text", "module", "options", "processes"),
    [
        ("torchrun --nproc-per-node 2", TORCHRUN, ("--nproc-per-node", "2"), 2),
        ("/env/bin/torchrun --nproc_per_node=4", TORCHRUN, ("--nproc_per_node=4",), 4),
        (
            "python3 -m torch.distributed.run --standalone --nnodes 1 --nproc-per-node=8 -r 3",
            TORCHRUN,
            ("--standalone", "--nnodes", "1", "--nproc-per-node=8", "-r", "3"),
            8,
        ),
        (
            "accelerate launch --multi_gpu --num_processes 2 --mixed_precision bf16",
            ACCELERATE,
            ("--multi_gpu", "--num_processes", "2", "--mixed_precision", "bf16"),
            2,
        ),
        ("python -m accelerate.commands.launch --num-processes 2", ACCELERATE, None, 2),
    ],
)
def test_the_processes_are_those_of_the_options(
    text: str, module: str, options: tuple[str, ...] | None, processes: int
) -> None:
    found = Launch.parse(text)
    assert (found.module, found.processes) == (module, processes)
    assert options in (None, found.options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "allowed are torchrun, python -m torch.distributed.run, accelerate launch"),
        ("deepspeed --num_gpus 2", "allowed are"),
        ("python train.py", "allowed are"),
        ("torchrun", "give the number of processes, e.g. --nproc-per-node 2"),
        ("torchrun --nproc-per-node gpu", "give the number of processes"),
        ("torchrun --nproc-per-node 0", "give the number of processes"),
        ("torchrun --nproc-per-node", "expected one argument"),
        ("accelerate launch", "give the number of processes, e.g. --num_processes 2"),
        ("torchrun --nnodes 2 --nproc-per-node 2", "--nnodes=2: sweeper measures on one host"),
        ("torchrun --nnodes=1:4 --nproc-per-node 2", "--nnodes=1:4"),
        ("accelerate launch --num_machines 2 --num_processes 4", "--num_machines=2"),
        ("torchrun --nproc-per-node 2 train.py", "give the script in model.path"),
        ("torchrun --nproc-per-node 2 -m package.train", "give the script in model.path"),
        ("torchrun --no-python --nproc-per-node 2", "give the script in model.path"),
        ("torchrun '", "No closing quotation"),
    ],
)
def test_others_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Launch.parse(text)
