"""Run a script by two processes that are forks of this one, so that torch is imported once for all of them.

Each line of the input is a team, [{"NAME": "value"}, "SCRIPT", "ARGUMENT", ...], where the dictionary holds variables
of the environment. The processes find each other as under torchrun, and once one has failed the other is killed. Each
line of the output has a team's exit codes.
"""

import json
import os
import runpy
import signal
import socket
import sys

import torch._dynamo  # which optimizers import
import torch.distributed.nn

import tamis.training  # noqa: F401

SIZE = 2


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("localhost", 0))
        return int(door.getsockname()[1])


def become(rank: int, port: int, environment: dict[str, str], script: str, *arguments: str) -> None:
    """Be the process of this rank; once its script has ended, the interpreter ends as after any other."""
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(SIZE)}
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank), **address)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def exit_codes(processes: list[int]) -> list[int]:
    """Wait for every process; after one that failed, the others are killed."""
    found = dict[int, int]()
    while len(found) < len(processes):
        process, status = os.wait()
        found[process] = os.waitstatus_to_exitcode(status)
        if found[process]:
            for other in {*processes} - found.keys():
                os.kill(other, signal.SIGKILL)
    return [found[process] for process in processes]


def main() -> None:
    torch.set_num_threads(1)
    for environment, script, *arguments in map(json.loads, sys.stdin):
        port, processes = free_port(), list[int]()
        for rank in range(SIZE):
            process = os.fork()
            if not process:
                return become(rank, port, environment, script, *arguments)
            processes.append(process)
        print(json.dumps(exit_codes(processes)), flush=True)


if __name__ == "__main__":
    main()
