"""Generates for several prompts at once, as example scripts for onnxruntime-genai do."""

from __future__ import annotations

import argparse
import importlib
import time


def main(args: argparse.Namespace) -> None:
    og = importlib.import_module(args.module)
    config = og.Config(args.model_path)
    if args.execution_provider != "follow_config":
        config.clear_providers()
        if args.execution_provider != "cpu":
            config.append_provider(args.execution_provider)
    model = og.Model(config)
    tokenizer = og.Tokenizer(model)

    prompts = args.prompts or ["I like walking my cute dog", "The sun", "def add(a, b):"]
    input_tokens = tokenizer.encode_batch(prompts)
    params = og.GeneratorParams(model)
    options = {"max_length": args.max_length, "do_sample": args.do_sample, "batch_size": len(prompts)}
    for name in ("top_k", "top_p", "temperature", "repetition_penalty", "num_beams", "random_seed"):
        value = getattr(args, name)
        if value is not None:
            options[name] = value
    params.set_search_options(**options)

    generator = og.Generator(model, params)
    generator.append_tokens(input_tokens)
    started = time.perf_counter()
    while not generator.is_done():
        generator.generate_next_token()
    seconds = time.perf_counter() - started
    for index in range(len(prompts)):
        print(f"== {index}")
        print(tokenizer.decode(generator.get_sequence(index)))
    if args.verbose:
        print(f"{generator.token_count()} tokens a row, {seconds:.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model_path")
    parser.add_argument("prompts", nargs="*")
    parser.add_argument("--module", default="onnx_genai.compat")
    parser.add_argument("--execution_provider", default="follow_config")
    parser.add_argument("--max_length", type=int, default=40)
    parser.add_argument("--do_sample", action="store_true")
    parser.add_argument("--top_k", type=int)
    parser.add_argument("--top_p", type=float)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--repetition_penalty", type=float)
    parser.add_argument("--num_beams", type=int)
    parser.add_argument("--random_seed", type=int)
    parser.add_argument("--verbose", action="store_true")
    main(parser.parse_args())
