"""Prompts of many kinds for `edgewise-cloud selfchat`, so that a trained exit meets more than short questions.

Two rounds. The model first writes passages about given facts, in English and in German; then it is asked to summarise
them, to answer from them and to translate them. The prompts that measure exits are never read.

python -m scripts.training_prompts passages --facts flan_strategyqa_train.tsv --out passages.jsonl
edgewise-cloud selfchat --prompts passages.jsonl --temperature 0.8 --top-k 40 --out written.jsonl
python -m scripts.training_prompts tasks --facts flan_strategyqa_train.tsv --passages written.jsonl --out tasks.jsonl
edgewise-cloud selfchat --prompts tasks.jsonl --max-tokens 160 --out answers.jsonl
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from rich.console import Console

from edge.display import notice
from shared.errors import BadInput, EdgewiseError

_ARTICLES = (
    "Write a news story of three paragraphs that mentions this: {facts}",
    "Write an encyclopedia entry of several paragraphs. Include these facts: {facts}",
    "Write a long report by a local newspaper, with names, places and quotations. It should mention this: {facts}",
)
_GERMAN = (
    "Schreibe einen Zeitungsartikel auf Deutsch, der dies erwähnt: {facts}",
    "Write a news article in German about this: {facts}",
)
_SUMMARISE = (
    "Summarize: {passage}",
    "Summarize the following text.\n\n{passage}",
    "{passage}\n\nGive a short summary of the text above.",
    "Write the main points of this article in two or three sentences:\n{passage}",
    "TL;DR of this article, please: {passage}",
)
_FROM_PASSAGES = (
    "{passages}\n\n{question}",
    "Answer the question from the text.\n\nText: {passages}\n\nQuestion: {question}",
    "{question}\n\nUse this:\n{passages}",
)
_TRANSLATE = (
    "Translate German to English: {text}",
    "Translate this into English: {text}",
    "What does this mean in English? {text}",
)
# Every so many passages is German.
_GERMAN_EVERY = 5
_SHORTEST_PASSAGE = 300


@dataclass(frozen=True, slots=True)
class Fact:
    """A question of StrategyQA and the facts that answer it."""

    question: str
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """What the model wrote, and the fact that it was asked to write about."""

    text: str
    german: bool
    fact: int


def read_facts(path: Path) -> list[Fact]:
    """StrategyQA in FLAN's form: question, answer and facts, with tabs between. Raises BadInput for another form."""
    facts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line:
            continue
        parts = line.split("\t")
        if len(parts) != 3:
            raise BadInput(f"{path}, line {number}: {len(parts)} columns; give question, answer and facts")
        facts.append(Fact(parts[0].strip(), parts[2].strip()))
    return facts


def passage_prompts(facts: Sequence[Fact], count: int, seed: int) -> Iterator[dict[str, object]]:
    """Requests for passages, each about one fact."""
    random = Random(seed)
    for number, index in enumerate(random.sample(range(len(facts)), min(count, len(facts)))):
        german = number % _GERMAN_EVERY == 0
        prompt = random.choice(_GERMAN if german else _ARTICLES).format(facts=facts[index].text)
        yield {"user": prompt, "category": f"{'german' if german else 'english'} {index}"}


def read_passages(path: Path) -> list[Passage]:
    """What selfchat made of `passage_prompts`; short ones are left out. Raises BadInput for another file."""
    passages = []
    # By newlines alone: the model's text may hold other characters that Unicode counts as ends of lines.
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
            language, index = record["category"].split()
            passages.append(Passage(record["assistant"].strip(), language == "german", int(index)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{path}, line {number}: not an answer to a prompt for passages") from error
    return [passage for passage in passages if len(passage.text) >= _SHORTEST_PASSAGE]


def task_prompts(facts: Sequence[Fact], passages: Sequence[Passage], seed: int) -> Iterator[dict[str, object]]:
    """Two tasks from each passage: of an English one a summary and an answer, of a German one translations."""
    random = Random(seed)
    for passage in passages:
        if passage.german:
            for text in _excerpts(passage.text, 4, random):
                yield {"user": random.choice(_TRANSLATE).format(text=text), "category": "translation"}
            continue
        yield {"user": random.choice(_SUMMARISE).format(passage=passage.text), "category": "summarization"}
        others = random.sample(range(len(facts)), random.randint(2, 6))
        texts = [passage.text, *(facts[other].text for other in others)]
        random.shuffle(texts)
        question = facts[random.choice([passage.fact, *others])].question
        prompt = random.choice(_FROM_PASSAGES).format(passages="\n\n".join(texts), question=question)
        yield {"user": prompt, "category": "rag"}


def _excerpts(text: str, count: int, random: Random) -> list[str]:
    """Some of the text's sentences, each alone or with the next."""
    sentences = [part for part in re.split(r"(?<=[.!?])\s+", text) if 30 <= len(part) <= 300]
    starts = random.sample(range(len(sentences)), min(count, len(sentences)))
    return [" ".join(sentences[at : at + random.randint(1, 2)]) for at in starts]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the prompts of one round; the exit code: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="training_prompts", description=__doc__, allow_abbrev=False)
    parser.add_argument("round", choices=("passages", "tasks"))
    parser.add_argument("--facts", type=Path, required=True, help="StrategyQA in FLAN's form (TSV)")
    parser.add_argument("--passages", type=Path, help="for tasks: what selfchat wrote to the prompts for passages")
    parser.add_argument("--out", type=Path, required=True, help="a JSONL file")
    parser.add_argument("--count", type=int, default=400, help="passages")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if (arguments.round == "tasks") != (arguments.passages is not None):
        parser.error("--passages belongs to tasks: name what selfchat wrote")
    try:
        facts = read_facts(arguments.facts)
        if arguments.round == "passages":
            prompts = list(passage_prompts(facts, arguments.count, arguments.seed))
        else:
            prompts = list(task_prompts(facts, read_passages(arguments.passages), arguments.seed))
        lines = "".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in prompts)
        arguments.out.write_text(lines, encoding="utf-8")
    except (OSError, UnicodeDecodeError, EdgewiseError) as error:
        notice(Console(stderr=True), "red", "error:", error)
        return 2
    print(f"{arguments.out}: {len(prompts)} prompts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
