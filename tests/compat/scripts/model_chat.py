"""A chat whose turns are appended, and one that starts each turn again from the system prompt."""

from __future__ import annotations

import argparse
import importlib
import json
import sys


def main(args: argparse.Namespace) -> None:
    og = importlib.import_module(args.module)
    og.set_log_options(enabled=False)
    model = og.Model(args.model_path)
    tokenizer = og.Tokenizer(model)
    stream = tokenizer.create_stream()
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=args.max_length, batch_size=1)
    generator = og.Generator(model, params)

    system = [{"role": "system", "content": args.system_prompt}]
    system_text = tokenizer.apply_chat_template(json.dumps(system), add_generation_prompt=False)
    system_tokens = tokenizer.encode(system_text)
    generator.append_tokens(system_tokens)
    for line in sys.stdin:
        turn = [*system, {"role": "user", "content": line.strip()}]
        text = tokenizer.apply_chat_template(json.dumps(turn), add_generation_prompt=True)
        generator.append_tokens(tokenizer.encode(text[len(system_text) :]))
        print("Output: ", end="")
        made = 0
        while not generator.is_done() and made < args.max_new_tokens:
            generator.generate_next_token()
            print(stream.decode(generator.get_next_tokens()[0]), end="", flush=True)
            made += 1
        print()
        if args.rewind:
            generator.rewind_to(len(system_tokens))
    print(generator.token_count())
    del generator


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model_path")
    parser.add_argument("--module", default="onnx_genai.compat")
    parser.add_argument("--system_prompt", default="Answer in one sentence.")
    parser.add_argument("--max_length", type=int, default=400)
    parser.add_argument("--max_new_tokens", type=int, default=24)
    parser.add_argument("--rewind", action="store_true")
    main(parser.parse_args())
