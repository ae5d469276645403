//! `pando rekey DIR`: another master key for an encrypted data directory; and the master key of tools that read one.

use crate::tool_words;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use storage::at_rest;

const HELP: &str = "\
Gives an encrypted data directory that no server has open another master key. The directory's own key
is wrapped anew, so it takes no time; the data stay as they are. Backups that were made before keep the
key that they were made under.

Usage: pando rekey DIR --encryptionKeyFile OLD --newKeyFile NEW

  OLD, NEW   32 bytes in base64, as openssl rand -base64 32 makes them, readable for their owner only
";

const OPTION: &str = "--encryptionKeyFile";

/// Takes the key file of encrypted directories out of a tool's words, and the process gets its key.
pub fn take_key(words: &mut Vec<OsString>) -> Result<(), String> {
    match taken(words, OPTION)? {
        Some(path) => at_rest::use_key_file(&path).map_err(errors::Error::into_message),
        None => Ok(()),
    }
}

/// As [`take_key`], of words that are for servers too and stay.
pub fn look_for_key(words: &[OsString]) -> Result<(), String> {
    take_key(&mut words.to_vec())
}

/// The value of an option, which goes from the words.
fn taken(words: &mut Vec<OsString>, option: &str) -> Result<Option<PathBuf>, String> {
    let with_value = format!("{option}=");
    let is_it = |w: &OsString| {
        let word = w.to_string_lossy();
        word == option || word.starts_with(&with_value)
    };
    let Some(at) = words.iter().position(is_it) else {
        return Ok(None);
    };
    let word = words.remove(at);
    if let Some(value) = word.to_string_lossy().strip_prefix(&with_value) {
        return Ok(Some(value.into()));
    }
    match at < words.len() {
        true => Ok(Some(words.remove(at).into())),
        false => Err(format!("{option} wants a value")),
    }
}

pub fn main(mut words: Vec<OsString>) -> ExitCode {
    let help = tool_words::ask_help_alone(&words).then_some(HELP);
    let new = match tool_words::parsed("rekey", help, || taken(&mut words, "--newKeyFile")) {
        Ok(new) => new,
        Err(code) => return code,
    };
    let (dir, new) = match (&words[..], new) {
        ([dir], Some(new)) if !dir.to_string_lossy().starts_with('-') => (Path::new(dir), new),
        _ => {
            eprintln!(
                "pando: rekey wants a data directory, {OPTION} and --newKeyFile (see pando rekey --help)"
            );
            return ExitCode::from(2);
        }
    };
    // A member of a set has its own `local` beside.
    let beside = dir.join("local");
    let rekeyed = at_rest::rekey(dir, &new).and_then(|()| match beside.is_dir() {
        true => at_rest::rekey(&beside, &new),
        false => Ok(()),
    });
    match rekeyed {
        Ok(()) => {
            println!(
                "{} has another master key: start its server with {OPTION} {}",
                dir.display(),
                new.display()
            );
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("pando: the key stays as it was: {}", e.into_message());
            ExitCode::from(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_taken_with_its_value_wherever_it_stands() {
        let words = |text: &str| {
            text.split_whitespace()
                .map(OsString::from)
                .collect::<Vec<_>>()
        };
        for (given, value, left) in [
            ("DIR --k F", Some("F"), "DIR"),
            ("--k=F DIR", Some("F"), "DIR"),
            ("DIR --kk F", None, "DIR --kk F"),
        ] {
            let mut all = words(given);
            assert_eq!(taken(&mut all, "--k").unwrap(), value.map(PathBuf::from));
            assert_eq!(all, words(left));
        }
        assert!(taken(&mut words("DIR --k"), "--k").is_err());
    }
}
