"""Tiny models made in code, each with a plain Python answer to compare with.

* ``checksum``: the next token depends on all ids before it, their positions, and nothing else.
* ``scripted``: answers with a given list of ids, or follows a table, which may be noise.
* ``encoder_decoder``: an encoder-decoder whose answer depends on the whole source and on all tokens.
* ``packages``: writes a model and its files as a model package of the common formats.
* ``texts``: small tokenizers.
* ``reference``: runs the checksum models with plain onnxruntime, to prove the models themselves.
"""
