//! The file of the program.

use std::process::Command;

/// The C library's name for what a program with packed relocations needs.
const PACKED: &[u8] = b"GLIBC_ABI_DT_RELR\0";

#[test]
fn the_loader_gets_packed_relocations() {
    let version = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let minor = version
        .as_deref()
        .ok()
        .and_then(|text| text.strip_prefix("glibc 2."))
        .and_then(|minor| minor.parse::<u32>().ok());
    if minor.is_none_or(|minor| minor < 36) {
        eprintln!("skipped: the C library is {version:?}, and needs to be glibc 2.36 or newer");
        return;
    }
    let program = std::fs::read(env!("CARGO_BIN_EXE_cueline")).expect("the program");
    assert!(
        program.windows(PACKED.len()).any(|bytes| bytes == PACKED),
        "the linker did not pack the relocations; see cli/build.rs"
    );
}
