"""Short requests in plain words, for comparisons in which a real model should say something sensible."""

from __future__ import annotations

from onnx_genai import LLM

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a fox that learns to swim.",
    "List five vegetables and say how each is usually cooked.",
    "What is the difference between a virus and a bacterium?",
    "Write a Python function that returns the largest of three numbers.",
    "Describe the water cycle to a child.",
    "Give me a recipe for pancakes.",
    "Summarise the plot of Romeo and Juliet.",
    "How does a bicycle stay upright?",
    "Translate into French: The train leaves at seven in the morning.",
    "Name the planets of the solar system in order and one fact about each.",
    "Write a polite letter that asks a neighbour to be quieter at night.",
    "What are the advantages and disadvantages of working from home?",
    "Explain what a prime number is and list the first ten.",
    "Write a poem about the sea in autumn.",
    "How do I change a flat tyre?",
    "What happened during the industrial revolution?",
    "Give three tips for learning a new language.",
    "Describe how bread is made, from grain to loaf.",
    "What is the purpose of a database index?",
    "Tell me about the life of honey bees.",
    "Write a dialogue between a teacher and a student who is late.",
    "Why do leaves change their colour?",
    "Compare tea and coffee.",
    "Explain how a refrigerator works.",
    "Count from one to twenty in words.",
    "What should I pack for a week of hiking in the mountains?",
    "Explain the rules of chess to a beginner.",
    "Write a short biography of an invented painter.",
    "What is inflation and why does it matter?",
    "Describe your ideal library.",
    "How can a small town save energy?",
)


def prompt_ids(llm: LLM, count: int) -> list[list[int]]:
    """The first ``count`` requests as ids, with the chat template where there is one; they repeat behind the last."""
    return [_ids(llm, PROMPTS[i % len(PROMPTS)]) for i in range(count)]


def _ids(llm: LLM, text: str) -> list[int]:
    if llm.template is not None:
        return llm.encode_chat([{"role": "user", "content": text}])
    return llm.tokenizer.encode(text)
