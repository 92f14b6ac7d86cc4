//! What the linker made of the program.

/// What a program with packed relocations needs of the C library.
const NEEDED: &[u8] = b"GLIBC_ABI_DT_RELR\0";

#[test]
fn relocations_are_packed_if_the_build_asks_for_it() {
    if env!("CUELINE_RELOCATIONS") == "plain" {
        eprintln!("skipped: cli/build.rs asks for it with glibc 2.36 or newer on x86_64 only");
        return;
    }
    let program = std::fs::read(env!("CARGO_BIN_EXE_cueline")).expect("the program");
    assert!(
        program.windows(NEEDED.len()).any(|bytes| bytes == NEEDED),
        "the linker did not pack the relocations; see cli/build.rs"
    );
}
