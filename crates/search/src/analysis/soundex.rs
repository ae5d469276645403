//! Daitch and Mokotoff's codes of how names sound.
//!
//! Source: the chart of Daitch–Mokotoff Soundex (Avotaynu, 1985), with the additions of Apache Commons Codec, which Lucene's
//! `DaitchMokotoffSoundexFilter` uses.

/// The digits of a code.
const DIGITS: usize = 6;
/// The most codes of a name: each letter with two sounds doubles them.
const MOST_CODES: usize = 64;

/// Letters, and what they sound like at the beginning, before a vowel, and elsewhere; `|` parts two sounds.
const RULES: [(&str, &str, &str, &str); 23] = [
    ("a e i o u", "0", "", ""),
    ("ai aj ay ei ej ey oi oj oy ue ui uj uy", "0", "1", ""),
    ("au", "0", "7", ""),
    ("b f fb p pf ph v w", "7", "7", "7"),
    ("c ch", "4|5", "4|5", "4|5"),
    ("chs ks x", "5", "54", "54"),
    ("ck", "5|45", "5|45", "5|45"),
    (
        "cs csz cz czs drs drz ds dsh dsz dz dzh dzs s sch sh sz tc tch trs trz ts tsch tsh tsz ttch tts ttsch ttsz ttz tz tzs z zh zs zsch zsh",
        "4",
        "4",
        "4",
    ),
    ("d dt t th", "3", "3", "3"),
    ("eu", "1", "1", ""),
    ("g k kh q", "5", "5", "5"),
    ("h", "5", "5", ""),
    ("ia ie io iu y", "1", "", ""),
    ("j", "1|4", "|4", "|4"),
    ("l", "8", "8", "8"),
    ("m n", "6", "6", "6"),
    ("mn nm", "66", "66", "66"),
    ("r", "9", "9", "9"),
    ("rs rz", "4|94", "4|94", "4|94"),
    (
        "sc schtch schtsch schtsh shch shtch shtsh stch strs strz stsch stsh szcs szcz zdz zdzh zhdzh",
        "2",
        "4",
        "4",
    ),
    ("schd scht sd shd sht st szd szt zd zhd", "2", "43", "43"),
    ("ą ę", "", "", "|6"),
    ("ţ ț", "3|4", "3|4", "3|4"),
];

/// Each word begins with the letter that the others are taken for.
const VARIANTS: &str = "aàáâãäåæ bþ cçć dð eèéêë iìíîï lł nñ oòóôõöø sßś uùúû yýÿ zżź";

#[derive(Clone)]
struct Branch {
    code: String,
    last: Option<&'static str>,
}

impl Branch {
    fn add(&self, sound: &'static str, forced: bool) -> Branch {
        let mut branch = self.clone();
        let new = self.last.is_none_or(|last| !last.ends_with(sound)) || forced;
        if new && branch.code.len() < DIGITS {
            branch.code.push_str(sound);
            branch.code.truncate(DIGITS);
        }
        branch.last = Some(sound);
        branch
    }
}

/// The codes of a name, in the order in which its sounds are told apart.
pub(super) fn codes(name: &str) -> Vec<String> {
    let name: Vec<char> = name
        .chars()
        .filter(|c| !c.is_whitespace())
        .filter_map(|c| c.to_lowercase().next())
        .map(plain)
        .collect();
    let mut branches = vec![Branch {
        code: String::new(),
        last: None,
    }];
    let mut before = '\0';
    let mut at = 0;
    while let Some(rest) = name.get(at..).filter(|r| !r.is_empty()) {
        let first = rest.first().copied().unwrap_or(' ');
        let Some((length, sounds)) = rule(rest, before == '\0') else {
            at += 1;
            continue;
        };
        let forced = matches!((before, first), ('m', 'n') | ('n', 'm'));
        let each = |b: &Branch| -> Vec<Branch> {
            sounds
                .split('|')
                .map(|sound| b.add(sound, forced))
                .collect()
        };
        let mut next: Vec<Branch> = Vec::new();
        for branch in branches.iter().flat_map(each) {
            let known = |b: &Branch| b.code == branch.code && b.last == branch.last;
            if !next.iter().any(known) && next.len() < MOST_CODES {
                next.push(branch);
            }
        }
        branches = next;
        before = first;
        at += length;
    }
    let mut out: Vec<String> = Vec::new();
    for branch in branches {
        let code = format!("{:0<DIGITS$}", branch.code);
        if !out.contains(&code) {
            out.push(code);
        }
    }
    out
}

/// How many letters sound, and like what, at the beginning of these: the rule with the most letters.
fn rule(rest: &[char], first: bool) -> Option<(usize, &'static str)> {
    let mut best: Option<(usize, &(&str, &str, &str, &str))> = None;
    for rule in &RULES {
        for letters in rule.0.split(' ') {
            let n = letters.chars().count();
            let longer = best.is_none_or(|(most, _)| n > most);
            if longer && letters.chars().eq(rest.iter().copied().take(n)) {
                best = Some((n, rule));
            }
        }
    }
    let (n, (_, start, vowel, other)) = best?;
    let before_vowel = matches!(rest.get(n), Some('a' | 'e' | 'i' | 'o' | 'u'));
    Some((
        n,
        match (first, before_vowel) {
            (true, _) => start,
            (false, true) => vowel,
            (false, false) => other,
        },
    ))
}

fn plain(c: char) -> char {
    let variants = VARIANTS
        .split(' ')
        .find(|v| v.chars().skip(1).any(|x| x == c));
    variants.and_then(|v| v.chars().next()).unwrap_or(c)
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_that_sound_alike_share_a_code() {
        assert_eq!(super::codes("Auerbach"), ["097400", "097500"]);
        assert_eq!(super::codes("Moskowitz"), super::codes("Moskovitz"));
        assert_eq!(super::codes("Rosochowaciec").len(), 8);
    }
}
