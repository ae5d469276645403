//! What can go wrong while a script runs, before it is an error that a client sees.

use errors::Error;

/// An exception of the script waits in its context; anything else is ready to be told.
pub enum ScriptFault {
    Script(rquickjs::Error),
    Own(Error),
}

impl From<rquickjs::Error> for ScriptFault {
    fn from(e: rquickjs::Error) -> ScriptFault {
        ScriptFault::Script(e)
    }
}
