//! How a tool begins: the words behind its name, help where that is asked for, a sentence where the words are wrong.

use std::ffi::OsString;
use std::process::ExitCode;

/// The words as text; what is no UTF-8 in them is replaced.
pub fn texts(args: &[OsString]) -> Vec<String> {
    let texts = args.iter().map(|a| a.to_string_lossy().into_owned());
    texts.collect()
}

/// Whether help is asked for anywhere among the words.
pub fn ask_help(words: &[String]) -> bool {
    words.iter().any(|w| w == "--help" || w == "-h")
}

/// Whether help is all that is asked for.
pub fn ask_help_alone(args: &[OsString]) -> bool {
    matches!(args, [help] if help == "--help" || help == "-h")
}

/// What the words say; else the tool ends with this code, after its help or what is wrong.
pub fn parsed<T>(
    tool: &str,
    help: Option<&str>,
    parse: impl FnOnce() -> Result<T, String>,
) -> Result<T, ExitCode> {
    if let Some(help) = help {
        print!("{help}");
        return Err(ExitCode::SUCCESS);
    }
    parse().map_err(|says| {
        eprintln!("pando: {says} (see pando {tool} --help)");
        ExitCode::from(2)
    })
}
