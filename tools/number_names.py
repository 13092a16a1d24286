"""Write the German-English numbers, dates and times of day that `tsallis.toolkit.datasets` contains.

    python tools/number_names.py

The file is `german-english-numbers.tsv.xz`.

The two languages differ in word order. In German, units precede tens in one long word, days precede months, half hours
count towards the next hour, and a part of the verb is at the end of the sentence. The rules below make all texts. Each
German text has exactly one correct translation, so exact matches can be counted. Spelling is American.
"""

from __future__ import annotations

import lzma
from calendar import monthrange
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from tsallis.toolkit.datasets.split_mix import Random

Pair = tuple[str, str]
TABLE = Path(__file__).parents[1] / "src/tsallis/toolkit/datasets/german-english-numbers.tsv.xz"

SIZES = {"train": 16_000, "dev": 500, "test": 500}
SEED = 1988  # the year of Tsallis' entropy


def _words(text: str) -> list[str]:
    return text.split()


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(german, english) for german, english in (pair.split("/") for pair in text.split())]


GERMAN_UNITS = _words(
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
)
GERMAN_TENS = _words("- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
ENGLISH_UNITS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
ENGLISH_TENS = _words("- - twenty thirty forty fifty sixty seventy eighty ninety")
ENGLISH_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth"}
ENGLISH_ORDINALS |= {"nine": "ninth", "twelve": "twelfth"}

MONTHS = _pairs(
    "Januar/January Februar/February März/March April/April Mai/May Juni/June Juli/July August/August "
    "September/September Oktober/October November/November Dezember/December"
)
WEEKDAYS = _pairs(
    "Montag/Monday Dienstag/Tuesday Mittwoch/Wednesday Donnerstag/Thursday Freitag/Friday Samstag/Saturday "
    "Sonntag/Sunday"
)
THINGS = _pairs(
    "Bücher/books Äpfel/apples Briefe/letters Bilder/pictures Stühle/chairs Flaschen/bottles Lampen/lamps Hüte/hats"
)
UNITS = _pairs("Euro/euros Dollar/dollars Meter/meters Kilometer/kilometers")
ADJECTIVES = _pairs("rote/red blaue/blue alte/old neue/new kleine/small große/big")
ORDINAL_NOUNS = (
    ("der", "Tag", "day"),
    ("die", "Woche", "week"),
    ("das", "Kapitel", "chapter"),
    ("der", "Versuch", "attempt"),
)
# Subject, verb and its separable prefix.
EVENTS = (
    ("der Zug", "the train", "fährt", "ab", "leaves"),
    ("der Bus", "the bus", "fährt", "ab", "leaves"),
    ("das Konzert", "the concert", "fängt", "an", "begins"),
    ("der Film", "the film", "fängt", "an", "begins"),
    ("das Museum", "the museum", "macht", "auf", "opens"),
    ("der Laden", "the shop", "macht", "zu", "closes"),
    ("das Flugzeug", "the plane", "kommt", "an", "arrives"),
)
BORN = (("er", "he"), ("sie", "she"), ("ich", "I"), ("mein Vater", "my father"), ("meine Tante", "my aunt"))
# Leave out the plural "sie": at the start of a sentence, it could also be the polite "Sie".
BUYERS = (
    ("ich", "habe", "I"),
    ("er", "hat", "he"),
    ("sie", "hat", "she"),
    ("wir", "haben", "we"),
    ("die Kinder", "haben", "the children"),
)
DEEDS = (("gekauft", "bought"), ("verkauft", "sold"), ("gezählt", "counted"), ("gefunden", "found"))


def table() -> str:
    """Return the table with one line per pair: split, German and English.

    The splits have 16,000, 500 and 500 pairs and share no German text.
    """
    random = Random(SEED)
    names: dict[str, str] = {}
    while len(names) < sum(SIZES.values()):
        german, english = random.choice(TEMPLATES)(random)
        names.setdefault(german, english)
    pairs = list(names.items())
    # Shuffle: templates with few different texts are used up early, so the last split would lack them.
    for last in range(len(pairs) - 1, 0, -1):
        other = random.below(last + 1)
        pairs[last], pairs[other] = pairs[other], pairs[last]
    splits = (split for split, size in SIZES.items() for _ in range(size))
    return "".join(f"{split}\t{german}\t{english}\n" for split, (german, english) in zip(splits, pairs, strict=True))


def german_cardinal(n: int) -> str:
    """Return a number from 0 to 9999 in German, as one word.

    >>> german_cardinal(21), german_cardinal(101), german_cardinal(2347)
    ('einundzwanzig', 'hunderteins', 'zweitausenddreihundertsiebenundvierzig')
    """
    thousands, hundreds, rest = n // 1000, n // 100 % 10, n % 100
    word = ""
    if thousands:
        word += ("" if thousands == 1 else GERMAN_UNITS[thousands]) + "tausend"
    if hundreds:
        # 100 is "hundert", but 1100 is "tausendeinhundert".
        word += {1: "ein" if thousands else ""}.get(hundreds, GERMAN_UNITS[hundreds]) + "hundert"
    return word + _german_rest(rest) if rest or not word else word


def _german_rest(n: int) -> str:
    if n < 20:
        return GERMAN_UNITS[n]
    tens, units = divmod(n, 10)
    if not units:
        return GERMAN_TENS[tens]
    return ("ein" if units == 1 else GERMAN_UNITS[units]) + "und" + GERMAN_TENS[tens]


def german_ordinal(n: int, ending: str = "e") -> str:
    """Return an ordinal from 1 to 9999 in German; the ending depends on the context: der erste, am ersten, erster Mai.

    >>> german_ordinal(1, "er"), german_ordinal(3), german_ordinal(7, "en"), german_ordinal(23, "er")
    ('erster', 'dritte', 'siebten', 'dreiundzwanzigster')
    """
    rest = n % 100
    if 0 < rest < 20:
        stem = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}.get(rest, GERMAN_UNITS[rest] + "t")
        before = german_cardinal(n)[: -len(GERMAN_UNITS[rest])]
        return before + stem + ending
    return german_cardinal(n) + "st" + ending


def german_year(year: int) -> str:
    """Return a year in German words.

    >>> german_year(1985), german_year(2017)
    ('neunzehnhundertfünfundachtzig', 'zweitausendsiebzehn')
    """
    if year >= 2000:
        return german_cardinal(year)
    return GERMAN_UNITS[year // 100] + "hundert" + (_german_rest(year % 100) if year % 100 else "")


def english_cardinal(n: int) -> str:
    """Return a number from 0 to 9999 in English words.

    >>> english_cardinal(21), english_cardinal(101), english_cardinal(2347)
    ('twenty-one', 'one hundred one', 'two thousand three hundred forty-seven')
    """
    thousands, hundreds, rest = n // 1000, n // 100 % 10, n % 100
    words = [f"{ENGLISH_UNITS[thousands]} thousand"] if thousands else []
    words += [f"{ENGLISH_UNITS[hundreds]} hundred"] if hundreds else []
    return " ".join([*words, _english_rest(rest)] if rest or not words else words)


def _english_rest(n: int) -> str:
    if n < 20:
        return ENGLISH_UNITS[n]
    tens, units = divmod(n, 10)
    return ENGLISH_TENS[tens] + (f"-{ENGLISH_UNITS[units]}" if units else "")


def english_ordinal(n: int) -> str:
    """Return an ordinal from 1 to 9999 in English words.

    >>> [english_ordinal(n) for n in (1, 12, 20, 23, 100)]
    ['first', 'twelfth', 'twentieth', 'twenty-third', 'one hundredth']
    """
    words = english_cardinal(n)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[cut:]
    regular = last.removesuffix("y") + "ieth" if last.endswith("y") else last + "th"
    return words[:cut] + ENGLISH_ORDINALS.get(last, regular)


def english_year(year: int) -> str:
    """Return a year in English words.

    >>> [english_year(y) for y in (1700, 1805, 1985, 2000, 2005, 2017)]
    ['seventeen hundred', 'eighteen oh five', 'nineteen eighty-five', 'two thousand', 'two thousand five', 'twenty seventeen']
    """  # noqa: E501
    century, rest = divmod(year, 100)
    if century == 20 and rest < 10:
        return english_cardinal(year)
    if rest < 10:
        return f"{ENGLISH_UNITS[century]} " + (f"oh {ENGLISH_UNITS[rest]}" if rest else "hundred")
    return f"{_english_rest(century)} {_english_rest(rest)}"


def clock(hour: int, minute: int) -> Pair:
    """Return a time of day as people say it; hours are from 1 to 12, minutes are multiples of five.

    >>> clock(3, 15), clock(3, 30), clock(12, 35)
    (('Viertel nach drei', 'a quarter past three'), ('halb vier', 'half past three'), ('fünf nach halb eins', 'twenty-five to one'))
    """  # noqa: E501
    after = hour % 12 + 1
    if minute == 0:
        return f"{'ein' if hour == 1 else GERMAN_UNITS[hour]} Uhr", f"{ENGLISH_UNITS[hour]} o'clock"
    german_now, german_after = GERMAN_UNITS[hour], GERMAN_UNITS[after]
    german = {
        15: f"Viertel nach {german_now}",
        25: f"fünf vor halb {german_after}",
        30: f"halb {german_after}",
        35: f"fünf nach halb {german_after}",
        45: f"Viertel vor {german_after}",
    }
    plain = f"{_german_rest(minute)} nach {german_now}" if minute < 30 else ""
    plain = plain or f"{_german_rest(60 - minute)} vor {german_after}"
    past = minute <= 30
    span = {15: "a quarter", 30: "half"}.get(minute if past else 60 - minute)
    span = span or _english_rest(minute if past else 60 - minute)
    english = f"{span} past {ENGLISH_UNITS[hour]}" if past else f"{span} to {ENGLISH_UNITS[after]}"
    return german.get(minute, plain), english


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _day(random: Random) -> date:
    return date.fromordinal(random.between(date(1700, 1, 1).toordinal(), date(2029, 12, 31).toordinal()))


def _time(random: Random) -> Pair:
    return clock(random.between(1, 12), 5 * random.below(12))


def _number(random: Random, limits: Sequence[int] = (99, 999, 9999)) -> int:
    """Return a number of at least 2 that doesn't end in 01: German would inflect it before a noun."""
    n = random.between(2, random.choice(limits))
    return n + 1 if n % 100 == 1 else n


def _on(random: Random) -> Pair:
    """Return a date after "am" and "on", in digits or in words, with or without the year."""
    return random.choice((_day_in_words, _day_in_digits))(random)


def _day_in_words(random: Random) -> Pair:
    day = _day(random)
    month = MONTHS[day.month - 1]
    german = f"am {german_ordinal(day.day, 'en')} {month[0]}"
    english = f"on {month[1]} the {english_ordinal(day.day)}"
    if random.below(2):
        return f"{german} {german_year(day.year)}", f"{english}, {english_year(day.year)}"
    return german, english


def _day_in_digits(random: Random) -> Pair:
    day = _day(random)
    month = MONTHS[day.month - 1]
    return f"am {day.day}. {month[0]} {day.year}", f"on {month[1]} {day.day}, {day.year}"


def _heading(random: Random) -> Pair:
    day = _day(random)
    month = MONTHS[day.month - 1]
    german = f"{german_ordinal(day.day, 'er')} {month[0]} {german_year(day.year)}"
    return german, f"{month[1]} the {english_ordinal(day.day)}, {english_year(day.year)}"


def _weekday_and_day(random: Random) -> Pair:
    day = _day(random)
    weekday, month = WEEKDAYS[day.weekday()], MONTHS[day.month - 1]
    if random.below(2):
        german = f"{weekday[0]}, der {german_ordinal(day.day)} {month[0]} {german_year(day.year)}"
        return german, f"{weekday[1]}, {month[1]} the {english_ordinal(day.day)}, {english_year(day.year)}"
    german = f"am {weekday[0]}, dem {day.day}. {month[0]} {day.year}"
    return german, f"on {weekday[1]}, {month[1]} {day.day}, {day.year}"


def _span(random: Random) -> Pair:
    number = random.between(1, 12)
    month, days = MONTHS[number - 1], monthrange(2023, number)[1]
    first = random.between(1, days - 1)
    last = random.between(first + 1, days)
    if random.below(2):
        return f"vom {first}. bis zum {last}. {month[0]}", f"from {month[1]} {first} to {last}"
    german = f"vom {german_ordinal(first, 'en')} bis zum {german_ordinal(last, 'en')} {month[0]}"
    return german, f"from the {english_ordinal(first)} to the {english_ordinal(last)} of {month[1]}"


def _time_and_weekday(random: Random) -> Pair:
    weekday, (german, english) = random.choice(WEEKDAYS), _time(random)
    if not random.below(4):
        return f"um {german}", f"at {english}"
    return f"am {weekday[0]} um {german}", f"at {english} on {weekday[1]}"


def _time_in_digits(random: Random) -> Pair:
    hour, minute, weekday = random.below(24), random.below(60), random.choice(WEEKDAYS)
    half = "p.m." if hour >= 12 else "a.m."
    english = f"at {(hour + 11) % 12 + 1}:{minute:02} {half}"
    return f"am {weekday[0]} um {hour}:{minute:02} Uhr", f"{english} on {weekday[1]}"


def _event(random: Random) -> Pair:
    subject, who, verb, prefix, does = random.choice(EVENTS)
    when, at = _time(random)
    german = random.choice((f"{subject} {verb} um {when} {prefix}", f"um {when} {verb} {subject} {prefix}"))
    return _sentence(german), _sentence(f"{who} {does} at {at}")


def _event_on(random: Random) -> Pair:
    subject, who, verb, prefix, does = random.choice(EVENTS)
    (weekday, on), (when, at) = random.choice(WEEKDAYS), _time(random)
    if random.below(2):
        return f"weil {subject} am {weekday} um {when} {prefix}{verb}", f"because {who} {does} at {at} on {on}"
    return _sentence(f"am {weekday} {verb} {subject} um {when} {prefix}"), _sentence(f"{who} {does} at {at} on {on}")


def _born(random: Random) -> Pair:
    (subject, who), (when, on) = random.choice(BORN), _on(random)
    return _sentence(f"{subject} wurde {when} geboren"), _sentence(f"{who} was born {on}")


def _bare(random: Random) -> Pair:
    n = random.between(21, random.choice((999, 9999)))
    return german_cardinal(n), english_cardinal(n)


def _amount(random: Random) -> Pair:
    n, unit = _number(random), random.choice(UNITS)
    if random.below(2):
        return f"{german_cardinal(n)} {unit[0]}", f"{english_cardinal(n)} {unit[1]}"
    return f"{n:,} {unit[0]}".replace(",", "."), f"{n:,} {unit[1]}"


def _price(random: Random) -> Pair:
    euros, cents = _number(random, (99,)), random.between(10, 99)
    if random.below(2):
        return _sentence(f"das kostet {euros},{cents} Euro"), _sentence(f"that costs {euros}.{cents} euros")
    german = f"das kostet {german_cardinal(euros)} Euro {german_cardinal(cents)}"
    english = f"that costs {english_cardinal(euros)} euros and {english_cardinal(cents)} cents"
    return _sentence(german), _sentence(english)


def _rank(random: Random) -> Pair:
    n, (article, noun, english) = random.between(1, 199), random.choice(ORDINAL_NOUNS)
    return f"{article} {german_ordinal(n)} {noun}", f"the {english_ordinal(n)} {english}"


def _deed(random: Random) -> Pair:
    (subject, auxiliary, who), (done, did) = random.choice(BUYERS), random.choice(DEEDS)
    n, (colour, color), (thing, things) = _number(random, (99, 999)), random.choice(ADJECTIVES), random.choice(THINGS)
    number, english = (german_cardinal(n), english_cardinal(n)) if random.below(2) else (str(n), str(n))
    bought = f"{who} {did} {english} {color} {things}"
    if random.below(2):
        return _sentence(f"{subject} {auxiliary} {number} {colour} {thing} {done}"), _sentence(bought)
    weekday, on = random.choice(WEEKDAYS)
    german = f"am {weekday} {auxiliary} {subject} {number} {colour} {thing} {done}"
    return _sentence(german), _sentence(f"{bought} on {on}")


TEMPLATES: tuple[Callable[[Random], Pair], ...] = (
    _on,
    _heading,
    _weekday_and_day,
    _span,
    _time_and_weekday,
    _time_in_digits,
    _event,
    _event_on,
    _born,
    _bare,
    _amount,
    _price,
    _rank,
    _deed,
)


if __name__ == "__main__":
    TABLE.write_bytes(lzma.compress(table().encode(), preset=9))
