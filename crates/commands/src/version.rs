//! Which MongoDB this server behaves as.

/// The version that clients are told.
pub const VERSION: &str = "8.0.0";
pub const VERSION_ARRAY: [i32; 4] = [8, 0, 0, 0];
/// `featureCompatibilityVersion` of a new directory, and those that it may be set to.
pub const FEATURE_VERSION: &str = "8.0";
pub const FEATURE_VERSIONS: &[&str] = &["7.0", FEATURE_VERSION, "8.2"];
/// The wire versions served: 0 since old drivers refuse a higher least one; 25 is MongoDB 8.0,
/// which brought bulkWrite.
pub const MIN_WIRE_VERSION: i32 = 0;
pub const MAX_WIRE_VERSION: i32 = 25;
/// Our own version.
pub const PANDO_VERSION: &str = env!("CARGO_PKG_VERSION");
