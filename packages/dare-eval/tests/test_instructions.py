"""The 25 verifiable instructions: each at its boundary, bad arguments, and text that means harm."""

import json
import random
import re
import time

import pytest

from dare_eval.testing import check_verdict, hostile_texts
from dare_eval.verify import instructions
from dare_eval.verify.instruction_rules import RULES, capital_words, sentences
from dare_eval.verify.instructions import SUPPORTED
from dare_eval.verify.languages import _LISTS, LANGUAGES, languages

pytestmark = pytest.mark.wheel


def judged(text, name, args=None, **options):
    verdict = instructions(text, [name], [args or {}], **options)
    check_verdict(verdict)
    return verdict


AT_LEAST, LESS = "at least", "less than"
CASES = [
    ("keywords:existence", {"keywords": ["sea", "Ice cream"]}, ["Seaside ICE CREAM"], ["the sea", "ice  cream, sea"]),
    (
        "keywords:frequency",
        {"keyword": " cat ", "frequency": 2, "relation": AT_LEAST},
        ["Cat, cat", "concatenate a cat", "cat cat cat"],
        ["a cat", "c a t"],
    ),
    (
        "keywords:frequency",
        {"keyword": "a.b", "frequency": 2, "relation": LESS},
        ["none", "a.b", "a.b axb"],
        ["a.b A.B", "a.ba.ba.b"],
    ),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["can", "C++"]},
        ["a candle, C and C++x", "Cannes, _can"],
        ["You CAN go", "yes we can.", "in c++, so"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "E", "let_frequency": 3, "let_relation": AT_LEAST},
        ["eEe", "the eel"],
        ["the el", "no letters of that sort"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 2, "let_relation": LESS},
        ["# title", "none"],
        ["## title", "# a # b"],
    ),
    ("language:response_language", {"language": "de"}, ["Das ist es, was ich nicht habe."], ["This is it", "12"]),
    ("language:response_language", {"language": "zh-cn"}, ["这是一本书"], ["これは本です", "이것은 책입니다"]),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": AT_LEAST},
        ["One. Two! Three?", 'He said "One." Two (2). Three'],
        ["One. Two!", "Mr. A. Smith left. Bye", "One\nTwo\nThree"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": LESS},
        ["One. Two!", "At 3.5 or 4.25 it stops, e.g. here. Yes..."],
        ["One. Two! Three?", "a. The b. The c. The d"],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a\n***\nb", "***a *** b***"],
        ["a", "a *** b *** c", "a ****** b", "a\n\nb"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 4, "relation": AT_LEAST},
        ["one two three four", "it's well-known"],
        ["one two three", "- one, two: three!"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 4, "relation": LESS},
        ["one two three", "..."],
        ["one two three four", "it's well-known"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "Then"},
        ["a\n\nthen b\n\nc", "a\n\n'\"Then, b\n\nc\n\n"],
        [
            "a\n\nthen b",
            "a\n\nb\n\nthen c",
            "a\n\nthen\n\nc\n\nd",
            "a\n\n\n\nthen b\n\nc",
            "a\n\nthence\n\nc",
            "\n\n.\n\nc",
        ],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[name] [address]", "[[a] and []"],
        ["[name] address]", "[a\n] [b]", "none"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Bye.\nP.S. hi", "p. s. hi"],
        ["PS hi", "P.S hi"],
    ),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["P.P.S. hi", "p. p.s hi"], ["P.S. hi", "PPS"]),
    ("detectable_content:postscript", {"postscript_marker": "N.B."}, ["Well, n.b. hi"], ["NB hi", "nxb. hi"]),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "text\n\n  * a\n- b\nend", "-a\n\n\n-b", "**bold**\n* a\n* b"],
        ["* a", "* a\n* b\n- c", "* a\n** b", "a * b\na - b", "1. a\n2. b"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is yes.", "Well: My answer is maybe. So."],
        ["My answer is yes", "my answer is no.", "My answer is certain."],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and **b**", "**a** **b**", "*a* *b* *c*"],
        ["*a*", "*a\nb* *c*", "** ** *a*", "***"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section ", "num_sections": 2},
        ["Section 1\na\nSection 2\nb", "Section1 Section22 Section 3"],
        ["Section 1\na", "section 1 section 2", "Section A Section B", "Section 12"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": [1, null]}', '```json\n{"a": 1}\n```', "```[]```", " 3 "],
        ["{'a': 1}", 'So: {"a": 1}', '{"a": 1', "[" * 100_000, "1" * 100_000],
    ),
    (
        "detectable_format:title",
        {},
        ["<<Joy>>\ntext", "a <<<b>> >>", "x\n<<a>>"],
        ["<Joy>", "<<>>", "<< >>", "<<a\n>>", ">>a<<"],
    ),
    (
        "combination:two_responses",
        {},
        ["a\n******\nb", "******a******b******"],
        ["a", "a****** a ", "a******b******c", "a************b", "a*****b"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Write a poem. "},
        ["Write a poem.\nRoses", "  write a POEM. So"],
        ["Write a poem", "Sure! Write a poem.", "Write  a poem. Roses"],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "Any other questions?"},
        ["Yes. Any other questions?", '"yes any OTHER questions?" \n'],
        ["Any other questions", "Any other questions? No.", "Any questions?"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": AT_LEAST},
        ["THE END.", "a WELL-KNOWN **NASA** fact", "DON'T"],
        ["The END", "a WELL-KNOWN fact", "NASA's"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": LESS},
        ["I am", "the end 42 ..."],
        ["I AM", "I am. I go"],
    ),
    (
        "change_case:english_capital",
        {},
        ["THIS IS THE END, MY FRIEND.", "42 YES"],
        ["THIS IS THE eND", "DAS IST NICHT DAS ENDE", "42"],
    ),
    (
        "change_case:english_lowercase",
        {},
        ["this is the end, my friend.", "yes 42"],
        ["This is the end", "das ist nicht das ende", "42", "这是一本书"],
    ),
    ("punctuation:no_comma", {}, ["no comma; none", "，"], ["a,b", "1,000"]),
    ("startend:quotation", {}, ['"a"', ' "a" and "b"\n', '""'], ['"', '"a', 'a"', "“a”"]),
]


@pytest.mark.parametrize(("name", "args", "kept", "broken"), CASES)
def test_each_instruction_at_its_boundary(name, args, kept, broken) -> None:
    assert len(broken) >= 2
    for text in kept:
        assert judged(text, name, args).reason == ""
    for text in broken:
        verdict = judged(text, name, args)
        assert (verdict.correct, verdict.score, verdict.parts) == (False, 0.0, {name: 0.0}), text
        assert verdict.reason.startswith(f"{name}: ")


def test_all_25_are_tried() -> None:
    assert len(SUPPORTED) == 25
    assert {case[0] for case in CASES} == set(SUPPORTED)


def test_several_instructions_are_judged_together() -> None:
    ids = ["punctuation:no_comma", "keywords:existence", "keywords:existence", "startend:quotation"]
    nulls = {"keywords": None, "num_words": None}
    rows = [nulls, {"keywords": ["a"], "num_words": None}, {"keywords": ["b"]}, nulls]
    verdict = instructions("a, c", ids, rows)
    check_verdict(verdict)
    assert verdict.parts == dict(zip([*ids[:2], "keywords:existence#2", ids[3]], [0.0, 1.0, 0.0, 0.0], strict=True))
    assert (verdict.correct, verdict.score, verdict.reason) == (False, 0.25, "punctuation:no_comma: 1 commas")
    verdict = instructions('"a b"', ids, rows)
    check_verdict(verdict)
    assert (verdict.correct, verdict.score) == (True, 1.0)
    assert set(verdict.parts.values()) == {1.0}


@pytest.mark.parametrize("loose", [False, True])
@pytest.mark.parametrize("text", ["", " ", "\n\n\t"])
def test_nothing_is_unparsable(text: str, loose: bool) -> None:
    verdict = judged(text, "punctuation:no_comma", loose=loose)
    assert (verdict.correct, verdict.reason) == (None, "empty completion")
    assert verdict.parts == {"punctuation:no_comma": 0.0}


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        ("Sure, here:\nno comma", "punctuation:no_comma", {}),
        ("no comma\nBye, you", "punctuation:no_comma", {}),
        ("Sure, here:\nno comma\nBye, you", "punctuation:no_comma", {}),
        ('**"quoted"**', "startend:quotation", {}),
        ('Here:\n*"quoted"*', "startend:quotation", {}),
        ('*"quoted"*\nBye', "startend:quotation", {}),
        ('Here:\n*"quoted"*\nBye', "startend:quotation", {}),
        ("the *end*", "startend:end_checker", {"end_phrase": "the end"}),
        ("Sure:\nWrite it. So", "combination:repeat_prompt", {"prompt_to_repeat": "Write it."}),
    ],
)
def test_loose_tries_less_of_the_text(text: str, name: str, args: dict) -> None:
    assert judged(text, name, args).correct is False
    assert judged(text, name, args, loose=True).correct is True


def test_loose_wants_text_to_be_left() -> None:
    for text in ("a, b", "a, b\nc, d", "a,\n*\nb,"):
        verdict = judged(text, "punctuation:no_comma", loose=True)
        assert verdict.correct is ("*" in text)
    assert judged("a,\nb,\nc,", "punctuation:no_comma", loose=True).reason == "punctuation:no_comma: 3 commas"


def test_the_prompt_stands_in_for_the_text_to_repeat() -> None:
    assert judged("Say it. So", "combination:repeat_prompt", {"prompt_to_repeat": None}, prompt="Say it.").correct
    assert not judged("Say it. So", "combination:repeat_prompt", {"prompt_to_repeat": "So"}, prompt="Say it.").correct


@pytest.mark.parametrize(
    ("ids", "rows", "why"),
    [
        ([], [], "got 0 and 0; pass the row's"),
        (["punctuation:no_comma"], [], "got 1 and 0; pass the row's"),
        (["punctuation:no_comma"], [None], "expected a mapping of arguments for punctuation:no_comma, got None"),
        (["punctuation:no_commas"], [{}], "expected an id of .*, got 'punctuation:no_commas'; drop"),
        (["punctuation:no_comma"], [{"num_words": 3}], r"got \['num_words'\] too; keep ids"),
        (["combination:repeat_prompt"], [{}], r"expected prompt_to_repeat for .*, got \[\]; add prompt_to_repeat"),
        (
            ["length_constraints:nth_paragraph_first_word"],
            [{"num_paragraphs": 2, "nth_paragraph": 3, "first_word": "a"}],
            "at most num_paragraphs=2, got 3",
        ),
    ],
)
def test_bad_rows_are_refused(ids: list, rows: list, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        instructions("text", ids, rows)


WRONG = {
    "an integer of at least 0": [-1, 2.0, "2", True, [2]],
    "an integer of at least 1": [0, 1.0, False],
    "a text that is not blank": ["", " ", 3, ["a"]],
    "a list of texts that are not blank": ["word", [], ["a", ""], [3], {}],
    "one character": ["", "ab", 3],
    "one of ['at least', 'less than']": ["at most", 3, ["at least"]],
}


@pytest.mark.parametrize("name", [name for name in SUPPORTED if RULES[name].needs])
def test_bad_arguments_are_refused(name: str) -> None:
    args = next(case[1] for case in CASES if case[0] == name)
    for key, kind in RULES[name].needs.items():
        for missing in ({k: v for k, v in args.items() if k != key}, {**args, key: None}):
            with pytest.raises(ValueError, match=f"expected {key} for {name}, got .*; add {key}"):
                instructions("text", [name], [missing])
        for value in WRONG.get(kind.says, ["tlh", "", 3, ["de"]]):
            with pytest.raises(ValueError, match=f"expected {key} of {name} to be {re.escape(kind.says)}, got"):
                instructions("text", [name], [{**args, key: value}])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("...", 0),
        ("Hello", 1),
        ("Hello world. This is it", 2),
        ("Dr. Smith met Mrs. Jones at St. Mary's.", 1),
        ("He came at 5 p.m. and left.", 1),
        ("He came at 5 p.m. The end.", 2),
        ("We sell cats, dogs, etc. They bark.", 2),
        ("We sell cats, dogs, etc. for money.", 1),
        ("J. R. R. Tolkien wrote it.", 1),
        ("So did I. Then he left.", 2),
        ("The U.S. Congress met. It voted.", 2),
        ("It costs $3.50. Or 4.", 2),
        ("It happened in 1999. Then it stopped.", 2),
        ("Wait... what? No... Yes!", 3),
        ("Well… maybe. Well… Maybe.", 3),
        ("What?! Really?? (Yes.) **No.** End", 5),
        ("“Stop.” He did.", 2),
        ("see example.com or a.b.c now", 1),
        ("这是一。这是二！这是三", 3),
        ("यह एक है। वह दो है।", 2),
        ("First line\n\nSecond line", 1),
    ],
)
def test_sentences(text: str, count: int) -> None:
    assert sentences(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("a B", 1),
        ("NASA, ESA; and R&D", 4),
        ("I'M IT'S CAN'T", 6),
        ("ROCK'N'ROLL", 1),
        ("A--B", 2),
        ("3D 42", 1),
    ],
)
def test_capital_words(text: str, count: int) -> None:
    assert capital_words(text) == count


SAMPLES = {
    "ar": "هذا هو الكتاب الذي قرأته في المدرسة مع صديقي، وقد كان ممتعا.",
    "bg": "Това е книгата, която прочетох, и тя беше много хубава.",
    "bn": "আমি বাংলায় গান গাই এবং বই পড়ি।",
    "de": "Das Buch, das ich gelesen habe, war nicht so gut wie die anderen.",
    "el": "Αυτό είναι το βιβλίο που διάβασα χθες.",
    "en": "The book that I read yesterday was not as good as they said.",
    "es": "El libro que leí ayer no era tan bueno como los otros.",
    "fa": "این کتابی است که دیروز خواندم و خیلی خوب بود.",
    "fi": "Kirja, jonka luin eilen, ei ollut niin hyvä kuin he sanoivat, mutta se oli pitkä.",
    "fr": "Le livre que j'ai lu hier n'était pas aussi bon que les autres.",
    "gu": "હું ગઈકાલે એક પુસ્તક વાંચતો હતો.",
    "he": "זה הספר שקראתי אתמול.",
    "hi": "यह वह किताब है जो मैंने कल पढ़ी थी और यह बहुत अच्छी थी।",
    "it": "Il libro che ho letto ieri non era buono come gli altri, ma è lungo.",
    "ja": "昨日読んだ本はとても面白かったです。",
    "kn": "ನಾನು ನಿನ್ನೆ ಒಂದು ಪುಸ್ತಕ ಓದಿದೆ.",
    "ko": "어제 읽은 책은 아주 재미있었습니다.",
    "ml": "ഞാൻ ഇന്നലെ ഒരു പുസ്തകം വായിച്ചു.",
    "mr": "हे पुस्तक मी काल वाचले आणि ते खूप चांगले आहे.",
    "ne": "यो किताब मैले हिजो पढेको हो र यो धेरै राम्रो छ।",
    "nl": "Het boek dat ik gisteren las, was niet zo goed als de andere.",
    "pa": "ਮੈਂ ਕੱਲ੍ਹ ਇੱਕ ਕਿਤਾਬ ਪੜ੍ਹੀ।",
    "pl": "Książka, którą wczoraj czytałem, nie była tak dobra jak inne, ale jest długa.",
    "pt": "O livro que eu li ontem não era tão bom como os outros, mas é muito longo.",
    "ru": "Это книга, которую я прочитал вчера, и она была очень хорошая.",
    "sv": "Boken som jag läste igår var inte så bra som de andra.",
    "sw": "Kitabu hiki ni kizuri sana na nilikisoma jana kwa furaha.",
    "ta": "நான் நேற்று ஒரு புத்தகம் படித்தேன்.",
    "te": "నేను నిన్న ఒక పుస్తకం చదివాను.",
    "th": "เมื่อวานฉันอ่านหนังสือเล่มหนึ่ง",
    "tr": "Dün okuduğum bu kitap çok güzel bir kitap ama o kadar uzun değil.",
    "uk": "Це книга, яку я прочитав вчора, і вона була дуже цікава.",
    "ur": "یہ وہ کتاب ہے جو میں نے کل پڑھی تھی اور یہ بہت اچھی تھی۔",
    "vi": "Cuốn sách mà tôi đọc hôm qua không hay như những cuốn khác.",
    "zh": "我昨天读的书很有意思。",
}


def test_every_language_is_told_from_the_others() -> None:
    assert sorted(SAMPLES) == list(LANGUAGES)
    for code, text in SAMPLES.items():
        assert languages(text) == languages(text.upper()) == (code,), code
        assert judged(text, "language:response_language", {"language": code}).correct is True
    assert all(len(words) >= 30 for group in _LISTS.values() for words in group.values())


def test_what_no_one_can_tell_is_several_languages_or_none() -> None:
    assert set(languages("Karaoke")) == {code for code in LANGUAGES if code in _LISTS["Latin"]}
    assert languages("باران") == ("ar", "fa", "ur")
    for text in ("", "42", "☃ ♥", "ⴰⴱ", "\ud800", "qwer asdf " * 20):
        assert languages(text) == ()


ROWS = list({name: (name, args) for name, args, _, _ in CASES}.values())
FRAGMENTS = (
    "***", "*", "**", "\n\n", "\n", "- ", "[", "]", "<<", ">>", "```", '"', "{", ":", ". ", "P.S.", "Section ", "é",
    "日", "ह", "ش", "ß", "İ", "\u0301", "\ud800", "\udfff", "a", "B", "1", "\x00", "\u2028", "?!",
)  # fmt: skip


def test_hostile_texts() -> None:
    rng = random.Random(0)
    texts = [text[:5000] for text in hostile_texts(200, seed=0)]
    texts += ["".join(rng.choices(FRAGMENTS, k=rng.randrange(60))) for _ in range(1800)]
    for i, text in enumerate(texts):
        for name, args in ROWS:
            check_verdict(instructions(text, [name], [args], loose=i % 2 == 0))


@pytest.mark.parametrize(
    "unit",
    [
        "word, ", "[", "[ ", "*", "*\n", "<<", "<<a\n", "\n", " ", ".", '."', '"', "Dr. ", "a. ", "p. ", "A'S",
        "Section 1", "\ud800", "{", "[[1],", "9", "a\n\n", "a***", "日。", "a\u0301", "c",
    ],
    ids=repr,
)  # fmt: skip
def test_a_long_text_takes_no_longer_than_its_length(unit: str) -> None:
    text = f"a.{unit * (1_000_000 // len(unit))}a"
    for name, args in ROWS:
        start = time.perf_counter()
        check_verdict(instructions(text, [name], [args]))
        assert time.perf_counter() - start < 2, name


def test_many_kinds_of_letters_take_no_longer() -> None:
    text = "".join(map(chr, range(0x110000)))
    start = time.perf_counter()
    check_verdict(judged(text, "language:response_language", {"language": "zh"}))
    assert time.perf_counter() - start < 2


def test_rows_survive_json() -> None:
    for name, args, kept, _ in CASES:
        assert instructions(kept[0], [name], json.loads(json.dumps([args]))).correct is True
