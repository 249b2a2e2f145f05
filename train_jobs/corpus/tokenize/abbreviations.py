"""Words whose full stop does not end a sentence, for the languages that write one after an abbreviation.

One set serves every language, because the language of the text is unknown. A word is therefore listed only
if it is no common last word of a sentence in another language ("art.", "ed.", "on." are missing for that reason).
"""

from __future__ import annotations

NEVER_LAST_BY_LANGUAGE = {
    "English": "mr mrs ms dr prof st sr jr rev gen col capt lt sgt hon gov sen rep messrs vs cf al ca approx nos vol"
    " fig figs eq sec ch pp ed eds dept univ bros mt jan feb mar apr jun jul aug sep sept oct nov dec",
    "German": "bzw vgl evtl ggf inkl exkl zzgl abzgl bspw insb sog nr str bd kap hl dipl ing mio mrd tel geb gest verh"
    " röm griech lat engl frz ital jhd okt dez mär chr",
    "French": "mme mmes mlle mlles mgr av env janv févr avr juil déc éd",
    "Spanish": "sra sras sres srta dra dres ud uds vd vds pág págs núm avda gral lic arq mons admón apdo ee",
    "Portuguese": "sra srs profa exmo exma eng",
    "Italian": "sig sigg dott avv pag gen",
    "Dutch": "dhr mevr mw bijv blz drs ir",
    "Scandinavian": "f.eks t.ex bl.a jfr dvs kl",
    "Polish": "ul prof hab inż mgr tzw np św płk ks woj pow wg tys mln mld",
    "Czech and Slovak": "např tzv resp judr mudr phdr nám",
    "Romanian": "dl dna",
    "Turkish": "doç yrd örn bkz hz sn mah ltd",
    "Finnish": "esim toim ks",
    "Hungarian": "özv ifj",
    "Vietnamese and Indonesian": "tp gs ths pgs jl jend kec",
    "Russian, Ukrainian, Bulgarian": "им ул тыс млн млрд см стр рис св проф акад напр обл пос пер просп корп тел доц"
    " канд чл ред ст ім вул тис",
    "Greek": "δηλ δρ αγ καθ σελ αρ",
    "Arabic": "أ.د",
    "Hindi and Marathi": "डॉ प्रो श्री श्रीमती पं सं क्र ए बी सी डी ई एफ जी एच आई जे के एल एम एन ओ पी क्यू आर एस टी यू वी डब्ल्यू एक्स"
    " वाई जेड",
    "Bengali": "ডা ড মো প্রফ",
}
NEVER_LAST = frozenset(word for words in NEVER_LAST_BY_LANGUAGE.values() for word in words.split())

_BEFORE_ORDINAL = "am im der die das dem den des vom zum zur beim ein eine einem einer seinem ihrem seit ab bis"
BEFORE_ORDINAL = frozenset(_BEFORE_ORDINAL.split())
"""German words that precede a number written as an ordinal: "am 3. Oktober", "im 19. Jahrhundert"."""

_AFTER_ORDINAL = (
    "januar jänner februar märz april mai juni juli august september oktober november dezember jahrhundert jahrhunderts"
    " januari februari mars maj juni juli augusti januari maart mei augustus januára janeiro"
    " stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia wieku"
    " ledna února března dubna května června července srpna září října listopadu prosince století"
    " ocak şubat mart nisan mayıs haziran temmuz ağustos eylül ekim kasım aralık yüzyıl yüzyılda yüzyılın"
    " tammikuuta helmikuuta maaliskuuta huhtikuuta toukokuuta kesäkuuta heinäkuuta elokuuta syyskuuta lokakuuta"
    " marraskuuta joulukuuta desember århundre århundrede januar"
)
AFTER_ORDINAL = frozenset(_AFTER_ORDINAL.split())
"""Months and centuries that follow an ordinal, in languages that write it as a number with a full stop."""
