//! Bent certificates, beginning with one of a name that needs care, and with roles in it.

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../../../tests/fuzz/targets/certificates.rs"]
mod targets;

const CERTIFICATE: &[u8] = include_bytes!("certificate.der");

#[test]
fn what_the_certificate_says() {
    let read = certificates::read(CERTIFICATE).unwrap();
    assert_eq!(
        read.subject,
        "CN=J\\C3\\B6rg\\, \\C3\\96\\C3\\9F,OU=U\\+1,O=Pando"
    );
    assert_eq!(read.organization, ["O=Pando", "OU=U\\+1"]);
    let role = |role: &str, db: &str| (role.to_string(), db.to_string());
    assert_eq!(
        read.roles,
        Some(vec![role("readWrite", "shop"), role("clerk", "admin")])
    );
}

#[test]
fn certificates() {
    mutate::fuzz("certificates", &[CERTIFICATE.to_vec()], targets::read);
}
