"""A tokenizer keeps nothing of the texts that it reads."""

from __future__ import annotations

import random
import string
from concurrent.futures import ThreadPoolExecutor

import pytest

from onnx_genai.tokenizer import Tokenizer
from tests.heap import held
from tests.tokenizer.trained import trained

NUM_WORDS = 2_000


def words(seed: int) -> list[str]:
    """Words of 200 letters, which nobody has seen before."""
    generator = random.Random(seed)
    return ["".join(generator.choices(string.ascii_letters, k=200)) for _ in range(NUM_WORDS)]


@pytest.mark.parametrize("kind", ["byte_level", "metaspace_byte_fallback"])
@pytest.mark.parametrize("how", ["encode", "encode as text", "encode whole"])
def test_words_do_not_stay_in_the_thread_that_has_read_them(kind: str, how: str) -> None:
    tokenizer = Tokenizer(trained(kind).to_str())

    def read(seed: int) -> None:
        if how == "encode whole":
            tokenizer.encode_whole(words(seed))
            return
        for word in words(seed):
            tokenizer.encode(word, special_tokens="text" if how == "encode as text" else "parse")

    with ThreadPoolExecutor(1) as thread:
        thread.submit(read, 1).result()
        before = held()
        thread.submit(read, 2).result()
        grown = held() - before

    assert grown.native < 100 * NUM_WORDS  # a word that stays takes some 7,000 bytes


def test_a_tokenizer_that_keeps_no_words_splits_them_as_the_library_does() -> None:
    library = trained("byte_level")
    tokenizer = Tokenizer(library.to_str())
    text = "The river isn't long, and the river isn't wide. " * 3

    for _ in range(2):
        assert tokenizer.encode(text) == library.encode(text).ids
