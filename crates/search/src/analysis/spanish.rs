//! Singulars of Spanish plurals.
//!
//! Source: Lucene's `SpanishPluralStemmer`: the same words stay as they are, the same endings go.

/// Words that end like plurals and are none.
const SINGULAR: &str = "abrebotellas abrecartas abrelatas afueras albatros albricias aledaños alexis \
    alicates analisis andurriales antitesis añicos apendicitis apocalipsis arcoiris aries bilis boletus boris brindis \
    cactus canutas caries cascanueces cascarrabias ciempies cifosis cortaplumas corpus cosmos cosquillas creces crisis \
    cuatrocientas cuatrocientos cuelgacapas cuentacuentos cuentapasos cumpleaños doscientas doscientos dosis enseres \
    entonces esponsales estatus exequias fauces forceps fotosintesis gafas gafotas gargaras gris honorarios ictus \
    jueves lapsus lavacoches lavaplatos limpiabotas lunes maitines martes mondadientes novecientas novecientos nupcias \
    ochocientas ochocientos pais paris parabrisas paracaidas parachoques paraguas pararrayos pisapapeles piscis \
    portaaviones portamaletas portamantas quinientas quinientos quitamanchas recogepelotas rictus rompeolas \
    sacacorchos sacapuntas saltamontes salvavidas seis seiscientas seiscientos setecientas setecientos sintesis tenis \
    tifus trabalenguas vacaciones venus versus viacrucis virus viveres volandas";

/// Words that lose two letters against the rules.
const SPECIAL: &str = "yoes noes sies clubes faralaes albalaes itemes albumes sandwiches relojes bojes \
    contrarreloj carcajes";

/// The singular of a word in lower case, without accents.
pub(super) fn stem(word: &str) -> String {
    let n = word.chars().count();
    if n < 4 {
        return word.to_string();
    }
    let plain: Vec<char> = word.chars().map(without_accent).collect();
    let text: String = plain.iter().collect();
    let lower = text.to_lowercase();
    if SINGULAR.split_whitespace().any(|w| w == lower) {
        return text;
    }
    let ends = |last: &[char], by: &str| -> String {
        let kept = plain.get(..n - last.len()).unwrap_or(&[]);
        kept.iter().copied().chain(by.chars()).collect()
    };
    let [.., a, b, c, d] = plain[..] else {
        return text;
    };
    if SPECIAL.split_whitespace().any(|w| w == lower) {
        return ends(&[c, d], "");
    }
    if d != 's' {
        return text;
    }
    let before_u = matches!(a, 'q' | 'g') && b == 'u' && matches!(c, 'i' | 'e');
    let (one, two) = (ends(&[d], ""), ends(&[c, d], ""));
    if !is_vowel(c) || (a == 'q' || before_u) {
        return one;
    }
    let es = c == 'e';
    let after_vowel = is_vowel(a) && matches!(b, 'r' | 'd' | 'l' | 'n' | 'x');
    let after_i = matches!(a, 'u' | 'l' | 'r' | 't' | 'n') && b == 'i';
    if es && (after_vowel || matches!(b, 'y' | 'u' | 's') || after_i) {
        return two;
    }
    match (b, c) {
        (b, 'i') if is_vowel(b) || b == 'd' => ends(&[c, d], "y"),
        ('c', 'e') => ends(&[b, c, d], "z"),
        _ => one,
    }
}

fn is_vowel(c: char) -> bool {
    matches!(c, 'a' | 'e' | 'i' | 'o' | 'u')
}

fn without_accent(c: char) -> char {
    match c {
        'à' | 'á' | 'â' | 'ä' => 'a',
        'ò' | 'ó' | 'ô' | 'ö' => 'o',
        'è' | 'é' | 'ê' | 'ë' => 'e',
        'ù' | 'ú' | 'û' | 'ü' => 'u',
        'ì' | 'í' | 'î' | 'ï' => 'i',
        c => c,
    }
}
