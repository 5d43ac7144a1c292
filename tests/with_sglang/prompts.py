"""Prompts of random tokens. The same seed makes the same ones."""

import random

from tiny_models import VOCABULARY

FIRST_TOKEN = 3
"""Those before it have a meaning."""


class Prompts:
    """A source of prompts."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def tokens(self, count):
        """So many tokens."""
        return tuple(self._random.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(count))
