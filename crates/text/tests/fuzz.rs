//! Bent searches and texts.

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../../../tests/fuzz/targets/text.rs"]
mod targets;

#[test]
fn searches() {
    let seeds = [
        "3coffee \"quick brown\" -tea\nThe quick brown foxes' coffee"
            .as_bytes()
            .to_vec(),
        "sлужба \"и книга\" -\"a b\"\nважная служба, и книга"
            .as_bytes()
            .to_vec(),
        "\u{3f}İstanbul ILIK\nIlık İstanbul — naïve ǅ ﬁ"
            .as_bytes()
            .to_vec(),
        b"\x05\"unclosed - -x\n\x00a\x00b".to_vec(),
    ];
    mutate::fuzz("text", &seeds, targets::searches);
}
