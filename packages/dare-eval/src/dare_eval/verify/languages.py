"""Which language a text is written in, as far as scripts and frequent words tell."""

import re
from collections import Counter
from typing import Final

__all__ = ["LANGUAGES", "language_fits"]

_SCRIPTS: Final = {
    "ar": "\u0600-\u06ff", "fa": "\u0600-\u06ff", "ur": "\u0600-\u06ff", "he": "\u0590-\u05ff", "el": "\u0370-\u03ff",
    "ru": "\u0400-\u04ff", "bg": "\u0400-\u04ff", "uk": "\u0400-\u04ff", "hi": "\u0900-\u097f", "mr": "\u0900-\u097f",
    "ne": "\u0900-\u097f", "bn": "\u0980-\u09ff", "pa": "\u0a00-\u0a7f", "gu": "\u0a80-\u0aff", "ta": "\u0b80-\u0bff",
    "te": "\u0c00-\u0c7f", "kn": "\u0c80-\u0cff", "ml": "\u0d00-\u0d7f", "th": "\u0e00-\u0e7f", "ko": "\uac00-\ud7af",
    "ja": "\u3040-\u30ff", "zh": "\u4e00-\u9fff",
}  # fmt: skip
_LETTERS: Final = {"fa": "پچژگ", "ur": "ٹڈڑےں", "uk": "іїєґ", "bg": "ъ", "ru": "ыэ"}
"""Letters that tell languages of one script apart: the one with the most of its own wins."""
_WORDS: Final = {
    "en": "the of and to in is that it was for with as on be at by this have from or had not are but what all were",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er",
    "es": "de la que el en y a los del se las por un para con no una su al lo como más pero sus le ya o este sí",
    "fr": "de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se ce il sont la avec",
    "it": "di e il la che in a per un è del non con le una si da dei al come più ma alla sono della nel anche lo",
    "pt": "de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à",
    "nl": "de van een het en in is dat op te zijn met voor die niet aan er om als ook dan maar bij nog uit wordt",
    "sv": "och i att det som en på är av för med till den har de inte om ett han men var jag från vi så kan när",
    "da": "og i at det er en til på som for med den de af ikke der han har et var fra jeg vi så kan blev være",
    "fi": "ja on ei se että oli hän mutta myös kun niin ovat joka tai kuin olla sen ole mukaan jos vain nyt",
    "pl": "w i na z się nie do to że jest o jak po co za od ale przez dla są tak jego był tym oraz który może",
    "vi": "và của là có được trong cho không một người những với các đã này để khi từ đến cũng như về ra rất",
    "sw": "na ya wa kwa ni katika za la cha kuwa hii ambayo kama au pia lakini hiyo watu yake hivyo sana si zaidi",
    "tr": "ve bir bu da de için ile olarak çok daha olan gibi ne kadar ama en sonra her o mi ya var değil ise",
    "id": "yang dan di dengan untuk tidak ini dari dalam itu pada adalah ke akan juga oleh saya bisa ada mereka",
    "cs": "a se v na je že to s z do o i jako by pro ale jsem za po od tak jeho které být jsou nebo už jen",
    "ro": "și de a în la cu pe o un care nu este din se pentru mai că ca sunt dar prin au fost sau ce după",
    "hu": "a az és hogy nem is egy de meg ez csak van volt mint el már vagy ha még azt ki kell lehet sem",
}  # fmt: skip
LANGUAGES: Final = frozenset({*_SCRIPTS, *_WORDS})
"""The codes (ISO 639-1) that can be told."""

_FREQUENT: Final = {code: frozenset(words.split()) for code, words in _WORDS.items()}
_WINDOW: Final = 20_000


def language_fits(text: str, code: str) -> bool:
    """Whether a text is written in a language.

    Most letters stand in its script and, where several share it, its own letters or frequent words are the most. Texts
    of a few words without any such word count as fitting: nothing speaks against it.

    Args:
        text: the text.
        code: one of `LANGUAGES`.

    Raises:
        ValueError: for another code.

    >>> language_fits("Der Hund und die Katze sind im Garten.", "de"), language_fits("सब ठीक है", "de")
    (True, False)
    """
    if code not in LANGUAGES:
        raise ValueError(f"expected a language of {', '.join(sorted(LANGUAGES))}, got {code!r}; drop the row")
    sample = text[:_WINDOW]
    letters = sum(character.isalpha() for character in sample)
    if not letters:
        return True
    if code in _SCRIPTS:
        own = len(re.findall(f"[{_SCRIPTS[code]}]", sample))
        if code == "zh" and re.search(f"[{_SCRIPTS['ja']}]", sample):
            return False
        if code == "ja":
            own += len(re.findall(f"[{_SCRIPTS['zh']}]", sample)) if own else 0
        return own > letters / 2 and _tells(sample, code)
    foreign = sum(len(re.findall(f"[{script}]", sample)) for script in set(_SCRIPTS.values()))
    if foreign > letters / 2:
        return False
    words = Counter(re.findall(r"[^\W\d_]+", sample.lower()))
    counts = {other: sum(words[word] for word in frequent) for other, frequent in _FREQUENT.items()}
    return counts[code] == max(counts.values())


def _tells(text: str, code: str) -> bool:
    """Among languages of one script, whether no other has more letters of its own."""
    rivals = [other for other, script in _SCRIPTS.items() if script == _SCRIPTS[code]]
    counts = {other: sum(text.count(letter) for letter in _LETTERS.get(other, "")) for other in rivals}
    return counts[code] == max(counts.values())
