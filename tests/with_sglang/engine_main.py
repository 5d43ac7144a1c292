"""The main process of an engine: serves what the tests send over a connection, until they close it.

    engine_main.py DESCRIPTOR

What it gets first are the options of the engine; it answers when the engine runs. Then it gets
`(call, arguments)` and answers with the result. An engine that dies takes this process with it, as SGLang has it:
the tests see the connection closed.
"""

import asyncio
import itertools
import os
import sys
from multiprocessing.connection import Connection
from typing import Literal

from served import Answer, Request
from sglang import Engine
from sglang.srt.managers.io_struct import (
    ContinueGenerationReqInput,
    GenerateReqInput,
    PauseGenerationReqInput,
    ReleaseMemoryOccupationReqInput,
    ResumeMemoryOccupationReqInput,
    UpdateWeightFromDiskReqInput,
)

_NUMBERS = itertools.count()


def serve(connection):
    """Start the engine and answer calls."""
    # A process that was forked holds the connection too, and the tests would not see it closed.
    os.register_at_fork(after_in_child=connection.close)
    options = connection.recv()
    # Before 0.5.19 not more than there are ranks.
    os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join("0" * options.get("tp_size", 1))
    engine = Engine(**options)
    engine.tokenizer_manager.dump_requests_before_crash = lambda: None  # it waits five seconds for a GPU to settle
    connection.send(None)
    engine.loop.run_until_complete(Calls(engine).answer(connection))
    engine.shutdown()


class Calls:
    """What the tests can call."""

    def __init__(self, engine):
        self._manager = engine.tokenizer_manager

    async def answer(self, connection):
        """Answer calls. The loop runs while nothing is called: it has to hear when the scheduler dies."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                name, arguments = await loop.run_in_executor(None, connection.recv)
            except EOFError:
                return
            connection.send(await getattr(self, name)(*arguments))

    async def serve(self, requests: list[Request]) -> list[Answer]:
        """Serve requests together."""
        return await self._serve_all(requests, Times(len(requests)))

    async def serve_and_call(
        self, requests: list[Request], at: tuple[int, int], calls: list[tuple[str, tuple]]
    ) -> tuple[list[Answer], list[object]]:
        """Serve requests together, and from some time on make calls, one after another."""
        times = Times(len(requests))
        serving = asyncio.create_task(self._serve_all(requests, times))
        await times.wait(*at)
        results = [await getattr(self, name)(*arguments) for name, arguments in calls]
        return await serving, results

    async def _serve_all(self, requests, times):
        return await asyncio.gather(*(self._serve(place, request, times) for place, request in enumerate(requests)))

    async def _serve(self, place, request, times):
        if request.starts_at is not None:
            await times.wait(*request.starts_at)
        sent = GenerateReqInput(
            rid=f"{next(_NUMBERS):06}",  # an abort hits all whose ids begin with its own
            input_ids=list(request.prompt),
            sampling_params={"max_new_tokens": request.new_tokens, "temperature": 0},
            stream=True,
            extra_key=request.extra_key,
            lora_path=request.adapter,
            priority=request.priority,
            **({} if request.cache_salt is None else {"cache_salt": request.cache_salt}),  # since 0.5.18
        )
        abort = asyncio.create_task(self._abort(request, sent.rid, times))
        async for output in self._manager.generate_request(sent, None):
            last = output
            await times.produced(place, len(output["output_ids"]))
        abort.cancel()
        told = last["meta_info"]
        hits = told.get("cached_tokens_details") or {}
        return Answer(
            tokens=tuple(last["output_ids"]),
            finish=told["finish_reason"]["type"],
            hit=told.get("cached_tokens", 0),  # not told of a request that was aborted before it ran
            device_hit=hits.get("device", 0),
            host_hit=hits.get("host", 0),
            retractions=told.get("num_retractions", 0),
            accept_length=told.get("spec_accept_length"),
        )

    async def _abort(self, request, rid, times):
        if request.aborted_at_pages is not None:
            wanted = await self._inserted_pages() + request.aborted_at_pages
            while await self._inserted_pages() < wanted:
                pass
        elif request.aborted_at is not None:
            await times.wait(*request.aborted_at)
        else:
            return
        self._manager.abort_request(rid)

    async def flush(self, timeout_s: float | None = None) -> bool:
        """Flush the cache; false if SGLang refuses."""
        return (await self._manager.flush_cache(timeout_s)).success

    async def pause(self, mode: str):
        """Compute nothing until `go_on`; `mode` says what becomes of the requests that run."""
        await self._manager.pause_generation(PauseGenerationReqInput(mode=mode))

    async def go_on(self):
        """Compute again."""
        await self._manager.continue_generation(ContinueGenerationReqInput())

    async def load_weights(self, folder: str, then: Literal["flush", "keep"]) -> tuple[bool, str]:
        """Load the weights of a model, and see to the cache; return whether SGLang has done it, and what it says."""
        asked = UpdateWeightFromDiskReqInput(model_path=folder, flush_cache=then == "flush")
        success, message, _ = await self._manager.update_weights_from_disk(asked)
        return success, message

    async def release_memory(self, tags: list[str] | None):
        """Give the device's memory up."""
        await self._manager.release_memory_occupation(ReleaseMemoryOccupationReqInput(tags=tags))

    async def resume_memory(self, tags: list[str] | None):
        """Take it again. What it holds is not what it held."""
        await self._manager.resume_memory_occupation(ResumeMemoryOccupationReqInput(tags=tags))

    async def _inserted_pages(self):
        return (await self.states())[0]["inserted_pages"]

    async def states(self) -> list[dict[str, int]]:
        """What the cache of each rank has, and what the controls have counted."""
        return (await self._manager.get_internal_state())[0]["cache"]


class Times:
    """How many tokens each request has produced."""

    def __init__(self, requests):
        self._tokens = [0] * requests
        self._change = asyncio.Condition()

    async def produced(self, request, tokens):
        async with self._change:
            self._tokens[request] = tokens
            self._change.notify_all()

    async def wait(self, request, tokens):
        async with self._change:
            await self._change.wait_for(lambda: self._tokens[request] >= tokens)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
