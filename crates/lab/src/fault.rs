//! Why the laboratory stopped. Each is one line for a person; the kind decides the exit code.

use std::fmt;

pub type Result<T, E = Fault> = std::result::Result<T, E>;

#[derive(Clone, Debug)]
pub enum Fault {
    /// The user asked for something that does not exist or does not fit together.
    Usage(String),
    /// The target cannot be reached, or answered with an error.
    Target(String),
    /// The target refused a statement because of another that ran beside it (a deadlock, a write conflict), and would
    /// have it said again.
    Conflict(String),
    /// The target answered, and the answer is wrong: a count, a document, an order.
    Check(String),
    /// A file, a process or another thing of this machine failed.
    Local(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Usage(m) | Fault::Target(m) | Fault::Conflict(m) | Fault::Local(m) => {
                f.write_str(m)
            }
            Fault::Check(m) => write!(f, "wrong answer: {m}"),
        }
    }
}

impl Fault {
    /// A fault of a target with the URL that the user knows it by.
    pub fn at(self, url: &str) -> Fault {
        match self {
            Fault::Target(m) if !m.contains(url) => Fault::Target(format!("{url}: {m}")),
            other => other,
        }
    }
}

impl std::error::Error for Fault {}

impl From<outgoing::Error> for Fault {
    fn from(e: outgoing::Error) -> Fault {
        match e {
            outgoing::Error::Usage(why) => Fault::Usage(why),
            outgoing::Error::Failed(why) => Fault::Target(why),
        }
    }
}

/// Adds the attempted action to an I/O error.
pub fn local(doing: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Fault {
    move |e| Fault::Local(format!("{doing}: {e}"))
}

/// The same for the socket to a target.
pub fn target(doing: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Fault {
    move |e| Fault::Target(format!("{doing}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_named_once() {
        let url = "mongodb://h:1/";
        let lost = Fault::Target("127.0.0.1:1 closed a connection".into()).at(url);
        assert_eq!(
            lost.to_string(),
            "mongodb://h:1/: 127.0.0.1:1 closed a connection"
        );
        assert_eq!(lost.clone().at(url).to_string(), lost.to_string());
        assert!(matches!(Fault::Check("x".into()).at(url), Fault::Check(_)));
    }
}
