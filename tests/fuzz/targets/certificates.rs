//! What a certificate says of its owner, and files of certificates and keys.

pub fn read(input: &[u8]) {
    let Ok(certified) = certificates::read(input) else {
        return;
    };
    // A name is written in ASCII, whatever its bytes are, but for control characters of ASCII.
    assert!(certified.subject.is_ascii());
    assert!(certified.organization.is_sorted());
    // A name's content cannot make it another name: parts are parted by commas and pluses alone.
    for part in &certified.organization {
        assert!(certified.subject.contains(part.as_str()));
    }
    let again = certificates::read(input);
    assert_eq!(again.as_ref(), Ok(&certified));
}
