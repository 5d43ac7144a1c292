"""cpkv as the prefix cache of SGLang's scheduler: `--radix-cache-backend cpkv`. Needs SGLang.

SGLang finds `plugin.register` through the entry point group `sglang.srt.plugins` and calls `plugin.make_cache` in
its scheduler process. What its versions expect of a cache is in `adapters`, one class for each generation of that
interface; what these share is in `cache`. SGLang's allocator owns the device pages: cpkv is told of them as they
are inserted, and returns those that it evicts. `docs/sglang.md` is the page for users.
"""
