"""The embedded numbers and dates: right words in both languages, one translation each, splits that share nothing."""

from __future__ import annotations

import hashlib
import re
from datetime import date

import pytest

from tsallis.datasets import number_names
from tsallis.datasets.number_names import (
    SIZES,
    TEMPLATES,
    Random,
    clock,
    english_cardinal,
    english_ordinal,
    english_year,
    german_cardinal,
    german_english_numbers,
    german_ordinal,
    german_year,
)

# Written by hand: every irregular word, and every place where words meet.
CARDINALS = {
    0: ("null", "zero"),
    1: ("eins", "one"),
    2: ("zwei", "two"),
    3: ("drei", "three"),
    4: ("vier", "four"),
    5: ("fünf", "five"),
    6: ("sechs", "six"),
    7: ("sieben", "seven"),
    8: ("acht", "eight"),
    9: ("neun", "nine"),
    10: ("zehn", "ten"),
    11: ("elf", "eleven"),
    12: ("zwölf", "twelve"),
    13: ("dreizehn", "thirteen"),
    14: ("vierzehn", "fourteen"),
    15: ("fünfzehn", "fifteen"),
    16: ("sechzehn", "sixteen"),
    17: ("siebzehn", "seventeen"),
    18: ("achtzehn", "eighteen"),
    19: ("neunzehn", "nineteen"),
    20: ("zwanzig", "twenty"),
    21: ("einundzwanzig", "twenty-one"),
    30: ("dreißig", "thirty"),
    32: ("zweiunddreißig", "thirty-two"),
    40: ("vierzig", "forty"),
    43: ("dreiundvierzig", "forty-three"),
    50: ("fünfzig", "fifty"),
    54: ("vierundfünfzig", "fifty-four"),
    60: ("sechzig", "sixty"),
    66: ("sechsundsechzig", "sixty-six"),
    70: ("siebzig", "seventy"),
    77: ("siebenundsiebzig", "seventy-seven"),
    80: ("achtzig", "eighty"),
    88: ("achtundachtzig", "eighty-eight"),
    90: ("neunzig", "ninety"),
    99: ("neunundneunzig", "ninety-nine"),
    100: ("hundert", "one hundred"),
    101: ("hunderteins", "one hundred one"),
    112: ("hundertzwölf", "one hundred twelve"),
    121: ("hunderteinundzwanzig", "one hundred twenty-one"),
    200: ("zweihundert", "two hundred"),
    617: ("sechshundertsiebzehn", "six hundred seventeen"),
    760: ("siebenhundertsechzig", "seven hundred sixty"),
    1000: ("tausend", "one thousand"),
    1001: ("tausendeins", "one thousand one"),
    1016: ("tausendsechzehn", "one thousand sixteen"),
    1100: ("tausendeinhundert", "one thousand one hundred"),
    1234: ("tausendzweihundertvierunddreißig", "one thousand two hundred thirty-four"),
    2000: ("zweitausend", "two thousand"),
    2347: ("zweitausenddreihundertsiebenundvierzig", "two thousand three hundred forty-seven"),
    9999: ("neuntausendneunhundertneunundneunzig", "nine thousand nine hundred ninety-nine"),
}
ORDINALS = {
    1: ("erste", "first"),
    2: ("zweite", "second"),
    3: ("dritte", "third"),
    4: ("vierte", "fourth"),
    5: ("fünfte", "fifth"),
    6: ("sechste", "sixth"),
    7: ("siebte", "seventh"),
    8: ("achte", "eighth"),
    9: ("neunte", "ninth"),
    10: ("zehnte", "tenth"),
    11: ("elfte", "eleventh"),
    12: ("zwölfte", "twelfth"),
    13: ("dreizehnte", "thirteenth"),
    16: ("sechzehnte", "sixteenth"),
    17: ("siebzehnte", "seventeenth"),
    19: ("neunzehnte", "nineteenth"),
    20: ("zwanzigste", "twentieth"),
    21: ("einundzwanzigste", "twenty-first"),
    22: ("zweiundzwanzigste", "twenty-second"),
    23: ("dreiundzwanzigste", "twenty-third"),
    28: ("achtundzwanzigste", "twenty-eighth"),
    30: ("dreißigste", "thirtieth"),
    31: ("einunddreißigste", "thirty-first"),
    45: ("fünfundvierzigste", "forty-fifth"),
    99: ("neunundneunzigste", "ninety-ninth"),
    100: ("hundertste", "one hundredth"),
    101: ("hunderterste", "one hundred first"),
    107: ("hundertsiebte", "one hundred seventh"),
    112: ("hundertzwölfte", "one hundred twelfth"),
    120: ("hundertzwanzigste", "one hundred twentieth"),
    1000: ("tausendste", "one thousandth"),
}
YEARS = {
    1100: ("elfhundert", "eleven hundred"),
    1666: ("sechzehnhundertsechsundsechzig", "sixteen sixty-six"),
    1700: ("siebzehnhundert", "seventeen hundred"),
    1801: ("achtzehnhunderteins", "eighteen oh one"),
    1812: ("achtzehnhundertzwölf", "eighteen twelve"),
    1930: ("neunzehnhundertdreißig", "nineteen thirty"),
    1985: ("neunzehnhundertfünfundachtzig", "nineteen eighty-five"),
    2000: ("zweitausend", "two thousand"),
    2009: ("zweitausendneun", "two thousand nine"),
    2010: ("zweitausendzehn", "twenty ten"),
    2021: ("zweitausendeinundzwanzig", "twenty twenty-one"),
}
TIMES = {
    (1, 0): ("ein Uhr", "one o'clock"),
    (3, 0): ("drei Uhr", "three o'clock"),
    (3, 5): ("fünf nach drei", "five past three"),
    (3, 10): ("zehn nach drei", "ten past three"),
    (3, 15): ("Viertel nach drei", "a quarter past three"),
    (3, 20): ("zwanzig nach drei", "twenty past three"),
    (3, 25): ("fünf vor halb vier", "twenty-five past three"),
    (3, 30): ("halb vier", "half past three"),
    (3, 35): ("fünf nach halb vier", "twenty-five to four"),
    (3, 40): ("zwanzig vor vier", "twenty to four"),
    (3, 45): ("Viertel vor vier", "a quarter to four"),
    (3, 50): ("zehn vor vier", "ten to four"),
    (3, 55): ("fünf vor vier", "five to four"),
    (12, 15): ("Viertel nach zwölf", "a quarter past twelve"),
    (12, 30): ("halb eins", "half past twelve"),
    (12, 45): ("Viertel vor eins", "a quarter to one"),
}
CORPUS = german_english_numbers()
ALL = [pair for pairs in CORPUS.values() for pair in pairs]


@pytest.mark.parametrize("n", CARDINALS)
def test_cardinals(n: int) -> None:
    assert (german_cardinal(n), english_cardinal(n)) == CARDINALS[n]


@pytest.mark.parametrize("n", ORDINALS)
def test_ordinals(n: int) -> None:
    assert (german_ordinal(n), english_ordinal(n)) == ORDINALS[n]
    for ending in ("en", "er"):
        assert german_ordinal(n, ending) == ORDINALS[n][0][:-1] + ending


@pytest.mark.parametrize("year", YEARS)
def test_years(year: int) -> None:
    assert (german_year(year), english_year(year)) == YEARS[year]


@pytest.mark.parametrize("time", TIMES)
def test_times(time: tuple[int, int]) -> None:
    assert clock(*time) == TIMES[time]


@pytest.mark.parametrize("wrong", [-1, 10_000])
def test_numbers_that_have_no_words(wrong: int) -> None:
    for words in (german_cardinal, english_cardinal, german_ordinal, english_ordinal, german_year, english_year):
        with pytest.raises(ValueError, match=rf"expected a number from \d+ to \d+, got {wrong}"):
            words(wrong)
    with pytest.raises(ValueError, match="from 1 to 12, got 0"):
        clock(0, 0)
    with pytest.raises(ValueError, match="steps of five from 0 to 55, got 7"):
        clock(1, 7)


def parse_german(word: str) -> int:
    """By cutting the word at its joints, from words of its own."""
    if "tausend" in word:
        before, after = word.split("tausend")
        return 1000 * (parse_german(before) if before else 1) + (parse_german(after) if after else 0)
    if "hundert" in word:
        before, after = word.split("hundert")
        return 100 * ({"": 1, "ein": 1}.get(before) or parse_german(before)) + (parse_german(after) if after else 0)
    simple = {words[0]: n for n, words in CARDINALS.items() if n < 20 or (n < 100 and n % 10 == 0)}
    if word in simple:
        return simple[word]
    units, tens = re.fullmatch("(.+)und(.+)", word).groups()
    return simple[tens] + (1 if units == "ein" else simple[units])


def parse_english(words: str) -> int:
    simple = {words[1]: n for n, words in CARDINALS.items() if n < 20 or (n < 100 and n % 10 == 0)}
    total = group = 0
    for word in words.replace("-", " ").split():
        if word == "thousand":
            total, group = 1000 * group, 0
        elif word == "hundred":
            group *= 100
        else:
            group += simple[word]
    return total + group


def test_the_words_of_every_number_parse_back() -> None:
    for n in range(10_000):
        assert parse_german(german_cardinal(n)) == n == parse_english(english_cardinal(n)), n


def test_every_word_is_one_and_no_two_numbers_share_theirs() -> None:
    for words in (german_cardinal, english_cardinal):
        assert len({words(n) for n in range(10_000)}) == 10_000
    for words in (german_ordinal, english_ordinal):
        assert len({words(n) for n in range(1, 10_000)}) == 9_999
    for words in (german_year, english_year):
        assert len({words(n) for n in range(1100, 2100)}) == 1000
    assert not any(re.search("[^a-zäöüß]", german_cardinal(n)) for n in range(10_000))
    german, english = zip(*(clock(h, m) for h in range(1, 13) for m in range(0, 60, 5)), strict=True)
    assert len(set(german)) == len(set(english)) == 144


def test_the_splits_share_no_source() -> None:
    assert {split: len(pairs) for split, pairs in CORPUS.items()} == SIZES
    assert len({german for german, _ in ALL}) == sum(SIZES.values())


def test_a_source_has_one_translation() -> None:
    random, result = Random(7), dict(ALL)
    for i in range(50_000):
        german, english = TEMPLATES[i % len(TEMPLATES)](random)
        assert result.setdefault(german, english) == english, german


def test_the_corpus_is_the_same_everywhere() -> None:
    text = "".join(f"{split}\t{de}\t{en}\n" for split, pairs in CORPUS.items() for de, en in pairs)
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "a37b10d49823b864a1aac7b103063469e6008f9ea5a0cd9c2e5581b593b1dcd4"
    )
    assert german_english_numbers() == CORPUS


def test_the_generator_is_the_published_one() -> None:
    # The first values of SplitMix64 from 1234567, as its authors' code prints them.
    random = Random(1234567)
    assert [random.below(1 << 64) for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_the_generator_reaches_every_value() -> None:
    random = Random(3)
    assert {random.between(-1, 3) for _ in range(200)} == {-1, 0, 1, 2, 3}
    items = list(range(50))
    random.shuffle(items)
    assert sorted(items) == list(range(50)) != items


def test_sentences_are_written_as_sentences() -> None:
    for german, english in ALL:
        assert not re.search(r"  |^ | $|\t|\n", german + "|" + english)
        assert german.endswith(".") == english.endswith(".")
        if german.endswith("."):
            assert german[0].isupper() and english[0].isupper()
        assert len(english.split()) <= 12 and len(german.split()) <= 12
    lengths = [len(english.split()) for _, english in ALL]
    assert sum(n >= 3 for n in lengths) / len(lengths) > 0.9


def test_dates_exist_and_fall_on_their_weekdays() -> None:
    months, weekdays = dict(number_names.MONTHS), dict(number_names.WEEKDAYS)
    order, names = list(months), list(weekdays)
    result = 0
    for german, english in ALL:
        full = re.fullmatch(r"am (\w+), dem (\d+)\. (\w+) (\d{4})", german)
        if full:
            result += 1
            day = date(int(full[4]), order.index(full[3]) + 1, int(full[2]))
            assert names[day.weekday()] == full[1]
            assert english == f"on {weekdays[full[1]]}, {months[full[3]]} {full[2]}, {full[4]}"
    assert result > 300


def test_words_and_digits_agree_across_the_languages() -> None:
    prices = amounts = 0
    for german, english in ALL:
        if price := re.fullmatch(r"Das kostet (\d+),(\d\d) Euro\.", german):
            prices += 1
            assert english == f"That costs {price[1]}.{price[2]} euros."
        elif amount := re.fullmatch(r"(\S+) (Euro|Dollar|Meter|Kilometer)", german):
            amounts += 1
            said = english.rpartition(" ")[0]
            if amount[1][0].isdigit():
                assert said == amount[1].replace(".", ",")
            else:
                assert parse_german(amount[1]) == parse_english(said)
                assert not amount[1].endswith("eins")
    assert prices > 200 and amounts > 500


def test_every_part_of_the_templates_is_in_the_training_split() -> None:
    """What the test split asks for can be learned: no word of it is new."""
    for side in (0, 1):
        vocabulary = {word for pair in CORPUS["train"] for word in re.findall(r"[A-Za-zäöüÄÖÜß']+", pair[side])}
        tables = (
            number_names.MONTHS,
            number_names.WEEKDAYS,
            number_names.THINGS,
            number_names.UNITS,
            number_names.ADJECTIVES,
        )
        assert {pair[side] for table in tables for pair in table} <= vocabulary
    # English words are few; German number words are many, and new ones are the point.
    new = {w for _, e in CORPUS["test"] for w in re.findall("[a-z']+", e.lower())}
    assert new <= {w for _, e in CORPUS["train"] for w in re.findall("[a-z']+", e.lower())}
