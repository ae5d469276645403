//! Bent messages of logins.

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../../../tests/fuzz/targets/sasl.rs"]
mod targets;

#[test]
fn messages() {
    let seeds = [
        b"n,,n=user,r=abc\0c=biws,r=abcserver,p=AAAAAAAAAAAAAAAAAAAAAAAAAAA=".to_vec(),
        b"y,a=us=2Cer,n=us=2Cer,r=abc\0c=eSws,r=abcserver,p=AAAA".to_vec(),
        b"- abcdef\n- 'ghijkl='\n".to_vec(),
    ];
    mutate::fuzz("sasl", &seeds, targets::messages);
}
