//! Words that say nothing about what a text is about. The lists are Snowball's (`stop_words/`), for
//! Romanian and Turkish, of which it has none, those of the crate `stop-words`.

use foldhash::HashSet;
use std::sync::OnceLock;

type Words = HashSet<&'static str>;

macro_rules! lists {
    ($($name:literal),* $(,)?) => {
        /// The list of a language by its name.
        pub(crate) fn of(language: &str) -> Option<&'static Words> {
            match language {
                $($name => {
                    static LIST: OnceLock<Words> = OnceLock::new();
                    let text = include_str!(concat!("../stop_words/", $name, ".txt"));
                    Some(LIST.get_or_init(|| text.lines().filter(|w| !w.is_empty()).collect()))
                })*
                "romanian" => {
                    static LIST: OnceLock<Words> = OnceLock::new();
                    Some(LIST.get_or_init(|| others("ro")))
                }
                "turkish" => {
                    static LIST: OnceLock<Words> = OnceLock::new();
                    Some(LIST.get_or_init(|| others("tr")))
                }
                _ => None,
            }
        }
    };
}

lists!(
    "danish",
    "dutch",
    "english",
    "finnish",
    "french",
    "german",
    "hungarian",
    "italian",
    "norwegian",
    "portuguese",
    "russian",
    "spanish",
    "swedish",
);

fn others(code: &str) -> Words {
    let words = stop_words::lookup(code).unwrap_or(&[]);
    words.iter().copied().collect()
}
