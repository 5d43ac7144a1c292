"""Which tokens of a prompt a cache has to find, as long as it evicts nothing: counted apart from cpkv and SGLang."""

from sglang.version import __version__

from cpkv.sglang.versions import Interface, interface_of

COMPUTES_LAST_TOKEN = interface_of(__version__) is not Interface.CHECKPOINT
"""Before 0.5.22 a step more of a request was queued by the time that the scheduler saw it end, and is kept as well."""


class Prefixes:
    """All that was computed, as whole pages.

    With drafts, a page is one of pairs: it has to be followed by a token. And the last token that a request has
    produced was computed if more was accepted than it had asked for, or if a step more was queued, which nobody tells.
    """

    def __init__(self, page_size, *, drafts):
        self._page_size = page_size
        self._drafts = drafts
        self._computed = set()
        self._perhaps = set()

    def hits(self, request):
        """How many tokens may be found: mostly one number. The last token of a prompt is always computed."""
        least, most = (self._found(request, pages) for pages in (self._computed, self._perhaps))
        return range(least, most + 1, self._page_size)

    def _found(self, request, pages):
        found = 0
        for page in self._pages_of(request, request.prompt[:-1]):
            if page not in pages:
                break
            found += self._page_size
        return found

    def add(self, request, tokens):
        """Keep a request that has produced `tokens`. The last one need not have been computed."""
        all_tokens = request.prompt + tokens
        self._computed.update(self._pages_of(request, all_tokens[:-1]))
        self._perhaps.update(
            self._pages_of(request, all_tokens if self._drafts or COMPUTES_LAST_TOKEN else all_tokens[:-1])
        )

    def _pages_of(self, request, tokens):
        space = request.extra_key, request.cache_salt
        for end in range(self._page_size, len(tokens) - self._drafts + 1, self._page_size):
            yield space, tokens[: end + self._drafts]
