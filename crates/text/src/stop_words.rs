//! Words that say nothing about what a text is about. The lists are Snowball's (`stop_words/`), for
//! Romanian and Turkish, of which it has none, those of the crate `stop-words`, which the build
//! script writes down: linked, the crate brings its lists of all languages.

use foldhash::HashSet;
use std::sync::OnceLock;

type Words = HashSet<&'static str>;

macro_rules! lists {
    ($($name:literal => $text:expr,)*) => {
        /// The list of a language by its name.
        pub(crate) fn of(language: &str) -> Option<&'static Words> {
            match language {
                $($name => {
                    static LIST: OnceLock<Words> = OnceLock::new();
                    Some(LIST.get_or_init(|| $text.lines().filter(|w| !w.is_empty()).collect()))
                })*
                _ => None,
            }
        }
    };
}

macro_rules! snowball {
    ($name:literal) => {
        include_str!(concat!("../stop_words/", $name, ".txt"))
    };
}

macro_rules! written {
    ($name:literal) => {
        include_str!(concat!(env!("OUT_DIR"), "/", $name, ".txt"))
    };
}

lists!(
    "danish" => snowball!("danish"),
    "dutch" => snowball!("dutch"),
    "english" => snowball!("english"),
    "finnish" => snowball!("finnish"),
    "french" => snowball!("french"),
    "german" => snowball!("german"),
    "hungarian" => snowball!("hungarian"),
    "italian" => snowball!("italian"),
    "norwegian" => snowball!("norwegian"),
    "portuguese" => snowball!("portuguese"),
    "romanian" => written!("romanian"),
    "russian" => snowball!("russian"),
    "spanish" => snowball!("spanish"),
    "swedish" => snowball!("swedish"),
    "turkish" => written!("turkish"),
);
