//! Words, but addresses of pages and of mail as one each.
//!
//! Source: Lucene's `UAX29URLEmailTokenizer`, RFC 3986 and RFC 5321. A host without a scheme before it is one where its last
//! label is a top-level domain: of two letters, or one of those that are listed here.

use super::tokenizer;
use regex::Regex;
use std::sync::LazyLock;

/// Top-level domains of more than two letters: the generic ones of before 2012, and much used ones of later.
const DOMAINS: &str = "aero academy agency app arpa art asia bank biz blog business cat center city click \
    cloud club co coach com community company consulting coop design dev digital edu education email energy events \
    expert family finance fm fun games global gov group guide health help host house info ink int io jobs land law \
    legal life live ltd marketing media mil mobi money museum name net network news ninja one online org page partners \
    photo photos press pro productions pub realty rocks run school science services shop site social software solutions \
    space store studio support systems team tech technology tel tips today tools top travel tube tv university vip watch \
    website wiki win work works world xyz zone";

/// Two letters that are no country's domain look like other words; these are.
const COUNTRIES: &str = "ac ad ae af ag ai al am ao aq ar as at au aw ax az ba bb bd be bf bg bh bi bj bm bn bo br bs bt \
    bv bw by bz ca cc cd cf cg ch ci ck cl cm cn co cr cu cv cw cx cy cz de dj dk dm do dz ec ee eg er es et eu fi fj \
    fk fm fo fr ga gb gd ge gf gg gh gi gl gm gn gp gq gr gs gt gu gw gy hk hm hn hr ht hu id ie il im in io iq ir is it \
    je jm jo jp ke kg kh ki km kn kp kr kw ky kz la lb lc li lk lr ls lt lu lv ly ma mc md me mg mh mk ml mm mn mo mp \
    mq mr ms mt mu mv mw mx my mz na nc ne nf ng ni nl no np nr nu nz om pa pe pf pg ph pk pl pm pn pr ps pt pw py qa re \
    ro rs ru rw sa sb sc sd se sg sh si sj sk sl sm sn so sr ss st su sv sx sy sz tc td tf tg th tj tk tl tm tn to tr tt \
    tv tw tz ua ug uk us uy uz va vc ve vg vi vn vu wf ws ye yt za zm zw";

static ADDRESS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let label = r"[\p{L}\p{Nd}](?:[\p{L}\p{Nd}-]*[\p{L}\p{Nd}])?";
    let domains: Vec<&str> = COUNTRIES
        .split_whitespace()
        .chain(DOMAINS.split_whitespace())
        .collect();
    // The longest first, so that `com` is not taken for `co`.
    let mut domains = domains;
    domains.sort_by_key(|d| std::cmp::Reverse(d.len()));
    let strict = format!(r"(?:{label}\.)+(?:{})\b", domains.join("|"));
    let four = r"\d{1,3}(?:\.\d{1,3}){3}";
    let six = r"\[[0-9a-f:.]+\]";
    let mark = r"[\p{L}\p{Nd}\-_~.!$&'*+,;=:@]|%[0-9a-f]{2}";
    let path = format!(r"(?:/(?:{mark})*)*");
    let query = format!(r"(?:\?(?:{mark}|[/?])*)?");
    let fragment = format!(r"(?:\#(?:{mark}|[/?])*)?");
    let behind = format!("{path}{query}{fragment}");
    let loose = format!(r"(?:{label}(?:\.{label})*\.?|{six})");
    let user = r"(?:[\p{L}\p{Nd}\-_~.!$&'()*+,;=:%]+@)?";
    let atom = r"[\p{L}\p{Nd}!#$%&'*+\-/=?^_`{|}~]+";
    let all = format!(
        r"(?i)(?P<mail>{atom}(?:\.{atom})*@(?:{strict}|\[{four}\]))|(?P<url>(?:https?|ftp|file)://{user}{loose}(?::\d{{1,5}})?{behind}|(?:{strict}\.?|{four})(?::\d{{1,5}})?{behind})"
    );
    Regex::new(&all).ok()
});

/// The words of a text, with where they begin.
pub(super) fn words<'t>(text: &'t str) -> impl Iterator<Item = (usize, &'t str)> {
    let mut out: Vec<(usize, &'t str)> = Vec::new();
    let mut from = 0;
    let plain = |out: &mut Vec<(usize, &'t str)>, from: usize, to: usize| {
        // Word boundaries are those of the whole: an address begins and ends at one.
        let piece = text.get(from..to).unwrap_or("");
        for (at, word) in tokenizer::words(piece) {
            if let Some(word) = text.get(from + at..from + at + word.len()) {
                out.push((from + at, word));
            }
        }
    };
    for found in ADDRESS.iter().flat_map(|r| r.find_iter(text)) {
        let before = text
            .get(..found.start())
            .and_then(|t| t.chars().next_back());
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let address = found.as_str();
        plain(&mut out, from, found.start());
        out.push((found.start(), address));
        from = found.start() + address.len();
    }
    plain(&mut out, from, text.len());
    out.into_iter()
}
