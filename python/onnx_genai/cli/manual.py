"""Help texts: examples of every command, and manual pages."""

from __future__ import annotations

from collections.abc import Mapping

import click

from onnx_genai.cli.settings import config_path, environment_names

__all__ = ["EXAMPLES", "add_examples", "manual_page"]

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "run": (
        ("Talk to a model", "onnx-genai run smollm2"),
        ("With a system message, in two threads", 'onnx-genai run smollm2 --system "Answer briefly." --cpu-cores 2'),
    ),
    "generate": (
        ("An answer, as it comes", 'onnx-genai generate smollm2 -p "Why is the sky blue?"'),
        ("A file joined with the prompt", 'cat notes.txt | onnx-genai generate smollm2 -p "Summarise this:"'),
        (
            "Sampled, repeatable, three answers",
            'onnx-genai generate smollm2 -p "A name for a cat" --temperature 0.8 --seed 7 --n 3',
        ),
        (
            "JSON that fits a schema, for a program",
            'onnx-genai generate smollm2 -p "Ada, 36, London" --schema person.json --json',
        ),
        (
            "One of some answers",
            'onnx-genai generate smollm2 -p "Is 7 prime?" --choice yes --choice no',
        ),
        ("A conversation that goes on", 'onnx-genai generate smollm2 -p "And then?" --session story.kv'),
        (
            "Thousands of prompts; the same line again goes on where it stopped",
            "onnx-genai generate smollm2 --batch in.jsonl --output out.jsonl --max-new-tokens 64",
        ),
    ),
    "embed": (
        ("How alike two texts are", 'onnx-genai embed minilm "A cat sleeps." "A kitten naps."'),
        ("Vectors of the lines of a file, for NumPy", "onnx-genai embed minilm --file lines.txt --npy vectors.npy"),
        ("For a program", "cat lines.txt | onnx-genai embed minilm --json"),
        ("Texts that fit a query, best first", 'onnx-genai embed minilm --query "a pet" --file lines.txt --top-n 3'),
    ),
    "serve": (
        ("OpenAI's interface on this machine", "onnx-genai serve smollm2"),
        (
            "Two models, for others, with keys",
            "onnx-genai serve small=smollm2 big=./llama --host 0.0.0.0 --api-key-file keys.txt",
        ),
    ),
    "show": (
        ("What a package is and how it runs", "onnx-genai show smollm2"),
        ("For a program", "onnx-genai show ./model --json"),
        ("Where each setting comes from", "onnx-genai show --config --command generate"),
    ),
    "list": (
        ("Models that were pulled", "onnx-genai list"),
        ("And those of a folder", "onnx-genai list --models-dir ~/models"),
    ),
    "pull": (
        ("By alias", "onnx-genai pull smollm2"),
        ("By hub id, one variant", "onnx-genai pull onnx-community/Qwen3-0.6B-ONNX --variant q4"),
    ),
    "import": (
        ("A GGUF file, weights as they are", "onnx-genai import model.gguf ./model"),
        ("In 4 bits", "onnx-genai import model.gguf ./model --dtype int4"),
    ),
    "bench": (
        ("Prompt and decoding speed (pp512, tg128)", "onnx-genai bench smollm2"),
        ("Decoding four at a time behind 2048 tokens", "onnx-genai bench smollm2 -p 0 -n 64 -d 2048 -b 4"),
        ("Two models side by side", "onnx-genai bench ./int4 --vs ./fp16 -r 3"),
    ),
    "bench serve": (("Load on a server that runs", "onnx-genai bench serve --base-url http://127.0.0.1:8080"),),
    "doctor": (
        ("What is here, and what would make it faster", "onnx-genai doctor"),
        ("For a report", "onnx-genai doctor --json > doctor.json"),
    ),
    "completion": (
        ("For bash, in this shell", 'eval "$(onnx-genai completion bash)"'),
        ("For fish, for good", "onnx-genai completion fish > ~/.config/fish/completions/onnx-genai.fish"),
    ),
    "version": (
        ("What is installed", "onnx-genai version"),
        ("For a program", "onnx-genai version --json"),
    ),
    "help": (
        ("The commands", "onnx-genai help"),
        ("The page of one", "onnx-genai help generate"),
    ),
}
"""For each command: what a command line is for, and the line."""

_EXIT_CODES = (
    ("0", "done"),
    ("1", "failed; standard error says what happened, why, and how to fix it"),
    ("2", "wrong usage"),
    ("130", "interrupted"),
)


def add_examples(commands: Mapping[str, click.Command]) -> None:
    """Puts the examples below the options in ``-h``."""
    for name, command in commands.items():
        if command.epilog is None and name in EXAMPLES:
            # \b keeps the lines as they are.
            command.epilog = "\b\nExamples:\n" + "\n".join(_example_lines(name, indent="  "))


def manual_page(command: click.Command, root: click.Context) -> str:
    """The whole page of a command as text of at most 100 columns."""
    name = command.name or ""
    context = click.Context(command, info_name=name, parent=root, terminal_width=100, max_content_width=100)
    summary, _, more = (command.help or "").partition("\n\n")
    formatter = click.HelpFormatter(width=100)
    with formatter.section("NAME"):
        formatter.write_text(f"onnx-genai {name} - {_one_line(summary)}")
    with formatter.section("SYNOPSIS"):
        formatter.write_text(f"onnx-genai {name} {' '.join(command.collect_usage_pieces(context))}")
    if more:
        with formatter.section("DESCRIPTION"):
            for paragraph in more.split("\n\n"):
                formatter.write_text(_one_line(paragraph))
                formatter.write_paragraph()
    options = [param for param in command.get_params(context) if isinstance(param, click.Option)]
    settable = [option for option in options if "--help" not in option.opts]
    with formatter.section("OPTIONS"):
        formatter.write_dl([record for option in options if (record := option.get_help_record(context)) is not None])
    with formatter.section("ENVIRONMENT"):
        formatter.write_text(
            "Each option can be set by a variable; with several the first that is set counts. A flag is stronger than "
            "a variable, and a variable than the config file."
        )
        rows = [
            (option.opts[-1], ", ".join(names)) for option in settable if (names := environment_names(option, context))
        ]
        if rows:
            formatter.write_paragraph()
            formatter.write_dl(rows)
    with formatter.section("FILES"):
        formatter.write_dl([(str(config_path()), f"Settings, in TOML: options of this command in a table [{name}].")])
    with formatter.section("EXIT STATUS"):
        formatter.write_dl(_EXIT_CODES)
    if name in EXAMPLES:
        with formatter.section("EXAMPLES"):
            formatter.write("\n".join(_example_lines(name, indent="  ")) + "\n")
    return formatter.getvalue()


def _example_lines(name: str, *, indent: str) -> list[str]:
    return [line for what, text in EXAMPLES[name] for line in (f"{indent}# {what}", f"{indent}{text}")]


def _one_line(text: str) -> str:
    return " ".join(text.split())
