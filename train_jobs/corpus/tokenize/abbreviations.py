"""Words whose full stop does not end a sentence, for the languages that write one after an abbreviation.

One set serves every language, because the language of the text is unknown. A word is therefore listed only
if it is no common last word of a sentence in another language ("art.", "ed.", "on." are missing for that reason).
"""

from __future__ import annotations

NEVER_LAST_BY_LANGUAGE = {
    "English": "mr mrs ms dr prof st sr jr rev gen col capt lt sgt hon gov sen rep messrs vs cf al ca approx nos vol"
    " fig figs eq sec ch pp ed eds dept univ bros mt jan feb mar apr jun jul aug sep sept oct nov dec",
    "German": "bzw vgl evtl ggf inkl exkl zzgl abzgl bspw insb sog nr str bd kap hl dipl ing mio mrd tel geb gest verh"
    " röm griech lat engl frz ital jhd okt dez mär chr hr",
    "French": "mme mmes mlle mlles mgr av env janv févr avr juil déc éd",
    "Spanish": "sra sras sres srta dra dres ud uds vd vds pág págs núm avda gral lic arq mons admón apdo ee",
    "Portuguese": "sra srs profa exmo exma eng",
    "Italian": "sig sigg dott avv pag gen",
    "Dutch": "dhr mevr mw bijv blz drs ir",
    "Scandinavian": "f.eks t.ex bl.a jfr dvs kl skt",
    "Polish": "ul prof hab inż mgr tzw np św płk ks woj pow wg tys mln mld godz zm",
    "Czech and Slovak": "např napr tzv resp judr mudr phdr nám",
    "Romanian": "dl dna hr",
    "Turkish": "doç yrd örn bkz hz sn mah cad ltd",
    "Finnish": "esim toim ks",
    "Estonian, Latvian, Lithuanian": "nt lk piem plkst pvz žr",
    "Croatian, Serbian, Slovene": "npr",
    "Swahili": "dkt",
    "Hungarian": "özv ifj pl",
    "Vietnamese and Indonesian": "tp ts gs ths pgs jl jend kec hlm",
    "Russian, Ukrainian, Bulgarian": "им ул тыс млн млрд см стр рис св проф акад напр обл пос пер просп корп тел доц"
    " канд чл ред ст ім вул тис буд вкл",
    "Greek": "δηλ δρ αγ καθ σελ αρ βλ",
    "Arabic": "أ.د",
    "Hindi and Marathi": "डॉ प्रो श्री श्रीमती पं सं क्र ए बी सी डी ई एफ जी एच आई जे के एल एम एन ओ पी क्यू आर एस टी यू वी डब्ल्यू एक्स"
    " वाई जेड प्रा पु वि बा ई.स इ.स",
    "Bengali and Assamese": "ডা ড মো প্রফ এ কে এম এন এল এস আর এফ এইচ বি সি ডি জি পি",
    "Punjabi": "ਡਾ ਸ੍ਰੀ ਸ਼੍ਰੀ ਪ੍ਰੋ",
    "Gujarati": "ડૉ ડો શ્રી શ્રીમતી પ્રો ઈ.સ",
    "Odia": "ଡ ଡା ଡଃ ଶ୍ରୀ ପ୍ରୋ",
    "Tamil": "திரு திருமதி கி.பி கி.மு எஸ் எம் என் எல் ஆர் எச் எஃப் எக்ஸ் ஏ பி சி டி ஜி ஜே கே வி",
    "Telugu": "డా శ్రీ శ్రీమతి ప్రొ క్రీ.శ క్రీ.పూ ఎం ఎన్ ఎస్ ఆర్ ఎల్ ఎఫ్ హెచ్ కె జి పి వి టి సి డి బి",
    "Kannada": "ಡಾ ಶ್ರೀ ಶ್ರೀಮತಿ ಪ್ರೊ ಕ್ರಿ.ಶ ಕ್ರಿ.ಪೂ ಎಂ ಎನ್ ಎಸ್ ಆರ್ ಎಲ್ ಎಚ್ ಕೆ ಜಿ ಪಿ ವಿ ಟಿ ಸಿ ಡಿ ಬಿ",
    "Malayalam": "ഡോ ശ്രീ ശ്രീമതി പ്രൊഫ ക്രി.വ ക്രി.മു എം എൻ എസ് ആർ എൽ എഫ് കെ ജി പി വി ടി സി ഡി ബി",
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
    " januára februára marec marca apríla mája júna júla augusta septembra októbra novembra decembra storočia storočí"
    " januarja februarja aprila maja junija julija avgusta oktobra stoletja stoletju"
    " siječnja veljače ožujka travnja svibnja lipnja srpnja kolovoza rujna listopada studenoga stoljeća stoljeću"
    " jaanuaril veebruaril märtsil aprillil mail juunil juulil augustil septembril oktoobril novembril detsembril"
    " sajandil janvārī februārī martā aprīlī maijā jūnijā jūlijā augustā septembrī oktobrī novembrī decembrī gadsimtā"
    " maí júní júlí ágúst október nóvember öld században vuosisadalla vuosisadan århundradet"
)
AFTER_ORDINAL = frozenset(_AFTER_ORDINAL.split())
"""Months and centuries that follow an ordinal, in languages that write it as a number with a full stop."""

LIST_ENDS = frozenset({"т.д", "т.п"})
"""Russian "and so on". Ends a sentence before a capital, unlike other abbreviations of letters."""
