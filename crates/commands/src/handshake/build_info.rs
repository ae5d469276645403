//! `buildInfo`: version and build.

use crate::request::{CommandContext, Done};
use crate::version;
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let w = &mut cx.w;
    w.str("version", version::VERSION);
    w.str("gitVersion", "pandodb");
    w.open_array("modules").close();
    w.str("allocator", "system");
    w.str("javascriptEngine", "quickjs");
    w.str("sysInfo", "deprecated");
    w.open_array("versionArray");
    for n in version::VERSION_ARRAY {
        w.push_value(n);
    }
    w.close();
    w.open_doc("openssl")
        .str("running", "disabled")
        .str("compiled", "disabled")
        .close();
    w.open_doc("buildEnvironment");
    w.str("distmod", "")
        .str("distarch", std::env::consts::ARCH)
        .str("cc", "")
        .str("ccflags", "")
        .str("cxx", "")
        .str("cxxflags", "");
    w.str("linkflags", "")
        .str("target_arch", std::env::consts::ARCH)
        .str("target_os", std::env::consts::OS)
        .str("cppdefines", "");
    w.close();
    w.i32("bits", usize::BITS as i32)
        .bool("debug", cfg!(debug_assertions))
        .i32("maxBsonObjectSize", bson::MAX_DOC_BYTES as i32);
    w.open_array("storageEngines").push_value("rocksdb").close();
    w.open_doc("pandodb")
        .str("version", version::PANDO_VERSION)
        .close();
    Ok(Done::Reply)
}
