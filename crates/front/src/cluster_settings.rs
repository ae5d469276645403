//! Settings of the whole cluster, which the configuration set keeps, by the `_id` of their documents in
//! `config.settings`.

pub const FEATURE_VERSION: &str = "featureCompatibilityVersion";
pub const WRITE_BLOCK: &str = "userWriteBlock";
pub const RW_CONCERN: &str = "ReadWriteConcernDefaults";
pub const QUERY_SETTINGS: &str = "querySettings";
/// Before the name of a cluster parameter.
pub const PARAMETER_PREFIX: &str = "clusterParameter.";

/// Whether a setting is one of the whole cluster, by the `_id` of its document.
pub fn is_of_cluster(id: &str) -> bool {
    let named = [FEATURE_VERSION, WRITE_BLOCK, RW_CONCERN, QUERY_SETTINGS];
    named.contains(&id) || id.starts_with(PARAMETER_PREFIX)
}
