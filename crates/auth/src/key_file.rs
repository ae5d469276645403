//! The file with the secret that the members of a cluster share, as mongod reads it.

use base64::alphabet::STANDARD;

/// Characters of a key, at least and at most.
const FEWEST: usize = 6;
const MOST: usize = 1024;

/// The keys of a file: one text, or a YAML list of texts (to change a key without a stop: the first is
/// used, all are accepted). Whitespace inside a key does not count. The error is a sentence.
pub fn parse(text: &str) -> Result<Vec<String>, String> {
    let is_list = text.lines().any(|l| l.trim_start().starts_with("- "));
    let raw: Vec<&str> = match is_list {
        true => text
            .lines()
            .filter_map(|l| l.trim_start().strip_prefix("- "))
            .collect(),
        false => vec![text],
    };
    let keys: Vec<String> = raw
        .into_iter()
        .map(|key| key.chars().filter(|c| !c.is_whitespace()).collect())
        .map(|key: String| key.trim_matches(['"', '\'']).to_string())
        .collect();
    for key in &keys {
        check(key)?;
    }
    match keys.is_empty() {
        true => Err("it holds no key".into()),
        false => Ok(keys),
    }
}

fn check(key: &str) -> Result<(), String> {
    let allowed = |c: char| c == '=' || c.is_ascii() && STANDARD.as_str().contains(c);
    if let Some(c) = key.chars().find(|c| !allowed(*c)) {
        return Err(format!(
            "'{}' is no character of base64",
            c.escape_default()
        ));
    }
    match key.len() {
        n if n < FEWEST => Err(format!(
            "the key has {n} characters, and must have between {FEWEST} and {MOST}"
        )),
        n if n > MOST => Err(format!(
            "the key has {n} characters, and must have between {FEWEST} and {MOST}"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_base64_between_bounds() {
        assert_eq!(parse("abc def\n123\n").unwrap(), ["abcdef123"]);
        assert_eq!(
            parse("- abcdef\n- 'ghijkl='\n").unwrap(),
            ["abcdef", "ghijkl="]
        );
        assert!(parse("short").is_err() && parse("").is_err());
        assert!(parse(&"a".repeat(1024)).is_ok() && parse(&"a".repeat(1025)).is_err());
        assert!(parse("abc%defg").unwrap_err().contains('%'));
    }
}
