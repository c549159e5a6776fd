"""Which languages a text may be in: by script, telling letters and frequent words. A guess good enough for a verdict.

>>> languages("It is not the case that they were here."), languages("Das ist nicht der Fall, und sie war es nicht.")
(('en',), ('de',))
"""

import re
from bisect import bisect_right
from collections import Counter
from typing import Final

__all__ = ["LANGUAGES", "languages"]

_FEW: Final = 10
"""A text of fewer words than this is not held against a language for having none of its frequent ones."""

_SCRIPTS: Final = (
    ("Latin", 0x41, 0x24F), ("Greek", 0x370, 0x3FF), ("Cyrillic", 0x400, 0x52F), ("Hebrew", 0x590, 0x5FF),
    ("Arabic", 0x600, 0x6FF), ("Arabic", 0x750, 0x77F), ("Devanagari", 0x900, 0x97F), ("Bengali", 0x980, 0x9FF),
    ("Gurmukhi", 0xA00, 0xA7F), ("Gujarati", 0xA80, 0xAFF), ("Tamil", 0xB80, 0xBFF), ("Telugu", 0xC00, 0xC7F),
    ("Kannada", 0xC80, 0xCFF), ("Malayalam", 0xD00, 0xD7F), ("Thai", 0xE00, 0xE7F), ("Hangul", 0x1100, 0x11FF),
    ("Latin", 0x1E00, 0x1EFF), ("Greek", 0x1F00, 0x1FFF), ("Kana", 0x3040, 0x30FF), ("Hangul", 0x3130, 0x318F),
    ("Han", 0x3400, 0x4DBF), ("Han", 0x4E00, 0x9FFF), ("Hangul", 0xAC00, 0xD7AF), ("Arabic", 0xFB50, 0xFDFF),
    ("Arabic", 0xFE70, 0xFEFF), ("Han", 0x20000, 0x323AF),
)  # fmt: skip
_STARTS: Final = [first for _, first, _ in _SCRIPTS]

_ONLY: Final = {
    "Bengali": "bn", "Greek": "el", "Gujarati": "gu", "Gurmukhi": "pa", "Hangul": "ko", "Hebrew": "he",
    "Japanese": "ja", "Kannada": "kn", "Malayalam": "ml", "Tamil": "ta", "Telugu": "te", "Thai": "th", "Chinese": "zh",
}  # fmt: skip
"""Scripts that stand for one language here."""

_WORDS: Final = {
    "Latin": {
        "de": "aber als an auch auf aus bei das dem den der die ein eine einem einen einer er es für haben hat ich ihr "
        "im ist kann mit nach nicht oder sich sie sind und von werden wie wir wird zu zum zur",
        "en": "a about all an and any are as at be been but by can do for from had has have he her his how i if "
        "in into is it its just like me more my no not of on one or our out she so some than that the "
        "their them then there these they this to up was we were what when which who will with would you "
        "your",
        "es": "a al como con cuando de del el en entre es esta este está fue hay la las le lo los muy más no para pero "
        "por porque que se ser sin sobre son su sus también todo un una y ya",
        "fi": "ei että he hyvin hän ja jos jotka joka kaikki koska kuin kun me minä mitä mukaan mutta myös niin nyt "
        "ole olen oli on ovat se sekä sen siitä sinä sitä tai tämä vain voi",
        "fr": "au aux avec ce cette dans de des du elle en est et il je la le les mais ne nous on ont ou par pas plus "
        "pour qu que qui sa se ses son sont sur un une vous être à",
        "it": "a al alla anche che come con da dei del della delle di e essere gli ha i il in la le lo ma molto nel "
        "non o per più questa questo se si sono su un una è",
        "nl": "aan als bij dan dat de deze die dit door een en er heeft het hij ik in is je kan maar met naar niet nog "
        "of om ook op over te uit van voor we wel wordt worden zij zijn",
        "pl": "ale bardzo był była być co czy dla do i ich jak jego jej jest już która które który może na nie o od "
        "oraz po przez są się ta tak także ten tego to w z za że",
        "pt": "a ao as com como da das de do dos e ela ele em está foi isso mais mas muito na nas no nos não o os para "
        "por que se seu sua são também um uma você à é",
        "sv": "alla att av de den det detta eller en ett från för han har hon här inte jag kan med men mycket när och "
        "också om på sin ska som så till vad var vi är",
        "sw": "ambayo au baada bila cha hapa hata hii hivyo hiyo huo ili kama katika kila kuwa kwa la lakini mimi moja "
        "na ni pia sana si tu vya wa wake watu ya yako yangu yao za zaidi",
        "tr": "ama ben bir biz bu bunu da daha de değil en gibi her için ile ise kadar ki mi nasıl ne o olan olarak "
        "olduğu sen sonra tüm var ve veya çok önce şey şu",
        "vi": "bạn cho có cũng các của hay khi không là làm một người nhiều như nhưng những nếu phải ra rất sẽ thì "
        "trong trên tôi từ và vào về với đã đó được đến để này",
    },
    "Cyrillic": {
        "bg": "ако бъде в да е за и или има като към който които което много може на не ни но още от по през при с са "
        "само се след също със това тази този че ще",
        "ru": "бы был быть в все вы для его если есть её же за и из или как который когда мы на не но он от очень по с "
        "так также только у уже что это я может",
        "uk": "або але б бути був в ви від він вже для до дуже є його з за и і коли ми може на не про після та так "
        "також у це ці що я як якщо який її",
    },
    "Devanagari": {
        "hi": "अपने आप इस उस एक और कर का कि किया की कुछ के को गया जा जो तो था थी थे ने नहीं पर भी में मैं यह या लिए वह "
        "साथ से हम ही है हैं हो",
        "mr": "अनेक असे आणि आपण आपल्या आम्ही आहे आहेत एक करून काय की केले खूप झाले तर ती तुम्ही ते तो त्या त्यांच्या "
        "नाही पण मध्ये माझा माझे मी म्हणून या व सर्व साठी हा ही हे होता होती होते",
        "ne": "अनि उनी एक का कि की को गरेको गर्छ गर्न गर्नु छ छन् छैन जस्तै तथा तपाईं तर त्यो थियो धेरै पनि बाट भएको "
        "भने म मा यस यो र लागि लाई ले वा सबै साथ हामी हुन् हुन्छ हो",
    },
    "Arabic": {
        "ar": "أن أنا أنت أو أي إلى إن التي الذي بعد بين ثم حيث ذلك على عن عند غير في قد كان كل كما لا لكن لم ما مع "
        "من نحن هذا هذه هو هي و يمكن",
        "fa": "آن از است اما او اگر این با باید بر برای بود به تا خود در دارد را شده شما شود ما من می نیز ها های هر هم "
        "و چه کرد کند که یا یک",
        "ur": "آپ اس اور اپنے ایک بھی بہت تو تھا تھی تھے جو ساتھ سے میں نہیں نے وہ پر کا کر کو کچھ کہ کی کیا کے گیا "
        "لئے لیے ہم ہو ہی ہے ہیں یا یہ",
    },
}
"""Frequent words of the languages that share a script."""

_TELLING: Final = {
    "ar": "ةىيكأإه", "bg": "ъ", "fa": "پچژگکیه", "mr": "ळ", "ru": "ыэё", "uk": "іїєґ", "ur": "ٹڈڑںےہھپچگکی",
}  # fmt: skip
"""Letters that speak for a language against the others of its script; each counts like a frequent word."""

LANGUAGES: Final = tuple(sorted([*_ONLY.values(), *(code for group in _WORDS.values() for code in group)]))
"""The codes that `languages` can name."""

_LISTS: Final = {
    script: {code: frozenset(words.split()) for code, words in group.items()} for script, group in _WORDS.items()
}
_WORD: Final = re.compile(r"[^\s\d.,;:!?…।॥،؛؟()\[\]{}\"“”„«»'’‘*_#/\\<>|=+~`—–\u200c-]+")


def languages(text: str) -> tuple[str, ...]:
    """The languages that a text may be in: of the script that has most of its letters, the ones that score highest.

    Several where nothing tells them apart, as in a few words that all of them may have; none for a text without letters
    of a known script, or a longer one without a single frequent word.

    >>> languages("Это не то, что мы хотели"), languages("これは本です"), languages("1 + 1 = 2")
    (('ru',), ('ja',), ())
    """
    text = text.lower()
    letters = Counter(text)
    script = _script(letters)
    if script is None or script in _ONLY:
        return () if script is None else (_ONLY[script],)
    words = Counter(_WORD.findall(text))
    scores = {
        code: sum(words[word] for word in known) + sum(letters[letter] for letter in _TELLING.get(code, ""))
        for code, known in _LISTS[script].items()
    }
    best = max(scores.values())
    if best == 0 and words.total() >= _FEW:
        return ()
    return tuple(code for code, score in scores.items() if score == best)


def _script(letters: Counter[str]) -> str | None:
    """The script of most letters; kanji and kana count together, as Chinese where there is next to no kana."""
    counts: Counter[str] = Counter()
    for letter, count in letters.items():
        if letter.isalpha():
            name, _, last = _SCRIPTS[bisect_right(_STARTS, ord(letter)) - 1]
            counts[name if ord(letter) <= last else ""] += count
    del counts[""]
    kana, han = counts.pop("Kana", 0), counts.pop("Han", 0)
    if kana + han:
        counts["Japanese" if 10 * kana >= kana + han else "Chinese"] = kana + han
    return max(counts, key=lambda name: counts[name]) if counts else None
