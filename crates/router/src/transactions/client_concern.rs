//! The write concern that a client has given, as the steps of a router's command take it.

use crate::request::RoutedCommand;
use bson::{Doc, Val};
use cluster_view::write_concern::more_than_majority;

/// The client's write concern, if a majority may not be enough for it.
pub(crate) fn beyond_majority<'a>(command: &RoutedCommand<'a>) -> Option<Doc<'a>> {
    let given = command.write_concern()?;
    more_than_majority(given).then_some(given)
}

/// The concern of a step that waits for a majority in any case: the client's where that asks for no
/// less, with its time.
pub(crate) fn at_least_majority<'a>(command: &RoutedCommand<'a>) -> Option<Doc<'a>> {
    let given = command.write_concern()?;
    let named = given.get("w").and_then(Val::as_str) == Some("majority");
    beyond_majority(command).or(named.then_some(given))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targeting::testing::with_command;

    #[test]
    fn steps_wait_for_a_majority_or_more() {
        for (concern, beyond, waits) in [
            ("", false, false),
            (r#","writeConcern":{"w":1}"#, false, false),
            (
                r#","writeConcern":{"w":"majority","wtimeout":5}"#,
                false,
                true,
            ),
            (r#","writeConcern":{"w":3}"#, true, true),
            (r#","writeConcern":{"w":"tagged"}"#, true, true),
            (r#","writeConcern":{"j":true}"#, false, false),
        ] {
            with_command(&format!(r#"{{"drop":"c"{concern}}}"#), |command| {
                let told = (
                    beyond_majority(command).is_some(),
                    at_least_majority(command).is_some(),
                );
                assert_eq!(told, (beyond, waits), "{concern}");
            });
        }
    }
}
