"""Writes text.txt, the recipe's training text: short sentences about a harbour town, generated from a grammar with a fixed seed.

A generated text has no copyright, is the same on every machine, and has enough structure (spelling, agreement of number, recurring names,
punctuation) that a character model can learn from it for a few thousand steps.
"""

import os
import random

SIZE = 40_000  # characters; about 300 batches of the default recipe before the text repeats
NAMES = "Mara Tobin Ansel Greta Iven Lisbet Oren Petra Rasmus Sunniva".split()
PLACES = ["the harbour", "the long pier", "the chandlery", "the salt house", "the lower market", "the lighthouse", "the rope walk"]
TRADES = ["pilot", "net mender", "sailmaker", "clerk", "cooper", "ferry woman", "lamp keeper", "carter"]
THINGS = ["lantern", "coil of rope", "barrel of herring", "brass compass", "folded chart", "sack of flour", "bell", "letter"]
ADJECTIVES = ["small", "heavy", "old", "bright", "broken", "borrowed", "painted", "quiet"]
WEATHER = ["fog", "rain", "a north wind", "frost", "a warm haze", "hail", "clear light"]
TIMES = ["At dawn", "Before noon", "In the evening", "After the bells", "On the third day", "Late in autumn", "When the tide turned"]
MOVES = ["carried", "left", "found", "counted", "mended", "sold", "hid", "painted"]
FEELS = ["was glad", "said nothing", "laughed", "was afraid", "slept badly", "sang", "wrote it down", "looked away"]


def sentence(draw, hero):
    thing = f"{draw.choice(ADJECTIVES)} {draw.choice(THINGS)}"
    other = draw.choice([name for name in NAMES if name != hero])
    count = draw.choice(["two", "three", "four", "seven", "nine"])
    shapes = [
        f"{draw.choice(TIMES)} {hero} {draw.choice(MOVES)} the {thing} at {draw.choice(PLACES)}.",
        f"There was {draw.choice(WEATHER)} over {draw.choice(PLACES)}, and {other} {draw.choice(FEELS)}.",
        f"{hero}, the {draw.choice(TRADES)}, {draw.choice(MOVES)} {count} {draw.choice(ADJECTIVES)} boats and {draw.choice(FEELS)}.",
        f'"Where is the {thing}?" asked {other}. "By {draw.choice(PLACES)}," said {hero}.',
        f"{draw.choice(TIMES)} the {draw.choice(TRADES)} walked to {draw.choice(PLACES)} with a {thing}, because {hero} {draw.choice(FEELS)}.",
        f"Nobody at {draw.choice(PLACES)} had seen {other} since {draw.choice(WEATHER)} came in.",
    ]
    return draw.choice(shapes)


def text():
    draw = random.Random(1871)
    paragraphs, length = [], 0
    while length < SIZE:
        hero = draw.choice(NAMES)
        paragraph = " ".join(sentence(draw, hero) for _ in range(draw.randint(3, 7)))
        paragraphs.append(paragraph)
        length += len(paragraph) + 2
    return "\n\n".join(paragraphs) + "\n"


if __name__ == "__main__":
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "text.txt"), "w", encoding="ascii") as out:
        out.write(text())
